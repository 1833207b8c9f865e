"""What tests of convolutions on a GPU share: the realiser by itself, its points, and what a kernel reads and gives."""

from __future__ import annotations

import torch
from torch import Tensor

from fakes.realisers import H200
from tilewright.facts.candidate import SourceFile
from tilewright.facts.pattern import Pattern
from tilewright.facts.space import Point
from tilewright.ir.program import Program
from tilewright.realise.conv import renderer as conv
from tilewright.realise.conv.points import ranked_points

# Relative error in the norm: a few roundings of fp32; of 11 bits twice; of the output's own type.
ALLOWED = {"fp16x3": 1e-6, "tf32": 6e-4, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def last_of(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.ndim == 4 else torch.channels_last_3d


def points_of(pattern: Pattern) -> tuple[Point, ...]:
    """All that are ranked, whether they are proposed or not."""
    read = conv.shape_of(pattern.program)
    assert read is not None
    return ranked_points(pattern.program, read[0], H200)


class Conv:
    """The realiser of convolutions alone, whatever it would refuse."""

    def render(self, program: Program, name: str, settings: Point) -> tuple[SourceFile, ...]:
        return conv.render(program, name, settings, H200)

    def skeleton_files(self, programs: object) -> tuple[SourceFile, ...]:
        return conv.skeleton_files()


def operands_of(pattern: Pattern, given: list[Tensor]) -> list[Tensor]:
    """What `run` takes: views of the module's tensors, in the order of the pattern's binds."""
    return [
        g.reshape(bind.split).permute(bind.order).reshape(o.shape)
        for g, o, bind in zip(given, pattern.program.operands, pattern.matches[0].operands, strict=True)
    ]


def result_of(pattern: Pattern, made: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What the module gives, of this shape, of what `run` gives."""
    (bind,) = pattern.matches[0].outputs
    return made.reshape(bind.split).permute(bind.order).reshape(shape)
