"""Calls a depthwise convolution on torch tensors; where operands lie so that no tile fits, as any reduction of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from math import gcd
from pathlib import Path
from typing import Any

from cutlass import Int32, Int64

from ..common import cache
from ..common.operands import used_views
from ..common.spec import Spec
from ..common.views import IndexSpace, contiguous, fewer_lanes, make_space
from ..rows.cta import Cta
from ..rows.dynamic import freed
from ..rows.engine import EngineKernel
from ..rows.kernels import Entry
from ..rows.launch import Fused
from ..rows.plan import DEFAULTS as ROW_DEFAULTS
from ..rows.plan import Gpu, Plan
from ..rows.planning import make_plan
from .last import LastCta
from .plan import DEFAULTS, KNOBS, DepthwisePlan, DepthwiseSpec, make_tile, windows_of
from .results import CachedCta, DepthwiseCta


class DepthwiseKernel(EngineKernel):
    """A Spec with its DepthwiseSpec under a Plan."""

    def __init__(self, spec: Spec, depthwise: DepthwiseSpec, plan: Plan) -> None:
        super().__init__(spec, plan)
        self.depthwise = depthwise

    def _cta(self, stage: int) -> type[Cta]:
        if not isinstance(self.plan, DepthwisePlan):
            return super()._cta(stage)
        part = self.plan.part
        return LastCta if part.channels else CachedCta if part.cached else DepthwiseCta

    def _ctas(self, tensors: tuple[Any, ...]) -> Any:
        plan = self.plan
        if not isinstance(plan, DepthwisePlan) or plan.rows == "fixed":
            return super()._ctas(tensors)
        planes = Int64(tensors[self.spec.rows_of].shape[0]) * plan.windows_at.planes
        tiles = (planes + (plan.part.planes - 1)) // plan.part.planes
        return Int32(tiles * (plan.part.row_tiles * plan.part.column_tiles))


def without_images(spec: Spec, plan: DepthwisePlan) -> DepthwisePlan | None:
    """The plan without the number of images; None where that is fixed."""
    found = freed(spec, plan)
    if not isinstance(found, DepthwisePlan) or plan.part.channels:
        return None
    one = replace(plan.windows_at.image, count=1, length=1)
    full = plan.windows_at.planes % plan.part.planes == 0
    return replace(found, rows="full" if full else "ragged", windows_at=replace(plan.windows_at, image=one))


class Depthwise(Fused):
    """As Fused; its knobs are those of tiles."""

    def __init__(
        self, spec: Spec, depthwise: DepthwiseSpec, entry: Entry, knobs: dict[str, Any], *, source: str = ""
    ) -> None:
        super().__init__(spec, entry, {}, source=source)
        _check(knobs)
        self.depthwise, self.knobs = depthwise, DEFAULTS | knobs

    def configure(self, **knobs: Any) -> None:
        _check(knobs)
        super().configure()
        self.knobs.update(knobs)

    def plan(
        self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Gpu, *, rows: int | None = None
    ) -> Plan:
        spec = self._at(rows)
        plain = make_plan(spec, strides, alignments, ROW_DEFAULTS, device)
        number = next(i for i, o in enumerate(spec.operands) if o.name == self.depthwise.source)
        windows = windows_of(spec, spec.operands[number])
        space = _of_results(spec, self.depthwise, strides, alignments)
        tile = windows and make_tile(
            spec.operands[number], windows, strides[number], alignments[number], knobs=self.knobs,
            lanes=space.vector, processors=device.processors,
        )  # fmt: skip
        if not (windows and tile) or space.front != "column" or space.span >= 2**31:
            return plain
        lanes = tile.vector if tile.channels else gcd(space.vector, tile.along, tile.columns)
        space = fewer_lanes(space, lanes)
        kept = [size for d, size in enumerate(spec.domain) if size > 1 and d not in spec.reduced]
        if space.group_sizes != (*kept[:-1], kept[-1] // lanes):
            return plain
        given = {f.name: getattr(plain, f.name) for f in fields(Plan)}
        given |= {"space": space, "group_threads": 1, "groups_per_cta": tile.threads, "chunks": 1, "cta_split": "none"}
        given |= {"row_storage": "reread", "wide": False, "teams": 0, "windows": 0, "slide": None, "least_ctas": 0}
        given |= {"unroll": max(32 // tile.vector, 1)}
        return DepthwisePlan(**given, windows_at=windows, part=tile)

    def _kernel(
        self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Gpu, rows: int | None
    ) -> EngineKernel:
        plan = self.plan(strides, alignments, device, rows=rows)
        if not isinstance(plan, DepthwisePlan):
            return super()._kernel(strides, alignments, device, rows)
        spec = self._at(rows)
        return DepthwiseKernel(spec, self.depthwise, without_images(spec, plan) or plan)

    def _walks(self, spec: Spec) -> list[tuple[int, ...]]:
        """As operands are likely to lie: the channels of a pixel side by side, where results do."""
        walks = super()._walks(spec)
        for number, operand in enumerate(spec.operands):
            windows = windows_of(spec, operand) if operand.name == self.depthwise.source else None
            if windows is not None and windows.last:
                images, channels, *sides = operand.shape
                image, *others, channel = contiguous((images, *sides, channels))
                walks[number] = (image, channel, *others)
        return walks

    def _facts(self, *known: Any) -> tuple[object, ...]:
        """Also what the files of this folder say."""
        return *super()._facts(*known), cache.contents(Path(__file__).parent)


def _of_results(
    spec: Spec, depthwise: DepthwiseSpec, strides: Sequence[Sequence[int]], alignments: Sequence[int]
) -> IndexSpace:
    """The space of the results and of what is read beside them; weights, which have places of their own, count for
    nothing."""
    walks = [(0,) * len(w) if o.name == depthwise.weights else w for o, w in zip(spec.operands, strides, strict=True)]
    return make_space(spec, walks, alignments, used_views(spec), may_tail=True)


def _check(settings: dict[str, Any]) -> None:
    """Raise ValueError on an unknown knob or value."""
    for name, value in settings.items():
        if value not in KNOBS.get(name, ()):
            raise ValueError(f"no knob {name!r} of value {value!r}; there are {KNOBS}")
