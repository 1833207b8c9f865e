"""The points of im2col products, by a model of their times."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from ...facts.device import Device
from ...facts.space import Point, point
from ...ir.program import Program
from ...kernels.cuda.conv.im2col import KERNELS, im2col_point, no_im2col
from ...kernels.cuda.conv.shape import ConvShape
from ...kernels.cuda.conv.tiles import DEFAULTS
from ...kernels.cuda.gemm.host.plan import DEPTH
from ...kernels.cuda.gemm.host.plan import Point as Product

_EACH = 3  # points of a kernel
_TILES = ((128, 64), (128, 128), (256, 64), (256, 128), (128, 192), (128, 256), (64, 64), (64, 128))
# MODEL: nothing was fitted. Clocks of a multiprocessor.
_CLOCK = 1.7  # a ns
_FMA = 2048.0  # of 16 bits, a clock
_CACHE = 30.0  # bytes of the L2 cache, a clock
_END = 0.12  # of an element of the output, where no other warpgroup multiplies meanwhile
_TILE, _FIRST = 300.0, 1500.0  # of a tile, and until the first stage is full
_LAUNCH_NS = 4000.0
_COPIED = 1.06  # times as long, where threads copy


def im2col_points(program: Program, shape: ConvShape, device: Device, *, channels_last: bool) -> tuple[Point, ...]:
    """Some of each kernel that can compute it, the likeliest first."""
    if no_im2col(shape, program.operands[0].dtype, channels_last=channels_last) is not None:
        return ()
    found: dict[tuple[str, Product], tuple[float, dict[str, Any]]] = {}
    for knobs in _settings(program, shape):
        try:
            made = im2col_point(shape, knobs)
        except ValueError:
            continue
        found.setdefault((knobs["kernel"], made), (_work_ns(program, shape, knobs["kernel"], made, device), knobs))
    ranked = [knobs for _, knobs in sorted(found.values(), key=lambda own: own[0])]
    kept = [knobs for kernel in KERNELS for knobs in [k for k in ranked if k["kernel"] == kernel][:_EACH]]
    return tuple(point(**knobs) for knobs in ranked if knobs in kept)


def _settings(program: Program, shape: ConvShape) -> list[dict[str, Any]]:
    """A matrix that the epilogue reads comes by shared memory, as the result leaves."""
    whole = prod(program.outputs[0].shape)
    added = any(prod(o.shape) == whole for o in program.operands[2:])
    items = {o.dtype for o in program.outputs}
    store = "direct" if shape.columns % 8 else "staged" if added and items <= {"f16", "bf16"} else "bulk"
    return [
        DEFAULTS | {"kernel": kernel, "pixels": pixels, "columns": columns, "cluster": cluster, "schedule": schedule,
                    "store": store}
        for kernel in KERNELS[::-1] for schedule in ("pingpong", "cooperative") for cluster in ("2x1", "1x1")
        for pixels, columns in _TILES if columns == 64 or columns < 2 * shape.columns
    ]  # fmt: skip


def _work_ns(program: Program, shape: ConvShape, kernel: str, made: Product, device: Device) -> float:
    """Whole waves of tiles, each as long as its products take, or as bringing their factors from the L2 cache; an end
    of a tile that others don't hide; at least what memory takes."""
    steps = ceil(shape.channels * shape.all_taps / DEPTH)
    multiply = made.tile_m * made.tile_n * DEPTH / (_FMA * _share(made))
    bring = (made.tile_m + made.tile_n / made.cluster_m) * DEPTH * 2 / _CACHE
    end = _TILE + _END * made.tile_m * made.tile_n
    tile = steps * max(multiply, bring) * (_COPIED if kernel == "im2col" else 1.0)
    tile = max(tile + _TILE / 3, end / 2) if made.pingpong else tile + end
    resident = made.resident
    clusters = ceil(shape.pixels / (made.tile_m * made.cluster_m)) * ceil(shape.columns / made.tile_n) * shape.groups
    waves = ceil(clusters * made.cluster_m / (device.processors * resident)) * resident
    waves_ns = (waves * tile + _FIRST + (end if made.pingpong else 0.0)) / _CLOCK
    return max(waves_ns, program.traffic_bytes / device.copy_bytes_per_ns) + _LAUNCH_NS


def _share(made: Product) -> float:
    """Of the tensor cores' rate: narrow tiles read more of shared memory for each product."""
    return {64: 0.6, 128: 0.9}.get(made.tile_n, 0.95)
