"""The exhibits of the adversarial corpus, and how they are judged: `python tests/cheats/museum.py --help`.

An exhibit is one candidate file. Its head, lines of `# key: value`, says:

    problem   the file in problems/ that it pretends to solve
    line      the lines of the adversarial corpus's index (docs/threats.md) that it stands for
    refused   the reasons it may be refused with (in refused/ alone); gains_nothing: or is accepted as no faster
    guards    what must be switched off for it to get through (guards.py), or "none": nothing can be switched off
    targets   "cpu", "cuda" or both, which is what holds where nothing is said
    call_s    how long one call may take, where that is more than usual (compilers)
    takes_s   how long it takes to judge, where that is long: others of its classes are in `make test` instead

The classes of a cheat are its lines, its guards and its first reason; of an honest exhibit they are the first reasons
that cheats of its lines are refused for. `make test` has one exhibit of each class, always the same; `make adversarial
corpus` all.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tilewright.edges.gpu.machine import machine as measured_machine
from tilewright.edges.problems import read_problem
from tilewright.faces import config
from tilewright.faces.deliver import commit
from tilewright.facts.errors import HarnessError, TooBusy
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Failure, Timed
from tilewright.facts.problem import Target
from tilewright.judge.build import load_candidate
from tilewright.judge.client import CellLimits
from tilewright.judge.evaluate import Judge, JudgeOptions
from tilewright.judge.timing.measure import Effort

HERE = Path(__file__).resolve().parent
ROOMS = ("refused", "honest")
NOTHING = "none"
OURS = "judge_failed"
GAINS_NOTHING = "gains_nothing"
_USUAL_S = 5.0  # to judge one
BUSY = "too_busy"  # others' load on the machine allowed no verdict
CLOCKED = ("clock_disagrees", "works_aside", "works_between")  # what a busy machine may make of an honest one
_EFFORT = Effort(tight=0.2, budget_s=0.3, min_rounds=8, max_rounds=8, verified=7, warm_rounds=8)
EFFORT = {"cpu": dataclasses.replace(_EFFORT, most_calls=10, rest_s=5.0), "cuda": _EFFORT}
LIMITS = {
    "cpu": CellLimits(build_s=60.0, call_s=8.0, memory_bytes=2 << 30),
    "cuda": CellLimits(build_s=120.0, call_s=20.0, memory_bytes=12 << 30),  # a CUDA process starts out large
}
_HANDFUL = 10  # exhibits that a process takes at a time
_TAKEN = "taken"  # a file, as long as the handfuls that were
_LAST_LEVEL_BYTES = {"cpu": 1 << 20, "cuda": 60 << 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """One candidate of the adversarial corpus, as its head describes it."""

    path: Path
    memory: str
    problem: str
    lines: tuple[str, ...]
    guards: tuple[str, ...]
    reasons: tuple[str, ...]
    targets: tuple[str, ...]
    call_s: float = 0.0
    takes_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.memory}/{self.path.stem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the judge said of an exhibit, or how fast one is that it accepted. `off`: the guards that were switched off.
    `accused`: what a clock held against an honest one, which was judged again then."""

    exhibit: str
    target: str
    off: tuple[str, ...]
    accepted: bool
    reason: str
    summary: str
    excerpt: str
    seconds: float
    accused: str = ""


