"""The knobs of a convolution, and the points that are tried, in the order of a model of their times."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from ...facts.device import Device
from ...facts.devices import DEVICES
from ...facts.space import Knob, Point, Space, point
from ...ir.program import Program
from ...kernels.cuda.conv.phases import MERGED, ConvPhase, phases
from ...kernels.cuda.conv.reduction import unreduced
from ...kernels.cuda.conv.shape import ATOM, GROUP, ConvShape
from ...kernels.cuda.conv.tiles import DEFAULTS, GATHERED, ConvPoint, make_points
from ...kernels.cuda.conv.tiles import KNOBS as LEGAL
from ...kernels.cuda.conv.windows import Windows
from .im2col_points import im2col_points
from .reductions import over_of, writes_apart

FITTED = DEVICES["h200"]
ARCHITECTURE = FITTED.architecture
_POINTS = 10  # that are ranked of a precision
_LIKELY, _OTHER = 4, 2  # that are tried of the likelier precision, and of the other
_MOST_KERNELS = 9  # of one convolution
_ABOUT = {
    "kernel": "gather: every window is read anew; window: of stride 1, they overlap in shared memory; im2col, "
    "im2col_tma: of 16 bits in channels-last, a product whose A is copied, or brought by TMA",
    "pixels": "of the output, a CTA's tile", "columns": "channels of the output, the same; 0: all of them, or 256",
    "producers": "threads that gather", "stages": "buffers of 64 of K; auto: as many as fit",
    "precision": "what stands for fp32: three products of fp16 pairs, or one of fp16, which is TF32's class",
    "weights": "auto: in shared memory as long as the kernel runs, where they fit",
    "phases": "of a strided transposed convolution: a kernel each, or one for those along the last dimensions",
    "cluster": "of an im2col, CTAs that share columns", "store": "of an im2col, how results leave",
    "schedule": "of an im2col: pingpong, warpgroups multiply tiles in turns",
}  # fmt: skip
KNOBS = tuple(Knob(name=name, values=values, about=_ABOUT[name]) for name, values in LEGAL.items())
# From so many channels on cuDNN multiplies fp32 in TF32 on Hopper (two thirds of KernelBench's references); with fewer
# its other algorithms compute in fp32, so three products are tried first.
TF32_CHANNELS = 16
# Fitted to 172 times of 23 row-major convolutions (H200, 2026-11-27), then rounded: off by a factor of 1.5 in the mean.
# What is said of channels-last, and of phases in one kernel, is a guess. Clocks of a multiprocessor.
_CLOCK = 1.7  # a ns
_FMA = 1600.0  # of fp16, a clock
_GATHER = 13.0  # elements that are read, converted and written, a clock; half the threads reach _FEW of it
_FEW = 0.5
_AT_ONCE = 2.0  # times as many, where eight channels are one load
_COLUMNS = {16: 0.25, 32: 0.4, 64: 0.7, 128: 0.95}  # of the rate, for tiles of at most so many columns
_STREAM = 15.0  # bytes of weights from the L2 cache
_END, _TILE = 0.6, 350.0  # of an element of the output, and of a tile
_END_LAST = 0.3  # of an element that is written channels-last
_END_PHASES = 0.35  # and of one beside its neighbour's phase
_LAUNCH_NS = 7000.0
_SECTOR = 8  # elements that are written whole or as often as they are parted
_ITEM = {"f16": 2, "bf16": 2, "i64": 8, "bool": 1}


def space(program: Program, shape: ConvShape, device: Device, *, channels_last: bool = False) -> Space:
    """Of the settings that fit, some of each precision and each kernel, the likeliest first. `channels_last`: of the
    program's domain."""
    # An im2col product reduces nothing, and channels share no operand of its epilogue.
    able = over_of(program) is None and not any(o.at for o in program.operands)
    products = im2col_points(program, shape, device, channels_last=channels_last) if able else ()
    ranked = ranked_points(program, shape, device)
    likely = [p for p in ranked if dict(p)["precision"] == dict(ranked[0])["precision"]]
    others = [p for p in ranked if p not in likely]
    return Space(knobs=KNOBS, points=(*products, *_of_each_kernel(likely, _LIKELY), *_of_each_kernel(others, _OTHER)))


