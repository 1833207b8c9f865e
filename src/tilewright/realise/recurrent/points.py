"""The knobs of recurrent layers on CUDA, and the points that are tried, in the order of a model of their times."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Any

from ...facts.space import Knob, Space, point
from ...kernels.cuda.recurrent.plan import KNOBS as LEGAL
from ...kernels.cuda.recurrent.plan import RecurrentPlan, make_plan
from ...kernels.recurrent.shape import RecurrentShape

_OF_EACH = 2  # points of each size of cluster: no time has been measured yet
_ABOUT = {
    "cluster": "CTAs that share the weights of a layer", "batch": "rows of the batch of a cluster",
    "each": "rows of weights of a thread", "slices": "parts of K, each a thread's",
}  # fmt: skip
KNOBS = tuple(Knob(name=name, values=values, about=_ABOUT[name]) for name, values in LEGAL.items())
# Estimates for an H100, in clocks of a multiprocessor.
_LANES = 128.0  # fused multiply-adds a clock
_LATENCY = 4.0  # of one that needs the one before
_GATES = 260.0  # latency of a thread's gates, from the sums to h
_EXCHANGE = 800.0  # from the first h sent in a cluster to the last waiting warp
_ALONE = 350.0  # the same in a CTA by itself
_MEET = 60.0
_MESSAGE = 1.0  # of sixteen bytes that a CTA sends
_PLACED = {16: 0.75, 8: 0.95}  # of the multiprocessors, what clusters of so many find room in


@functools.lru_cache(maxsize=256)
def space(shape: RecurrentShape, processors: int) -> Space:
    """Of the plans that fit, the likeliest first; none where weights don't fit a cluster."""
    ranked = sorted(
        ((layer_clocks(shape, plan, processors), i, knobs) for i, (plan, knobs) in enumerate(_plans(shape))),
        key=lambda own: own[:2],
    )
    kept: list[dict[str, Any]] = []
    for cluster in LEGAL["cluster"]:
        kept += [knobs for _, _, knobs in ranked if knobs["cluster"] == cluster][:_OF_EACH]
    return Space(knobs=KNOBS, points=tuple(point(**knobs) for _, _, knobs in ranked if knobs in kept))


def _plans(shape: RecurrentShape) -> Iterator[tuple[RecurrentPlan, dict[str, Any]]]:
    for values in product(*LEGAL.values()):
        knobs = dict(zip(LEGAL, values, strict=True))
        try:
            plan = make_plan(shape, knobs)
        except ValueError:
            continue
        yield plan, knobs


def step_clocks(plan: RecurrentPlan) -> float:
    """The model of a step: products or reads of shared memory, whichever take longer, then what waits for them."""
    warps = plan.threads / 32
    own = 4.0 * plan.fours * max(plan.each * plan.batch, _LATENCY / plan.chains)  # of a warp by itself
    products = max(own, 4.0 * plan.each * plan.fours * plan.batch * plan.threads / _LANES)
    reads = warps * (plan.fours * plan.batch + 4 * plan.each * (plan.fours - plan.held))
    sums = warps * plan.each * plan.batch + plan.elements / 32 * plan.gates * plan.slices
    sent = plan.elements * plan.cluster / 4 * _MESSAGE
    exchange = _EXCHANGE if plan.cluster > 1 else _ALONE
    return max(products, reads) + sums + _MEET + _GATES * plan.turns + sent + exchange


def layer_clocks(shape: RecurrentShape, plan: RecurrentPlan, processors: int) -> float:
    """The model of a layer: clusters that find no room wait for others to end."""
    clusters = ceil(shape.batch / plan.batch) * shape.directions
    room = max(1, int(processors * _PLACED.get(plan.cluster, 1.0)) // plan.cluster)
    return ceil(clusters / room) * shape.steps * step_clocks(plan)
