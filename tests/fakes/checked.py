"""A check in this process: reference and candidate in sessions of their own, the judge's own room between them."""

from __future__ import annotations

import random
from hashlib import sha256
from pathlib import Path

from fakes.cell import InProcessCell
from tilewright.judge.check import draws
from tilewright.judge.check.check import Check, Findings, RefusedByCheck
from tilewright.judge.check.plan import Trial, trials_for
from tilewright.judge.check.trials import run
from tilewright.judge.client import CellLimits
from tilewright.judge.memory.case_memory import CaseMemory
from tilewright.judge.memory.places import CaseMemorySizes
from tilewright.judge.wire import messages as wire


class Problem:
    """A problem file's text, described."""

    def __init__(self, source: str) -> None:
        self.cell = InProcessCell()
        self.cell.do(wire.LoadProblem(path="/nowhere/p.py", source=source, cases=("{}",), compiled=False))
        self.cell.ask(wire.ConstructCase(case=0, seed=1), wire.Constructed, limit_s=60.0)
        self.described = self.cell.ask(wire.Describe(seed=2, trace=False), wire.Described, limit_s=60.0)

    def trials(self, seed: int = 1) -> tuple[Trial, ...]:
        return trials_for(self.described, 0, rng=random.Random(seed))

    def refused(self, candidate: str, folder: Path, trials: tuple[Trial, ...] = ()) -> str:
        """What the check says of a candidate's text where it refuses it, else ""."""
        entry = f"model_{sha256(candidate.encode()).hexdigest()[:16]}.py"  # a name is imported once in a process
        (folder / entry).write_text(candidate)
        cell = InProcessCell()
        cell.do(wire.LoadCandidate(folder=str(folder), entry=entry))
        self.cell.ask(wire.ConstructCase(case=0, seed=1), wire.Constructed, limit_s=60.0)
        sizes = CaseMemorySizes(pool=1, slots=2, results=2)
        with CaseMemory(self.described, device="cpu", reference=self.cell, limits=CellLimits(), sizes=sizes) as memory:
            memory.admit(cell)
            self.findings = Findings()
            check = Check(memory, cell, case=0, precision="reference", findings=self.findings)
            check.state.construct(1)
            try:
                if self.described.random:
                    draws.run(check, trials or self.trials(), rng=random.Random(1))
                else:
                    run(check, trials or self.trials())
            except RefusedByCheck as refused:
                return refused.failure.summary
        return ""
