"""Who is accused by clocks is told of a machine that was busy meanwhile."""

import time

from tilewright.edges.gpu.probe import Load
from tilewright.flow.time_case import _load, _of_others

BEFORE = Load(at_s=0.0, all_s=0.0, own_s=0.0, processors=2)


def test_a_busy_machine_is_told_of_with_a_way_out() -> None:
    told = _of_others(BEFORE, Load(at_s=10.0, all_s=18.0, own_s=5.0, processors=2))
    assert told.startswith("meanwhile other processes had 1.3 of 2 processors")
    assert "judged again where nothing else runs" in told


def test_a_quiet_one_is_not() -> None:
    assert _of_others(BEFORE, Load(at_s=10.0, all_s=11.0, own_s=10.0, processors=2)) == ""
    assert _of_others(BEFORE, Load(at_s=10.0, all_s=9.0, own_s=10.0, processors=2)) == "", "a process that ended since"


def test_ones_own_work_is_ones_own() -> None:
    before, until = _load(), time.process_time() + 0.5
    while time.process_time() < until:
        pass
    after = _load()
    assert after.own_s - before.own_s >= 0.4
    assert after.all_s - before.all_s >= 0.4
