"""What a prologue gives, by all threads of a CTA at once in numpy: what they read, which of it counts, and what the row
then is. How states pass between threads (`combine`) is told here as what it comes to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.kernels.cuda.common.spec import ArraySpec, ReductionSpec, Sweep
from tilewright.kernels.cuda.gemm.fp32.split import SplitPlan
from tilewright.kernels.cuda.gemm.prologue import fused as entering
from tilewright.kernels.cuda.gemm.prologue.fused import PrologueSpec, PrologueSplit
from tilewright.kernels.cuda.rows import reducers


class Operand:
    """(rows, K, batch) somewhere in memory; nothing else may be read."""

    element_type = SimpleNamespace(width=32)

    def __init__(self, values: np.ndarray, strides: tuple[int, ...]) -> None:
        self.values, self.layout = values, strides
        self.iterator = Pointer(self, 0)

    def __getitem__(self, at: Any) -> Any:
        return self.read(offset(at, self.layout))

    def read(self, places: Any) -> Any:
        assert np.min(places) >= 0 and np.max(places) < self.values.size
        return self.values[places]


class Pointer:
    def __init__(self, operand: Operand, places: Any) -> None:
        self.operand, self.places = operand, places

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.operand, self.places + more)

    def align(self, size: int) -> Pointer:
        assert np.all(self.places * 4 % size == 0), "a vector at an address that is not aligned"
        return self


def offset(at: Any, strides: tuple[int, ...]) -> Any:
    return sum(np.asarray(a) * s for a, s in zip(at, strides, strict=True))


class Held(list[Any]):
    def __init__(self, reducer: Any, _: int) -> None:
        super().__init__([None])
        self.reducer = reducer


def combined(helds: list[Held], boards: Any, *, group: Any, member: Any, group_threads: int) -> None:
    """The states of a row's threads, one after the other."""
    for held in helds:
        parts = [np.broadcast_to(s, group.shape).reshape(-1, group_threads) for s in held[0]]
        state = tuple(p[:, 0] for p in parts)
        for thread in range(1, group_threads):
            state = held.reducer.merge(state, tuple(p[:, thread] for p in parts))
        held[0] = tuple(np.repeat(s, group_threads) for s in state)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(source: Any, target: list[Any]) -> None:
        pointer, count = source
        for i in range(count):
            target[i] = pointer.operand.read(pointer.places + i)

    cute = SimpleNamespace(
        make_rmem_tensor=lambda shape, kind: [None] * shape[0], crd2idx=offset, make_layout=lambda shape: shape[0],
        make_tensor=lambda pointer, count: (pointer, count), autovec_copy=copy,
    )  # fmt: skip
    math = SimpleNamespace(
        cast=lambda x, dtype: x, smaller=np.minimum, larger=np.maximum, select=np.where, both=np.logical_and,
        value_type=lambda dtype: np.float64, FLOATS=("f32",),
    )  # fmt: skip
    for name, fake in {"cute": cute, "m": math, "Held": Held, "combine_rows": combined, "Float32": np.float64,
                       "SmemAllocator": lambda: None, "Board": lambda *a: None}.items():  # fmt: skip
        monkeypatch.setattr(entering, name, fake)
    monkeypatch.setattr(reducers, "m", math)
    monkeypatch.setattr(reducers, "Float32", np.float64)


def norm(k: int) -> PrologueSpec:
    return PrologueSpec(
        side="left",
        operands=tuple(
            ArraySpec(name=n, dtype="f32", shape=s) for n, s in (("x", (9, k)), ("g", (1, k)), ("r", (9, 1)))
        ),
        head=lambda r: {"twice": r * 2},
        sweeps=(
            Sweep(
                elements=lambda x, twice: (x * twice, x),
                reductions=(
                    ReductionSpec(op="moments", source="f32", dtype="f32", results=("mean", "squares")),
                    ReductionSpec(op="max", source="f32", dtype="f32", results=("most",)),
                ),
                rows=lambda squares: {"scale": 1 / np.sqrt(squares / k + 1e-5)},
            ),
            Sweep(
                elements=lambda x, most: (abs(x - most),),
                reductions=(ReductionSpec(op="sum", source="f32", dtype="f32", results=("away",)),),
            ),
        ),
        final=lambda x, g, mean, scale, twice, away, index_0, index_1: (
            (x * twice - mean) * scale * g + away + index_0 + 100 * index_1
        ),
    )


