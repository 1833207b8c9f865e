"""A script for a child process: compiles a fused file at many knob settings, keeps on disk what it compiles, and says
what each takes of a GPU.

No GPU is needed. Operands are taken to be aligned, and to lie as their Spec says. On stdin one JSON object: the
fields of a Gpu, and `jobs`, a list of [path of the fused file, {knob: value}]; on stdout one JSON object a job, a line
each: `objects`, the paths of what is kept, and `demand`: `plan` (a digest: equal plans of a file are one kernel),
`registers`, `local_bytes`, `shared_bytes`, `threads` (a CTA), `ctas`, `in_flight_bytes` (what a thread loads before it
waits), `moved_bytes` (over all sweeps); or `failure` alone. The folder of the files must be on Python's path.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, Protocol

from ..rows.kernels import ALIGNED
from ..rows.launch import Fused
from ..rows.plan import WARP, Gpu, Plan
from ..rows.ranking import queue_keys
from .cubin import cubin_of, taken
from .operands import overlap, passing_operands, resident_operands, stretch
from .spec import Spec, reads
from .views import ITEM_BYTES


def demand(fused: Fused, device: Gpu) -> dict[str, int | str]:
    """What the launches of `fused` at its present knobs take; of several, the most that any takes. Read from the object
    in which they are kept, or compiled for this alone."""
    walks = fused._walks(fused.spec)
    alignments = [ALIGNED] * len(walks)
    kept = fused.kept(walks, alignments, device)
    if kept is not None:
        kernels = taken(cubin_of(kept))
    else:
        with tempfile.TemporaryDirectory() as folder:
            options = f"--keep-cubin --dump-dir={folder}"
            launch, _ = fused.compile(walks, alignments, device, options=options)
        kernels = taken(launch.artifacts.CUBIN)  # type: ignore[attr-defined]
    plan = fused.plan(walks, alignments, device)
    return {
        "plan": hashlib.sha256(repr(plan).encode()).hexdigest()[:16],
        "registers": max(k.registers for k in kernels),
        "local_bytes": max(k.local_bytes for k in kernels),
        "shared_bytes": max(k.shared_bytes for k in kernels) + _dynamic_bytes(fused.spec, plan),
        "threads": plan.threads,
        "ctas": (plan.teams or plan.ctas_per_chunk) * plan.chunks,
        "in_flight_bytes": _in_flight_bytes(fused.spec, plan),
        "moved_bytes": _moved_bytes(fused.spec, plan),
    }


def _in_flight_bytes(spec: Spec, plan: Plan) -> int:
    """Of a thread: of teams, what of the ring the row in hand leaves; of rows that pass, the ring; else a step of a
    sweep."""
    if plan.parts and plan.slots:
        passing = passing_operands(spec, plan.space)
        return plan.slots * plan.space.vector * _item_bytes([o for o in spec.operands if o.name in passing])
    block = plan.unroll * plan.space.vector * max(map(_item_bytes, _reading(spec)))
    return block * max(plan.slots - plan.held, 1)


def _dynamic_bytes(spec: Spec, plan: Plan) -> int:
    """Dynamic shared memory of a CTA: a tile, queues, a stretch, or its part of a row. What sweeps are combined in is
    left out."""
    if plan.tile is not None:
        return plan.tile.shared_bytes(plan.space.vector)
    if spec.rank is not None:
        return plan.threads // WARP * queue_keys(spec.rank.count) * ITEM_BYTES["i64"]
    if plan.slide is not None:
        return plan.slide.shared_bytes
    operand = overlap(spec) if plan.windows else None
    if operand is not None:
        vector = ALIGNED // ITEM_BYTES[operand.dtype]
        return stretch(spec, operand, plan.windows, vector)[-1] * ALIGNED
    if plan.row_storage != "shared":
        return 0
    items = {o.name: ITEM_BYTES[o.dtype] for o in spec.operands}
    steps = (plan.ring_steps or plan.blocks_per_chunk * plan.unroll) * plan.threads * plan.space.vector
    names = passing_operands(spec, plan.space) if plan.parts else resident_operands(spec, plan.space)
    return steps * sum(items[n] for n in names)


def _reading(spec: Spec) -> list[list[Any]]:
    """The operands that each sweep reads for every element, the last one too; those that are indexed as well."""
    functions = [*(sweep.elements for sweep in spec.sweeps), *([spec.final] if spec.final else [])]
    functions += [spec.scan.elements] if spec.scan else []
    functions += [spec.rank.elements] if spec.rank else []
    elements = [o for o in spec.operands if o.indexed or not spec.at_row_level(o.shape)]
    return [[o for o in elements if o.name in reads(function)] for function in functions] or [[]]


def _item_bytes(operands: list[Any]) -> int:
    return sum(ITEM_BYTES[o.dtype] for o in operands)


def _moved_bytes(spec: Spec, plan: Plan) -> int:
    """Every operand as often as a sweep reads it, but what stays on chip of it once, and every output once."""
    on_chip = set(resident_operands(spec, plan.space)) if plan.row_storage != "reread" else set()
    passing = (
        1.0 - (plan.held + plan.own) / plan.blocks_per_chunk if plan.slots else 0.0
    )  # the share of a row that finds no room
    readings = [operand.name for sweep in _reading(spec) for operand in sweep]

    def times(name: str) -> float:
        again = max(readings.count(name) - 1, 0)
        return 1 + again * (passing if name in on_chip else 1)

    tensors = [*((o, times(o.name)) for o in spec.operands), *((o, 1) for o in spec.outputs)]
    return round(sum(prod(t.shape) * ITEM_BYTES[t.dtype] * count for t, count in tensors))


class TellsItself(Protocol):
    """A skeleton of another kind, which knows what its kernels take: gemm.fused.FusedProduct."""

    def configure(self, **knobs: Any) -> None: ...

    def demand(self, processors: int) -> dict[str, int | str]: ...

    def prepare(self, device: Gpu) -> None: ...

    @property
    def objects(self) -> set[Path]: ...


def fused_of(path: Path) -> Fused | TellsItself:
    """The skeleton that a fused file has configured, from a fresh import."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Fused | TellsItself = module._FUSED
    return found


def _told(fused: Fused | TellsItself, device: Gpu) -> dict[str, Any]:
    fused.prepare(device)
    tell = getattr(fused, "demand", None)  # the file brings a copy of its class along: no isinstance
    found: dict[str, Any] = tell(device.processors) if tell else demand(fused, device)  # type: ignore[arg-type]
    return {"objects": sorted(map(str, fused.objects)), "demand": found}


def answer_jobs(tell: Callable[[Fused | TellsItself, Gpu], dict[str, Any]]) -> None:
    """A child's work: `tell` of the fused file of each job on stdin, at its knobs; a line for each on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints is no answer
    asked = json.load(sys.stdin)
    jobs = asked.pop("jobs")
    device = Gpu(**asked)
    for path, knobs in jobs:
        try:
            fused = fused_of(Path(path))
            fused.configure(**knobs)
            answer = tell(fused, device)
        except Exception as error:  # of whatever kind: one setting that does not compile must not hide the others
            answer = {"failure": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    answer_jobs(_told)
