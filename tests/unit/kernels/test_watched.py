"""What a module's result hangs on beside its own attributes: helpers, classes, functions, constants, and modes."""

from __future__ import annotations

import collections
import functools
import logging
import operator
import types
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tilewright.kernels.guards import MODES, Guard

x = torch.randn(4, 8)


@dataclass(slots=True)
class Slots:
    gain: float = 2.0


class Settings(collections.UserDict[str, float]):
    pass


class Space:
    gain = 2.0
    table: ClassVar[dict[str, float]] = {"gain": 2.0}

    def scaled(self, y: Tensor) -> Tensor:
        return y * self.gain


class Heir(nn.GELU):
    pass


class First(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y * 2


class Second(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y + 1


First.__name__ = Second.__name__ = "Act"
LOG = logging.getLogger(__name__)
TABLE = torch.linspace(1, 2, 8)


def scaled(y: Tensor, by: float = 2.0) -> Tensor:
    return y * by


class Held(nn.Module):
    """`read` stands for what a forward does with `self.held`."""

    def __init__(self, held: Any, read: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.held, self.read, self.note = held, read, "unread"
        self.act = Heir()
        self.gain = 2.0

    def late(self, y: Tensor) -> Tensor:
        return y

    def forward(self, y: Tensor) -> Any:
        return self.late(self.act(self.read(self.held, y)))


def shadow(m: Any) -> None:
    del m.note
    m.late = torch.neg


def write(owner: Any, name: str, value: Any) -> Callable[[Any], None]:
    return lambda m: PATCH.setattr(owner, name, value, raising=False)


def put(value: Any) -> Callable[[Any], None]:
    return lambda m: setattr(m, "held", value)


def do(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda m: change(m.held)


def lookup(held: Any, y: Tensor) -> Any:
    return y * float(held[0])


def listed(held: Any, y: Tensor) -> Any:
    return y if "neg" in held else -y


def called(held: Any, y: Tensor) -> Any:
    return held(y)


def of_gain(held: Any, y: Tensor) -> Any:
    return y * held.gain


def item(held: Any, y: Tensor) -> Any:
    return y * held["gain"]


leaky = functools.partial(F.leaky_relu, negative_slope=0.1)
PATCH = pytest.MonkeyPatch()
CHANGES: list[tuple[str, Callable[[], Any], Callable[[Any, Tensor], Any], Callable[[Any], Any]]] = [
    ("a set", lambda: {"a"}, listed, do(lambda h: h.add("neg"))),
    ("an array", lambda: np.array([2.0]), lookup, do(lambda h: h.fill(3))),
    ("another array", lambda: np.array([2.0]), lookup, put(np.array([3.0]))),
    ("a queue", lambda: collections.deque([2.0]), lookup, do(lambda h: h.appendleft(3))),
    ("a number of numpy's", lambda: np.float32(2), lambda h, y: y * float(h), put(np.float32(3))),
    ("a fraction", lambda: Fraction(2), lambda h, y: y * float(h), put(Fraction(3))),
    ("a slice", lambda: slice(4), lambda h, y: y[:, h], put(slice(2, 6))),
    ("a range", lambda: range(2), lambda h, y: [y * i for i in h], put(range(3))),
    ("slots", Slots, of_gain, do(lambda h: setattr(h, "gain", 3.0))),
    ("other slots", Slots, of_gain, put(Slots(3.0))),
    ("a class of an object", Space, of_gain, write(Space, "gain", 3.0)),
    ("a class", lambda: Space, of_gain, write(Space, "gain", 3.0)),
    ("a table of a class", Space, lambda h, y: item(h.table, y), write(Space, "table", {"gain": 3.0})),
    ("a method of an object", Space, lambda h, y: h.scaled(y), write(Space, "scaled", lambda h, y: y)),
    ("settings", lambda: Settings(gain=2.0), item, do(lambda h: h.update(gain=3.0))),
    ("a view of a dict", lambda: types.MappingProxyType(SEEN), item, lambda m: SEEN.update(gain=3.0)),
    ("the order of a dict", lambda: {"a": 1, "b": 2}, lambda h, y: [y * v for v in h.values()],
     do(lambda h: h.update(a=h.pop("a")))),
    ("keywords", lambda: leaky, called, put(functools.partial(F.leaky_relu, negative_slope=0.5))),
    ("keywords in place", lambda: functools.partial(F.leaky_relu, negative_slope=0.1), called,
     do(lambda h: h.keywords.update(negative_slope=0.5))),
    ("a bound method", lambda: Space().scaled, called, do(lambda h: setattr(h.__self__, "gain", 3.0))),
    ("code", lambda: scaled, called, write(scaled, "__code__", (lambda y, by=2.0: y * by * 2).__code__)),
    ("defaults", lambda: scaled, called, write(scaled, "__defaults__", (3.0,))),
    ("a constant", lambda: None, lambda h, y: y * TABLE, lambda m: TABLE.mul_(2)),
    ("a constant's memory", lambda: [torch.ones(8)], lambda h, y: y * h[0],
     do(lambda h: setattr(h[0], "data", torch.full((8,), 2.0)))),
    ("another class of its name", lambda: nn.Sequential(First(), Second()), called,
     write(First, "forward", lambda s, y: y)),
    ("a method that was inherited", lambda: None, lambda h, y: y, write(Heir, "forward", lambda s, y: y)),
    ("a method behind what went", lambda: None, lambda h, y: y, shadow),
    ("how modules are called", lambda: None, lambda h, y: y, write(nn.Module, "_call_impl", lambda s, y: y)),
    ("a method of tensors", lambda: None, lambda h, y: y.clamp(0), write(Tensor, "clamp", lambda s, y: s)),
    ("a getter", lambda: None, lambda h, y: y * operator.attrgetter("gain")(h or y), lambda m: setattr(m, "gain", 3.0)),
]  # fmt: skip
SEEN = {"gain": 2.0}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c[0])
def test_what_a_result_hangs_on_is_watched_and_compared(change: Any) -> None:
    _, held, read, alter = change
    module = Held(held(), read)
    guard = Guard(module, [{}], training=False, device="cpu")
    assert guard.differs(module, 0, x) == "" and guard.fits[0](module.__dict__, x)
    try:
        alter(module)
        assert not guard.fits[0](module.__dict__, x)
        assert guard.differs(module, 0, x).endswith((" has changed", " is new"))
    finally:
        PATCH.undo()


def test_code_that_asks_whether_gradients_are_on_runs_as_it_was_judged() -> None:
    module = Held(None, lambda h, y: y if torch.is_grad_enabled() else -y)
    guard = Guard(module, [{}], training=False, device="cpu")
    for _ in range(2):
        assert guard.differs(module, 0, x) == MODES and not guard.fits[0](module.__dict__, x)
        with torch.no_grad():
            assert guard.differs(module, 0, x) == "" and guard.fits[0](module.__dict__, x)
    with torch.inference_mode():
        assert guard.differs(module, 0, x) == MODES


def test_a_constant_of_inference_mode_is_refused_in_words() -> None:
    with torch.inference_mode():
        table = torch.ones(8)
    module = Held([table], lambda h, y: y * h[0])
    guard = Guard(module, [{}], training=False, device="cpu")
    assert "inference mode" in guard.differs(module, 0, x)


@torch.no_grad()
def test_a_module_that_logs_stays_as_it_is() -> None:
    module = Held(None, lambda h, y: LOG.debug("called") or y)
    guard = Guard(module, [{}], training=False, device="cpu")
    for _ in range(2):
        assert guard.differs(module, 0, x) == ""
        module(x)
        assert guard.fits[0](module.__dict__, x)
