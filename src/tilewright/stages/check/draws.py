"""Check of a random module: calls of the candidate against calls of the reference, as two samples (see chance)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...cell import wire
from ...facts.outcome import OutputError
from . import chance, metric
from .check import Check, Refused
from .plan import Trial, secret

_FAMILIES = ("own", "normal")
_MOST_TRIALS = 3
_CONSTANT_SLACK = 8.0  # of the floors: for an output that is not random, beside one that is
Calls = list[tuple[Tensor, ...]]


def run(check: Check, trials: Sequence[Trial], *, rng: random.Random, redraw: Callable[[int], None]) -> None:
    """Carry out the trials that say something here; raises Refused, and CellFault when a cell fails."""
    check.findings.note(f"case {check.case}: the module is random; {chance.CALLS} calls are compared as distributions")
    for trial in [t for t in trials if t.family in _FAMILIES][:_MOST_TRIALS]:
        if trial.redraw:
            check.redraw(trial.redraw, redraw)
        check.room.take_state()
        check.room.draw(0, family=trial.family, seed=trial.seed, upstream="normal")
        check.room.place(0, 0)
        got, wanted = _sample(check, rng)
        for output in range(len(check.room.own())):
            _compare(check, trial, output, [g[output] for g in got], [w[output] for w in wanted])


def timed(check: Check, trial: Trial, *, k: int, rng: random.Random) -> None:
    """Hold the result of one timed call, which lies in place 0, against calls of the reference on pool set `k`; raises
    Refused where it can't be one of them."""
    room = check.room
    blocks = [chance.block_of(t.shape, rng) for t in room.own()]
    got = [t[b].clone() for t, b in zip(room.results(0), blocks, strict=True)]
    wanted = [_reference_call(check, k, blocks, rng) for _ in range(chance.CALLS)]
    for output, mine in enumerate(got):
        _compare(check, trial, output, [mine], [w[output] for w in wanted])


def _reference_call(
    check: Check, k: int, blocks: Sequence[tuple[slice, ...]], rng: random.Random
) -> tuple[Tensor, ...]:
    check.room.call_reference(k, seed=secret(rng))
    return tuple(t[b].clone() for t, b in zip(check.room.own(), blocks, strict=True))


def _sample(check: Check, rng: random.Random) -> tuple[Calls, Calls]:
    """The same part of every output, for calls of either, each under a seed of its own."""
    room = check.room
    blocks = [chance.block_of(t.shape, rng) for t in room.own()]
    got: Calls = []
    wanted: Calls = []
    for _ in range(chance.CALLS):
        wanted.append(_reference_call(check, 0, blocks, rng))
        check.load_state()
        check.call(tag=0, slot=0, place=0, seed=secret(rng))
        got.append(tuple(t[b].clone() for t, b in zip(room.results(0), blocks, strict=True)))
        check.cell.do(wire.Drop())
    changed = room.changed_input(0, 0)
    if changed >= 0:
        raise Refused("input_modified", f"case {check.case}: it changes tensor input {changed} in place")
    return got, wanted


def _compare(check: Check, trial: Trial, output: int, got: list[Tensor], wanted: list[Tensor]) -> None:
    limit, calls = (chance.LIMIT, f"{len(got)} calls") if len(got) > 1 else (chance.LIMIT_OF_ONE, "a timed call")
    where = f"case {check.case}, {trial.family} inputs, output {output}"
    dtype = wanted[0].dtype
    if all(bool(torch.isfinite(w).all()) for w in wanted) and not all(bool(torch.isfinite(g).all()) for g in got):
        raise Refused("wrong_values", f"{where}: elements are not finite where the reference's are")
    got, wanted = [g.double().nan_to_num() for g in got], [w.double().nan_to_num() for w in wanted]
    floor, _ = metric.floors(dtype, check.precision, length=check.room.described.longest_sum)
    if chance.is_constant(wanted, _CONSTANT_SLACK * floor):
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
        raise Refused("wrong_distribution" if "t = " in what else "wrong_values", f"{where}: {what}")


def _error(check: Check, trial: Trial, output: int, got: float, allowed: float) -> OutputError:
    return OutputError(
        case=check.case, family=trial.family, output=output, norm=got, worst=0.0, allowed_norm=allowed,
        allowed_worst=0.0,
    )  # fmt: skip
