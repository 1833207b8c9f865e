"""Who works on what was kept of earlier calls is found out, however busy the machine is for a while; nobody else is."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from tilewright.judge.timing import fresh
from tilewright.judge.timing.fresh import Fresh, check_fresh
from tilewright.judge.timing.interleave import BurstSchedule, TimedSubject, TurnRedraw, VerifiedLook
from tilewright.judge.timing.measure import Implausible

_NO_LOOK = cast(VerifiedLook, None)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are those of `_Calls`, which is given for a table."""
    monkeypatch.setattr(fresh, "_again", lambda calls, *args, **named: calls.again(*args, **named))


class _Calls:
    """Two subjects whose calls take 6 ms, and 1 ms where the candidate keeps what it computed of the same contents;
    others on the machine hold calls back for so many rounds, half of them, by `held_ms` on the average."""

    def __init__(
        self, *, keeps: bool, busy_rounds: int, seed: int, eager_held: int = 0, held_ms: float = 10.0,
        lazy: Callable[[int], bool] = lambda number: False,
    ) -> None:  # fmt: skip
        self.rng, self.noise = random.Random(seed), random.Random(seed + 1)
        self.memory = SimpleNamespace(slots=3, tight=False, device="cuda")
        self.keeps, self.busy_rounds, self.rounds, self.eager_held = keeps, busy_rounds, 0, eager_held
        self.held_ms, self.lazy = held_ms, lazy
        self.looked: list[int] = []
        self.redraw = TurnRedraw()
        self.bursts = {"ours": [(1e6 if keeps else 6e6,)]}

    def _held_ns(self) -> float:
        held = max(self.rounds, 1) <= self.busy_rounds and self.noise.random() < 0.5
        return self.noise.expovariate(1 / (self.held_ms * 1e6)) if held else 0.0

    def again(
        self, subject: TimedSubject, slot: int, *, renew: object, look: VerifiedLook | None
    ) -> tuple[float, float]:
        if subject.name == "eager":
            self.eager_held -= 1
            return (40e6 if self.eager_held >= 0 else 6e6 + self._held_ns()), 6e6 + self._held_ns()
        self.rounds += 1
        fresh_ns = (1e6 if self.lazy(self.rounds) else 6e6) + self._held_ns()
        if look is not None and fresh_ns < look.below_ns:
            self.looked.append(self.rounds)
        return fresh_ns, (1e6 if self.keeps else 6e6) + self._held_ns()


def _check(calls: _Calls, quick: VerifiedLook | None = None) -> Fresh:
    subjects = [TimedSubject(name, None) for name in ("ours", "eager")]  # type: ignore[arg-type]
    return check_fresh(
        cast(BurstSchedule, calls), *subjects, renew=lambda slot, again: None, look=_NO_LOOK, quick=quick
    )


@pytest.mark.parametrize("held_ms", [10.0, 40.0])
@pytest.mark.parametrize("busy_rounds", [0, 12, 20, 500])
@pytest.mark.parametrize("seed", range(8))
def test_who_keeps_what_it_computed_is_found_out(busy_rounds: int, held_ms: float, seed: int) -> None:
    with pytest.raises(Implausible, match="us more where all are"):
        _check(_Calls(keeps=True, busy_rounds=busy_rounds, seed=seed, held_ms=held_ms))


@pytest.mark.parametrize("held_ms", [10.0, 40.0])
@pytest.mark.parametrize("busy_rounds", [0, 12, 20, 500])
@pytest.mark.parametrize("seed", range(8))
def test_who_keeps_nothing_is_not_accused(busy_rounds: int, held_ms: float, seed: int) -> None:
    calls = _Calls(keeps=False, busy_rounds=busy_rounds, seed=seed, held_ms=held_ms)
    assert _check(calls).decided
    assert calls.rounds <= 123
    assert calls.rounds == 3 or busy_rounds


def test_who_is_lucky_with_eagers_calls_is_looked_at_again() -> None:
    """Where the others hold eager back in just those calls, 6 ms look like 1."""
    with pytest.raises(Implausible, match="us more where all are"):
        _check(_Calls(keeps=True, busy_rounds=0, seed=1, eager_held=3))


@pytest.mark.parametrize("seed", range(8))
def test_what_noise_hides_to_the_end_is_not_decided(seed: int) -> None:
    """Every call is held back, by some 200 ms: others were at work while this was looked at, not while it was timed."""
    calls = _Calls(keeps=True, busy_rounds=500, seed=seed)
    calls._held_ns = lambda: calls.noise.uniform(100e6, 300e6)  # type: ignore[method-assign]
    assert not _check(calls).decided
    assert calls.rounds == 123


def test_who_does_no_work_on_new_contents_now_and_then_is_looked_at() -> None:
    """Since the quickest calls count, a lazy one among ten would hide what the others cost."""
    look = VerifiedLook(after=lambda number: None)
    calls = _Calls(keeps=True, busy_rounds=500, seed=1, lazy=lambda number: number > 3 and number % 10 == 9)
    with contextlib.suppress(Implausible):
        _check(calls, look)
    assert 9 in calls.looked
    assert len(calls.looked) < 9


class _Disturbed(_Calls):
    """The first rounds in which the quickest calls count are held back on new contents alone, by others' work."""

    held_rounds = 15

    def again(
        self, subject: TimedSubject, slot: int, *, renew: object, look: VerifiedLook | None
    ) -> tuple[float, float]:
        fresh_ns, part_ns = super().again(subject, slot, renew=renew, look=look)
        held = subject.name == "ours" and 0 < self.rounds <= self.held_rounds
        return fresh_ns + (30e6 if held else 0.0), part_ns


def test_one_accusation_is_not_enough_to_refuse_and_enough_not_to_clear() -> None:
    """Before, what lasted for a dozen rounds was taken for the candidate's."""
    calls = _Disturbed(keeps=False, busy_rounds=0, seed=1)
    assert not _check(calls).decided
    calls.held_rounds, calls.rounds = 27, 0
    with pytest.raises(Implausible, match="us more where all are"):
        _check(calls)
