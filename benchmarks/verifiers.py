"""How often each verifier is right: a confusion matrix over the museum, mutants of honest kernels, and honest ones.

    python benchmarks/verifiers.py [--judge] [--only WORD [--onto FILE]] [--json FILE]

What is true of a kernel: of an exhibit what the museum's tests hold it to, of a mutant what was done to it. `--judge`
also has the judge look at mutants and at what they are made of, on the CPU (of whom it says otherwise than was meant is
left out, but for memory, which it may not see), and watches by guard pages those that address memory. Without it texts
alone are looked at.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cheats"))

import museum
from mutants import Kernel, kernels, problem_of

from tilewright.edges.problems import read_problem
from tilewright.faces.deliver import commit
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Failure
from tilewright.facts.problem import Problem, TensorSpec, Work
from tilewright.facts.run import CaseFacts
from tilewright.facts.verdict import VERIFIERS, Verified
from tilewright.judge.build import load_candidate
from tilewright.judge.evaluate import Judge, JudgeOptions
from tilewright.judge.verify import Subject, verified, with_memory

Row = dict[str, Any]  # as it stands in the file: kernel, fault, judged, verdicts
SAYS = ("proven", "suspect", "clean", "unknown")
_COMPILE, _NUMERICS = ("does_not_load", "no_entry"), ("precision", "nan", "cancels", "underflow", "tiny")
_NAMES = {"torch.float32": "f32", "torch.float64": "f64", "torch.int64": "i64", "torch.bool": "b1"}
_NO_WORK = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A kernel with what is true of it, what the judge said (where it was asked), and what the verifiers say."""

    kernel: Kernel
    found: Verified
    judged: str = ""

    @property
    def name(self) -> str:
        return self.kernel.name


def exhibits() -> Iterator[Kernel]:
    """The museum's for this machine, by the verifier whose matter each is."""
    for exhibit in museum.exhibits("cpu"):
        fault = ""
        if exhibit.room == "refused":
            lines = set(exhibit.lines)
            alone = set(exhibit.reasons) <= set(_COMPILE)
            fault = "compile" if alone else "memory" if "stale-memory" in lines else "specification"
            fault = "numerics" if lines & set(_NUMERICS) else fault
        yield Kernel(name=exhibit.name, problem=exhibit.problem, candidate=load_candidate(exhibit.path), fault=fault)


def subject_of(problem: Problem) -> Subject:
    """Shapes and dtypes from the module itself, run once: our own problems need no walls."""
    import torch

    space: dict[str, Any] = {"__name__": "problem"}
    exec(compile(problem.source, problem.path, "exec"), space)
    settings = json.loads(problem.cases[0]) if problem.cases else {}
    torch.manual_seed(0)
    model = space["Model"](*space["get_init_inputs"](**settings))
    inputs = [t for t in space["get_inputs"](**settings) if isinstance(t, torch.Tensor)]
    with torch.no_grad():
        result = model(*space["get_inputs"](**settings))
    outputs = [result] if isinstance(result, torch.Tensor) else [t for t in _leaves(result) if hasattr(t, "dtype")]
    case = CaseFacts(inputs=_specs(inputs), outputs=_specs(outputs), work=_NO_WORK, graph=None)
    return Subject(problem=problem, cases=(case,), device="any")


def _leaves(tree: Any) -> Iterator[Any]:
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else None
    if items is None:
        yield tree
    for item in items or ():
        yield from _leaves(item)


def _specs(tensors: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(shape=tuple(t.shape), stride=tuple(t.stride()), dtype=_NAMES.get(str(t.dtype), str(t.dtype)))
        for t in tensors
    )


def looked_at(chosen: Sequence[Kernel], folder: Path) -> Iterator[Seen]:
    """What the verifiers say of each by its text."""
    subjects: dict[str, Subject] = {}
    for kernel in chosen:
        if kernel.problem not in subjects:
            subjects[kernel.problem] = subject_of(read_problem(problem_of(kernel.problem, folder), target="cpu"))
        yield Seen(kernel=kernel, found=verified(kernel.candidate, subjects[kernel.problem]))


def judged(seen: Sequence[Seen], folder: Path) -> Iterator[Seen]:
    """The same with the judge's word on mutants, and with guard pages around what addresses memory."""
    for problem, group in groupby(sorted(seen, key=lambda s: s.kernel.problem), key=lambda s: s.kernel.problem):
        ours = list(group)
        if not any(map(_wants_judge, ours)):
            yield from ours
            continue
        with tempfile.TemporaryDirectory() as work, _judge(problem, folder, Path(work)) as judge:
            judge.open()
            for one in ours:
                started = time.monotonic()
                one = _judged_by(judge, one) if _wants_judge(one) else one
                print(f"{time.monotonic() - started:6.1f} s  {one.name}: {one.judged}", file=sys.stderr, flush=True)
                yield one


def _wants_judge(one: Seen) -> bool:
    honest = one.name.startswith("honest/") and _memory(one) == "unknown" and "load_inline" not in one.name
    return one.name.startswith("mutants/") or honest


