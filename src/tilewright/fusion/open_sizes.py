"""Patterns of cases that differ in open sizes alone: one program for all, with those dimensions open that differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.facts.pattern import Pattern
from tilewright.facts.run import Matched
from tilewright.ir.program import Program, Reduction, Statement

ONE_SIZE = "a kernel of one size alone, where sizes change from call to call"


def with_open_sizes(found: Sequence[Matched], unsupported: Callable[[Program], str | None]) -> list[Matched]:
    """The same cases with the patterns of which one kernel takes all sizes, under the ids that they have in the first;
    of each other pattern it is told why it is left."""
    kept: list[list[Pattern]] = [[] for _ in found]
    left: list[str] = []
    for pattern in found[0].patterns:
        alike = [next((p for p in matched.patterns if p.nodes == pattern.nodes), None) for matched in found]
        opened = _opened([p.program if p else None for p in alike], unsupported)
        if isinstance(opened, str):
            left.append(f"{pattern.title}: {opened}")
            continue
        for patterns, one, program in zip(kept, alike, opened, strict=True):
            assert one is not None
            patterns.append(replace(one, id=pattern.id, space=pattern.space, program=program))
    return [
        replace(matched, patterns=tuple(patterns), unmatched=(*matched.unmatched, *left))
        for matched, patterns in zip(found, kept, strict=True)
    ]


def _opened(
    programs: Sequence[Program | None], unsupported: Callable[[Program], str | None]
) -> list[Program] | str:  # fmt: skip
    """The programs of one pattern, a case each, open where they differ; or why no kernel takes them all."""
    there = [p for p in programs if p is not None]
    ranks = {len(p.domain) for p in there}
    if len(there) < len(programs) or len(ranks) > 1:
        return ONE_SIZE
    dims = tuple(d for d in range(*ranks) if len({p.domain[d] for p in there}) > 1)
    opened = [replace(p, open=dims) for p in there]
    if len({_bare(p) for p in opened}) > 1:
        return ONE_SIZE
    why = unsupported(opened[0])
    if why is None:
        return opened
    rows = [one_row_dimension(p) for p in opened]
    merged = [p for p in rows if p is not None]
    return why if len(merged) < len(rows) or unsupported(merged[0]) is not None else merged


def _bare(program: Program) -> Program:
    """The program without the sizes that are open: equal for those of one kernel."""

    def bare(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(0 if d in program.open and size > 1 else size for d, size in enumerate(shape))

    operands = tuple(o if o.indexed else replace(o, shape=bare(o.shape)) for o in program.operands)
    outputs = tuple(replace(o, shape=bare(o.shape)) for o in program.outputs)
    return replace(program, domain=bare(program.domain), operands=operands, outputs=outputs)


def one_row_dimension(program: Program) -> Program | None:
    """The program with its open dimensions, and those before them, as one: the rows. None where something distinguishes
    between them: a reduction, a position, an operand that is broadcast along some of them alone."""
    count = max(program.open, default=0) + 1
    plain = all(isinstance(s, Statement | Reduction) and s.op != "index" for s in program.body)
    shapes = [o.shape[:count] for o in program.operands] + [o.shape[:count] for o in program.outputs]
    alike = all(shape in (program.domain[:count], (1,) * count) for shape in shapes)
    kept = all(d >= count for d in program.reduced) and not program.sums and not any(o.order for o in program.operands)
    if count == 1 or not (plain and alike and kept):
        return None

    def merged(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (math.prod(shape[:count]), *shape[count:])

    return replace(
        program, domain=merged(program.domain), reduced=tuple(d - count + 1 for d in program.reduced), open=(0,),
        operands=tuple(replace(o, shape=merged(o.shape)) for o in program.operands),
        outputs=tuple(replace(o, shape=merged(o.shape)) for o in program.outputs),
    )  # fmt: skip