def _of_each_kernel(ranked: list[Point], most: int) -> list[Point]:
    """So many, in their order, half of either kernel where both are there: they differ by less than the model errs."""
    own = [[p for p in ranked if dict(p)["kernel"] == kernel] for kernel in GATHERED]
    first = {p for of_one in own for p in of_one[: most // 2]}
    rest = [p for p in ranked if p not in first]
    kept = first | set(rest[: max(most - len(first), 0)])
    return [p for p in ranked if p in kept]


def ranked_points(program: Program, shape: ConvShape, device: Device) -> tuple[Point, ...]:
    """The settings that fit, the likeliest first; of each kernel, each precision and each way to merge phases some."""
    dtype = program.operands[0].dtype
    likely = "tf32" if shape.channels >= TF32_CHANNELS else "fp16x3"
    precisions = (likely, *{"tf32", "fp16x3"} - {likely}) if dtype == "f32" else ("plain",)
    found: list[Point] = []
    for number, precision in enumerate(precisions):
        ranked = [point(**knobs) for knobs in _ranked(program, shape, precision, device)]
        most = _POINTS if number == 0 else _POINTS // 2
        groups: dict[tuple[Any, Any], list[Point]] = {}
        for p in ranked:
            groups.setdefault((dict(p)["kernel"], dict(p)["phases"]), []).append(p)
        each = most // 2 if prod(shape.spread) == 1 else most // 4
        kept = {p for own in groups.values() for p in own[:each]}
        found += [p for p in ranked if p in kept]
    return tuple(found)


def _ranked(program: Program, shape: ConvShape, precision: str, device: Device) -> list[dict[str, Any]]:
    """All settings that fit, by the model; where memory is what they wait for, those that compute the least first."""
    found: dict[tuple[ConvPoint, ...], tuple[float, float, dict[str, Any]]] = {}
    over, operands = over_of(program), sum(not o.indexed for o in program.operands)
    for knobs in _settings(shape, precision):
        try:
            made = make_points(shape, knobs)
        except ValueError:
            continue
        if len(made) > _MOST_KERNELS or (over is not None and unreduced(shape, made, *over, operands=operands)):
            continue
        if over is not None and writes_apart(program, shape) and made[0].phases == "apart":
            continue
        found.setdefault(
            made, (work_ns(program, shape, made, device), _computed_ns(program, shape, made, device), knobs)
        )
    return [knobs for *_, knobs in sorted(found.values(), key=lambda own: own[:2])]


def _settings(shape: ConvShape, precision: str) -> list[dict[str, Any]]:
    whole = ceil(shape.columns / 8) * 8
    columns = [0, *(c for c in (8, 16, 24, 32, 48, 64, 96, 128, 192, 256) if c < whole)]
    return [
        DEFAULTS | {"kernel": kernel, "pixels": pixels, "columns": c, "producers": producers,
                    "precision": precision, "weights": weights, "phases": merged}
        for merged in (tuple(MERGED) if prod(shape.spread) > 1 else ("apart",))
        for kernel in GATHERED for pixels in (128, 256, 512)
        for c in columns if c == 0 or c >= 64 or merged != "apart"
        for producers in (256, 128) for weights in ("auto", "streamed")
    ]  # fmt: skip


def work_ns(program: Program, shape: ConvShape, made: tuple[ConvPoint, ...], device: Device) -> float:
    """The model: the kernels one after the other, the whole at least as long as memory takes. Each kernel reads x; one
    that has not all phases along the last dimension writes sectors that others write, too."""
    x, rate = program.operands[0], device.copy_bytes_per_ns
    x_bytes = prod(x.shape) * (4.0 if x.dtype == "f32" else 2.0)
    again_ns = x_bytes / rate if x.dtype == "f32" else 0.0  # read for the largest of each sample
    parted = min(shape.spread[2], _SECTOR) if made[0].phases == "apart" else 1
    moved = program.traffic_bytes + (len(made) - 1) * x_bytes
    moved += (parted - 1) * sum(prod(o.shape) * _ITEM.get(o.dtype, 4) for o in program.outputs)
    return max(_computed_ns(program, shape, made, device), moved / rate) + again_ns + _LAUNCH_NS * len(made)


def _computed_ns(program: Program, shape: ConvShape, made: tuple[ConvPoint, ...], device: Device) -> float:
    end = _END_LAST if program.domain[-1] == shape.columns else _END  # the rare image as wide as that is taken for one
    found = phases(shape, made[0].phases)
    return sum(_kernel_ns(p, own, end, device) for p, own in zip(found, made, strict=True))


def _kernel_ns(phase: ConvPhase, made: ConvPoint, end: float, device: Device) -> float:
    """A tile takes as long as its slowest part, gathering, multiplying or fetching weights, and its epilogue, `end`
    clocks an element, less for phases that leave together."""
    shape = phase.shape
    rows, read, blocks = shape.pixels, float(made.pixels * shape.depth), [(1, shape.depth)]
    if made.kernel == "window":
        windows = Windows(shape=shape, pixels=made.pixels, parts=phase.parts)
        rows, blocks = windows.places, [(1, windows.depth)]
        if phase.parts:
            blocks = [(own.count, windows.steps * ATOM) for own in windows.plan.products]
        read = float(windows.held * windows.steps * windows.groups * GROUP)
    gather = read / (_GATHER * (1.0 if made.producers == 256 else _FEW) * (_AT_ONCE if shape.channels_inside else 1.0))
    passes = 3 if made.planes == 2 else 1
    multiply = sum(
        passes * made.pixels * depth * made.columns * count / (_FMA * _share(made.columns * count))
        for count, depth in blocks
    )
    fetch = 0.0 if made.resident else made.steps * made.weight_bytes / _STREAM
    end = min(end, _END_PHASES) if phase.parts else end
    written = made.pixels * made.columns * max(len(phase.parts), 1)
    tile = max(gather, multiply, fetch) + end * written + _TILE
    tiles = ceil(rows / made.pixels) * made.tiles * shape.groups
    return ceil(tiles / device.processors) * tile / _CLOCK


def _share(columns: int) -> float:
    """Of the tensor cores' rate, for a wgmma of so many columns."""
    return next((s for most, s in _COLUMNS.items() if columns <= most), 1.0)
