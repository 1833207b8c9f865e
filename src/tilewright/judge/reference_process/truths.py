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
        reference.double.truth_in_parts(request.args, inputs, read(request.outputs), seed=request.seed, parts=_PARTS)
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
