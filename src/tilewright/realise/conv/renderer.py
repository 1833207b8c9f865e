"""Convolutions as implicit products: which of them the skeleton `conv` takes, and their files."""

from __future__ import annotations

from math import prod

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Point, Space
from ...ir.access import Position, Quotient
from ...ir.channelled import unchannelled
from ...ir.matrices import matrices_of
from ...ir.pooled import unwindowed
from ...ir.program import Contraction, Operand, Program, Statement
from ...kernels.cuda.conv.shape import GROUP, MOST_TAPS, ConvShape
from ..conv_weight.shape import weight_shape_of
from ..float8 import computes_in_float8, rounded_once
from ..gemm import renderer as gemm
from ..gemm.text import epilogue_of
from ..realiser import Fit, Refused, carried, refused
from ..rows import renderer as rows
from ..rows.text import RUN_OP, Lines, safe_names, tensors
from ..rows.text import fused_text as rows_text
from ..strength import reduced_in_strength
from .normed import in_turn_text, normed
from .points import ARCHITECTURE, space
from .reductions import (
    ConvText,
    chained_text,
    kernel_of,
    moments_text,
    over_of,
    places_text,
    reduction_text,
    unreducible,
    writes_apart,
)

target: Target = "cuda"
digest, writers = "convolutions", ("rows/text.py", "conv/points.py", "conv/im2col_points.py")
_TYPES = ("f32", "f16", "bf16")
_ALSO_READ = ("i32", "i64")
_ALSO_WRITTEN = ("i32", "i64", "bool")
_LEAST_K, _LEAST_COLUMNS = 16, 8
_LEAST_WORK = 1 << 22  # multiplications; below, it is all launch
_MOST_OPERANDS = 10  # of a residual block: two batch norms, each of four, what is added, and one more
_MOST_PHASES = 9
_LONGEST = 1 << 30  # pixels and elements of a sample have 32 bits, with the padding among them
_TEXT = '''\
"""{name}: a convolution of {x} and {weight}, and what is computed of it. Made by Tilewright: CuTe DSL, for CUDA."""

from tilewright_kernels.cuda.common import math as m
from tilewright_kernels.cuda.common.spec import ArraySpec
{imports}from tilewright_kernels.cuda.conv.fused import ConvSpec, FusedConv
from tilewright_kernels.cuda.conv.shape import ConvShape
from tilewright_kernels.ops import torch_op


{epilogue}

SPEC = ConvSpec(
    name="{name}",
    shape={shape},
    x={x_spec}
    weight={weight_spec}
    operands=({operands}
    ),
    outputs=({outputs_spec}
    ),
    {what},{more}
)

_FUSED = FusedConv(SPEC, {knobs}, source=__file__)
'''


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    if program.product is None or matrices_of(program, program.product) is not None:
        return Refused("no convolution", foreign=True)
    if device.architecture != ARCHITECTURE:
        return Refused(f"the convolution's skeleton needs {ARCHITECTURE} (wgmma)")
    shape = shape_of(program)
    if shape is None:
        why = "a contraction that is neither a product of whole matrices, or of batches, nor a convolution"
        return Refused(why, foreign=weight_shape_of(program) is not None)
    found = _unsupported(program, shape[0], device)
    return refused(found, ranked=True, guess=True, kernel=kernel_of(program, shape[0]))


