"""Winners that were measured with older skeletons, taken over where nothing changed but text: kernel by kernel.

    python benchmarks/restamped.py WINNERS.db KERNELBENCH/level1 --measured-at COMMIT --into SHIPPED.db

A winner is believed for the skeletons alone that it was measured with (docs/cli.md, winners). Here both trees, the
commit's and this one, compile every point that was measured, for sm_90a and without a GPU. Where all of them are the
same machine code, launched alike, and no point has come since that would be measured today, the winner goes into
SHIPPED.db under today's digest and class of shapes; of all others it is told why not. The programs are those of the
problem files in the folder, traced without their tensors.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tilewright.facts.demand import Demand
from tilewright.facts.machine import Machine
from tilewright.facts.pattern import Choice, Pattern
from tilewright.facts.run import Matched
from tilewright.facts.space import Point
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.kernels.cuda.common.cubin import _sections, cubin_of
from tilewright.run.ahead import Objects
from tilewright.run.foresee import demanded, foreseen
from tilewright.search.tune.store import COLUMNS, from_row

ROOT = Path(__file__).resolve().parents[1]
try:
    from tilewright.facts.devices import DEVICES
    from tilewright.realise.table import realisers

    DEVICE: Any = DEVICES["h200"]
    cuda: Any = realisers(DEVICE)
except ImportError:  # the tree of a commit that has no table of devices
    from tilewright.realise.rows import renderer as cuda

    DEVICE = {"arch": "sm_90a", "processors": 132}
CODE = (".text.", ".nv.constant3", ".nv.constant4", ".nv.global")  # sections of a cubin that hold what is run
Told = dict[str, dict[str, Any]]  # by what a pattern computes: its class, its points' kernels, its space's points


def patterns_of(folder: Path) -> list[Pattern]:
    """Those of every problem file's first case that can be traced without its tensors, numbered through."""
    found: list[Pattern] = []
    for file in sorted(folder.glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"problem_{file.stem.split('_')[0]}", file)
        assert spec is not None and spec.loader is not None
        problem = importlib.util.module_from_spec(spec)
        try:
            with torch.device("meta"):
                spec.loader.exec_module(problem)
                graph = trace(problem.Model(*problem.get_init_inputs()), tuple(problem.get_inputs()), {})
        except Exception as error:  # of whatever kind: another task's module is none of ours
            print(f"{file.stem}: not traced: {error!r}"[:200], file=sys.stderr)
            continue
        matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
        found += [replace(p, id=f"fused_{len(found) + n}") for n, p in enumerate(matched.patterns)]
    return found


def same(pattern: Pattern) -> str:
    """What it computes, on exactly which shapes: before there were classes of shapes, the class was that."""
    return str(getattr(pattern, "same", pattern.shape_class))


def compiled(patterns: list[Pattern]) -> dict[tuple[str, Point], str]:
    """Of each point of each pattern what runs: a digest of the machine code, and how it is launched; or why not."""
    objects, said = Objects(), {}
    texts = {f.path: f.text for p in patterns for f in cuda.render(p.program, p.id, p.space.points[0])}
    with tempfile.TemporaryDirectory() as folder:
        demands = demanded(patterns, device=DEVICE, folder=Path(folder), objects=objects)
        for pattern in patterns:
            for at in pattern.space.points:
                demand = demands.get((pattern.id, at), "not known")
                made = objects.of(texts, Choice(pattern=pattern.id, point=at), Path(folder))
                said[pattern.id, at] = _told(demand, made)
    return said


def _told(demand: Demand | str, made: tuple[Path, ...]) -> str:
    if isinstance(demand, str) or not made:
        return f"does not compile: {demand}"[:80]
    sections = [s for path in made for s in _sections(cubin_of(path.read_bytes()[:-32])) if s.name.startswith(CODE)]
    code = sorted((s.name.split(".")[1], bytes(s.content)) for s in sections)
    launch = (demand.threads, demand.ctas, demand.shared_bytes, demand.registers, demand.local_bytes)
    return f"{hashlib.sha256(repr(code).encode()).hexdigest()[:16]} {launch}"


