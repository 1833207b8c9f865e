"""One compiled kernel for a class of row counts: all that have one plan, but for how many rows there are.

Rows lie along dimension 0. A plan is made for as many as there are, as ever; where its kernel needs their number only
to know where they end, the plan is *freed*: its sizes become those of one row, and the kernel reads the number from its
tensors. Numbers of rows whose freed plans are equal share a kernel. Whether the last CTA is full stays in the plan:
where it is, nothing is checked.
"""

from __future__ import annotations

from dataclasses import replace

from ..common.spec import ArraySpec, Spec
from .plan import Plan


def at_rows(spec: Spec, rows: int) -> Spec:
    """The Spec of as many rows."""
    return replace(
        spec,
        domain=(rows, *spec.domain[1:]),
        operands=tuple(_of_rows(o, rows) for o in spec.operands),
        outputs=tuple(_of_rows(o, rows) for o in spec.outputs),
    )


def _of_rows(tensor: ArraySpec, rows: int) -> ArraySpec:
    return replace(tensor, shape=(rows, *tensor.shape[1:])) if tensor.has_rows else tensor


def freed(spec: Spec, plan: Plan) -> Plan | None:
    """The plan without the number of rows; None where more depends on it: what is split over CTAs by it, rows that are
    no whole vectors, lanes along the rows."""
    space, rows = plan.space, spec.domain[0]
    if not spec.free or plan.teams or plan.parts or plan.windows or plan.tile is not None:
        return None
    if spec.reduced:
        if plan.cta_split not in ("none", "cluster") or space.group_sizes[0] % rows:
            return None
        full = space.groups % plan.groups_per_cta == 0
        one = replace(space, group_sizes=(space.group_sizes[0] // rows, *space.group_sizes[1:]), span=0)
        if plan.slide is not None:
            if plan.slide.outer % rows:
                return None
            full = plan.slide.count % plan.slide.lines == 0
            plan = replace(plan, slide=replace(plan.slide, outer=plan.slide.outer // rows))
    else:
        if space.tail or space.step_sizes[0] % rows or plan.chunks < plan.blocks:
            return None
        full = space.steps % plan.block_steps == 0
        steps = (space.step_sizes[0] // rows, *space.step_sizes[1:])
        one = replace(space, step_sizes=steps, inner=space.inner // rows, span=0)
        plan = replace(plan, chunks=1)
    return replace(plan, space=one, rows="full" if full else "ragged")
