"""The truth that a cell is asked for: whole or, where it does not fit, in parts, and of the shapes that were told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ..candidate_process.load import CodeRaised
from ..wire import messages as wire
from .reference import Reference

_PARTS = 16  # pieces of the first dimension, where the whole in float64 does not fit
Read = Callable[[tuple[wire.TensorRef, ...]], tuple[Tensor, ...]]
Write = Callable[[tuple[wire.TensorRef, ...], tuple[Tensor, ...]], None]


def write_truth(reference: Reference, request: wire.Truth, *, read: Read, write: Write) -> None:
    """Put the truth where the request says. Raises CodeRaised("no_truth") where there is none."""
    inputs = read(request.inputs)
    try:
        tensors = reference.double.truth(request.args, inputs, request.seed, buffers=request.buffers)
    except CodeRaised as error:
        if error.reason != "out_of_memory" or request.buffers:
            raise
        tensors = None  # while the error lives, so does what its frames hold
    if tensors is None:
        reference.double.release()
        reference.subject.drop()
        write_in_parts(reference, request, inputs, read(request.outputs))
        reference.double.release()
    else:
        _require_shapes(request.outputs + request.moved, tensors)
        write(request.outputs + request.moved, tensors)
        del tensors
    reference.subject.drop()


def _require_shapes(places: Sequence[wire.TensorRef], tensors: Sequence[Tensor]) -> None:
    if len(tensors) != len(places):
        raise CodeRaised("no_truth", "in float64 the module returns another number of outputs")
    for ref, tensor in zip(places, tensors, strict=True):
        if tuple(tensor.shape) != ref.spec.shape:
            raise CodeRaised("no_truth", "in float64 the module returns other shapes")


def write_in_parts(
    reference: Reference, request: wire.Truth, inputs: Sequence[Tensor], places: Sequence[Tensor], *,
    parts: int = _PARTS,
) -> None:  # fmt: skip
    """Put the truth into `places`, computed for a part of the rows of the first dimension at a time: what is left when
    the whole does not fit. Right only where rows do not depend on one another; the judge sees where they do, since the
    reference's own result then lies far off."""
    count = places[0].shape[0] if places[0].ndim else 0
    if count < parts or any(p.ndim == 0 or p.shape[0] != count for p in places) or reference.double.is_whole():
        raise CodeRaised("no_truth", "float64 does not fit into memory")
    step = -(-count // parts)
    for rows in (slice(start, start + step) for start in range(0, count, step)):
        found = reference.double.truth(request.args, rows_of(inputs, rows, count=count), request.seed)
        for place, part in zip(places, found, strict=True):
            if place[rows].shape != part.shape:
                raise CodeRaised("no_truth", "float64 does not fit into memory, and rows depend on one another")
            place[rows].copy_(part)
        del found


def rows_of(inputs: Sequence[Tensor], rows: slice | Tensor, *, count: int) -> list[Tensor]:
    """Some rows of the tensors that have so many; the others whole."""
    return [t[rows] if t.ndim and t.shape[0] == count else t for t in inputs]
