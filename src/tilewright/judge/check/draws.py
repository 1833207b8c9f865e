"""Check of a random module: calls of the candidate against calls of the reference, as two samples (see chance)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from ...facts.outcome import OutputError
from ..memory.sameness import one_thread
from ..wire import messages as wire
from . import chance, echoes, metric
from .check import Check, RefusedByCheck
from .plan import Trial, secret
from .state import miscounted

_FAMILIES = ("own", "normal")
_MOST_TRIALS = 3
_REMEMBERED = 8  # timed calls, with which a later one is compared
_HEARD = 2  # timed calls, which a later one must not repeat in another order
_CONSTANT_SLACK = 8.0  # of the floors: for an output that is not random, beside one that is
Calls = list[tuple[Tensor, ...]]
States = tuple[tuple[Tensor, Tensor], ...]


def run(check: Check, trials: Sequence[Trial], *, rng: random.Random) -> None:
    """Carry out the trials that say something here; raises RefusedByCheck, and CellFault when a cell fails."""
    check.findings.note(f"case {check.case}: the module is random; {chance.CALLS} calls are compared as distributions")
    for trial in [t for t in trials if t.family in _FAMILIES][:_MOST_TRIALS]:
        check.memory.sets.draw(0, family=trial.family, seed=trial.seed, upstream="normal")
        if trial.redraw:
            check.state.redraw(trial.redraw)
        check.memory.state.take()
        check.memory.sets.place(0, 0)
        got, wanted, states = _sample(check, rng)
        for output in range(len(check.memory.truths.own())):
            mine, theirs = [g[output] for g in got], [w[output] for w in wanted]
            with one_thread():
                _compare(check, trial, output, mine, theirs)
                _listen(check, trial, output, mine, theirs, rng=rng)
        _compare_states(check, states)
        check.state.require_kept()


class TimedDraws:
    """The results of timed calls of a random module: each can be one of the reference's on its inputs, and no two drew
    the same."""

    def __init__(self, check: Check, rng: random.Random) -> None:
        self._check = check
        self._rng = rng
        self._blocks = [chance.block_of(t.shape, rng) for t in check.memory.truths.own()]
        self._known: list[list[chance.Deviations]] = []  # of earlier calls, by output
        self._ranks: dict[int, list[echoes.Ranks]] = {}

    def hold(self, trial: Trial, *, k: int, left: Sequence[wire.Attribute]) -> None:
        """Hold the result that lies in place 0 against calls of the reference on pool set `k`, and against what was
        held before, and so the state that it left, plain values among it; raises RefusedByCheck where it can't be one
        of them."""
        got = [t[b].clone() for t, b in zip(self._check.memory.results(0), self._blocks, strict=True)]
        wanted: Calls = []
        states: list[States] = []
        for _ in range(chance.CALLS):
            wanted.append(_reference_call(self._check, k, self._blocks, self._rng))
            states.append(self._check.state.fetched())
        _compare_states(self._check, states, several=False)
        if uncounted := miscounted(self._check.memory, left):
            raise RefusedByCheck("wrong_state", f"case {trial.case}: after a timed call {uncounted}")
        drawn = []
        with one_thread():
            for output, mine in enumerate(got):
                theirs = [w[output] for w in wanted]
                _compare(self._check, trial, output, [mine], theirs)
                drawn.append(chance.deviations(mine, theirs))
                heard = self._ranks.get(output, [])
                ranks = _listen(self._check, trial, output, [mine], theirs, rng=self._rng, known=heard)
                self._ranks[output] = [*ranks, *heard][:_HEARD]
        for known in self._known:
            for output, (one, other) in enumerate(zip(drawn, known, strict=True)):
                found = chance.compare_draws(one, other)
                if found.t > chance.LIMIT_OF_ONE:
                    raise RefusedByCheck(
                        "wrong_distribution",
                        f"case {trial.case}, output {output}: two timed calls drew alike: the {found.figure} is "
                        f"{found.got:.3g}, and {found.wanted:.3g} where the reference is called twice",
                    )
        self._known = [drawn, *self._known[: _REMEMBERED - 1]]


def _reference_call(
    check: Check, k: int, blocks: Sequence[tuple[slice, ...]], rng: random.Random
) -> tuple[Tensor, ...]:
    check.memory.truths.call(k, seed=secret(rng))
    return tuple(t[b].clone() for t, b in zip(check.memory.truths.own(), blocks, strict=True))


def _sample(check: Check, rng: random.Random) -> tuple[Calls, Calls, list[States]]:
    """The same part of every output, for calls of either, each under a seed of its own; and the buffers that the
    reference moves, after each call."""
    memory = check.memory
    blocks = [chance.block_of(t.shape, rng) for t in memory.truths.own()]
    got: Calls = []
    wanted: Calls = []
    states: list[States] = []
    for _ in range(chance.CALLS):
        wanted.append(_reference_call(check, 0, blocks, rng))
        check.state.load()
        check.call(tag=0, slot=0, place=0, seed=secret(rng))
        got.append(tuple(t[b].clone() for t, b in zip(memory.results(0), blocks, strict=True)))
        check.state.fetch()
        states.append(check.state.fetched())
        check.cell.do(wire.Drop())
    changed = memory.sets.changed_input(0, 0)
    if changed >= 0:
        raise RefusedByCheck("input_modified", f"case {check.case}: it changes tensor input {changed} in place")
    return got, wanted, states


def _compare_states(check: Check, states: Sequence[States], *, several: bool = True) -> None:
    """Raise RefusedByCheck where a buffer that the reference moves alike in all its calls is another after the
    candidate's, or one that it moves at random has stayed, in `several` calls."""
    for i, name in enumerate(check.state.moved):
        got, wanted = ([s[i][side].double().nan_to_num() for s in states] for side in (0, 1))
        slack = _CONSTANT_SLACK * metric.floors(states[0][i][1].dtype, check.precision)[0]
        if chance.is_constant(wanted, slack):
            far = max(metric.distance(g, wanted[0], wanted[0]).norm for g in got)
        else:
            far = math.inf if several and chance.is_constant(got, slack) else 0.0
        if far > slack:
            raise RefusedByCheck(
                "wrong_state", f"case {check.case}: after the call {name} is off by {far:.3g} in the norm"
            )


