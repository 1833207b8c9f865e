"""Steps: where a module's results jump with a float, and runs in which all of them are pushed to either side.

A number that lies on a tie may go either way. Errors put in at random show both ways only where the errors of single
elements are independent: where a whole row shares one, as it does the scale that it is quantised by, all runs may turn
its ties to the same side. So `RecordedStep` keeps the margin of each step as it is without errors, `Spreading` adds up
by how much each margin moves in runs that have errors, and `Pushed` runs without errors move every margin by that.
What no error reaches has no spread, and is not moved; and what a step before has turned is none: it moves a margin in
one run of a pair alone, or in both to the same side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .noise import name_of

_COMPARED = frozenset(("gt", "ge", "lt", "le", "eq", "ne"))  # the margin is a difference
_DIVIDED = frozenset(("floor_divide", "remainder", "fmod"))  # a quotient
_OPERAND = {  # which argument jumps
    "round": 0, "floor": 0, "ceil": 0, "trunc": 0, "frac": 0, "sign": 0, "sgn": 0, "signbit": 0, "heaviside": 0,
    "bucketize": 0, "searchsorted": 1, "threshold_backward": 1, "leaky_relu_backward": 1, "hardtanh_backward": 1,
}  # fmt: skip
_CASTS = {"_to_copy": 0, "copy": 1}
_REACH = 2.0  # of the mean of what wide runs move a margin by: about as far as the farthest of them goes
_MOST = 1 << 29  # elements of all margins: each takes sixteen bytes


@dataclass(slots=True)
class Margin:
    """Of one step: its name, how far it lies from the turn without errors (None: not kept), the sum over pairs of
    runs of by how much both moved it, to opposite sides; and by how much a pair's first run did."""

    name: str
    base: Tensor | None
    total: Tensor | None = None
    first: Tensor | None = None


class _AtSteps(TorchDispatchMode, ABC):
    """Meets the steps of a run in their order. Entered as the innermost mode, it sees what the module asks for."""

    def __init__(self, margins: list[Margin]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.margins = margins
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        place = _place(name, args, kwargs)
        if place is not None:
            with _disable_current_modes(), torch.no_grad():
                args = self._met(_Step(func, name, place), args)
            self._count += 1
        return func(*args, **kwargs)

    @abstractmethod
    def _met(self, step: _Step, args: Any) -> Any:
        """The operands that the step is given: those that it met, or others in their place."""

    def _known(self, step: _Step, margin: Tensor) -> Margin | None:
        """What is kept of this step; None where the run has taken another way."""
        found = self.margins[self._count] if self._count < len(self.margins) else None
        if found is None or found.base is None or found.name != step.name:
            return None
        return found if found.base.shape == margin.shape else None


@dataclass(frozen=True, slots=True)
class _Step:
    func: Any
    name: str
    place: int

    def margin(self, args: Any) -> Tensor:
        """By how much, in units of its own, the operation's result is away from some jump."""
        if self.name in _COMPARED:
            return torch.as_tensor(args[0] - args[1]).double()
        if self.name in _DIVIDED or self.name == "div":
            return torch.as_tensor(args[0] / args[1]).double()
        return args[self.place].double()  # type: ignore[no-any-return]

    def pushed(self, args: Any, amount: Tensor) -> Any:
        """The arguments, with the margin moved by this."""
        if self.name in _DIVIDED or self.name == "div":
            amount = amount * args[1]
        operand = args[self.place]
        wider = operand.double() if not operand.is_floating_point() else operand
        info = self.func._schema.arguments[self.place].alias_info
        if info is None or not info.is_write:
            return (*args[: self.place], (wider + amount).to(wider.dtype), *args[self.place + 1 :])
        if operand.is_floating_point() and amount.shape == operand.shape:
            operand.add_(amount.to(operand.dtype))
        return args


class RecordedStep(_AtSteps):
    """Keeps the margins of a run without errors, as many as memory bears."""

    def __init__(self) -> None:
        super().__init__([])
        self._kept = 0

    def _met(self, step: _Step, args: Any) -> Any:
        margin = step.margin(args)
        self._kept += margin.numel()
        self.margins.append(Margin(step.name, margin.clone() if self._kept <= _MOST else None))
        return args


class Spreading(_AtSteps):
    """Takes in one run of a pair with the same errors to opposite sides."""

    def __init__(self, margins: list[Margin], *, second: bool) -> None:
        super().__init__(margins)
        self._second = second

    def _met(self, step: _Step, args: Any) -> Any:
        margin = step.margin(args)
        known = self._known(step, margin)
        if known is None or known.base is None:
            return args
        off = (margin - known.base).nan_to_num(posinf=0.0, neginf=0.0).float()
        if not self._second:
            known.first = off
        elif known.first is not None:
            apart = (off - known.first).abs_().div_(2)
            both, known.first = torch.minimum(torch.minimum(off.abs_(), known.first.abs_()), apart), None
            known.total = both if known.total is None else known.total.add_(both)
        return args


class Pushed(_AtSteps):
    """Moves all margins about as far as any run of so many pairs did."""

    def __init__(self, margins: list[Margin], *, side: int, pairs: int) -> None:
        super().__init__(margins)
        self._factor = side * _REACH / pairs

    def _met(self, step: _Step, args: Any) -> Any:
        known = self._known(step, step.margin(args))
        return args if known is None or known.total is None else step.pushed(args, known.total.double() * self._factor)


def are_moved(margins: list[Margin]) -> bool:
    """Whether errors reach any step."""
    return any(m.total is not None and bool(m.total.any()) for m in margins)


def _place(name: str, args: Any, kwargs: Any) -> int | None:
    """Which argument an operation jumps with; None where it does with none."""
    if name in _COMPARED or name in _DIVIDED or (name == "div" and kwargs.get("rounding_mode")):
        tensors = [a for a in args if isinstance(a, Tensor)]
        real = any(t.is_floating_point() for t in tensors) and not any(t.is_complex() for t in tensors)
        return 0 if real and len(args) > 1 and isinstance(args[0], Tensor) else None
    place = _OPERAND.get(name, _CASTS.get(name))
    if place is None or len(args) <= place or not isinstance(args[place], Tensor):
        return None
    operand = args[place]
    if not operand.is_floating_point() or operand.itemsize == 1:
        return None
    if name in _CASTS:
        dtype = kwargs.get("dtype") if name == "_to_copy" else args[0].dtype
        if dtype is None or dtype.is_complex or (dtype.is_floating_point and dtype.itemsize > 1):
            return None
    return place
