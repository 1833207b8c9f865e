"""A warp of a kernel, run on numpy: every value is an array of one element a lane, what `when` guards is written by the
lanes for which it holds, and shuffles stand where all lanes come by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

WARP = 32


class Lanes(np.ndarray[Any, Any]):
    """An element of each lane."""

    is_float = False  # so that none converts it


def lanes(value: Any) -> Any:
    return np.broadcast_to(np.asarray(value), (WARP,)).view(Lanes)


class Warp:
    """Which lanes are active, and which warp of the CTA they are."""

    def __init__(self) -> None:
        self.active = np.ones(WARP, bool)
        self.number = 0

    @contextmanager
    def where(self, condition: Any) -> Iterator[None]:
        before = self.active
        self.active = before & lanes(condition).astype(bool)
        yield
        self.active = before

    def when(self, condition: Any, body: Callable[[], None]) -> None:
        with self.where(condition):
            if self.active.any():
                body()

    def loop(self, low: Any, high: Any, body: Callable[[Any], None]) -> None:
        turn = lanes(low)
        while (self.active & (turn < high)).any():
            with self.where(turn < high):
                body(turn)
            turn = turn + 1

    def exchanged(self, value: Any, *, offset: int) -> Any:
        assert self.active.all(), "a shuffle that some lanes don't reach"
        return lanes(value)[np.arange(WARP) ^ offset]


class Memory:
    """A tensor as far as an epilogue sees it: flat memory, at a place of each lane; or registers."""

    def __init__(self, warp: Warp, flat: np.ndarray[Any, Any], at: Any = 0, size: int = 0) -> None:
        self.warp, self.flat, self.at, self.size, self.element_type = warp, flat, at, size, float

    @property
    def iterator(self) -> Memory:
        return self

    def __add__(self, places: Any) -> Memory:
        return Memory(self.warp, self.flat, self.at + places)

    def align(self, size: int) -> Memory:
        at = lanes(self.at)[self.warp.active]
        assert not (at * 2 % size).any()  # of 16 bits
        return self

    def __getitem__(self, i: int) -> Any:
        at = lanes(self.at + i)
        inside = (at >= 0) & (at < len(self.flat))
        assert (inside | ~self.warp.active).all(), "read outside"
        return self.flat[np.where(inside, at, 0)].view(Lanes)

    def __setitem__(self, i: int, value: Any) -> None:
        at, own = lanes(self.at + i)[self.warp.active], lanes(value)[self.warp.active]
        assert len(set(at.tolist())) == len(at) and np.isnan(self.flat[at]).all(), "written twice"
        self.flat[at] = own


class Registers:
    """What each lane holds."""

    def __init__(self, warp: Warp, size: int) -> None:
        self.warp, self.size, self.held = warp, size, [lanes(math.nan)] * size

    def fill(self, value: Any) -> None:
        for i in range(self.size):
            self[i] = value

    def __getitem__(self, i: int) -> Any:
        return self.held[i]

    def __setitem__(self, i: int, value: Any) -> None:
        self.held[i] = np.where(self.warp.active, value, self.held[i]).view(Lanes)


class Joined:
    """A Reducer of numbers."""

    JOINS: ClassVar[dict[str, tuple[float, Callable[[Any, Any], Any]]]] = {
        "sum": (0.0, np.add), "max": (-math.inf, np.maximum), "min": (math.inf, np.minimum),
    }  # fmt: skip
    types = (float,)

    def __init__(self, *, op: str, source: str, dtype: str) -> None:
        self.op = op

    def prepare(self, value: Any) -> Any:
        return value

    def identity(self) -> tuple[float, ...]:
        return (-math.inf, 0.0) if self.op == "softmax_stats" else (self.JOINS[self.op][0],)

    def block(self, values: Sequence[Any], _valid: None, _positions: Sequence[Any]) -> tuple[Any, ...]:
        if self.op != "softmax_stats":
            return (self.JOINS[self.op][1].reduce(values).view(Lanes),)  # type: ignore[attr-defined]
        best = np.maximum.reduce(values)
        return best, sum(np.exp(v - best) for v in values)

    def merge(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.op != "softmax_stats":
            return (self.JOINS[self.op][1](a[0], b[0]),)
        best = np.maximum(a[0], b[0])
        return best, a[1] * np.exp(a[0] - best) + b[1] * np.exp(b[0] - best)

    def results(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        return state[1:] if self.op == "moments" else state


def on_lanes(monkeypatch: pytest.MonkeyPatch, modules: Sequence[ModuleType]) -> Warp:
    """These modules run on a warp of numpy's."""
    warp = Warp()

    def butterfly(held: Any, width: int) -> None:
        for offset in (1, 2, 4, 8, 16)[: width.bit_length() - 1]:
            beside = tuple(warp.exchanged(v, offset=offset) for v in held[0])
            held[0] = held[1].merge(held[0], beside)

    def copied(source: Any, target: Any) -> None:
        for i in range(source.size):
            target[i] = source[i]

    arch = SimpleNamespace(
        lane_idx=lambda: np.arange(WARP).view(Lanes), warp_idx=lambda: warp.number, shuffle_sync_bfly=warp.exchanged
    )  # fmt: skip
    known = {
        "cute": SimpleNamespace(
            arch=arch, size=len, make_layout=lambda shape: shape[0], autovec_copy=copied,
            make_tensor=lambda first, size: Memory(warp, first.flat, first.at, size),
            make_rmem_tensor=lambda shape, kind: Registers(warp, shape[0]),
        ),
        "cutlass": SimpleNamespace(min=np.minimum, max=np.maximum),
        "Int32": lambda x: np.asarray(x).astype(np.int64) if isinstance(x, np.ndarray) else int(x),
        "Int64": lambda x: x, "Float32": float, "when": warp.when, "loop": warp.loop, "both": np.logical_and,
        "butterfly": butterfly, "Reducer": Joined, "Held": lambda reducer, _count: {0: None, 1: reducer},
        "m": SimpleNamespace(
            stored=lambda value, dtype: value, both=np.logical_and, either=np.logical_or, negated=np.logical_not,
            select=lambda ok, yes, no: np.where(ok, yes, no).view(Lanes),
        ),
    }  # fmt: skip
    for module in modules:
        for name, value in known.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    return warp