@pytest.mark.parametrize(("k", "padding"), [(64, 0), (520, 0), (521, 0), (522, 2), (520, 3), (20000, 0)])
def test_rows_are_reduced_whole_and_what_lies_behind_the_end_counts_for_nothing(k: int, padding: int) -> None:
    rows, pitch = 9, k + padding
    draw = np.random.default_rng(0)
    x, g, r = draw.normal(size=rows * pitch), draw.normal(size=k), draw.normal(size=rows)
    lined = pitch % 4 == 0
    split = PrologueSplit(
        SplitPlan.for_chunk(major="k", wide=k % 4 == 0, chunk=k), norm(k),
        (((None, 1, 0), lined), ((0, 1, 0), True), ((None, 0, 0), False)),
    )  # fmt: skip
    plan = split.plan
    operands = [Operand(x, (pitch, 1, 0)), Operand(g, (0, 1, 0)), Operand(r, (1, 0, 0))]
    thread = np.arange(plan.threads)
    matrix = x.reshape(rows, pitch)[:, :k]
    for block in range(-(-rows * plan.group // plan.threads)):
        row = block * (plan.threads // plan.group) + thread // plan.group
        safe = np.minimum(row, rows - 1)
        chunk = SimpleNamespace(thread=thread, rows=rows, begin=0, end=k, batch=0)
        steps = [thread % plan.group * 4 + i * plan.group * 4 for i in range(plan.per)]
        quads = split.read_quads(chunk, operands, safe, steps)
        scaled = matrix * r[:, None] * 2
        scale = 1 / np.sqrt(scaled.var(1, keepdims=True) + 1e-5)
        away = abs(matrix - matrix.max(1, keepdims=True)).sum(1, keepdims=True)
        whole = (scaled - scaled.mean(1, keepdims=True)) * scale * g + away
        whole = whole + np.arange(rows)[:, None] + 100 * np.arange(k)
        for step, quad in zip(steps, quads, strict=True):
            last = k - 4 if plan.wide else k - 1  # what lies behind the end is the last that is there
            for e in range(4):
                place = np.minimum(step, last) + e if plan.wide else np.minimum(step + e, last)
                np.testing.assert_allclose(quad[e], whole[safe, place], rtol=1e-9, atol=1e-9)
    assert plan.held and plan.group * plan.per * 4 >= k


@pytest.mark.parametrize(("rows", "k"), [(36, 70), (37, 70)])
def test_what_lies_across_is_taken_as_it_lies(rows: int, k: int) -> None:
    """Of the right factor, (K, N): positions stand in its order, rows here are its columns."""
    draw = np.random.default_rng(0)
    x, v, r = draw.normal(size=rows * k), draw.normal(size=k), draw.normal(size=rows)
    operands = tuple(ArraySpec(name=n, dtype="f32", shape=s)
                     for n, s in (("x", (k, rows)), ("v", (k, 1)), ("r", (1, rows))))  # fmt: skip
    prologue = PrologueSpec(side="right", operands=operands,
                        final=lambda x, v, r, index_0, index_1: x * v + r + index_0 + 100 * index_1)  # fmt: skip
    split = PrologueSplit(
        SplitPlan.for_chunk(major="r", wide=rows % 4 == 0, chunk=k), prologue,
        (((1, None, 0), rows % 4 == 0), ((0, None, 0), False), ((1, 0, 0), True)),
    )  # fmt: skip
    lying = [Operand(x, (1, rows, 0)), Operand(v, (0, 1, 0)), Operand(r, (1, 0, 0))]
    whole = x.reshape(k, rows).T * v + r[:, None] + np.arange(k) + 100 * np.arange(rows)[:, None]
    row, step = np.arange(0, 80, 4), np.arange(20) * 5
    chunk = SimpleNamespace(thread=np.arange(20), rows=rows, begin=0, end=k, batch=0)
    (quad,) = split.read_quads(chunk, lying, row, [step])
    for e in range(4):
        place = np.minimum(row, rows - 4) + e if split.plan.wide else np.minimum(row + e, rows - 1)
        np.testing.assert_allclose(quad[e], whole[place, np.minimum(step, k - 1)], rtol=1e-12)


def test_rows_too_long_for_registers_and_rows_across_are_not_reduced() -> None:
    for major, k in (("k", entering.LONGEST_ROW + 1), ("r", 64)):
        with pytest.raises(ValueError, match="not reduced on their way in"):
            PrologueSplit(SplitPlan.for_chunk(major=major, wide=False, chunk=k), norm(k), (((None, 1, 0), False),) * 3)