def points(program: Program, device: Device) -> Space:
    """See `realiser`."""
    shape, _, channels_last = _shape(program)
    return space(program, shape, device, channels_last=channels_last)


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.py`; where places are reduced, the convolution and the kernel that joins its chunks beside it."""
    shape, _, _ = _shape(program)
    over = over_of(program)
    if over is not None and over[0] == "places":
        text, joined = places_text(program, shape)
        first = rows.points(joined, device).points[0]
        return (
            SourceFile(path=f"{name}.py", text=chained_text(program, name, shape)),
            SourceFile(path=f"{name}_places.py", text=_text(program, f"{name}_places", point, text)),
            SourceFile(path=f"{name}_rows.py", text=rows_text(joined, f"{name}_rows", first)),
        )
    if over is not None and over[0] == "moments":
        return _with_norm(program, name, point, device)
    text = _pointwise_text(program) if over is None else reduction_text(program)
    outputs = text.outputs
    end = RUN_OP.format(
        name=name, reads=", ".join(("x", "weight", *(o.name for o in text.operands))),
        writes=", ".join(o.name for o in outputs), outputs=repr(tuple((o.shape, o.dtype) for o in outputs)),
        arity=2 + len(text.operands),
    )  # fmt: skip
    return (SourceFile(path=f"{name}.py", text=_text(program, name, point, text) + end),)


def _with_norm(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.py`, and beside it the convolution, what joins its states, and what normalises."""
    shape, _, _ = _shape(program)
    made = normed(program, shape)
    assert made is not None
    files = [
        SourceFile(path=f"{name}.py", text=in_turn_text(program, name, shape)),
        SourceFile(path=f"{name}_conv.py", text=_text(program, f"{name}_conv", point, moments_text(program, shape))),
    ]
    for kind, own in (("join", made.join), ("norm", made.behind)):
        if own is not None:
            first = rows.points(own, device).points[0]
            files.append(SourceFile(path=f"{name}_{kind}.py", text=rows_text(own, f"{name}_{kind}", first)))
    return tuple(files)


def _text(program: Program, name: str, point: Point, text: ConvText) -> str:
    """The file but for its entry point."""
    shape, transposed, channels_last = _shape(program)
    x, weight = _operands(program)
    return _TEXT.format(
        name=name, x=x.shape, weight=weight.shape, shape=repr(shape), imports=text.imports, epilogue=text.functions,
        what=text.argument, x_spec=_spec(x), weight_spec=_spec(weight), operands=tensors(text.operands),
        outputs_spec=tensors(text.outputs),
        more="\n    transposed=True," * transposed + "\n    channels_last=True," * channels_last,
        knobs=repr(dict(point)),
    )  # fmt: skip


def _pointwise_text(program: Program) -> ConvText:
    small = safe_names(reduced_in_strength(rounded_once(epilogue_of(program))))
    body = [item for item in small.body if isinstance(item, Statement)]
    results = [o.name for o in small.outputs]
    given = f"({', '.join(results)})" if len(results) > 1 else results[0]
    return ConvText(
        functions=Lines(small).function("epilogue", "Per element: what is written.", body, results, given),
        argument="epilogue=epilogue", operands=tuple(o for o in small.operands if o.name != "product"),
        outputs=small.outputs,
    )  # fmt: skip


def skeleton_files() -> tuple[SourceFile, ...]:
    """The product's, too: both promote, scale and keep kernels in one way."""
    return (*gemm.skeleton_files(), *carried(["cuda/host", "cuda/conv"]))


def shape_of(program: Program) -> tuple[ConvShape, bool, bool] | None:
    """The convolution that the program's contraction is, whether its weights have channels before columns, and whether
    its domain has channels last; None where it is another contraction."""
    pooled = unwindowed(program)
    whole = (program if pooled is None else pooled[0]) if (split := unchannelled(program)) is None else split
    return _shape_of(whole, channels_last=False) or _shape_of(whole, channels_last=True)


def _shape_of(program: Program, *, channels_last: bool) -> tuple[ConvShape, bool, bool] | None:
    item = program.product
    assert item is not None
    x, _ = _operands(program)
    grouped = len(item.right.at) - len(item.over)  # 1, or 2 with groups
    spatial = len(item.over) - 1
    rank, at = len(program.domain), 1 + grouped
    if not 1 <= spatial <= 3 or grouped not in (1, 2) or rank != at + spatial or len(x.shape) != rank:
        return None
    front, behind = (1 + spatial, 1) if channels_last else (1, at)  # the first dimension of channels, and of places
    columns, channel = front + grouped - 1, Position(steps=((rank, 1),))
    own = [Position(steps=((d, 1),)) for d in (0, *range(front, front + grouped))]
    last = [Position(steps=((rank + 1 + d, 1),)) for d in range(spatial)]
    sides = (own[-1], channel)
    transposed = item.right.at[grouped - 1 : grouped + 1] == sides[::-1]
    right = (*own[1:-1], *(sides[::-1] if transposed else sides), *last)
    places = item.left.at[at:]
    steps = [dict(p.steps) for p in places]
    windows = all(
        (type(p) is Position or (isinstance(p, Quotient) and p.exact and not p.wrap and s.get(behind + d) == 1))
        and {behind + d, rank + 1 + d} == set(s)
        for d, (p, s) in enumerate(zip(places, steps, strict=True))
    )  # fmt: skip
    if item.right.at != right or item.left.at[:at] != (*own[:-1], channel) or not windows:
        return None
    if item.left.within or item.right.within or item.within or item.prologues:
        return None

    def three(values: object, fill: int) -> tuple[int, int, int]:
        found = (*(fill for _ in range(3 - spatial)), *values)  # type: ignore[misc]
        return found

    shape = ConvShape(
        batch=program.domain[0], groups=program.domain[front] if grouped == 2 else 1, channels=item.over[0],
        columns=program.domain[columns], image=three(x.shape[at:], 1),
        out=three(program.domain[behind : behind + spatial], 1),
        taps=three(item.over[1:], 1), stride=three((s[behind + d] for d, s in enumerate(steps)), 1),
        start=three((p.start for p in places), 0), step=three((s[rank + 1 + d] for d, s in enumerate(steps)), 1),
        spread=three((p.each if isinstance(p, Quotient) else 1 for p in places), 1),
        channels_inside=bool(x.order) and x.order[-1] == at - 1 and item.over[0] % GROUP == 0,
    )  # fmt: skip
    return shape, transposed, channels_last


