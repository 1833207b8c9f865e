"""Which tensors of the state are moved where candidate and reference do not agree on names."""

from __future__ import annotations

from collections.abc import Sequence

from ..wire.messages import Mark


def moved(reference: Sequence[Mark], candidate: Sequence[Mark]) -> tuple[str, ...]:
    """The keys of the reference's tensors that are moved: those with a counterpart in the candidate, and constant
    parameters (ones, zeros) that it does not have at all. What the candidate keeps in another form stays as it is."""
    theirs = {m.key for m in candidate}
    found = [m.key for m in reference if m.key in theirs or _is_missing(m, reference, candidate)]
    return tuple(dict.fromkeys(found))


def _is_missing(mark: Mark, reference: Sequence[Mark], candidate: Sequence[Mark]) -> bool:
    """Whether the candidate has fewer elements of that constant, in whatever shape, than the reference."""
    if not (mark.constant and mark.is_parameter):
        return False
    return _elements(mark.value, candidate) < _elements(mark.value, [m for m in reference if m.is_parameter])


def _elements(value: float, marks: Sequence[Mark]) -> int:
    return sum(m.elements for m in marks if m.constant and m.value == value)
