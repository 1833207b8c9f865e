"""The model that orders points: it follows the hardware's arithmetic, and leaves alone what it can't tell apart."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fakes.realisers import CPU, H200
from tilewright.facts.demand import Demand
from tilewright.facts.space import Knob, Space, point
from tilewright.ir.program import Operand, Output, Program, Statement
from tilewright.search.tune.predict import cpu_ns, cuda_ns, likeliest

# 2 GB through 256 threads of 32 registers, 64 bytes in flight each: eight CTAs a multiprocessor, many waves.
PLENTY = Demand(
    plan="a", registers=32, local_bytes=0, shared_bytes=0, threads=256, ctas=132 * 8 * 40, in_flight_bytes=64,
    moved_bytes=2 * 10**9,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "ctas"),
    [
        ({}, 8),  # 2048 threads
        ({"registers": 33}, 6),  # given out by eights: 40 x 256 x 6 of 65536
        ({"registers": 64, "threads": 1024}, 1),
        ({"registers": 255, "threads": 512}, 0),
        ({"threads": 32}, 32),
        ({"shared_bytes": 99 << 10}, 2),
        ({"shared_bytes": 227 << 10}, 1),
        ({"shared_bytes": 228 << 10}, 0),
    ],
)
def test_ctas_that_a_multiprocessor_holds(changes: dict[str, int], ctas: int) -> None:
    assert replace(PLENTY, **changes).resident_ctas(H200) == ctas


def test_with_all_bandwidth_drawn_bytes_decide() -> None:
    assert cuda_ns(PLENTY, H200) == pytest.approx(2e9 / 4.24e12 * 1e9)
    assert cuda_ns(replace(PLENTY, moved_bytes=3 * 10**9), H200) == pytest.approx(3e9 / 4.24e12 * 1e9)
    assert cuda_ns(replace(PLENTY, shared_bytes=228 << 10), H200) == math.inf


def test_too_few_bytes_in_flight_draw_less() -> None:
    few = replace(PLENTY, in_flight_bytes=4)
    needed = 4.24e12 * 7e-7  # Little's law
    assert cuda_ns(few, H200) == pytest.approx(2e9 / 4.24e12 * 1e9 * needed / (132 * 2048 * 4))
    crowded = replace(few, registers=64)
    assert cuda_ns(crowded, H200) == pytest.approx(2 * cuda_ns(few, H200)), "half the CTAs are there"


def test_a_last_wave_that_is_not_full_takes_as_long_as_a_full_one() -> None:
    full = replace(PLENTY, ctas=132 * 8 * 2)
    assert cuda_ns(replace(full, ctas=full.ctas + 1), H200) == pytest.approx(cuda_ns(full, H200) * 1.5, rel=1e-3)


def program(rows: int, columns: int = 1024) -> Program:
    shape = (rows, columns)
    return Program(
        domain=shape,
        operands=(Operand(name="x", dtype="f32", shape=shape),),
        body=(Statement(result="y", op="neg", args=("x",), dtype="f32"),),
        outputs=(Output(name="y", dtype="f32", shape=shape),),
    )


def test_on_the_cpu_a_few_elements_run_on_one_thread_and_start_no_other() -> None:
    alone, shared = point(grain=16384), point(grain=4096)
    small, large = program(12), program(48)  # of 1024 columns
    small_ns, large_ns = 2 * 12 * 1024 * 4 / 10, 2 * 48 * 1024 * 4 / 10  # at 1e10 bytes/s
    assert cpu_ns(small, alone, CPU) == pytest.approx(2 * small_ns), "half the bandwidth"
    assert cpu_ns(small, shared, CPU) == pytest.approx(small_ns + 4e3)
    assert cpu_ns(large, alone, CPU) == cpu_ns(large, shared, CPU) == pytest.approx(large_ns + 4e3)


def space(count: int) -> Space:
    knob = Knob(name="unroll", values=tuple(range(count)), about="")
    return Space(knobs=(knob,), points=tuple(point(unroll=u) for u in range(count)))


def order(*times: float, most: int = 8) -> list[int]:
    given = space(len(times))
    found = likeliest(given, dict(zip(given.points, times, strict=True)), most=most)
    assert found.knobs == given.knobs
    return [p[0][1] for p in found.points]


def test_the_likeliest_come_first_and_what_hardly_differs_stays_in_order() -> None:
    assert order(100.0, 110.0, 105.0) == [0, 1, 2]
    assert order(200.0, 100.0, 101.0, 400.0) == [1, 2, 0, 3]


def test_a_large_space_is_cut_to_the_likeliest() -> None:
    assert order(400.0, 100.0, 300.0, 200.0, most=2) == [1, 3]
    assert len(order(*[1.0] * 20)) == 8


def test_what_can_not_run_is_left_out_unless_nothing_can() -> None:
    assert order(math.inf, 100.0, math.inf) == [1]
    assert order(math.inf, math.inf) == [0, 1]
