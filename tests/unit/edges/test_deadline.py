"""A deadline counts the time in which a cell could run."""

from __future__ import annotations

import pytest

from tilewright.edges.sandbox import deadline
from tilewright.edges.sandbox.deadline import Deadline
from tilewright.facts.errors import TooBusy


class World:
    """A clock, and books of processors: the cell is process 1, others are process 9."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.cell_s = self.others_s = 0.0
        self.runs = True
        monkeypatch.setattr(deadline.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(deadline, "members", lambda pid: [1])
        monkeypatch.setattr(deadline, "tree_cpu_s", lambda pid: self.cell_s)
        monkeypatch.setattr(deadline, "all_spent_s", lambda: {1: (self.cell_s, 0.0), 9: (self.others_s, 0.0)})
        monkeypatch.setattr(deadline, "runs", lambda pids: self.runs)

    def until_over(self, limit: Deadline, *, cell: float, others: float) -> float:
        """When the limit is over, if of each second the cell and others use these on the processors."""
        while limit.left_s >= 0:
            self.now_s += 0.25
            self.cell_s += 0.25 * cell
            self.others_s += 0.25 * others
            limit.look()
        return self.now_s


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_alone_the_limit_is_the_clocks(world: World) -> None:
    assert world.until_over(Deadline(10.0, 1), cell=1.0, others=0.0) == pytest.approx(10.0, abs=0.6)


def test_who_gets_half_of_a_processor_has_twice_as_long(world: World) -> None:
    assert world.until_over(Deadline(10.0, 1), cell=0.5, others=1.5) == pytest.approx(20.0, abs=1.6)


def test_who_sleeps_is_not_held_back_by_others(world: World) -> None:
    world.runs = False
    assert world.until_over(Deadline(10.0, 1), cell=0.0, others=2.0) == pytest.approx(10.0, abs=0.6)


def test_what_its_own_processes_take_from_one_another_counts(world: World) -> None:
    """A hundred burners of the candidate's own use both processors: that is two seconds in each."""
    assert world.until_over(Deadline(10.0, 1), cell=2.0, others=0.0) == pytest.approx(10.0, abs=0.6)


def test_who_hardly_gets_a_processor_can_not_be_judged(world: World) -> None:
    with pytest.raises(TooBusy, match="others had the processors"):
        world.until_over(Deadline(10.0, 1), cell=0.05, others=1.95)
    assert world.now_s < 60
