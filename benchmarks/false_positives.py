"""How often the judge calls a module faster than itself: its own timing, with eager's module as the candidate.

    python benchmarks/false_positives.py cpu|cuda [--runs 100] [--seconds 110] [--size 64x256] [--json FILE]

Each run has its own inputs, arenas and order of calls; a pair of processes serves five runs, since one takes seconds to
start. For each size the file says how many runs were claimed to be faster, how many the clock's checks accused of
hiding work, how far the ratio was from 1 (median and most), and what one call more in a row costs beyond a call.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from results import about, write

from tilewright.edges.gpu.machine import machine as measured_machine
from tilewright.faces import config
from tilewright.facts import codec
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Built, Timed
from tilewright.facts.problem import Problem, Target
from tilewright.judge.build.build import build
from tilewright.judge.check.check import Check, Findings, concluded
from tilewright.judge.client import Cell
from tilewright.judge.evaluate import Judge, JudgeOptions
from tilewright.judge.memory.sizes import timing_memory_sizes
from tilewright.judge.stations import Stations
from tilewright.judge.time_case import OURS, CaseTiming
from tilewright.judge.timing import measure as timing
from tilewright.judge.timing.slope import check_slope
from tilewright.judge.wire import messages as wire

PER_PAIR = 5
EFFORT = timing.Effort(budget_s=1.0, verified=1)
# From one launch-bound kernel to what fills the caches several times over.
SIZES = {"cpu": ((64, 256), (1024, 1024)), "cuda": ((64, 256), (2048, 4096), (16384, 4096))}
SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(x)) * 2.0

def get_inputs(rows=ROWS, width=WIDTH):
    return [torch.rand(rows, width)]

def get_init_inputs(rows=ROWS, width=WIDTH):
    return [width]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One comparison of a module with itself."""

    size: tuple[int, int]
    pair: int  # of processes, numbered for each size
    ours_ns: float
    claimed: bool
    ratio: float  # eager's time over its own as the candidate
    again: float  # eager / eager
    accused: str  # of hiding work from its clock; "" where it was not
    row_excess_ns: float | None  # what one call more in a row costs beyond a call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("target", choices=("cpu", "cuda"))
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long, openings apart")
    parser.add_argument("--size", choices=[f"{rows}x{width}" for pair in SIZES.values() for rows, width in pair])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        machine = measured_machine(asked.target, cache_dir=config.cache_dir())
        sizes = [s for s in SIZES[asked.target] if asked.size in (None, f"{s[0]}x{s[1]}")]
        for number, size in enumerate(sizes):
            wanted = asked.runs // len(sizes) + (number < asked.runs % len(sizes))
            share_s = asked.seconds / len(sizes)
            found = compare(size, asked.target, machine, folder=Path(folder), wanted=wanted, most_s=share_s)
            runs += found
            print(of_size(found), flush=True)
            told = [of_size([r for r in runs if r.size == s]) for s in dict.fromkeys(r.size for r in runs)]
            sums = {key: sum(size.get(key, 0) for size in told) for key in ("runs", "claimed", "accused")}
            write(asked.json, about() | {"machine": codec.to_plain(machine)} | sums | {"sizes": told})


def compare(
    size: tuple[int, int], target: Target, machine: Machine, *, folder: Path, wanted: int, most_s: float
) -> list[Run]:
    """As many runs at one size as are wanted, or as there is time for."""
    source = SOURCE.replace("ROWS", str(size[0])).replace("WIDTH", str(size[1]))
    problem = Problem(name="same", path=str(folder / "same.py"), source=source, target=target)
    candidate = Candidate(files=(SourceFile(path="model.py", text=source.replace("class Model(", "class ModelNew(")),))
    found: list[Run] = []
    with Judge(
        problem,
        machine=machine,
        seed=1,
        workdir=folder,
        say=lambda line: None,
        options=JudgeOptions(effort=EFFORT, compile_baseline=False),
    ) as judge:
        judge.open()
        stop, pair = time.monotonic() + most_s, 0
        while len(found) < wanted and time.monotonic() < stop:
            cell = judge.opened.cells.spares.take()
            judge.opened.cells.spares.settle()
            built = build(candidate, cell, limit_s=300.0)
            assert isinstance(built, Built), built
            pair += 1
            for _ in range(min(PER_PAIR, wanted - len(found))):
                if time.monotonic() < stop:
                    found.append(run_of(size, pair, *time_once(judge, cell, built, machine)))
            cell.close()
            judge.opened.cells.renew_reference()
    return found


def time_once(judge: Judge, cell: Cell, built: Built, machine: Machine) -> tuple[Timed, str]:
    """The judge's timing of case 0, cold caches alone, and of what its clock accuses the candidate."""
    opened, case = judge.opened, judge.opened.cases[0]
    with opened.memories.memory(case, sizes=timing_memory_sizes) as memory:
        memory.admit(cell)
        check = Check(memory, cell, case=0, precision="reference", findings=Findings())
        check.state.construct(case.seed)
        case_timing = CaseTiming(opened=opened, memory=memory, check=check, compiled={}, stations=Stations())
        table = case_timing.schedule()
        timing.measure(table, table.subjects[0], effort=EFFORT, look=case_timing.verified.look(table))
        accused, excess = "", None
        try:
            timing.check_clock(table, table.subjects[0], table.subjects[1])
            excess = check_slope(table, table.subjects[0], table.subjects[1], look=None)
        except timing.Implausible as error:
            accused = str(error)
        checked = concluded(built, check.findings, ())
        for subject in table.subjects:
            subject.cell.do(wire.Drop())
        timed = timing.summarise(checked, table, ours=OURS, machine=machine, work=case.described.work)
        return replace(timed, row_excess_ns=excess), accused


def run_of(size: tuple[int, int], pair: int, timed: Timed, accused: str) -> Run:
    ratio, again, mine, excess = timed.ratio("eager"), timed.ratio("aa"), timed.time(OURS), timed.row_excess_ns
    assert ratio is not None and again is not None and mine is not None
    return Run(size=size, pair=pair, ours_ns=mine.mid, claimed=timed.faster_than("eager"), ratio=ratio.mid,
               again=again.mid, accused=accused, row_excess_ns=excess.mid if excess else None)  # fmt: skip


def of_size(runs: list[Run]) -> dict[str, Any]:
    """The record of the runs of one size."""
    if not runs:
        return {}
    off = sorted(abs(r.ratio - 1) for r in runs)
    excess = sorted(r.row_excess_ns / 1e3 for r in runs if r.row_excess_ns is not None)
    return {
        "size": "x".join(map(str, runs[0].size)), "runs": len(runs), "pairs": len({r.pair for r in runs}),
        "claimed": sum(r.claimed for r in runs), "accused": sum(bool(r.accused) for r in runs),
        "accusations": [r.accused for r in runs if r.accused], "ours_us": median(r.ours_ns for r in runs) / 1e3,
        "off_median": off[len(off) // 2], "off_most": off[-1], "ratios": [round(r.ratio, 4) for r in runs],
        "row_excess_us": [excess[0], median(excess), excess[-1]] if excess else [],
    }  # fmt: skip


if __name__ == "__main__":
    main()
