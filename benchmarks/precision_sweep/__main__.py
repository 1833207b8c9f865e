"""Sweeps the judge's verdict on values; its exit code is 1 where a dishonest candidate is accepted or an honest one
refused. What was done is kept in --json after each twenty seeds, and is not done again."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

from ..results import about
from . import table
from .cells import KINDS, SHAPES, VARIATIONS, cells
from .run import Results, carry_out, tasks

WHAT = "wrong verdicts on values: dishonest candidates accepted, honest ones refused"


def main() -> int:
    asked = _parser().parse_args()
    head = {"what": WHAT} | about("python -m benchmarks.precision_sweep " + " ".join(sys.argv[1:]))
    head |= {"device": head["device"].partition(", load")[0] if asked.device == "cpu" else head["device"]}
    kinds, variations = asked.kinds or KINDS, asked.variations or VARIATIONS
    wanted = [c for c in cells(tuple(asked.sizes)) if c.kind in kinds and c.variation in variations]
    results, started = Results(asked.json, head), time.monotonic()
    left = tasks(wanted, results, seeds=asked.seeds, device=asked.device, beside_turns=not asked.plain)
    done = carry_out(left, results, jobs=asked.jobs, budget_s=asked.budget)
    print(table.summary(results.tallies))
    wrong = table.wrong(results.tallies)
    open_tasks = f"; {len(left) - done} of {len(left)} tasks are left for want of time" if done < len(left) else ""
    print(f"{wrong} wrong verdicts, {time.monotonic() - started:.0f} s{open_tasks}")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision_sweep", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", choices=tuple(SHAPES), default=tuple(SHAPES))
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS))
    parser.add_argument("--variations", nargs="+", choices=tuple(VARIATIONS))
    parser.add_argument("--plain", action="store_true", help="without inputs beside turns")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds, after which no more is waited for")
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