def _compare(check: Check, trial: Trial, output: int, got: list[Tensor], wanted: list[Tensor]) -> None:
    limit, calls = (chance.LIMIT, f"{len(got)} calls") if len(got) > 1 else (chance.LIMIT_OF_ONE, "a timed call")
    where = f"case {check.case}, {trial.family} inputs, output {output}"
    dtype = wanted[0].dtype
    if all(bool(torch.isfinite(w).all()) for w in wanted) and not all(bool(torch.isfinite(g).all()) for g in got):
        raise RefusedByCheck("wrong_values", f"{where}: elements are not finite where the reference's are")
    got, wanted = [g.double().nan_to_num() for g in got], [w.double().nan_to_num() for w in wanted]
    floor, _ = metric.floors(dtype, check.precision, length=check.memory.described.longest_sum)
    if chance.is_constant(wanted, _rounding(check, dtype)):
        far = max(metric.distance(g, wanted[0], wanted[0]).norm for g in got)
        error = _error(check, trial, output, far, _CONSTANT_SLACK * floor)
        what = f"norm error {far:.3g} (allowed {error.allowed_norm:.3g}) in an output that is not random"
    else:
        eps = float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0
        found = chance.compare(got, wanted, eps=eps)
        error = _error(check, trial, output, found.t, limit)
        what = (
            f"over {calls}, the {found.figure} is {found.got:.4g}, and {found.wanted:.4g} over {len(wanted)} of the "
            f"reference's (t = {found.t:.3g}, allowed {limit:g})"
        )
    check.findings.errors.append(error)
    if not error.norm <= error.allowed_norm:
        raise RefusedByCheck("wrong_distribution" if "t = " in what else "wrong_values", f"{where}: {what}")


def _listen(
    check: Check, trial: Trial, output: int, got: list[Tensor], wanted: list[Tensor], *, rng: random.Random,
    known: Sequence[echoes.Ranks] = (),
) -> tuple[echoes.Ranks, ...]:  # fmt: skip
    """Raise RefusedByCheck where numbers were used again; the ranks of the first call, where they are of any use."""
    dtype = wanted[0].dtype
    got, wanted = [g.double().nan_to_num() for g in got], [w.double().nan_to_num() for w in wanted]
    if not dtype.is_floating_point or chance.is_constant(wanted, _rounding(check, dtype)):
        return ()
    found, ranks = echoes.strongest(got, wanted, eps=float(torch.finfo(dtype).eps), rng=rng, known=known)
    if found.score > echoes.LIMIT:
        raise RefusedByCheck(
            "wrong_distribution",
            f"case {check.case}, {trial.family} inputs, output {output}: numbers were drawn once and used again: "
            f"{found.figure} (score {found.score:.3g}, allowed {echoes.LIMIT:.3g}; none in the reference)",
        )
    return (ranks,)


def _rounding(check: Check, dtype: torch.dtype) -> float:
    """How far an output that is not random, beside one that is, may move from call to call: some times what its sums
    are rounded by."""
    floor, _ = metric.floors(dtype, check.precision)
    return _CONSTANT_SLACK * floor * max(1.0, math.sqrt(check.memory.described.longest_sum) / _CONSTANT_SLACK)


def _error(check: Check, trial: Trial, output: int, got: float, allowed: float) -> OutputError:
    return OutputError(
        case=check.case, family=trial.family, output=output, norm=got, worst=0.0, allowed_norm=allowed,
        allowed_worst=0.0,
    )  # fmt: skip
