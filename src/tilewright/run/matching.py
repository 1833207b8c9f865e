"""Patterns that this package can realise on a device, in all cases of a problem; and candidates made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..facts.candidate import Candidate
from ..facts.device import Device
from ..facts.devices import device_of
from ..facts.pattern import Recipe
from ..facts.run import CaseFacts, Matched, SearchContext
from ..fusion import SharedKernels, match
from ..fusion.layouts import channels_last_between
from ..fusion.open_sizes import with_open_sizes
from ..ir.program import Program
from ..realise.compose import compose
from ..realise.open_cases import groups
from ..realise.table import Realisers, realisers
from .training import match_training


def found_patterns(
    cases: tuple[CaseFacts, ...], device: Device, *, first_id: int = 0, allow_tf32: bool = False
) -> tuple[Matched, ...]:
    """The patterns of every case, numbered through, in inference those with the same kernel once; a case that could not
    be traced has none. Cases that differ in open sizes have those alone of which one kernel takes all sizes."""
    make = realisers(device)
    if any(case.open for case in cases):
        return _with_open_sizes(cases, make, first_id=first_id, allow_tf32=allow_tf32)
    shared = SharedKernels(make.any_rows)
    one = partial(match, unsupported=make.unsupported, space=make.space, allow_tf32=allow_tf32, known=shared)
    training = partial(match_training, unsupported=make.unsupported, space=make.space, allow_tf32=allow_tf32)
    found: list[Matched] = []
    for index, case in enumerate(cases):
        first, before = first_id + sum(len(m.patterns) for m in found), sum(len(m.segments) for m in found)
        if case.graph is None:
            found.append(Matched(case=index, patterns=(), unmatched=(case.trace_failure,)))
        elif case.graph.wanted:
            found.append(training(case.graph, case=index, first_id=first, first_segment=before))
        else:
            found.append(one(case.graph, case=index, first_id=first_id))
    return tuple(found)


def _with_open_sizes(
    cases: tuple[CaseFacts, ...], make: Realisers, *, first_id: int, allow_tf32: bool
) -> tuple[Matched, ...]:  # fmt: skip
    found: dict[int, Matched] = {}
    for numbers in groups(cases):
        first = first_id + len({p.id for m in found.values() for p in m.patterns})
        plain = []
        for n in numbers:
            graph = cases[n].graph
            assert graph is not None
            plain.append(match(graph, unsupported=make.unsupported, space=make.space, allow_tf32=allow_tf32, case=n,
                               first_id=first))  # fmt: skip
        found |= zip(numbers, with_open_sizes(plain, make.unsupported) if len(numbers) > 1 else plain, strict=True)
    blind = {n: Matched(case=n, patterns=(), unmatched=(c.trace_failure,)) for n, c in enumerate(cases)}
    return tuple(found.get(n, blind[n]) for n in range(len(cases)))


def with_layouts(cases: tuple[CaseFacts, ...], device: Device) -> tuple[CaseFacts, ...]:
    """The cases where what declared algebra has of each, or else its graph, lies channels-last between convolutions of
    ours: a step of algebra, so that both are judged."""
    make = realisers(device)
    return tuple(_with_layout(case, lambda program: make.unsupported(program) is None) for case in cases)


def _with_layout(case: CaseFacts, supported: Callable[[Program], bool]) -> CaseFacts:
    graph = case.rewritten or case.graph
    made = None if graph is None or graph.wanted else channels_last_between(graph, supported)
    if made is None:
        return case
    step = f"{made.convolutions} convolutions read channels-last what kernels write for them"
    return replace(case, rewritten=made.graph, algebra=(*case.algebra, step))


def composed(context: SearchContext, recipe: Recipe) -> Candidate:
    context = context.behind(recipe)
    return compose(context.problem.source, context.cases, context.matched, recipe, device=device_of(context.machine))
