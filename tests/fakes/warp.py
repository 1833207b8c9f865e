"""A warp of 32 lanes in numpy, with what `kernels.cuda.ranking` uses of the DSL: its networks and queues run without a
GPU. What lanes do at once is one array operation here, so races are not seen."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

WARP = 32
_active = [np.ones(WARP, dtype=bool)]  # the lanes that carry out what is inside of a `when`


class Lanes:
    """A value in each lane; `kind` is the fake of its CuTe type."""

    def __init__(self, kind: Kind, cells: Any) -> None:
        self.kind = kind
        self.cells = np.broadcast_to(np.asarray(cells).astype(kind.dtype), (WARP,))

    def to(self, kind: Kind) -> Lanes:
        return kind(self)

    def bitcast(self, kind: Kind) -> Lanes:
        return Lanes(kind, np.ascontiguousarray(self.cells).view(kind.dtype))

    def _with(self, other: Any, function: Callable[..., Any], kind: Kind | None = None) -> Lanes:
        cells = other.cells if isinstance(other, Lanes) else np.asarray(other, dtype=self.kind.dtype)
        if isinstance(other, Lanes):
            assert other.kind is self.kind, f"{self.kind.name} meets {other.kind.name}"
        with np.errstate(all="ignore"):
            return Lanes(kind or self.kind, function(self.cells, cells))

    def __add__(self, other: Any) -> Lanes:
        return self._with(other, np.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Lanes:
        return self._with(other, np.subtract)

    def __mul__(self, other: Any) -> Lanes:
        return self._with(other, np.multiply)

    def __floordiv__(self, other: Any) -> Lanes:
        return self._with(other, np.floor_divide)

    def __neg__(self) -> Lanes:
        return Lanes(self.kind, -self.cells)

    def __rsub__(self, other: Any) -> Lanes:
        return self._with(other, lambda a, b: b - a)

    def __lshift__(self, other: Any) -> Lanes:
        return self._with(other, np.left_shift)

    def __rshift__(self, other: Any) -> Lanes:
        return self._with(other, np.right_shift)

    def __and__(self, other: Any) -> Lanes:
        return self._with(other, np.bitwise_and)

    def __or__(self, other: Any) -> Lanes:
        return self._with(other, np.bitwise_or)

    def __xor__(self, other: Any) -> Lanes:
        return self._with(other, np.bitwise_xor)

    def __lt__(self, other: Any) -> Lanes:
        return self._with(other, np.less, Boolean)

    def __le__(self, other: Any) -> Lanes:
        return self._with(other, np.less_equal, Boolean)

    def __gt__(self, other: Any) -> Lanes:
        return self._with(other, np.greater, Boolean)

    def __ge__(self, other: Any) -> Lanes:
        return self._with(other, np.greater_equal, Boolean)

    def __eq__(self, other: Any) -> Lanes:  # type: ignore[override]
        return self._with(other, np.equal, Boolean)

    def __ne__(self, other: Any) -> Lanes:  # type: ignore[override]
        return self._with(other, np.not_equal, Boolean)

    __hash__ = None  # type: ignore[assignment]

    @property
    def same(self) -> Any:
        """The one value of all lanes."""
        assert (self.cells == self.cells[0]).all(), "lanes part where they must not"
        return self.cells[0]


class Kind:
    def __init__(self, name: str, dtype: Any) -> None:
        self.name, self.dtype = name, dtype

    def __call__(self, value: Any) -> Lanes:
        return Lanes(self, value.cells if isinstance(value, Lanes) else np.asarray(value, dtype=self.dtype))


Boolean, Int32, Int64 = Kind("Boolean", np.bool_), Kind("Int32", np.int32), Kind("Int64", np.int64)
Float32, Float16, Uint32 = Kind("Float32", np.float32), Kind("Float16", np.float16), Kind("Uint32", np.uint32)


class Cells:
    """Memory: registers, one cell a lane at a place that all lanes agree on, or shared, at any place."""

    def __init__(self, count: int, kind: Kind, *, shared: bool) -> None:
        self.kind, self.shared = kind, shared
        self.held = np.zeros((count,) if shared else (count, WARP), dtype=kind.dtype)

    def __getitem__(self, place: Any) -> Lanes:
        if not self.shared:
            return Lanes(self.kind, self.held[place].copy())
        return Lanes(self.kind, self.held[np.where(_active[-1], place.cells, 0)])

    def __setitem__(self, place: Any, value: Lanes) -> None:
        assert value.kind is self.kind
        lanes = _active[-1]
        if self.shared:
            places = place.cells[lanes]
            assert len(set(places)) == len(places), "two lanes write to one cell"
            self.held[places] = value.cells[lanes]
        else:
            self.held[place, lanes] = value.cells[lanes]


def when(condition: Lanes, body: Callable[[], None]) -> None:
    lanes = _active[-1] & condition.cells
    if lanes.any():
        _active.append(lanes)
        body()
        _active.pop()


def loop(lo: Lanes, hi: Lanes, body: Callable[[Lanes], None]) -> None:
    for turn in range(lo.same, hi.same):
        body(Int32(turn))


def _whole() -> None:
    assert _active[-1].all(), "a lane is missing where all must meet"


def _shuffle(value: Lanes, lane: Any) -> Lanes:
    _whole()
    places = lane.cells if isinstance(lane, Lanes) else np.full(WARP, lane)
    return Lanes(value.kind, value.cells[places])


def _butterfly(value: Lanes, *, offset: int) -> Lanes:
    return _shuffle(value, Int32(np.arange(WARP) ^ offset))


def _ballot(value: Lanes) -> Lanes:
    _whole()
    bits = sum(1 << lane for lane in range(WARP) if value.cells[lane])
    return Int32(np.uint32(bits).view(np.int32))


def _any(value: Lanes) -> Lanes:
    _whole()
    return Boolean(value.cells.any())


cutlass = SimpleNamespace(
    max=lambda a, b: a._with(b, np.maximum), min=lambda a, b: a._with(b, np.minimum)
)  # fmt: skip
cute = SimpleNamespace(
    make_rmem_tensor=lambda shape, kind: Cells(shape[0], kind, shared=False),
    arch=SimpleNamespace(
        lane_idx=lambda: Int32(np.arange(WARP)),
        popc=lambda x: Int32([int(v).bit_count() for v in x.cells.view(np.uint32)]),
        shuffle_sync=_shuffle, shuffle_sync_bfly=_butterfly, vote_ballot_sync=_ballot, vote_any_sync=_any,
        sync_warp=_whole,
    ),
)  # fmt: skip

m = SimpleNamespace(
    FLOATS=frozenset({"f32", "f16", "bf16"}),
    select=lambda c, yes, no: Lanes(yes.kind, np.where(c.cells, yes.cells, no._with(yes, lambda a, b: a).cells)),
    cast=lambda x, dtype: {"f32": Float32, "i32": Int32}[dtype](x),
    both=lambda a, b: Boolean(a.cells & b.cells),
    either=lambda a, b: Boolean(a.cells | b.cells),
    negated=lambda a: Boolean(~a.cells),
)

NAMES = ("Boolean", "Float32", "Int32", "Int64", "cute", "m", "loop", "when")  # that the module has of the DSL
