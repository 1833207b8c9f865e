"""Recurrent layers for CPUs: torch's product of a layer's input, and the steps in C++."""

from __future__ import annotations

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Knob, Point, Space, point
from ...ir.alone import recurrence_in
from ...ir.program import Program
from ..cpu import renderer as cpu
from ..cpu.text import MEMORY
from ..realiser import Fit, Refused, copied, refused
from .shape import SHAPE_FILES, shape_of

target: Target = "cpu"
digest, writers = "recurrent", ("recurrent/cpu.py", "recurrent/shape.py", "cpu/text.py")
_CODES = {"f32": "kDLFloat", "f16": "kDLFloat", "bf16": "kDLBfloat"}
_ROWS = Knob(name="rows", values=(1, 2, 3, 4, 6, 8, 12), about="rows of the batch whose sums are in registers")
_LARGEST = 1 << 13  # hidden units: packed weights of more are gigabytes


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    item = recurrence_in(program)
    if item is None:
        return Refused("no recurrent layers", foreign=True)
    if item.dtype not in _CODES:
        return Refused(f"recurrent layers in {item.dtype} have no skeleton")
    return refused(f"more than {_LARGEST} hidden units" if item.hidden > _LARGEST else None, ranked=True)


def points(program: Program, device: Device) -> Space:
    """See `realiser`. Sums, a vector of each gate, and a row's number are in 16 or 32 registers."""
    shape = shape_of(program)
    liked = (6, 4, 3, 8) if shape.gates > 1 else (8, 12, 6, 4)
    kept = [n for n in liked if n < 2 * shape.batch] or [1]
    return Space(knobs=(_ROWS,), points=tuple(point(rows=n) for n in kept))


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.cpp` and `NAME.py`."""
    s = shape_of(program)
    return (
        SourceFile(path=f"{name}.cpp", text=_CPP.format(
            cell=s.cell, code_cell=s.cell.upper(), steps=s.steps, batch=s.batch, hidden=s.hidden,
            directions=s.directions, bias="true" if s.bias else "false", element=MEMORY[s.dtype],
            code=_CODES[s.dtype],
        )),
        SourceFile(path=f"{name}.py", text=_PYTHON.format(
            name=name, knobs=repr(dict(point)), legal=repr({_ROWS.name: _ROWS.values}), shape=repr(s),
            reads=", ".join(o.name for o in program.operands),
        )),
    )  # fmt: skip


def skeleton_files() -> tuple[SourceFile, ...]:
    """The headers, the launcher, and what goes from layer to layer."""
    return (*cpu.skeleton_files(), *copied([*SHAPE_FILES, "cpu/recurrent.py", "cpu/recurrent.h"]))


_PYTHON = '''"""Recurrent layers; their steps are built from {name}.cpp on first use."""

from pathlib import Path

from tilewright_kernels.cpu.recurrent import RecurrentLayers
from tilewright_kernels.ops import torch_op
from tilewright_kernels.recurrent.shape import RecurrentShape

KNOBS = {knobs}
SHAPE = {shape}

_kernel = RecurrentLayers(Path(__file__).with_suffix(".cpp"), SHAPE, KNOBS, {legal})
configure = _kernel.configure
# run({reads})
run = torch_op("{name}", _kernel.launch, SHAPE.outputs, SHAPE.operands)
'''
_CPP = """\
// The steps of a layer ({cell}): {steps} of {batch} rows, {hidden} hidden units.
#include "recurrent.h"

using namespace tilewright;

struct Program {{
  using Element = {element};
  static constexpr Cell CELL = Cell::{code_cell};
  static constexpr int64_t STEPS = {steps}, BATCH = {batch}, HIDDEN = {hidden};
  static constexpr int DIRECTIONS = {directions}, CODE = {code};
  static constexpr bool BIAS = {bias};
}};

TW_EXPORT_RECURRENT(Program)
"""
