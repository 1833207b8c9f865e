"""Which inputs a candidate is tried on: seeds of the problem's own distribution, and families, by size of case."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from hashlib import sha256

from ...cell.wire import SPREADS

HUGE_BYTES = 2 << 30
LARGE_BYTES = 64 << 20
OWN, SPECIALS = "own", "specials"
ALWAYS = ("normal", "one_sided", "integers")
OFTEN = ("uniform", "shifted", "wide", "spikes", "large", "small")
EDGES = ("zeros", "subnormals", SPECIALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One set of inputs and state. `redraw` of 0: the state as constructed. `draws`: the seed under which the module is
    called, the only one that a candidate learns."""

    case: int
    family: str
    seed: int
    redraw: int
    draws: int


def plan(case: int, *, case_bytes: int, has_floats: bool, redraws: bool, rng: random.Random) -> tuple[Trial, ...]:
    """The trials of one case, the problem's own distribution first. Large cases get fewer, so that a check stays
    short. The third of the main case meets the first one's contents again, under other parameters."""
    own = 3 if case == 0 and (redraws or case_bytes <= LARGE_BYTES) else 2
    if case_bytes > HUGE_BYTES:
        families = list(ALWAYS)
    elif case_bytes > LARGE_BYTES or case:
        families = [*ALWAYS, rng.choice(OFTEN), rng.choice(EDGES)]
    else:
        families = [*ALWAYS, *OFTEN, *EDGES]
    names = [OWN] * own + (families if has_floats else [])
    spreads = rng.sample(SPREADS, len(SPREADS))  # in turn: each is there in every case that has so many trials
    redrawn = [_redraw_seed(rng, spreads[i % len(spreads)]) if redraws and i else 0 for i in range(len(names))]
    trials = [
        Trial(case=case, family=f, seed=secret(rng), redraw=redraw, draws=secret(rng))
        for f, redraw in zip(names, redrawn, strict=True)
    ]
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
