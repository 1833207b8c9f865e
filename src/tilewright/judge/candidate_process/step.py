"""A TrainingStep: one call in training, forward and then backward, from given upstream gradients to gradients of all
that wants them.

The upstream gradients are the last of the tensors that a call gets, one for every output that has a gradient, and the
gradients are the last of what it gives. So a step is judged and timed like any other call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...facts.gradients import Gradients
from . import values
from .load import CodeRaised

Call = Callable[[], Any]
_BETWEEN, _LARGE_BYTES = 4, 64 << 20  # forwards whose results wait for a backward, of inputs not larger


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors of a result, in the order in which they travel; what can't travel has none."""
    kind = type(result)
    if issubclass(kind, Tensor):
        return [result]
    if issubclass(kind, dict):
        return [t for _, v in sorted(dict.items(result), key=_key) for t in tensors_of(v)]
    if issubclass(kind, list | tuple):
        return [
            t
            for v in (tuple.__iter__(result) if issubclass(kind, tuple) else list.__iter__(result))
            for t in tensors_of(v)
        ]
    return []


def _key(item: tuple[Any, Any]) -> str:
    return str(item[0])


class TrainingStep:
    """A module on one set of tensors, to be stepped any number of times. Gradients are taken by `.backward()` from a
    cleared `.grad`, as a training loop does it, so that hooks and gradients written in place count."""

    def __init__(
        self, module: torch.nn.Module, forward: Callable[..., Any], args_text: str, inputs: Sequence[Tensor],
        gradients: Gradients,
    ) -> None:  # fmt: skip
        own = len(inputs) - len(gradients.outputs)
        leaves = [t.detach().requires_grad_(i in gradients.inputs) for i, t in enumerate(inputs[:own])]
        self.leaves = tuple(leaves)  # what forward is called on
        self.forward: Call = values.bound(forward, values.decode(args_text, leaves))
        self._upstream = tuple(inputs[own:])
        self._outputs = self._ends = gradients.outputs
        known = dict(module.named_parameters(remove_duplicate=False))
        for name in gradients.parameters:
            if name not in known:
                raise CodeRaised("no_gradient", f"it has no parameter {name!r}, and the reference's has a gradient")
        self._wanted = [leaves[i] for i in gradients.inputs] + [known[n] for n in gradients.parameters]
        self._holders = [*leaves, *known.values()]
        self._accumulates = False

    def disturb(self, between: Call | None) -> None:
        """Make the backward of each step come after other forwards, and its upstream gradients as `wire.Call` says.
        Where there is another forward, so that one more moves nothing, gradients are added to those of the same step
        made before, and half of them is what is given."""
        self._accumulates = between is not None
        forward = self.forward
        several = _BETWEEN if sum(t.nbytes for t in self.leaves) <= _LARGE_BYTES else 1
        kept: list[Any] = []

        def both() -> Any:
            result = forward()
            kept[:] = [between() for _ in range(several)] if between is not None else []
            return result

        self.forward = both
        given = [(i, _another_layout(u)) for i, u in zip(self._outputs, self._upstream, strict=True) if bool(u.any())]
        if given:
            self._ends, self._upstream = tuple(i for i, _ in given), tuple(u for _, u in given)

    def clear(self) -> None:
        for tensor in self._holders:
            tensor.grad = None

    def backward(self, result: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """The result and the gradients; zeros where there is none."""
        found = tensors_of(result)
        if self._outputs and self._outputs[-1] < len(found):  # else the structure is wrong, as the judge will see
            ends = [found[i] for i in self._ends]
            for place, end, upstream in zip(self._ends, ends, self._upstream, strict=True):
                _require_gradient(place, end, upstream)
            torch.autograd.backward(ends, self._upstream)
        return result, tuple(_dense(t) for t in self._wanted)

    def __call__(self) -> tuple[Any, tuple[Tensor, ...]]:
        if not self._accumulates:
            return self.backward(self.forward())
        self.backward(self.forward())
        result, found = self.backward(self.forward())
        return result, tuple(g / 2 for g in found)

    def readied(self, phase: str) -> Call:
        """What is to be timed, with all before it done: the whole step, its "forward", or its "backward"."""
        self.clear()
        match phase:
            case "whole":
                return self
            case "forward":
                return self.forward
            case "backward":
                return partial(self.backward, self.forward())
        raise ValueError(f"unknown phase {phase!r}")


def _require_gradient(place: int, end: Tensor, upstream: Tensor) -> None:
    if not end.requires_grad:
        raise CodeRaised("no_gradient", f"output {place} has no gradient (requires_grad is False), the reference's has")
    if end.shape != upstream.shape:
        raise CodeRaised("wrong_shape", f"output {place} has shape {tuple(end.shape)}, not {tuple(upstream.shape)}")


def _another_layout(tensor: Tensor) -> Tensor:
    """The same values: one element in all places where they are all alike, else with neighbours far from another."""
    if tensor.numel() < 2:
        return tensor.clone()
    first = tensor.reshape(-1)[0]
    if bool((tensor == first).all()):
        return first.clone().expand(tensor.shape)
    if tensor.ndim == 1:
        return torch.stack([tensor, tensor], -1)[:, 0]
    return tensor.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1)


def _dense(tensor: Tensor) -> Tensor:
    if tensor.grad is None:
        return torch.zeros_like(tensor, requires_grad=False)
    return tensor.grad if tensor.grad.layout == torch.strided else tensor.grad.to_dense()
