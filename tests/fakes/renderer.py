"""A renderer whose kernels are the Program interpreter: what composition needs, without a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from tilewright.facts.candidate import SourceFile
from tilewright.facts.codec import dumps
from tilewright.facts.space import Knob, Point, Space
from tilewright.ir.program import Program

_FUSED = '''"""A Program, interpreted."""
import sys
sys.path.insert(0, {here!r})
from fakes.program_interpreter import run_program
from tilewright.facts.codec import loads
from tilewright.kernels.ops import torch_op

KNOBS = {knobs!r}
CALLS = []
_PROGRAM = loads({program!r})


def configure(**knobs):
    for name in knobs:
        if name not in KNOBS:
            raise ValueError(name)
    KNOBS.update(knobs)


def _launch(*operands):
    CALLS.append(len(operands))
    return run_program(_PROGRAM, tuple(operand.detach() for operand in operands))  # a kernel gives no gradients


run = torch_op({name!r}, _launch, tuple((o.shape, o.dtype) for o in _PROGRAM.outputs), len(_PROGRAM.operands))
'''


class InterpretingRenderer:
    """Stands for `realise.table.Realisers`."""

    def unsupported(self, program: Program) -> str | None:
        return None if program.operands else "nothing is read"

    def space(self, program: Program) -> Space:
        return Space(knobs=(Knob(name="speed", values=(1, 2), about="nothing"),), points=((("speed", 1),),))

    def any_rows(self, program: Program) -> bool:
        return False

    def render(self, program: Program, name: str, point: Point) -> tuple[SourceFile, ...]:
        here = str(Path(__file__).parents[1])
        text = _FUSED.format(here=here, knobs=dict(point), program=dumps(program), name=name)
        return (SourceFile(path=f"{name}.py", text=text),)

    def skeleton_files(self, programs: Sequence[Program]) -> tuple[SourceFile, ...]:
        kernels = files("tilewright.kernels")
        names = ("__init__.py", "ops.py", "autograd.py")  # what segments import
        return tuple(SourceFile(path=f"tilewright_kernels/{n}", text=kernels.joinpath(n).read_text()) for n in names)
