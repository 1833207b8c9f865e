"""The part of tuning that needs no GPU: every point compiled for one that is not here, and put in the order in which
that one would measure them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..edges.gpu.machine import identity
from ..facts.demand import Demand
from ..facts.device import Device
from ..facts.pattern import Pattern
from ..facts.problem import Problem
from ..facts.space import Point
from ..judge.evaluate import Judge, JudgeOptions
from ..realise.table import realisers
from ..search.tune.predict import cuda_ns
from .ahead import Objects
from .foresee import demanded, foreseen
from .matching import found_patterns
from .places import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A pattern whose points have been compiled: what each takes, or why it does not compile; and those of them that a
    GPU would measure, the likeliest first."""

    pattern: Pattern
    demands: dict[Point, Demand | str]
    order: tuple[Point, ...]

    def predicted_ns(self, point: Point, device: Device) -> float | None:
        """By the tuner's model, which knows bytes alone: nothing where a realiser has a model of its own."""
        demand, ranked = self.demands.get(point), realisers(device).is_ranked(self.pattern.program)
        return cuda_ns(demand, device) if isinstance(demand, Demand) and not ranked else None


def tune_ahead(
    problem: Problem, device: Device, *, cache: Path, say: Callable[[str], None]
) -> tuple[tuple[Prepared, ...], Path]:
    """The patterns of the problem's first case, whose kernels are compiled in as many processes as there are cores, and
    the folder in `cache` that holds them: copied to a machine with such a GPU and the same toolchain, nothing is
    compiled there. The module runs once, on the CPU, to be traced. UserError for a fault of the problem's."""
    here = replace(problem, target="cpu", cases=problem.cases[:1])
    with tempfile.TemporaryDirectory(prefix="tilewright-ahead-") as out:
        places = Places(out=Path(out), cache=cache)
        with Judge(
            here, machine=identity("cpu"), seed=0, workdir=places.out, say=say,
            options=JudgeOptions(compile_baseline=False, algebra=False),
        ) as judge:  # fmt: skip
            cases = judge.open()
    (matched,) = found_patterns(cases, device, allow_tf32=problem.allow_tf32)
    objects, folder = Objects(), places.libraries
    demands = demanded(matched.patterns, device=device, folder=folder, objects=objects) if matched.patterns else {}
    (left,) = foreseen((matched,), device, known=(), say=say, folder=folder, objects=objects)
    prepared = tuple(
        Prepared(
            pattern=whole, order=best.space.points,
            demands={p: demands[whole.id, p] for p in whole.space.points if (whole.id, p) in demands},
        )
        for whole, best in zip(matched.patterns, left.patterns, strict=True)
    )  # fmt: skip
    return prepared, folder
