"""Recurrent layers for CUDA: which regions the skeleton takes, and their files."""

from __future__ import annotations

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Point, Space
from ...ir.alone import recurrence_in
from ...ir.program import Program
from ...kernels.recurrent.shape import RecurrentShape
from ..gemm import renderer as gemm
from ..realiser import Fit, Refused, carried, copied, refused
from ..rows.text import RUN_OP
from .points import space
from .shape import SHAPE_FILES, shape_of

target: Target = "cuda"
digest, writers = "recurrent", ("recurrent/renderer.py", "recurrent/shape.py", "rows/text.py")
ARCHITECTURE = "sm_90a"
_TYPES = ("f32", "f16", "bf16")
_LONGEST = 1 << 31
_TEXT = (
    '''\
"""{name}: {layers} recurrent layers ({cell}). Made by Tilewright: CuTe DSL, for CUDA."""

from tilewright_kernels.cuda.recurrent.fused import FusedRecurrent
from tilewright_kernels.ops import torch_op
from tilewright_kernels.recurrent.shape import RecurrentShape

SHAPE = {shape}

_FUSED = FusedRecurrent(SHAPE, {knobs}, source=__file__)
'''
    + RUN_OP
)


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    if recurrence_in(program) is None:
        return Refused("no recurrent layers", foreign=True)
    if device.architecture != ARCHITECTURE:
        return Refused(f"the skeleton of recurrent layers needs {ARCHITECTURE} (clusters)")
    return refused(_unsupported(shape_of(program), device), ranked=True, guess=True, kernel="recurrent")


def points(program: Program, device: Device) -> Space:
    """See `realiser`."""
    return space(shape_of(program), device.processors)


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.py`."""
    shape = shape_of(program)
    text = _TEXT.format(
        name=name, layers=shape.layers, cell=shape.cell, shape=repr(shape), knobs=repr(dict(point)),
        reads=", ".join(o.name for o in program.operands), writes=", ".join(o.name for o in program.outputs),
        outputs=repr(shape.outputs), arity=shape.operands,
    )  # fmt: skip
    return (SourceFile(path=f"{name}.py", text=text),)


def skeleton_files() -> tuple[SourceFile, ...]:
    """The product's, too: keeping kernels is done in one way."""
    return (*gemm.skeleton_files(), *copied(SHAPE_FILES), *carried(["cuda/recurrent"]))


def _unsupported(shape: RecurrentShape, device: Device) -> str | None:
    """Why the skeleton can't, or shouldn't, make these layers; None if it does."""
    if shape.dtype not in _TYPES:
        return f"recurrent layers in {shape.dtype} have no skeleton"
    if shape.steps == 1:
        return "a single step: nothing recurs"
    if shape.steps * shape.batch * shape.hidden * max(shape.gates, shape.directions) >= _LONGEST:
        return "sequences of 2^31 elements and more"
    if not space(shape, device.processors).points:
        return f"weights of {shape.hidden} hidden units in {shape.cell}: a cluster's registers and memory hold fewer"
    return None