def told_of(winners: Path, folder: Path) -> Told:
    """What this tree says of patterns of which the file may hold winners: titles are what trees agree on."""
    with sqlite3.connect(f"{winners.absolute().as_uri()}?immutable=1", uri=True) as file:
        known = [from_row(row) for row in file.execute(f"SELECT {COLUMNS} FROM winners")]
    tried: dict[str, list[Point]] = {w.title: [] for w in known}
    for winner in known:
        tried[winner.title] += [t.point for t in winner.tried]
    wanted = [p for p in patterns_of(folder) if p.title in tried]
    wider = [
        replace(p, space=replace(p.space, points=tuple(dict.fromkeys((*tried[p.title], *p.space.points)))))
        for p in wanted
    ]
    kernels = compiled(wider)
    return {
        same(p): {
            "class": p.shape_class, "title": p.title, "kind": p.kind,
            "measured": [json.dumps(at) for at in m.space.points],
            "kernels": {json.dumps(at): kernels[p.id, at] for at in w.space.points},
        }
        for p, m, w in zip(wanted, to_measure(wanted), wider, strict=True)
    }  # fmt: skip


def to_measure(patterns: list[Pattern]) -> tuple[Pattern, ...]:
    """With the points alone that the tuner would measure."""
    h200 = Machine(target="cuda", device="", driver="", torch="", dsl="", processors=132, cache_bytes=0,
                   copy_bytes_per_s=4.24e12, matmul_flops_per_s=())  # fmt: skip
    given = (Matched(case=0, patterns=tuple(patterns), unmatched=()),)
    with tempfile.TemporaryDirectory() as folder:
        rest: Any = {"known": (), "say": lambda line: None, "folder": Path(folder), "objects": Objects()}
        asked: Any = foreseen
        old = isinstance(DEVICE, dict)
        left: Matched
        (left,) = asked(given, h200, arch=DEVICE["arch"], **rest) if old else asked(given, DEVICE, **rest)
    return left.patterns


def told_at(commit: str, winners: Path, folder: Path) -> Told:
    """What the tree of a commit says."""
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            done = subprocess.run(
                [sys.executable, __file__, str(winners.absolute()), str(folder.absolute()), "--tell"],
                env=os.environ | {"PYTHONPATH": str(tree / "src")}, capture_output=True, text=True, check=True,
            )  # fmt: skip
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    told: Told = json.loads(done.stdout)
    return told


def why_not(tried: list[str], then: dict[str, Any], now: dict[str, Any]) -> str:
    """Why a winner, whose evidence holds these points, can't be believed today; "" where it can."""
    changed = [at for at in tried if then["kernels"].get(at) != now["kernels"].get(at, "")]
    if changed:
        return f"{len(changed)} of {len(tried)} measured points are other kernels now"
    known = {now["kernels"][at] for at in tried}
    fresh = [at for at in now["measured"] if now["kernels"][at] not in known and at not in then["measured"]]
    return f"{len(fresh)} points that would be measured today were not there" if fresh else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("winners", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--measured-at", default="")
    parser.add_argument("--into", type=Path)
    parser.add_argument("--tell", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.tell:
        print(json.dumps(told_of(asked.winners, asked.folder)))
        return 0
    from tilewright.facts.version import VERSION
    from tilewright.realise.digests import skeleton_digests
    from tilewright.search.tune.exchange import export, winners

    then, now = told_at(asked.measured_at, asked.winners, asked.folder), told_of(asked.winners, asked.folder)
    digests = dict(skeleton_digests("cuda"))
    taken = []
    for winner in winners(asked.winners):
        here = next((key for key, told in then.items() if told["class"] == winner.shape_class), "")
        tried = [json.dumps(t.point) for t in winner.tried if t.time_ns is not None]
        why = why_not(tried, then[here], now[here]) if here in now else "its module is not in the folder"
        print(f"{winner.title[:50]:50s} {why or 'the same kernels'}")
        if not why:
            digest = digests["products" if now[here]["kind"] == "product" else "kernels"]
            chain = replace(winner.toolchain, tilewright=f"{VERSION} {digest}")
            taken.append(replace(winner, toolchain=chain, shape_class=now[here]["class"]))
    if asked.into is not None:
        export(taken, asked.into, add=True)
    print(f"{len(taken)} taken over")
    return 0


if __name__ == "__main__":
    sys.exit(main())
