"""A station's time is split by who was busy, and what nobody was asked for is the judge's own."""

from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.judge import stations
from tilewright.judge.stations import Stations


def cell(**spent: float) -> Any:
    return SimpleNamespace(spent_s=dict(spent))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(stations.time, "monotonic", lambda: now.s)
    return now


def test_each_baseline_has_its_share_and_the_rest_is_the_judges_own(clock: Any) -> None:
    eager, compiled, candidate = cell(TimedCalls=5.0), cell(), cell(Call=1.0)
    found = Stations()
    with found.station("timing", eager, compiled, candidate=candidate):
        eager.spent_s["TimedCalls"] += 1.0
        compiled.spent_s["TimedCalls"] = 2.0
        candidate.spent_s["TimedCalls"] = 0.5
        candidate.spent_s["Unheard"] = 0.25
        clock.s = 4.0
    (station,) = found.found
    assert dict(station.parts) == {"timed baseline": 3.0, "timed calls": 0.5, "other requests": 0.25, "compare": 0.25}
    assert (station.name, station.seconds) == ("timing", 4.0)


def test_what_ends_by_an_error_is_no_station(clock: Any) -> None:
    found = Stations()
    with pytest.raises(RuntimeError), found.station("case 0", cell(), candidate=cell()):
        raise RuntimeError
    assert not found.found