def head(path: Path) -> dict[str, str]:
    """The `# key: value` lines that a file begins with."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if not line.startswith("# ") or ": " not in line:
            break
        key, _, value = line[2:].partition(": ")
        found[key] = value.strip()
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def exhibits(target: str = "") -> list[Exhibit]:
    """All exhibits, or those for a target, by problem."""
    found = []
    for memory in ROOMS:
        for path in sorted((HERE / memory).glob("*.py")):
            said = head(path)
            found.append(
                Exhibit(
                    path=path, memory=memory, problem=said["problem"], lines=_words(said.get("line", "")),
                    guards=_words(said.get("guards", "")), reasons=_words(said.get("refused", "")),
                    targets=_words(said.get("targets", "cpu, cuda")), call_s=float(said.get("call_s", 0)),
                    takes_s=float(said.get("takes_s", 0)),
                )
            )  # fmt: skip
    return sorted((e for e in found if not target or target in e.targets), key=lambda e: (e.problem, e.guards))


def classes(chosen: Sequence[Exhibit]) -> Mapping[str, frozenset[tuple[str, str]]]:
    """What each exhibit stands for, by its name: a cheat for each of its lines and guards and its first reason, an
    honest one for each first reason that cheats of its lines are refused for, for which it could be mistaken."""
    cheats = [e for e in chosen if e.memory == "refused"]
    found = {}
    for e in chosen:
        if e.memory == "refused":
            told = [("line", x) for x in e.lines] + [("guard", g) for g in e.guards]
            told += [("reason", r) for r in e.reasons[:1]]
        else:
            told = [("no", r) for c in cheats if set(c.lines) & set(e.lines) for r in c.reasons[:1]]
        found[e.name] = frozenset(told)
    return found


def of_every_run(chosen: Sequence[Exhibit]) -> set[str]:
    """The names of a few exhibits that have all classes among them: each next adds most in the time that it takes."""
    each = classes(chosen)
    left, found = set().union(*each.values()), set()
    while left:
        best = max(chosen, key=lambda e: (len(each[e.name] & left) / (_USUAL_S + e.takes_s), -e.call_s, e.name))
        found.add(best.name)
        left -= each[best.name]
    return found


def machine(problem: Path, target: Target) -> Machine:
    """An imaginary machine, so fast that its floor never decides, unless the problem's head names a rate."""
    rate = head(problem).get(f"{target}_bytes_per_s")
    return Machine(
        target=target, device="any", driver="", torch="", dsl="", processors=1 if target == "cpu" else 132,
        cache_bytes=4096 if rate else _LAST_LEVEL_BYTES[target], copy_bytes_per_s=float(rate or 1e13),
        matmul_flops_per_s=(("f32", 1e16),),
    )  # fmt: skip


def open_judge(name: str, target: Target, workdir: Path, *, call_s: float = 0.0) -> Judge:
    """A judge of one of the adversarial corpus's problems, ready for candidates. The caller closes it."""
    limits = dataclasses.replace(LIMITS[target], call_s=call_s) if call_s else LIMITS[target]
    path = HERE / "problems" / f"{name}.py"
    judge = Judge(
        read_problem(path, target=target), machine=machine(path, target), seed=1, workdir=workdir,
        say=lambda text: None,
        options=JudgeOptions(effort=EFFORT[target], limits=limits, compile_baseline=False, trace=False),
    )  # fmt: skip
    try:
        judge.open()
    except BaseException:
        judge.close()
        raise
    return judge


def show(judge: Judge, exhibit: Exhibit, target: str, off: tuple[str, ...] = ()) -> Shown:
    """Have the exhibit judged. Where the judge itself fails, that is what is shown."""
    started = time.monotonic()
    outcome, accused = _outcome(judge, exhibit), ""
    if isinstance(outcome, Failure) and exhibit.memory == "honest" and outcome.reason in CLOCKED:
        outcome, accused = _outcome(judge, exhibit), f"{outcome.reason}: {outcome.summary}"
    failed = outcome if isinstance(outcome, Failure) else None
    reason = (
        failed.reason
        if failed
        else GAINS_NOTHING
        if _is_no_faster(outcome) and GAINS_NOTHING in exhibit.reasons
        else ""
    )
    return Shown(
        exhibit=exhibit.name, target=target, off=off, accepted=not reason, reason=reason,
        summary=outcome.summary if failed else _by_clocks(outcome),
        excerpt=failed.excerpt if failed else "", seconds=round(time.monotonic() - started, 2), accused=accused,
    )  # fmt: skip


def _outcome(judge: Judge, exhibit: Exhibit) -> Timed | Failure:
    try:
        return judge.evaluate(load_candidate(exhibit.path), foreign=True)
    except TooBusy as error:
        return Failure(stage="timing", reason=BUSY, summary=str(error))
    except HarnessError as error:
        return Failure(stage="cell", reason=OURS, summary=str(error)[:1000])


def _is_no_faster(outcome: Timed | Failure) -> bool:
    """Whether nothing could be claimed of it: its call takes as long as eager's in the middle, or longer."""
    times = (outcome.time("ours"), outcome.time("eager")) if isinstance(outcome, Timed) else (None, None)
    ours, eager = times
    return ours is not None and eager is not None and ours.mid >= eager.mid


def _by_clocks(timed: Timed) -> str:
    """How fast one is that was accepted, and what its clocks were held against."""
    times = [("a call", timed.time("ours")), ("eager's", timed.time("eager"))]
    beyond = [("unseen", timed.unseen_ns), ("in a row", timed.row_excess_ns), ("on new contents", timed.new_excess_ns)]
    told = ((name, of) for name, of in (*times, *beyond) if of is not None)
    return "; ".join(f"{name} {of.mid / 1e3:.1f} us [{of.low / 1e3:.1f}, {of.high / 1e3:.1f}]" for name, of in told)


