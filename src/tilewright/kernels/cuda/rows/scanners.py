"""What a scan keeps at every element: states of CuTe scalars with an associative `merge(before, after)`.

A *state* is a tuple of scalars, as of a reduction. `prepare` makes one of an element's arguments, `identity` changes
nothing on either side of a merge, `results` are what the scan gives. RunningProducts and recurrences are held in f64:
the product of a few hundred neighbours can leave fp32's range where what it is multiplied with is 0 or tiny, and 0 *
inf would be NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Any

from cutlass import Float32, Float64, Int32, Int64

from ..common import math as m
from .reducers import decay, tree

Value = Any
State = tuple[Value, ...]
_LOWEST = {"i64": -(2**63), "i32": -(2**31), "i16": -(2**15), "i8": -128, "u8": 0}
_HIGHEST = {"i64": 2**63 - 1, "i32": 2**31 - 1, "i16": 2**15 - 1, "i8": 127, "u8": 255}
_FINITE = 1.7976931348623157e308


class Scanner(ABC):
    """One kind of scan over values of `dtype`; `ordered`: to merge in another order would give another state."""

    op = "scan"
    types: tuple[Any, ...]
    ordered = False

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    @property
    def floating(self) -> bool:
        return self.dtype in m.FLOATS

    @abstractmethod
    def prepare(self, args: State) -> State: ...

    @abstractmethod
    def identity(self) -> State: ...

    @abstractmethod
    def merge(self, a: State, b: State) -> State: ...

    def merge_all(self, states: list[State]) -> State:
        return tree(states, self.merge)  # type: ignore[no-any-return]

    def results(self, state: State) -> tuple[Value, ...]:
        """What the scan gives; truth values as whole numbers."""
        return (m.cast(state[0], self.dtype),)


class RunningSums(Scanner):
    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.types = (Float32 if self.floating else Int64,)

    def prepare(self, args: State) -> State:
        return (m.cast(args[0], "f32" if self.floating else "i64"),)

    def identity(self) -> State:
        return (self.types[0](0),)

    def merge(self, a: State, b: State) -> State:
        return (a[0] + b[0],)


class RunningProducts(Scanner):
    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.types = (Float64 if self.floating else Int64,)

    def prepare(self, args: State) -> State:
        return (_wide(args[0]) if self.floating else m.cast(args[0], "i64"),)

    def identity(self) -> State:
        return (self.types[0](1),)

    def merge(self, a: State, b: State) -> State:
        return (a[0] * b[0],)


class Recurrences(Scanner):
    """h = a * (h before) + b. The state is the product of the a's, and the h of a run that starts from 0."""

    ordered = True

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.types = (Float64, Float64) if self.floating else (Int64, Int64)

    def prepare(self, args: State) -> State:
        return tuple(_wide(v) if self.floating else m.cast(v, "i64") for v in args)

    def identity(self) -> State:
        return (self.types[0](1), self.types[1](0))

    def merge(self, a: State, b: State) -> State:
        return (_within(a[0] * b[0]) if self.floating else a[0] * b[0], b[0] * a[1] + b[1])

    def results(self, state: State) -> tuple[Value, ...]:
        return (m.cast(state[1], self.dtype),)


class LogSums(Scanner):
    """log(sum(exp(x))): the maximum, and the sum of exp(x - maximum)."""

    types = (Float32, Float32)

    def prepare(self, args: State) -> State:
        return (m.cast(args[0], "f32"), Float32(1.0))

    def identity(self) -> State:
        return (Float32(-inf), Float32(0.0))

    def merge(self, a: State, b: State) -> State:
        rises = b[0] > a[0]
        gap = m.select(b[0] == a[0], Float32(0.0), b[0] - a[0])  # equal infinities are no distance apart
        share = decay(m.select(rises, -gap, gap))
        total = m.select(rises, a[1] * share + b[1], a[1] + b[1] * share)
        return (m.select(rises, b[0], a[0]), total)

    def results(self, state: State) -> tuple[Value, ...]:
        return (m.cast(state[0] + m.log(state[1], "f32"), self.dtype),)


class Extrema(Scanner):
    """The extremum and the number that goes with it, -1 of nothing: NaN wins, and of equals the latest."""

    ordered = True

    def __init__(self, dtype: str, *, largest: bool, wide: bool) -> None:
        super().__init__(dtype)
        self.largest = largest
        self.held = "f32" if self.floating else "i32" if dtype == "bool" else dtype
        self.types = (m.value_type(self.held), Int64 if wide else Int32)

    def prepare(self, args: State) -> State:
        return (m.cast(args[0], self.held), m.cast(args[1], "i64" if self.types[1] is Int64 else "i32"))

    def identity(self) -> State:
        if self.floating:
            nothing = Float32(-inf if self.largest else inf)
        else:
            nothing = self.types[0]((_LOWEST if self.largest else _HIGHEST)[self.held])
        return (nothing, self.types[1](-1))

    def merge(self, a: State, b: State) -> State:
        takes = b[0] >= a[0] if self.largest else b[0] <= a[0]
        if self.floating:
            takes = m.either(b[0] != b[0], m.both(takes, a[0] == a[0]))
        takes = m.both(b[1] >= 0, takes)
        return (m.select(takes, b[0], a[0]), m.select(takes, b[1], a[1]))

    def results(self, state: State) -> tuple[Value, ...]:
        return (m.cast(state[0], self.held), m.cast(state[1], "i64"))


def make_scanner(op: str, *, dtype: str, wide: bool) -> Scanner:
    """The scanner of an operation; `wide`: positions need 64 bits."""
    if op in ("cummax", "cummin"):
        return Extrema(dtype, largest=op == "cummax", wide=wide)
    kinds: dict[str, Callable[[str], Scanner]] = {
        "cumsum": RunningSums, "cumprod": RunningProducts, "recurrence": Recurrences, "logcumsumexp": LogSums,
    }  # fmt: skip
    return kinds[op](dtype)


def _wide(value: Value) -> Value:
    return m.cast(value, "f32").to(Float64)


def _within(value: Value) -> Value:
    """An infinite product as the largest number: what follows may still be 0."""
    most = Float64(_FINITE)
    return m.select(value > most, most, m.select(value < -most, -most, value))
