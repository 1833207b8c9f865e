"""Verifying before judging: by the text alone, and by guard pages where the text can't tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.facts import MACHINE, context
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.move import Verify
from tilewright.facts.outcome import Failure, Sanitized
from tilewright.facts.run import Request
from tilewright.facts.verdict import Verified
from tilewright.run import evaluator as evaluator
from tilewright.run.evaluator import Evaluator
from tilewright.run.places import Places

MODEL = "import torch\nimport ctypes\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return {}\n"


class Watching:
    """A judge that says what it saw of memory."""

    def __init__(self, seen: Sanitized | Failure) -> None:
        self.seen, self.asked = seen, 0

    def sanitize(self, candidate: Candidate) -> Sanitized | Failure:
        self.asked += 1
        return self.seen

    def close(self) -> None: ...


@pytest.mark.parametrize(("result", "says", "asked"), [("x * 2", "proven", 1), ("x * nothing", "unknown", 0)])
def test_what_addresses_memory_is_watched_unless_something_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: str, says: str, asked: int
) -> None:
    on = context()
    request = Request(run="r", problem=on.problem, strategy="evolve", seed=0, budget_s=1.0)
    judge = Watching(Failure(stage="check", reason="out_of_bounds", summary="beyond its inputs"))
    monkeypatch.setattr(evaluator.Evaluator, "judge", judge)
    candidate = Candidate(files=(SourceFile(path="model.py", text=MODEL.format(result)),))
    bench = Evaluator(request, places=Places(out=tmp_path, cache=tmp_path), say=print, machine=MACHINE)
    found = bench.perform(on, Verify(what=candidate))
    assert isinstance(found, Verified) and found.proven is not None
    assert next(v.says for v in found.verdicts if v.verifier == "memory") == says and judge.asked == asked