def tour(chosen: Sequence[Exhibit], target: Target, *, unguarded: bool = False) -> Iterator[Shown]:
    """Judge the exhibits one after the other, with one judge for neighbours of one problem; `unguarded`: each with its
    own guards switched off."""
    from guards import switched_off

    def group(exhibit: Exhibit) -> tuple[str, tuple[str, ...], float]:
        return exhibit.problem, exhibit.guards if unguarded else (), exhibit.call_s

    for (problem, off, call_s), neighbours in groupby(sorted(chosen, key=group), key=group):
        left = list(neighbours)
        while left:
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                for guard in off:
                    stack.enter_context(switched_off(guard))
                judge = open_judge(problem, target, Path(folder), call_s=call_s)
                stack.callback(judge.close)
                while left:
                    shown = show(judge, left.pop(0), target, off)
                    yield shown
                    if shown.reason == OURS:
                        break  # the next one gets a new judge


def tour_in_parts(
    chosen: Sequence[Exhibit], target: str, folder: Path, *, parts: int, unguarded: bool = False
) -> dict[str, Shown]:
    """The tour in several processes at once, which take what is left by the handful. Each writes what it is shown to a
    file in `folder` at once, so that a tour which is cut short leaves what it saw."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _TAKEN).unlink(missing_ok=True)
    running = []
    for part in range(parts):
        out = folder / f"part-{part}.jsonl"
        command = [sys.executable, __file__, "--target", target, "--out", str(out), "--parts", "0"]
        process = subprocess.Popen(
            [*command, *(["--unguarded"] if unguarded else []), *(e.name for e in chosen)],
            env=_environment(part, target, folder, parts),
        )
        running.append((process, out))
    failed = [out.name for process, out in running if process.wait()]
    if failed:
        raise RuntimeError(f"the museum's tour failed in {', '.join(failed)}; see what it printed")
    return {s.exhibit: s for _, out in running for s in _read(out)}


def _handfuls(chosen: Sequence[Exhibit]) -> list[list[Exhibit]]:
    """Neighbours of one problem, since a judge must be opened for each; those that take longest come first: compilers,
    then honest ones, most cheats being refused before anything is timed."""
    ordered = sorted(chosen, key=lambda e: (e.problem, e.call_s, e.memory, e.guards))
    alike = (list(g) for _, g in groupby(ordered, key=lambda e: (e.problem, e.call_s)))
    found = [g[i : i + _HANDFUL] for g in alike for i in range(0, len(g), _HANDFUL)]
    return sorted(found, key=lambda g: (g[0].call_s, sum(e.memory == "honest" for e in g)), reverse=True)


def _take(folder: Path) -> int:
    """The number of the next handful that no process has taken."""
    with open(folder / _TAKEN, "ab") as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        taken.write(b".")
        taken.flush()
        return taken.tell() - 1


def _environment(part: int, target: str, folder: Path, parts: int) -> dict[str, str]:
    """The processes share the GPUs among them, and take turns on each. On the CPU nearly all of a judgement is under
    the lease: there each process has leases of its own. Here it is verdicts that count, not times. And each has a share
    of the processors: OpenMP's threads spin while they wait for others."""
    mine = folder / (f"tmp-{part}" if target == "cpu" else "tmp")
    mine.mkdir(exist_ok=True)
    found = dict(os.environ) | {"TMPDIR": str(mine)}
    if target == "cpu":
        found["TILEWRIGHT_LEASES"] = str(mine)
        found.setdefault("TILEWRIGHT_TOGETHER", str(os.getpid()))  # judges side by side starve none of them
        found.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // parts)))
    else:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        devices = visible.split(",") if visible else [str(i) for i in range(_devices())]
        found["CUDA_VISIBLE_DEVICES"] = devices[part % len(devices)]
    return found


def _devices() -> int:
    import torch

    return max(1, torch.cuda.device_count())


