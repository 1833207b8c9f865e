"""What a generated `fused_K.py` of a weight's gradient tells the skeletons (see `host`): of a dense convolution, and of
a depthwise one, which has no knobs but how many parts a channel's pixels are cut into."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..host.recorded_kernel import Strides
from .depthwise import MOST_PARTS, MOST_TAPS, TapKernel, TapSums, parts_of
from .depthwise import THREADS as TAP_THREADS
from .host import Scrap, WeightHost, WeightSpec, demand_of
from .kernel import WeightKernel
from .magnitudes import Magnitudes
from .shape import Patches, WeightShape
from .split_sums import SplitSums
from .tiles import DEFAULTS, WeightPoint, make_point

__all__ = ["FusedDepthwiseWeight", "FusedWeightGradient", "Patches", "WeightShape", "WeightSpec"]

DEPTHWISE_PARTS = ("auto", 1, 2, 4, 8, 16, 32, MOST_PARTS)


class FusedWeightGradient(WeightHost):
    """Of a dense convolution, with groups or without."""

    defaults = DEFAULTS
    point: WeightPoint

    def _point(self, knobs: dict[str, Any]) -> WeightPoint:
        if (self.spec.dense.dtype == "f32") == (knobs["precision"] == "plain"):
            raise ValueError(f"precision {knobs['precision']!r} is not one of {self.spec.dense.dtype}")
        return make_point(self.spec.shape, knobs)

    def _scrap(self, processors: int) -> Scrap:
        s, p = self.spec.shape.windowed, self.point
        splits, steps = p.cut(self.spec.shape, processors)
        matrix = s.groups * p.rows * p.tiles[0] * p.columns * p.tiles[1]
        return Scrap(zeros=s.groups * (s.channels + s.columns), sums=splits * matrix, numbers=(splits, steps))

    def launched(self, strides: list[Strides]) -> _Launched:
        return _Launched(self.spec, self.point, strides)

    def demand(self, processors: int) -> dict[str, int | str]:
        p = self.point
        splits, _ = p.cut(self.spec.shape, processors)
        return demand_of(self.spec, self.point) | {
            "registers": max(p.registers), "shared_bytes": p.stages * p.stage_bytes, "threads": p.threads,
            "ctas": splits * p.tiles[0] * p.tiles[1] * self.spec.shape.windowed.groups,
            "in_flight_bytes": p.stages * p.stage_bytes // p.threads,
        }  # fmt: skip


class _Launched:
    """All launches of a call."""

    def __init__(self, spec: WeightSpec, point: WeightPoint, strides: list[Strides]) -> None:
        self.spec, (windowed, dense), s = spec, spec.walks(strides), spec.shape.windowed
        dtype = spec.dense.dtype
        self.looks: tuple[Magnitudes, ...] = ()
        if dtype == "f32":
            whole = replace(spec.shape.dense, channels=s.channels, image=s.image, out=s.image)
            self.looks = (
                Magnitudes(spec.shape.dense, dense, first=s.groups * s.channels), Magnitudes(whole, windowed, first=0)
            )  # fmt: skip
        self.kernel = WeightKernel(spec.shape, point, dtype=dtype, walks=(windowed, dense))
        self.sums = SplitSums(spec.shape, point)

    def __call__(self, tensors: tuple[Any, ...], splits: Any, steps: Any, _: Any, stream: Any) -> None:
        *operands, highest, results, out = tensors
        dense, windowed = self.spec.ordered((operands[0], operands[1]))
        for look, x in zip(self.looks, (dense, windowed), strict=False):
            look.launch(x, highest, stream)
        self.kernel.launch((windowed, dense, highest, results), splits, steps, stream)
        self.sums.launch(results, out, splits, stream)


class FusedDepthwiseWeight(WeightHost):
    """Of a depthwise convolution: groups of one channel, each with one result."""

    defaults = MappingProxyType({"parts": "auto"})
    point: str | int

    def _point(self, knobs: dict[str, Any]) -> str | int:
        s = self.spec.shape.windowed
        if knobs.keys() != {"parts"} or knobs["parts"] not in DEPTHWISE_PARTS:
            raise ValueError(f"knobs can't be {knobs!r}; legal is parts of {DEPTHWISE_PARTS}")
        if (s.channels, s.columns) != (1, 1) or s.all_taps > MOST_TAPS:
            raise ValueError(f"no depthwise convolution of at most {MOST_TAPS} taps")
        parts: str | int = knobs["parts"]
        return parts

    def _parts(self, processors: int) -> int:
        return self.point if isinstance(self.point, int) else parts_of(self.spec.shape, processors)

    def _scrap(self, processors: int) -> Scrap:
        s, parts = self.spec.shape.windowed, self._parts(processors)
        return Scrap(zeros=1, sums=parts * s.groups * s.all_taps, numbers=(parts, 0))

    def launched(self, strides: list[Strides]) -> _DepthwiseLaunched:
        return _DepthwiseLaunched(self.spec, strides)

    def demand(self, processors: int) -> dict[str, int | str]:
        s = self.spec.shape.windowed
        return demand_of(self.spec, self.point) | {
            "registers": 128, "shared_bytes": TAP_THREADS // 32 * s.all_taps * 4, "threads": TAP_THREADS,
            "ctas": s.groups * self._parts(processors), "in_flight_bytes": 32,
        }  # fmt: skip


class _DepthwiseLaunched:
    """Both launches of a call."""

    def __init__(self, spec: WeightSpec, strides: list[Strides]) -> None:
        self.spec = spec
        self.kernel = TapKernel(spec.shape, dtype=spec.dense.dtype, walks=spec.walks(strides))
        self.sums = TapSums(spec.shape)

    def __call__(self, tensors: tuple[Any, ...], parts: Any, _one: Any, _other: Any, stream: Any) -> None:
        *operands, _, results, out = tensors
        dense, windowed = self.spec.ordered((operands[0], operands[1]))
        self.kernel.launch((windowed, dense, results), parts, stream)
        self.sums.launch(results, out, parts, stream)
