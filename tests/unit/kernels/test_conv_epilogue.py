"""The epilogue of the skeleton `conv` without a GPU: run with Python's numbers on numpy's memory."""

from __future__ import annotations

from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes.convolutions import contiguous, shape_of, spec_of
from tilewright.kernels.cuda.conv import epilogue, gather
from tilewright.kernels.cuda.conv.epilogue import ConvEpilogue, EpilogueOperand
from tilewright.kernels.cuda.conv.phases import phases
from tilewright.kernels.cuda.conv.tiles import DEFAULTS, channel_of, make_points


class Number(float):
    is_float = False  # so that none converts it


class Memory:
    """A tensor of CuTe's as far as an epilogue sees it: flat memory, at a place; or registers."""

    def __init__(self, flat: np.ndarray[Any, Any], at: int = 0, size: int = 0) -> None:
        self.flat, self.at, self.size, self.element_type = flat, at, size, float

    @property
    def iterator(self) -> Memory:
        return self

    def __add__(self, places: int) -> Memory:
        return Memory(self.flat, self.at + places)

    def align(self, size: int) -> Memory:
        assert self.at * 2 % size == 0  # of 16 bits
        return self

    def __getitem__(self, i: int) -> Number:
        assert 0 <= i < self.size
        return Number(self.flat[self.at + i])

    def __setitem__(self, i: int, value: float) -> None:
        assert 0 <= i < self.size and np.isnan(self.flat[self.at + i]), "written twice"
        self.flat[self.at + i] = value


def copied(source: Memory, target: Memory) -> None:
    for i in range(source.size):
        target[i] = source[i]


@pytest.fixture
def plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epilogue runs with Python's numbers on numpy's memory."""
    made = SimpleNamespace(
        size=len, make_layout=lambda shape: shape[0],
        make_tensor=lambda first, size: Memory(first.flat, first.at, size),
        make_rmem_tensor=lambda shape, kind: Memory(np.full(shape[0], np.nan), 0, shape[0]), autovec_copy=copied,
    )  # fmt: skip
    monkeypatch.setattr(epilogue, "cute", made)
    monkeypatch.setattr(epilogue, "Int64", int)
    monkeypatch.setattr(epilogue, "when", lambda condition, body: body() if condition else None)
    monkeypatch.setattr(
        epilogue, "m", SimpleNamespace(stored=lambda value, dtype: value, both=lambda one, other: one and other)
    )


@pytest.mark.usefixtures("plain_memory")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "how", "columns"),
    [
        ((2, 16, 5, 7), (64, 16, 3, 3), {"padding": 1}, 64),
        ((2, 16, 5, 7), (48, 16, 3, 3), {}, 0),
        ((2, 16, 5, 7), (100, 16, 3, 3), {"stride": 2}, 64),
        ((1, 16, 5, 7), (33, 16, 1, 1), {}, 0),
        ((2, 32, 5, 7), (96, 16, 3, 3), {"groups": 2, "padding": 1}, 32),
        ((2, 16, 3, 4), (16, 24, 4, 4), {"transposed": True, "stride": 2, "padding": 1}, 0),
    ],
)
def test_an_epilogue_writes_every_element_once_from_its_own_sum_and_operands(
    x: Any, w: Any, how: dict[str, Any], columns: int, last: bool
) -> None:
    """Sums are what the columns of packed weights make them: the channel's number, the pixel's in the thousands."""
    shape = shape_of(x, w, **how)
    spec = spec_of(shape, x, w, how, "f16", last=last)
    whole = spec.outputs[0].shape
    channel = [d for d in range(len(whole)) if d not in ((0, 1, 2) if last else (0, len(whole) - 2, len(whole) - 1))]
    of_channels = tuple(n if d in channel else 1 for d, n in enumerate(whole))
    given = {name: np.random.default_rng(len(name)).random(size) for name, size in (("c", of_channels), ("ee", whole))}
    operands = [EpilogueOperand(n, "f16", spec.walk(contiguous(v.shape), v.shape, last=last)) for n, v in given.items()]
    out = np.full(prod(whole), np.nan)
    knobs = DEFAULTS | {"columns": columns}
    for phase, point in zip(phases(shape), make_points(shape, knobs), strict=True):
        made = ConvEpilogue(shape, point, ["f16"], function=lambda product, c, ee: product + 7 * c + 11 * ee,
                            operands=operands, first=phase.first, channels_last=last)  # fmt: skip
        reader = gather.Gather(phase.shape, (0,) * 6, 2)
        odd = point.columns * point.tiles > shape.columns
        for number, group, tile, lane in product(
            range(0, phase.shape.pixels, 2 if made.pairs else 1), range(shape.groups), range(point.tiles), range(4)
        ):
            first = tile * point.columns

            def sums(pixel: int, i: int, *, own: Any = (number, first, lane, made.run)) -> float:
                begin, column, of_lane, run = own
                return 1000.0 * (begin + pixel) + column + channel_of(i // 2 * 8 + 2 * of_lane + i % 2, run)

            place = (plain_pixel(reader, number), group, first + lane * made.run)
            made.row(sums, place, (None, None), [Memory(out)], [Memory(v.reshape(-1)) for v in given.values()], odd)
    assert not np.isnan(out).any()
    rest = np.round(out.reshape(whole) - 7 * np.broadcast_to(given["c"], whole) - 11 * given["ee"], 6)
    rest = np.moveaxis(rest, (1, 2), (-2, -1)) if last else rest  # n, (g,) co, h, w
    rest = rest.reshape(shape.batch, shape.groups, shape.columns, *shape.out[1:])
    np.testing.assert_allclose(
        rest % 1000, np.broadcast_to(np.arange(shape.columns)[:, None, None], rest.shape), atol=1e-6
    )
    if shape.spread == (1, 1, 1):
        pixels = np.arange(shape.pixels).reshape(shape.batch, 1, 1, *shape.out[1:])
        np.testing.assert_allclose(rest // 1000, np.broadcast_to(pixels, rest.shape), atol=1e-6)


def plain_pixel(reader: gather.Gather, number: int) -> tuple[int, ...]:
    _, o1, o2 = reader.shape.out
    line, last = divmod(number, o2)
    return (*divmod(line // o1, reader.shape.out[0]), line % o1, last)