def parts_for(target: str) -> int:
    """How many judges work side by side: beside other workers of pytest as many as this one has processors.
    On a GPU most of the time goes into the start of processes."""
    processors = len(os.sched_getaffinity(0))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return max(1, min(4, processors // workers)) if target == "cpu" else max(1, min(5 * _devices(), processors // 3))


def _read(path: Path) -> list[Shown]:
    found = []
    for line in path.read_text().splitlines():
        tree = json.loads(line)
        found.append(Shown(**(tree | {"off": tuple(tree["off"])})))
    return found


def as_expected(exhibit: Exhibit, shown: Shown) -> bool:
    """Whether an honest one passed, or a cheat was refused with one of its reasons; or passed without its guards."""
    return shown.accepted if exhibit.memory == "honest" or shown.off else shown.reason in exhibit.reasons


def table(chosen: Sequence[Exhibit], shown: dict[str, Shown]) -> str:
    """A Markdown table of what was said."""
    rows = ["| exhibit | verdict | seconds | as it should be |", "|---|---|---:|---|"]
    for exhibit in sorted(chosen, key=lambda e: e.name):
        said = shown[exhibit.name]
        verdict = "accepted" if said.accepted else f"`{said.reason}`"
        good = "yes" if as_expected(exhibit, said) else f"NO: {said.summary}"
        good += f", at the second try ({said.accused})" if said.accused else ""
        rows.append(f"| {exhibit.name} | {verdict} | {said.seconds:.1f} | {good} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/museum"), help="folder for what is shown")
    parser.add_argument("--unguarded", action="store_true", help="each with its own guards switched off")
    parser.add_argument("--parts", type=int, default=-1, help="processes (default: what the machine allows)")
    parser.add_argument("--json", type=Path, help="file for all verdicts, as in benchmarks/results")
    parser.add_argument("names", nargs="*", help='such as "refused/hangs"; all of the target by default')
    asked = parser.parse_args()
    chosen = [e for e in exhibits(asked.target) if not asked.names or e.name in asked.names]
    if asked.unguarded:
        chosen = [e for e in chosen if e.guards and NOTHING not in e.guards]
    if asked.parts == 0:
        return _one_part(chosen, asked)
    started = time.monotonic()
    parts = asked.parts if asked.parts > 0 else parts_for(asked.target)
    found = tour_in_parts(chosen, asked.target, asked.out, parts=parts, unguarded=asked.unguarded)
    print(table(chosen, found))
    busy = [e.name for e in chosen if found[e.name].reason == BUSY]
    good = [as_expected(e, found[e.name]) for e in chosen if e.name not in busy]
    if asked.json:
        asked.json.write_text(json.dumps(record(chosen, found, asked), indent=1) + "\n")
    print(f"\n{len(chosen)} exhibits in {time.monotonic() - started:.0f} s; {good.count(False)} not as they should be")
    if busy:
        print(f"the machine was too busy to judge {len(busy)}: {' '.join(busy)}")
    return 1 if not all(good) else 3 if busy else 0


def record(chosen: Sequence[Exhibit], found: Mapping[str, Shown], asked: argparse.Namespace) -> dict[str, Any]:
    """All verdicts; paths of this machine are left out."""
    places = ((str(asked.json), "OUT.json"), (str(asked.out.resolve()), "OUT"), (str(HERE.parents[1]), "REPO"))
    exhibits = []
    for exhibit in chosen:
        shown = found[exhibit.name]
        one = {"exhibit": exhibit.name, "verdict": "accepted" if shown.accepted else shown.reason}
        one |= {"as_it_should_be": as_expected(exhibit, shown), "seconds": shown.seconds}
        one |= {
            name: _without(places, getattr(shown, name))
            for name in ("off", "summary", "accused")
            if getattr(shown, name)
        }
        exhibits.append(one)
    good = {memory: [e["as_it_should_be"] for e in exhibits if e["exhibit"].startswith(memory)] for memory in ROOMS}
    measured = measured_machine(asked.target, cache_dir=config.cache_dir())
    return {
        "command": _without(places, shlex.join(["python", *sys.argv])), "commit": commit(),
        "date": time.strftime("%Y-%m-%d"), "device": measured.device, "torch": measured.torch,
        **{memory: {"run": len(mine), "as_they_should_be": sum(mine)} for memory, mine in good.items()},
        "exhibits": exhibits,
    }  # fmt: skip


def _without(places: Sequence[tuple[str, str]], text: Any) -> Any:
    """The text with these places by name, and the package's sources under "REPO", wherever a cell imports them from."""
    if not isinstance(text, str):
        return text
    for place, name in places:
        text = text.replace(place, name)
    return re.sub(r"/[^\s'\":]*(?=/src/tilewright/)", "REPO", text)


def _one_part(chosen: Sequence[Exhibit], asked: argparse.Namespace) -> int:
    handfuls = _handfuls(chosen)
    with open(asked.out, "w") as out:
        while (number := _take(asked.out.parent)) < len(handfuls):
            for shown in tour(handfuls[number], asked.target, unguarded=asked.unguarded):
                out.write(json.dumps(dataclasses.asdict(shown)) + "\n")
                out.flush()
                said = shown.reason or "accepted"
                print(f"{shown.seconds:6.1f} s  {shown.exhibit}: {said}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
