"""Gradients of a depthwise convolution's weight: of sums over windows (see frontend.autodiff.depthwise) those that the
skeleton `conv_weight` makes, and their files. What it leaves is the rows engine's."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Knob, Point, Space, point
from ...ir.program import Load, Operand, Program, Reduction, Statement
from ...kernels.cuda.conv.shape import MOST_TAPS as MOST_ALONG
from ...kernels.cuda.conv_weight.shape import Patches, WeightShape
from ..conv.points import ARCHITECTURE
from ..realiser import Fit, Refused
from ..rows.text import RUN_OP
from . import renderer
from .renderer import array_spec
from .shape import three

target: Target = "cuda"
digest, writers = renderer.digest, (*renderer.writers, "conv_weight/depthwise.py")
skeleton_files = renderer.skeleton_files
MOST_TAPS = 64
_PARTS = ("auto", 8, 32)
_KNOBS = (
    Knob(name="parts", values=_PARTS, about="parts that a channel's pixels are cut into, added up by a second kernel"),
)
_TYPES = ("f32", "f16", "bf16")
_LONGEST = 1 << 30  # pixels and elements of a sample have 32 bits
_FOREIGN = Refused("no gradient of a depthwise convolution's weight", foreign=True)
_TEXT = '''\
"""{name}: the gradient of a depthwise convolution's weight {output}. Made by Tilewright: CuTe DSL, for CUDA."""

from tilewright_kernels.cuda.common.spec import ArraySpec
from tilewright_kernels.cuda.conv_weight.fused import FusedDepthwiseWeight, Patches, WeightShape, WeightSpec
from tilewright_kernels.ops import torch_op

SPEC = WeightSpec(
    name="{name}",
    shape={shape},
    dense={dense_spec}
    windowed={windowed_spec}
    output={output_spec}
    axes={axes},{more}
)

_FUSED = FusedDepthwiseWeight(SPEC, {knobs}, source=__file__)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseGradient:
    """A program as one: `axes` as a WeightSpec's."""

    shape: WeightShape
    dense: Operand
    windowed: Operand
    axes: tuple[tuple[int | None, ...], tuple[int | None, ...]]


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    found = depthwise_gradient(program) if device.architecture == ARCHITECTURE else None
    return _FOREIGN if found is None else Fit(kernel="depthwise weight gradients")


def points(program: Program, device: Device) -> Space:
    """See `realiser`."""
    return Space(knobs=_KNOBS, points=tuple(point(parts=parts) for parts in _PARTS))


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.py`."""
    found = depthwise_gradient(program)
    assert found is not None
    (output,) = program.outputs
    first = program.operands[0].name == found.windowed.name
    text = _TEXT.format(
        name=name, output=output.shape, shape=repr(found.shape), dense_spec=array_spec(found.dense),
        windowed_spec=array_spec(found.windowed),
        output_spec=array_spec(Operand(name=output.name, dtype=output.dtype, shape=output.shape)),
        axes=repr(found.axes), more="\n    windowed_first=True," * first, knobs=repr(dict(point)),
    )  # fmt: skip
    end = RUN_OP.format(
        name=name, reads=", ".join(o.name for o in program.operands), writes=output.name,
        outputs=repr(((output.shape, output.dtype),)), arity=2,
    )  # fmt: skip
    return (SourceFile(path=f"{name}.py", text=text + end),)


def depthwise_gradient(program: Program) -> DepthwiseGradient | None:
    """What the program is as one that the skeleton makes; None of any other."""
    operands = {o.name: o for o in program.operands}
    found = _summed(program)
    if found is None or len(operands) != 2:
        return None
    load, dense = found[0], operands[found[1]]
    windowed = operands[load.source]
    image, channel, *places = ([d for d, _ in p.steps if program.domain[d] > 1] for p in load.at)
    reduced = set(program.reduced)
    rank, spread = len(places), [[d for d in of if d in reduced] for of in places]
    taps = [[d for d in of if d not in reduced] for of in places]
    along = [*image, *(d for of in spread for d in of)]
    kept = [d for d, size in enumerate(program.domain) if size > 1 and d not in reduced]
    order = [*channel, *(d for of in taps for d in of)]
    if not 1 <= rank <= 3 or max(map(len, (image, channel, *spread, *taps))) > 1 or len(channel) != 1:
        return None
    if kept != order or sorted(along) != sorted(d for d in reduced if program.domain[d] > 1):
        return None
    if any(size > 1 and d not in (*channel, *along) for d, size in enumerate(dense.shape)):
        return None
    steps = [dict(p.steps) for p in load.at[2:]]

    def size(of: list[int]) -> int:
        return program.domain[of[0]] if of else 1

    def axis(of: list[int]) -> int | None:
        return of[0] if of else None

    shape = WeightShape(windowed=Patches(
        batch=size(image), groups=size(channel), channels=1, columns=1, image=three(windowed.shape[2:], 1),
        out=three([size(of) for of in spread], 1), taps=three([size(of) for of in taps], 1),
        stride=three([s[of[0]] if of else 1 for s, of in zip(steps, spread, strict=True)], 1),
        start=three([p.start for p in load.at[2:]], 0),
        step=three([s[of[0]] if of else 1 for s, of in zip(steps, taps, strict=True)], 1),
    ))  # fmt: skip
    gap = (None,) * (3 - rank)
    axes = (
        (axis(image), axis(channel), None, *gap, *map(axis, spread)), (0, 1, None, *gap, *range(2, 2 + rank))
    )  # fmt: skip
    made = DepthwiseGradient(shape=shape, dense=dense, windowed=windowed, axes=axes)
    return made if _is_taken(made, load) else None


def _is_taken(found: DepthwiseGradient, load: Load) -> bool:
    """Whether the skeleton makes it: the samples' and channels' own positions, one of each tap along a few."""
    s, x = found.shape.windowed, found.windowed
    plain = all(p.start == 0 and all(step == 1 for _, step in p.steps) for p in load.at[:2])
    alike = s.batch == x.shape[0] and s.groups == x.shape[1] and found.dense.dtype == x.dtype and x.dtype in _TYPES
    few = s.all_taps <= MOST_TAPS and max(s.taps) <= MOST_ALONG
    forward = min(*s.stride, *s.step) > 0 and not x.order
    return plain and alike and few and forward and max(s.pixels, prod(x.shape[1:])) < _LONGEST


def _summed(program: Program) -> tuple[Load, str] | None:
    """The load and the operand whose products, in fp32, are summed, where that is all."""
    made: dict[str, Load | Statement] = {i.result: i for i in program.body if isinstance(i, Load | Statement)}
    sums = [i for i in program.body if isinstance(i, Reduction)]
    if program.product or program.scan or program.sums or len(sums) != 1 or sums[0].op != "sum":
        return None
    product, written = made.get(sums[0].arg), program.outputs
    if not isinstance(product, Statement) or (product.op, product.dtype) != ("mul", "f32") or len(written) != 1:
        return None

    def bare(name: object) -> str:
        item = made.get(str(name))
        return str(item.args[0]) if isinstance(item, Statement) and item.op == "to" else str(name)

    if bare(written[0].name) != sums[0].results[0]:
        return None
    for one, other in (product.args, product.args[::-1]):
        load = made.get(bare(one))
        dense = bare(other)
        if isinstance(load, Load) and not load.args and not load.fill and dense not in made:
            return load, dense
    return None
