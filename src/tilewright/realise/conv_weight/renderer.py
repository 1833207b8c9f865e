"""Gradients of a convolution's weight as products over pixels: which of them the skeleton `conv_weight` takes, and
their files."""

from __future__ import annotations

from math import prod

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Point, Space
from ...ir.program import Operand, Program
from ...kernels.cuda.conv.shape import MOST_TAPS
from ...kernels.cuda.conv_weight.shape import WeightShape
from ..conv import renderer as conv
from ..conv.points import ARCHITECTURE
from ..realiser import Fit, Refused, carried, refused
from ..rows.text import RUN_OP, tensors
from .points import space
from .shape import operands_of, weight_shape_of

target: Target = "cuda"
digest, writers = "convolution weights", ("rows/text.py", "conv_weight/points.py")
_TYPES = ("f32", "f16", "bf16")
_LEAST_COLUMNS = 16
_LEAST_WORK = 1 << 22  # multiplications; below, it is all launch
_LONGEST = 1 << 30  # pixels and elements of a sample have 32 bits
_TEXT = '''\
"""{name}: the gradient of a convolution's weight {output}, from {dense} and {windowed}. Made by Tilewright: CuTe DSL,
for CUDA."""

from tilewright_kernels.cuda.common.spec import ArraySpec
from tilewright_kernels.cuda.conv_weight.fused import FusedWeightGradient, Patches, WeightShape, WeightSpec
from tilewright_kernels.ops import torch_op

SPEC = WeightSpec(
    name="{name}",
    shape={shape},
    dense={dense_spec}
    windowed={windowed_spec}
    output={output_spec}
)

_FUSED = FusedWeightGradient(SPEC, {knobs}, source=__file__)
'''


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    shape = weight_shape_of(program)
    if shape is None:
        return Refused("no gradient of a convolution's weight", foreign=True)
    if device.architecture != ARCHITECTURE:
        return Refused(f"the skeleton of weight gradients needs {ARCHITECTURE} (wgmma)")
    return refused(_unsupported(program, shape), ranked=True, guess=True, kernel="weight gradients")


def points(program: Program, device: Device) -> Space:
    """See `realiser`."""
    shape = weight_shape_of(program)
    assert shape is not None
    return space(shape, program.operands[0].dtype, device)


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.py`."""
    dense, windowed = operands_of(program)
    (output,) = program.outputs
    text = _TEXT.format(
        name=name, output=output.shape, dense=dense.shape, windowed=windowed.shape,
        shape=repr(weight_shape_of(program)), dense_spec=array_spec(dense), windowed_spec=array_spec(windowed),
        output_spec=array_spec(Operand(name=output.name, dtype=output.dtype, shape=output.shape)),
        knobs=repr(dict(point)),
    )  # fmt: skip
    read = [o.name for o in program.operands]
    assert read == [dense.name, windowed.name]
    end = RUN_OP.format(
        name=name, reads=", ".join(read), writes=output.name, outputs=repr(((output.shape, output.dtype),)), arity=2
    )  # fmt: skip
    return (SourceFile(path=f"{name}.py", text=text + end),)


def skeleton_files() -> tuple[SourceFile, ...]:
    """The convolution's, too: both gather in one way."""
    return (*conv.skeleton_files(), *carried(["cuda/conv_weight"]))


def array_spec(operand: Operand) -> str:
    return tensors([Operand(name=operand.name, dtype=operand.dtype, shape=operand.shape, order=operand.order)]).strip()


def _unsupported(program: Program, shape: WeightShape) -> str | None:
    """Why the skeleton can't, or shouldn't, make this gradient; None if it does."""
    s, (dense, windowed) = shape.windowed, operands_of(program)
    if dense.dtype not in _TYPES or program.outputs[0].dtype != dense.dtype:
        return f"the gradient of a convolution's weight in {dense.dtype} has no skeleton"
    if max(s.taps) > MOST_TAPS:
        return f"more than {MOST_TAPS} taps along one dimension"
    if s.columns < _LEAST_COLUMNS:
        return f"groups of {s.columns} output channels: bound by memory, and most of a tile is empty"
    if s.columns * s.channels * s.all_taps * s.groups * s.pixels < _LEAST_WORK:
        return "the gradient of a weight so small is all launch"
    if max(s.pixels, prod(dense.shape[1:]), prod(windowed.shape[1:])) >= _LONGEST:
        return "2^30 pixels, or elements of a sample, and more"
    return None
