"""What can be won at most, said before anything is tuned: eager's time against what the hardware can't beat."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..facts.errors import HarnessError
from ..facts.machine import Machine
from ..facts.outcome import Inspected
from ..facts.problem import Work
from ..facts.run import SearchContext

if TYPE_CHECKING:
    from ..judge.evaluate import Judge

_PRODUCTS = re.compile(
    r"gemm|gemv|nvjet|cutlass|addmm|::(b?mm|matmul|linear|mkldnn_\w*linear)\b|conv|fprop", re.IGNORECASE
)
_MOST = 10.0  # times: beyond that the floor says little


def say_winnable(judge: Judge, context: SearchContext, *, say: Callable[[str], None]) -> None:
    """Say it of the first case, by one profile of eager, where nothing else looks into the module; a profiler that
    fails ends no run."""
    if context.strategy != "catalog" or context.problem.mode != "inference":
        return
    try:
        seen = judge.inspect(None)
    except HarnessError as error:
        say(f"what can be won at most was not seen: {error}")
        return
    told = winnable(seen, context.cases[0].work, context.machine) if isinstance(seen, Inspected) else ""
    if told:
        say(told)


def winnable(seen: Inspected, work: Work, machine: Machine) -> str:
    """One line on a profile of eager, ns by kernel or operator: which share of its time is in products of matrices and
    convolutions, and by which factor the whole can become faster at most, by this machine's measured rates. "" where
    the rates or the times are not known well enough to say it."""
    floor_ns = machine.floor_ns(work)
    if seen.ns <= 0 or floor_ns <= 0 or machine.under_load or not 1.0 <= seen.ns / floor_ns <= _MOST:
        return ""
    most = f"at most {seen.ns / floor_ns:.1f}x can be won"
    products_ns = sum(n.ns for n in seen.longest if _PRODUCTS.search(n.name))
    product_floor_ns = 1e9 * work.flops / machine.rate(work.dtype)
    if products_ns <= 0 or product_floor_ns <= 0:
        return most
    near = min(1.0, product_floor_ns / products_ns)
    share = f"{products_ns / seen.ns:.0%} of eager's time is in products of matrices and convolutions"
    return f"{share}, which run at {near:.0%} of the rate measured here: {most}"