def _judged_by(judge: Judge, one: Seen) -> Seen:
    found = one.found
    if _memory(one) == "unknown":
        found = with_memory(found, judge.sanitize(one.kernel.candidate))
    if not one.name.startswith("mutants/"):
        return replace(one, found=found)
    outcome = judge.evaluate(one.kernel.candidate)
    return replace(one, found=found, judged=outcome.reason if isinstance(outcome, Failure) else "accepted")


def _memory(one: Seen) -> str:
    return next((v.says for v in one.found.verdicts if v.verifier == "memory"), "")


def _judge(name: str, folder: Path, work: Path) -> Judge:
    path = problem_of(name, folder)
    here: Machine = museum.machine(path, "cpu")
    return Judge(
        read_problem(path, target="cpu"), machine=here, seed=1, workdir=work, say=lambda text: None,
        options=JudgeOptions(
            effort=museum.EFFORT["cpu"], limits=museum.LIMITS["cpu"], compile_baseline=False,
            trace=False,
        ),
    )  # fmt: skip


def row(one: Seen) -> Row:
    verdicts = {v.verifier: f"{v.says}: {v.why}" if v.why else v.says for v in one.found.verdicts}
    return {"kernel": one.name, "fault": one.kernel.fault, "judged": one.judged, "verdicts": verdicts}


def known(one: Row) -> bool:
    """Whether its truth is: of a mutant the judge must say the same, but for memory, which it may not see."""
    return not one["judged"] or one["fault"] == "memory" or (one["judged"] == "accepted") == (not one["fault"])


def _said(one: Row, verifier: str) -> str:
    says: str = one["verdicts"].get(verifier, "unknown")
    return says.partition(":")[0]


def matrix(rows: Sequence[Row], verifier: str) -> dict[str, dict[str, int]]:
    """By what is true (a fault that is its matter, another's, none), how often it says what."""
    found: dict[str, Counter[str]] = {"its own": Counter(), "another's": Counter(), "honest": Counter()}
    for one in rows:
        fault = one["fault"]
        found["its own" if fault == verifier else "another's" if fault else "honest"][_said(one, verifier)] += 1
    return {kind: {says: count[says] for says in SAYS} for kind, count in found.items()}


def overall(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """By what is true: proven wrong by any, suspected by any, neither."""
    found = {"faulty": Counter[str](), "honest": Counter[str]()}
    for one in rows:
        said = {_said(one, verifier) for verifier in VERIFIERS}
        says = "proven" if "proven" in said else "suspect" if "suspect" in said else "neither"
        found["faulty" if one["fault"] else "honest"][says] += 1
    return {kind: {s: count[s] for s in ("proven", "suspect", "neither")} for kind, count in found.items()}


def page(record: dict[str, Any]) -> str:
    """The tables of docs/verifiers.md."""
    lines = [
        "| verifier | the fault is | kernels | proven | suspect | clean | unknown |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for verifier in VERIFIERS:
        for row, counts in record["verifiers"][verifier].items():
            cells = " | ".join(str(counts[says]) for says in SAYS)
            lines.append(f"| {verifier} | {row} | {sum(counts.values())} | {cells} |")
    lines += ["", "| all verifiers together | kernels | proven | suspect | neither |", "|---|---:|---:|---:|---:|"]
    for row, counts in record["overall"].items():
        lines.append(f"| {row} | {sum(counts.values())} | {' | '.join(str(v) for v in counts.values())} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--judge", action="store_true", help="judge the mutants, and watch memory by guard pages")
    parser.add_argument("--json", type=Path, help="file for all verdicts, as in benchmarks/results")
    parser.add_argument("--only", default="", help="kernels whose name holds this")
    parser.add_argument("--onto", type=Path, help="a file of an earlier run, for the kernels that are not looked at")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = [k for k in (*exhibits(), *kernels()) if asked.only in k.name]
        seen = list(looked_at(chosen, folder))
        seen = list(judged(seen, folder)) if asked.judge else seen
    rows = {one["kernel"]: one for one in (json.loads(asked.onto.read_text())["each"] if asked.onto else ())}
    rows |= {s.name: row(s) for s in seen}
    each = sorted((r for r in rows.values() if known(r)), key=lambda r: str(r["kernel"]))
    record = {
        "command": shlex.join(["python", *sys.argv]), "commit": commit(), "date": time.strftime("%Y-%m-%d"),
        "kernels": len(each), "honest": sum(not r["fault"] for r in each), "judged": asked.judge,
        "left_out": sorted(str(r["kernel"]) for r in rows.values() if not known(r)),
        "verifiers": {v: matrix(each, v) for v in VERIFIERS}, "overall": overall(each), "each": each,
    }  # fmt: skip
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(record, indent=1) + "\n")
    print(page(record))
    wrong = [str(r["kernel"]) for r in each if not r["fault"] and any(_said(r, v) == "proven" for v in VERIFIERS)]
    print(f"\n{len(each)} kernels; honest ones with a veto: {', '.join(wrong) or 'none'}")
    print(f"left out, since the judge says otherwise: {', '.join(record['left_out']) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
