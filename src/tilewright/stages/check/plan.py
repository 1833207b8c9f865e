"""Which inputs a candidate is tried on: seeds of the problem's own distribution, and families, by size of case."""

from __future__ import annotations

import random
from dataclasses import dataclass

HUGE_BYTES = 2 << 30
LARGE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One set of inputs and state. `redraw` of 0: the state as constructed."""

    case: int
    family: str
    seed: int
    redraw: int


def plan(case: int, *, case_bytes: int, has_floats: bool, redraws: bool, rng: random.Random) -> tuple[Trial, ...]:
    """The trials of one case, the problem's own distribution first. Large cases get fewer, so that a check stays
    short."""
    own = 2 if case_bytes > LARGE_BYTES or case else 3
    if case_bytes > HUGE_BYTES:
        families = ["normal", "integers"]
    elif case_bytes > LARGE_BYTES or case:
        families = ["normal", "integers", rng.choice(["uniform", "shifted", "wide", "spikes"])]
    else:
        families = ["normal", "uniform", "shifted", "integers", "wide", "spikes"]
    names = ["own"] * own + (families if has_floats else [])
    return tuple(
        Trial(case=case, family=f, seed=secret(rng), redraw=secret(rng) if redraws and i else 0)
        for i, f in enumerate(names)
    )


def secret(rng: random.Random) -> int:
    """A seed that nobody outside the judge can guess (as far as `rng` can't be)."""
    return rng.randrange(1, 2**31)
