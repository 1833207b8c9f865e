"""What a generated `fused_K.py` of a convolution tells the skeleton, and how it is called: like any other fused kernel.

    y (N, Co, *o) = epilogue(convolution(x (N, C, *i), w (Co, C, *t)), operands ..)

With groups x is (N, G, C, *i), w (G, Co, C, *t), y (N, G, Co, *o); a transposed convolution's w has C before Co. In
channels-last y is (N, *o, Co), of groups (N, *o, G, Co). x and w may lie in any order.
Weights are packed, and samples looked at for their largest, anew in every call: nothing derived from either outlives
it.
"""

from __future__ import annotations

from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...ops import DTYPES
from ..common.views import contiguous
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue
from ..gemm.host.launch import processors_of
from ..gemm.host.recorded import is_aligned, run_on
from ..host.recorded_kernel import RecordedKernel, Strides, any_where_single, compiled, demanded, fake, settings
from .epilogue import ConvEpilogue, EpilogueOperand
from .im2col import KERNELS as OF_IM2COL
from .im2col_host import Im2colConv
from .implicit import ImplicitConv
from .kernel import ConvKernel
from .moments import MomentsEpilogue
from .phases import phases
from .prepare import QUAD, Prepare
from .reduced import ChannelEpilogue, PlacesEpilogue, WindowEpilogue
from .reduction import unreduced
from .spec import ConvSpec
from .tiles import DEFAULTS, ConvPoint, make_points
from .window import WindowConv
from .windows import Windows

__all__ = ["ConvSpec", "FusedConv"]

_HERE = Path(__file__).resolve().parent
_ALIGNED = 16
_BULK = 128
_REDUCED = {"channels": ChannelEpilogue, "window": WindowEpilogue, "places": PlacesEpilogue,
            "moments": MomentsEpilogue}  # fmt: skip


