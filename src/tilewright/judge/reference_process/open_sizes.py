"""Of which sizes a problem leaves open its module computes the same: asked of torch.export, with the dimensions of the
inputs that follow each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ...facts.problem import OpenSize
from ..candidate_process import values
from ..wire.open_sizes import TriedOpenSizes
from .reference import Reference


def tried(reference: Reference, sizes: Sequence[OpenSize], seed: int) -> TriedOpenSizes:
    """All of them where they hold together; else those that do one after the other."""
    from ...frontend.sizes import why_not_open

    text, inputs = reference.own_inputs(seed)
    places = {size.name: _following(reference, size, inputs, seed) for size in sizes}
    forward = values.bound(reference.subject.built, values.decode(text, inputs))

    def why(open_sizes: Sequence[OpenSize]) -> str:
        def dims_of(tensor: Tensor) -> Mapping[int, OpenSize]:
            number = next((i for i, t in enumerate(inputs) if t is tensor), -1)
            return {d: size for size in open_sizes for i, d in places[size.name] if i == number}

        if without := [size.name for size in open_sizes if not places[size.name]]:
            return f"no dimension of an input has the size {without[0]!r}"
        return why_not_open(reference.subject.built, forward.args, forward.keywords, dims_of)

    reasons = why(sizes)
    if not reasons:
        return TriedOpenSizes(names=tuple(size.name for size in sizes))
    found: list[OpenSize] = []
    for size in sizes if len(sizes) > 1 else ():
        if not why([*found, size]):
            found.append(size)
    return TriedOpenSizes(names=tuple(size.name for size in found), why=reasons)


def _following(
    reference: Reference, size: OpenSize, inputs: Sequence[Tensor], seed: int
) -> tuple[tuple[int, int], ...]:  # fmt: skip
    """The inputs' dimensions, (number, dimension), that are as large as the size says."""
    other = size.size - 1 if size.size > size.low else size.size + 1
    _, drawn = reference.own_inputs(seed, {size.name: other})
    return tuple(
        (i, d)
        for i, (one, two) in enumerate(zip(inputs, drawn, strict=True))
        for d in range(one.dim())
        if (one.shape[d], two.shape[d]) == (size.size, other)
    )
