"""Which inputs a candidate is tried on: seeds of the problem's own distribution, and families, by size of case."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from ..wire.messages import SPREADS, Described, OutputFacts

HUGE_BYTES = 2 << 30
LARGE_BYTES = 64 << 20
OWN, SPECIALS = "own", "specials"
ALWAYS = ("normal", "one_sided", "integers")
OFTEN = ("uniform", "shifted", "wide", "spikes", "large", "small")
EDGES = ("zeros", "subnormals", SPECIALS)
# Where results jump: inputs on turns, a redraw of parameters, then inputs beside turns, until enough lie there.
TIES, BRIEF, BOUNDARY = "ties", "twelve_bits", "boundary"
_BOUNDARIES, _FEW_BOUNDARIES, _FEW_BYTES = 12, 4, 1 << 20  # more where one call turns few elements
_MOST_FLOPS = {"cpu": 2 << 30, "cuda": 64 << 30}  # of a module that is run in float64 some hundred times
_MOST_NOMINAL_S = 8.0  # some hundred runs of a second or two; reckoned, so that no load of the machine tells
_FLOATING_BYTES = 8 << 20  # of cases whose results are all floating: most of them do not jump for all their comparisons


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One set of inputs and state. `redraw` of 0: the state as constructed. `draws`: the seed under which the module is
    called, the only one that a candidate learns."""

    case: int
    family: str
    seed: int
    redraw: int
    draws: int


def trials_for(described: Described, case: int, *, rng: random.Random) -> tuple[Trial, ...]:
    """The trials of a case, by its size, by whether it has floating inputs and state, and whether results may jump."""
    floats = any(s.dtype in ("f64", "f32", "f16", "bf16") for s in described.inputs)
    on = "cuda" if any(o.device == "cuda" for o in described.outputs) else "cpu"
    quick = described.work.flops <= _MOST_FLOPS[on] and described.nominal_s <= _MOST_NOMINAL_S
    case_bytes = described.work.bytes_moved
    steps = is_stepped(described.outputs) or (described.steps and case_bytes <= _FLOATING_BYTES)
    return plan(
        case, case_bytes=case_bytes, has_floats=floats, redraws=bool(described.state), rng=rng,
        steps=steps and quick and not described.gradients.outputs,
    )  # fmt: skip


def is_stepped(outputs: Sequence[OutputFacts]) -> bool:
    """Whether some are booleans or whole numbers, which can change by jumps alone."""
    return any(o.spec.dtype == "bool" or o.spec.dtype[0] in "iu" for o in outputs)


def plan(
    case: int, *, case_bytes: int, has_floats: bool, redraws: bool, rng: random.Random, steps: bool = False
) -> tuple[Trial, ...]:
    """The trials of one case, the problem's own distribution first. Large cases get fewer, so that a check stays
    short. The third of the main case meets the first one's contents again, under other parameters. `steps`: its
    results may jump, so that inputs beside the turns are looked for, too."""
    own = 3 if case == 0 and (redraws or case_bytes <= LARGE_BYTES) else 2
    if case_bytes > HUGE_BYTES:
        families = list(ALWAYS)
    elif case_bytes > LARGE_BYTES or case:
        families = [*ALWAYS, rng.choice(OFTEN), rng.choice(EDGES)]
    else:
        families = [*ALWAYS, *OFTEN, *EDGES]
    names = [OWN] * own + (families if has_floats else [])
    most = LARGE_BYTES if has_floats else _FEW_BYTES * redraws  # by parameters, one element is turned at a time
    small = steps and case_bytes <= most
    boundaries = (_BOUNDARIES if case_bytes <= _FEW_BYTES else _FEW_BOUNDARIES) if small else 0
    names += [TIES, BRIEF] * (boundaries > 0 and has_floats) + [BOUNDARY] * boundaries
    spreads = rng.sample(SPREADS, len(SPREADS))  # in turn: each is there in every case that has so many trials
    redrawn = [_redraw_seed(rng, spreads[i % len(spreads)]) if redraws and i else 0 for i in range(len(names))]
    trials = [
        Trial(case=case, family=f, seed=secret(rng), redraw=redraw, draws=secret(rng))
        for f, redraw in zip(names, redrawn, strict=True)
    ]
    first = next((i for i, t in enumerate(trials) if t.family == BOUNDARY), len(trials))
    trials[first + 1 :] = [replace(t, redraw=0) for t in trials[first + 1 :]]
    if redraws and own == 3:
        trials[2] = replace(trials[2], seed=trials[0].seed)
    return tuple(trials)


def spread_of(seed: int) -> str:
    """How many elements of the state a redraw under this seed moves."""
    return SPREADS[seed % len(SPREADS)]


def _redraw_seed(rng: random.Random, spread: str) -> int:
    seed = len(SPREADS) + secret(rng)
    return seed - seed % len(SPREADS) + SPREADS.index(spread)


def secret(rng: random.Random) -> int:
    """A seed that nobody outside the judge can guess (as far as `rng` can't be): those that a candidate learns tell
    nothing of the others."""
    return 1 + int.from_bytes(sha256(rng.randbytes(32)).digest()[:8]) % (2**31 - 1)
