"""A reward for a trainer of models: one number of a verdict, by a formula that has a name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ..facts.ticket import TicketVerdict

Formula = Literal["log_ratio", "right_log_ratio", "ratio", "right"]
Against = Literal["eager", "compile", "best"]

# Of the lower bound of the ratio, 1.0 where no gain may be claimed, of a candidate that was accepted.
_FORMULAS: Mapping[Formula, Callable[[float], float]] = MappingProxyType({
    "log_ratio": lambda low: max(0.0, math.log(low)),
    "right_log_ratio": lambda low: 1.0 + max(0.0, math.log(low)),
    "ratio": lambda low: low,
    "right": lambda low: 1.0,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRule:
    """How a verdict becomes a number: by which formula, against which baseline ("best": the better of eager and
    torch.compile), and what it is at most."""

    formula: Formula = "log_ratio"
    against: Against = "eager"
    cap: float = 3.0


def reward(judged: TicketVerdict, rule: RewardRule) -> float | None:
    """0.0 where the candidate was refused; else the formula of the ratio's lower bound, at most `cap`. A gain that may
    not be claimed counts as a ratio of 1. None: the baseline was not timed, and nothing can be said."""
    if not judged.accepted:
        return 0.0
    lows, names = dict(judged.lows), ("eager", "compile") if rule.against == "best" else (rule.against,)
    timed = [name for name in names if name in lows]
    if not timed:
        return None
    low = min(max(lows[name], 1.0) if name in judged.claimed else 1.0 for name in timed)
    return min(_FORMULAS[rule.formula](low), rule.cap)
