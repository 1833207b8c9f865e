"""What can be won at most, from one profile of eager."""

from __future__ import annotations

from dataclasses import replace

from fakes.facts import MACHINE
from tilewright.facts.outcome import Inspected, NamedTime
from tilewright.facts.problem import Work
from tilewright.run.winnable import winnable

WORK = Work(bytes_read=8, bytes_written=8, matmul_flops=60_000_000, conv_flops=0, dtype="f32")  # 600 us at 1e11 flop/s


def seen(**ns: float) -> Inspected:
    named = tuple(NamedTime(name=f"aten::{name}", origin="torch", times=1, ns=time) for name, time in ns.items())
    return Inspected(longest=named, kinds=len(named), ns=sum(ns.values()))


def test_the_line_says_what_is_at_its_floor() -> None:
    assert winnable(seen(addmm=750e3, gelu=250e3), WORK, MACHINE) == (
        "75% of eager's time is in products of matrices and convolutions, which run at 80% of the rate measured here: "
        "at most 1.7x can be won"
    )
    assert winnable(seen(gelu=1200e3), WORK, MACHINE) == "at most 2.0x can be won"


def test_where_it_is_not_known_nothing_is_said() -> None:
    busy = replace(MACHINE, under_load=True)
    assert winnable(seen(addmm=750e3), WORK, busy) == ""
    assert winnable(seen(addmm=500e3), WORK, MACHINE) == "", "faster than its floor: the floor is not known well"
    assert winnable(seen(addmm=750e6), WORK, MACHINE) == "", "so far from its floor, that says little"
    assert winnable(seen(), WORK, MACHINE) == ""