def _shape(program: Program) -> tuple[ConvShape, bool, bool]:
    found = shape_of(program)
    assert found is not None
    return found


def _operands(program: Program) -> tuple[Operand, Operand]:
    item = program.product
    assert isinstance(item, Contraction)
    named = {o.name: o for o in program.operands}
    return named[item.left.operand], named[item.right.operand]


def _spec(operand: Operand) -> str:
    return tensors([Operand(name=operand.name, dtype=operand.dtype, shape=operand.shape, order=operand.order)]).strip()


def _shared(operand: Operand, program: Program, shape: ConvShape) -> bool:
    """Whether an operand has one element for neighbouring channels of a row-major convolution, and is whole else."""
    others = [p for d, p in enumerate(operand.at) if d != 1]
    whole = all(not isinstance(p, Quotient) or p.each == 1 for p in others)
    return whole and shape.groups == 1 and program.domain[1] == shape.columns and shape.columns % operand.shape[1] == 0


def _unsupported(program: Program, shape: ConvShape, device: Device) -> str | None:
    """Why the skeleton can't, or shouldn't, make this convolution; None if it does."""
    others = [o for o in program.operands if not o.indexed]
    x, _ = _operands(program)
    read, written = {o.dtype for o in others}, {o.dtype for o in program.outputs}
    if x.dtype not in _TYPES:
        return f"a convolution in {x.dtype} has no skeleton"
    if len(program.products) > 1 or any(o.at and not _shared(o, program, shape) for o in others):
        return "a convolution with more than an epilogue of its own elements"
    why = unreducible(program, shape)
    if why is not None:
        return why
    if not read <= {*_TYPES, *_ALSO_READ} or not written <= {*_TYPES, *_ALSO_WRITTEN}:
        return "an epilogue of other types than fp32, fp16, bf16 and integers of 32 and 64 bits"
    if any(item.dtype == "f64" for item in program.body) or computes_in_float8(program):
        return "an epilogue in float64 or in float8"
    if len(others) + len(program.outputs) - 1 > _MOST_OPERANDS:
        return f"an epilogue of more than {_MOST_OPERANDS} operands and further results"
    if max(shape.taps) > MOST_TAPS:
        return f"more than {MOST_TAPS} taps along one dimension"
    if shape.columns < _LEAST_COLUMNS or shape.channels * shape.all_taps < _LEAST_K:
        return f"groups of {shape.channels} channels to {shape.columns}: bound by memory, and most of a tile is empty"
    if shape.flops // 2 < _LEAST_WORK:
        return "a convolution so small is all launch"
    if max(shape.pixels, prod(x.shape[1:])) >= _LONGEST:
        return "2^30 pixels, or elements of a sample, and more"
    if space(program, shape, device).points:
        return None
    if program.reduced and writes_apart(program, shape):
        return "channels of a transposed convolution, all of which leave, and whose phases don't fit one tile"
    if prod(shape.spread) > _MOST_PHASES:
        return f"a transposed convolution of {prod(shape.spread)} phases, too many for one kernel and for one each"
    return "no tile of it fits shared memory"
