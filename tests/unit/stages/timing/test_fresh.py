"""Who works on what was kept of earlier calls is found out, however busy the machine is for a while; nobody else is."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import pytest

from tilewright.stages.timing.interleave import Look, Player, Table
from tilewright.stages.timing.measure import Implausible, check_fresh

_NO_LOOK = cast(Look, None)


class _Calls:
    """Two players whose calls take 6 ms, and 1 ms where the candidate keeps what it computed of the same contents;
    others on the machine hold the host back, and with it the candidate, for so many rounds."""

    def __init__(self, *, keeps: bool, busy_rounds: int, seed: int, eager_held: int = 0) -> None:
        self.rng, self.noise = random.Random(seed), random.Random(seed + 1)
        self.room = SimpleNamespace(slots=3, tight=False, device="cuda")
        self.keeps, self.busy_rounds, self.rounds, self.eager_held = keeps, busy_rounds, 0, eager_held

    def again(self, player: Player, slot: int, *, renew: object, look: object) -> tuple[float, float]:
        if player.name == "eager":
            self.eager_held -= 1
            return (40e6 if self.eager_held >= 0 else 6e6), 6e6
        self.rounds += 1
        held = [self.noise.expovariate(1 / 10e6) if self.rounds <= self.busy_rounds else 0.0 for _ in range(2)]
        return 6e6 + held[0], (1e6 if self.keeps else 6e6) + held[1]


def _check(calls: _Calls) -> float:
    players = [Player(name, None) for name in ("ours", "eager")]  # type: ignore[arg-type]
    return check_fresh(cast(Table, calls), *players, renew=lambda slot, again: None, look=_NO_LOOK).mid


@pytest.mark.parametrize("busy_rounds", [0, 12, 20])
@pytest.mark.parametrize("seed", range(8))
def test_who_keeps_what_it_computed_is_found_out(busy_rounds: int, seed: int) -> None:
    with pytest.raises(Implausible, match="us more where all are"):
        _check(_Calls(keeps=True, busy_rounds=busy_rounds, seed=seed))


@pytest.mark.parametrize("busy_rounds", [0, 12, 20, 500])
@pytest.mark.parametrize("seed", range(8))
def test_who_keeps_nothing_is_not_accused(busy_rounds: int, seed: int) -> None:
    calls = _Calls(keeps=False, busy_rounds=busy_rounds, seed=seed)
    _check(calls)
    assert calls.rounds <= 123
    assert calls.rounds == 3 or busy_rounds


def test_who_is_lucky_with_eagers_calls_is_looked_at_again() -> None:
    """Where the others hold eager back in just those calls, 6 ms look like 1."""
    with pytest.raises(Implausible, match="us more where all are"):
        _check(_Calls(keeps=True, busy_rounds=0, seed=1, eager_held=3))
