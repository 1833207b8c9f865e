"""Beyond the points that a Space names: the whole product of its knobs, searched by optuna (tree-structured Parzen
estimators; Bergstra et al., NeurIPS 2011)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...facts.move import Tune
from ...facts.outcome import LEAST_GAIN, PointTime, Tuned
from ...facts.pattern import Pattern, Recipe
from ...facts.space import Point, Space

if TYPE_CHECKING:
    from .tuning import Steps, Tuning

BATCH = 8  # points that are measured at once, beside the best so far
_STALE = 3  # batches in a row that bring nothing end the search
_DRAWS = 64  # until a point comes that is new


def size(space: Space) -> int:
    """How many settings its knobs have together."""
    return math.prod(len(knob.values) for knob in space.knobs)


def searched(tuning: Tuning, pattern: Pattern, recipe: Recipe, known: Tuned, *, trials: int) -> Steps[Tuned]:
    """Up to `trials` further points after those of `known`, while there is time and batches bring something; what was
    measured last, the best of all among it. Every batch holds the best so far, so that times of different batches are
    told against its."""
    search = _Search(pattern.space, seed=tuning.context.seed)
    search.learn(known.points, factor=1.0)
    stale = 0
    while trials > 0 and stale < _STALE and tuning.has_time(1.0) and search.best is not None:
        before, points = search.best, search.ask(min(BATCH, trials))
        if not points:
            break
        event = yield from tuning.move(Tune(recipe=recipe, pattern=pattern.id, points=(before, *points)))
        if not isinstance(event.outcome, Tuned):
            break
        known, trials = event.outcome, trials - len(points)
        search.learn(known.points, factor=search.scale(known.points[0]))
        stale = 0 if search.times[search.best] < (1 - LEAST_GAIN) * search.times[before] else stale + 1
    return known


class _Search:
    """What was measured, in ns as if all of it had been measured at once, and what to measure next. The same answers
    lead to the same questions."""

    def __init__(self, space: Space, *, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._space = space
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=BATCH))
        self._asked: dict[Point, Any] = {}
        self.seen: set[Point] = set()
        self.times: dict[Point, float] = {}

    @property
    def best(self) -> Point | None:
        return min(self.times, key=lambda p: self.times[p], default=None)

    def scale(self, again: PointTime) -> float:
        """By what times of a batch are multiplied that holds a point which was measured before."""
        return self.times[again.point] / again.time_ns.mid if again.time_ns is not None else 1.0

    def ask(self, count: int) -> tuple[Point, ...]:
        """Points that nobody has measured; fewer, or none, where hardly any are left."""
        found: list[Point] = []
        for _ in range(_DRAWS):
            trial = self._study.ask(_distributions(self._space))
            at = tuple(sorted((k.name, k.values[trial.params[k.name]]) for k in self._space.knobs))
            if at in self.seen:
                self._tell(trial, at)
                continue
            self.seen.add(at)
            self._asked[at] = trial
            found.append(at)
            if len(found) == count:
                break
        return tuple(found)

    def learn(self, points: tuple[PointTime, ...], *, factor: float) -> None:
        """Take over what was measured; what failed is not asked for again."""
        for measured in points:
            at = measured.point
            if measured.time_ns is not None:
                self.times.setdefault(at, factor * measured.time_ns.mid)
            if at in self._asked:
                self._tell(self._asked.pop(at), at)
            elif at not in self.seen and at in self.times and self._space.holds(at):
                self._study.add_trial(self._given(at))
            self.seen.add(at)

    def _given(self, at: Point) -> Any:
        """A point that the study did not ask for."""
        values = {k.name: k.values for k in self._space.knobs}
        return self._optuna.trial.create_trial(
            params={name: values[name].index(value) for name, value in at},
            distributions=_distributions(self._space),
            value=math.log(self.times[at]),
        )

    def _tell(self, trial: Any, at: Point) -> None:
        if at in self.times:
            self._study.tell(trial, math.log(self.times[at]))
        else:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)


def _distributions(space: Space) -> dict[str, Any]:
    """A knob of numbers has an order; of others each value stands for itself. Both are places among its values."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        k.name: IntDistribution(0, len(k.values) - 1)
        if all(type(v) is int for v in k.values)
        else CategoricalDistribution(tuple(range(len(k.values))))
        for k in space.knobs
    }