class FusedConv(RecordedKernel[ConvSpec]):
    """A ConvSpec with its knobs. It launches (x, w, highest, scrap .., outputs .., operands .., CTAs at most, 0, 0), or
    what an Im2colConv does."""

    defaults = DEFAULTS

    def _settle(self, knobs: dict[str, Any]) -> None:
        scaled = self.spec.x.dtype == "f32"
        if scaled == (knobs["precision"] == "plain"):
            raise ValueError(f"precision {knobs['precision']!r} is not one of {self.spec.x.dtype}")
        im2col, own = knobs["kernel"] in OF_IM2COL, self.spec.reduction
        found = () if im2col else make_points(self.spec.shape, knobs)
        if own is not None and im2col:
            raise ValueError("an im2col product reduces nothing")
        many = len(self.spec.operands)
        why = own and unreduced(self.spec.shape, found, own.over, own.window, operands=many)
        if why is not None:
            raise ValueError(why)
        self.im2col = Im2colConv(self.spec, knobs, self.store, self.arch) if im2col else None
        self.points: tuple[ConvPoint, ...] = found

    def _run(self, outs: list[Tensor], *given: Tensor) -> None:
        if self.im2col is not None:
            return self.im2col.run(outs, *given)
        x, w, *operands = given
        if not (_is_dense(x) and is_aligned(x)):
            x = x.clone(memory_format=torch.contiguous_format)
        if self.spec.channels_last:  # they are read by 16 bytes
            operands = [o if is_aligned(o) else o.clone() for o in operands]
        highest = torch.empty(self.spec.shape.batch, dtype=torch.int32, device=x.device).zero_()
        scrap = [torch.empty(count, dtype=DTYPES[dtype], device=x.device) for dtype, count, _ in self._scrap()]
        launch = self._launch([t.stride() for t in (x, w, *operands)])
        run_on(launch, x, w, highest, *scrap, *outs, *operands, processors_of(x), 0, 0)
        return None

    def _scrap(self) -> list[tuple[str, int, int]]:
        """Of each kernel packed weights and the channels' factors: type, elements, alignment."""
        shape, kind = self.spec.shape, "bf16" if self.spec.x.dtype == "bf16" else "f16"
        columns = shape.groups * shape.columns
        sizes = [shape.groups * p.tiles * p.steps * p.weight_bytes // 2 for p in self.points]
        return [own for size in sizes for own in ((kind, size, _BULK), ("f32", columns, _ALIGNED))]

    def _launch(self, strides: list[Strides]) -> Launch:
        epilogue = Epilogue(function=self.spec.epilogue, names=tuple(o.name for o in self.spec.operands))
        facts = settings("conv", self.arch, self.points, strides, _HERE)
        return self.store.obtain(facts, epilogue, lambda: self.compile(strides))

    def compile(self, strides: list[Strides], options: str = "") -> Launch:
        if self.im2col is not None:
            return self.im2col.compile([strides[0], *strides[2:]], options)
        spec = self.spec
        aligned = [0, 0, *(_ALIGNED if spec.channels_last else 0 for _ in spec.operands)]
        read = [
            fake(o.dtype, o.shape, any_where_single(o.shape, walk), align)
            for o, walk, align in zip(spec.read, strides, aligned, strict=True)
        ]
        between = [
            fake(dtype, (count,), (1,), align) for dtype, count, align in (("i32", spec.shape.batch, 4), *self._scrap())
        ]
        outs = [fake(o.dtype, o.shape, contiguous(o.shape), _ALIGNED) for o in spec.outputs]
        tensors = (*read[:2], *between, *outs, *read[2:])
        kernel = _Launched(spec, self.points, strides)
        return compiled(kernel, tensors, (1, 0, 0), arch=self.arch, options=options)

    def demand(self, processors: int) -> dict[str, int | str]:
        if self.im2col is not None:
            return self.im2col.demand(processors)
        p = max(self.points, key=lambda point: point.staged_bytes)
        return demanded(
            self.spec, self.points, registers=max(p.registers), shared_bytes=p.staged_bytes, threads=p.threads,
            ctas=processors, in_flight_bytes=p.stages * p.pixel_bytes // p.threads,
        )  # fmt: skip


class _Launched:
    """All launches of a call, two for each kernel, as `entries.product` calls them."""

    def __init__(self, spec: ConvSpec, points: tuple[ConvPoint, ...], strides: list[tuple[int, ...]]) -> None:
        x, w, *operands = strides
        self.outputs = len(spec.outputs)
        last = spec.channels_last
        read = [EpilogueOperand(o.name, o.dtype, spec.walk(own, o.shape, last=last), spec.each(o.shape))
                for own, o in zip(operands, spec.operands, strict=True)]  # fmt: skip
        of_x, of_w = spec.walk(x, spec.x.shape), spec.weight_walk(w)
        self.phases: list[tuple[Prepare, ConvKernel]] = []
        for phase, point in zip(phases(spec.shape, points[0].phases), points, strict=True):
            own = spec.reduction
            make = ConvEpilogue if own is None else partial(_REDUCED[own.over], reduction=own)
            finish = make(
                spec.shape, point, [o.dtype for o in spec.outputs], function=spec.epilogue, operands=read,
                first=phase.first, channels_last=last, parts=phase.parts,
            )  # fmt: skip
            kind: type[ConvKernel] = WindowConv if point.kernel == "window" else ImplicitConv
            windows = Windows(shape=phase.shape, pixels=point.pixels, parts=phase.parts)
            taps = (step * e for step, e in zip(of_w[3:], phase.every, strict=True))
            prepare = Prepare(
                spec.shape if phase.parts else phase.shape, point, dtype=spec.x.dtype, walk=(*of_w[:3], *taps),
                samples=(0 if self.phases else prod(spec.x.shape[1:]), of_x[0]),
                begin=sum(step * t for step, t in zip(of_w[3:], phase.tap, strict=True)), run=finish.run,
                windows=windows if point.kernel == "window" else None,
            )  # fmt: skip
            self.phases.append((prepare, kind(phase.shape, point, finish, dtype=spec.x.dtype, walk=of_x)))

    def __call__(self, tensors: tuple[Any, ...], ctas: Any, _one: Any, _other: Any, stream: Any) -> None:
        x, w, highest, *rest = tensors
        scrap, rest = rest[: 2 * len(self.phases)], rest[2 * len(self.phases) :]
        outs, operands = rest[: self.outputs], rest[self.outputs :]
        for number, (prepare, conv) in enumerate(self.phases):
            packed, factors = scrap[2 * number : 2 * number + 2]
            prepare.launch((x, w, packed, highest, factors), stream)
            conv.launch((x, packed, highest, factors), list(outs), list(operands), ctas, stream)


def _is_dense(x: Tensor) -> bool:
    """Whether each sample is one piece of memory, in whichever order of its dimensions."""
    inner = sorted((step, size) for step, size in zip(x.stride()[1:], x.shape[1:], strict=True) if size > 1)
    expected = 1
    for step, size in inner:
        if step != expected:
            return False
        expected *= size
    return x.shape[0] == 1 or (x.stride(0) >= expected and x.stride(0) % QUAD in (0, expected % QUAD))
