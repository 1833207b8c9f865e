"""Which variants of a case are tried, and how they are made."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tilewright.judge.check import hidden
from tilewright.judge.reference_process.variant import resized, restrided
from tilewright.judge.wire import messages as wire


def test_primes() -> None:
    assert [hidden.prime_below(n) for n in (1, 2, 3, 8, 100, 4096)] == [1, 1, 2, 7, 97, 4093]


def test_keywords_change_together_then_one_by_one() -> None:
    found = [json.loads(v.kwargs) for v in hidden._by_keywords({"rows": 64, "width": 10, "eps": 0.1}, larger=True)]
    assert found[0] == {"rows": 61, "width": 7, "eps": 0.1}
    assert found[1] == {"rows": 129, "width": 10, "eps": 0.1}
    assert {"rows": 1, "width": 10, "eps": 0.1} in found


def _variant(batch: int = 0, extents: tuple[tuple[int, int], ...] = ()) -> wire.Variant:
    return wire.Variant(kwargs="{}", batch=batch, extents=extents, strided=False)


def test_extents_change_wherever_they_stand() -> None:
    a, b = torch.rand(16, 32), torch.rand(32, 24)
    x, y = resized([a, b], _variant(extents=((16, 13), (24, 23), (32, 31))))
    assert x.shape == (13, 31) and y.shape == (31, 23)
    assert torch.equal(x, a[:13, :31]) and torch.equal(y, b[:31, :23])


def test_a_batch_changes_where_it_is_shared_and_may_grow() -> None:
    x, weight, labels = torch.rand(4, 8), torch.rand(8, 8), torch.arange(4)
    found = resized([x, weight, labels], _variant(batch=9))
    assert [tuple(t.shape) for t in found] == [(9, 8), (8, 8), (9,)]
    assert torch.equal(found[0][4:8], x) and found[2].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_strides_change_and_values_do_not() -> None:
    for shape in ((5,), (4, 6), (2, 4, 6)):
        x = torch.rand(shape)
        for number in (0, 1):
            found = restrided(x, number)
            assert torch.equal(found, x) and not found.is_contiguous()


def test_a_large_square_shrinks_on_both_sides() -> None:
    square = SimpleNamespace(shape=(4096, 4096), dtype="f32")
    described: Any = SimpleNamespace(inputs=(square, square), work=SimpleNamespace(bytes_moved=3 * 4 * 4096**2))
    empty = [torch.empty(4096, 4096, device="meta")] * 2
    shapes = [tuple(t.shape for t in resized(empty, v)) for v in _tried(described, lambda v: True) if not v.batch]
    assert shapes == [((2357, 2357), (2357, 2357))]


def _described(*shapes: tuple[int, ...]) -> Any:
    inputs = tuple(SimpleNamespace(shape=s, dtype="f32") for s in shapes)
    size = sum(4 * math.prod(s) for s in shapes)
    return SimpleNamespace(inputs=inputs, work=SimpleNamespace(bytes_moved=2 * size))


def _tried(described: Any, takes: Callable[[wire.Variant], bool]) -> list[wire.Variant]:
    """All variants, where the reference takes those that it does."""
    found: list[wire.Variant] = []

    def take(variant: wire.Variant) -> bool:
        found.append(variant)
        return takes(variant)

    hidden.offer(hidden.variants("{}", described), (), take=take)
    return found


def test_extents_that_the_weights_insist_on_stay_and_the_others_shrink_and_grow() -> None:
    """As attention over 64 places of width 32: a batch of 2."""
    taken: list[tuple[int, ...]] = []

    def takes(variant: wire.Variant) -> bool:
        (x,) = resized([torch.empty(2, 64, 32, device="meta")], variant)
        if x.shape[-1] == 32:
            taken.append(tuple(x.shape))
        return x.shape[-1] == 32

    _tried(_described((2, 64, 32)), takes)
    assert taken[:3] == [(2, 61, 32), (5, 129, 32), (1, 64, 32)]


def test_rows_that_are_columns_of_another_input_grow_together() -> None:
    def takes(variant: wire.Variant) -> bool:
        a, b = resized([torch.empty(16, 24, device="meta"), torch.empty(24, 16, device="meta")], variant)
        shapes.append((tuple(a.shape), tuple(b.shape)))
        return a.shape[1] == b.shape[0]

    shapes: list[tuple[tuple[int, ...], ...]] = []
    _tried(_described((16, 24), (24, 16)), takes)
    assert shapes[:2] == [((13, 23), (23, 13)), ((33, 49), (49, 33))]
