"""A Program cut into sweeps over its rows: what each skeleton carries out, in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .program import RANKED, Load, Operand, Output, Plain, Program, Reduction, Scan, Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One sweep over a row's elements: compute `elements`, then reduce; `rows` become computable afterwards."""

    elements: tuple[Plain, ...]
    reductions: tuple[Reduction, ...]
    rows: tuple[Plain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A Program cut into sweeps. `head` holds the row-level statements that need no reduction; `final` the element
    statements of the last sweep, which writes the element-level outputs (empty outputs: no last sweep)."""

    head: tuple[Plain, ...]
    passes: tuple[Pass, ...]
    final: tuple[Plain, ...]
    element_outputs: tuple[Output, ...]
    row_outputs: tuple[Output, ...]
    row_names: frozenset[str]

    def operands_of(self, statements: Iterable[Plain], program: Program, *more: str) -> tuple[Operand, ...]:
        """The aligned operands that these (and these names) read directly, in the program's order."""
        used = {a for s in statements for a in s.args if isinstance(a, str)} | set(more)
        return tuple(o for o in program.operands if o.name in used)


def _levels(program: Program) -> tuple[dict[str, int], set[str]]:
    """Each value's stage (how many sweeps must end before it is known) and the set of row-level names."""
    stage: dict[str, int] = {}
    rows: set[str] = set()
    for operand in program.operands:
        stage[operand.name] = 0
        if operand.indexed:
            continue
        if program.reduced and all(operand.shape[d] == 1 for d in program.reduced):
            rows.add(operand.name)
    for item in program.body:
        if isinstance(item, Reduction):
            for name in item.results:
                stage[name] = stage[item.arg] + 1
                rows.add(name)
            continue
        if isinstance(item, Scan):
            raise ValueError(f"{item.results[0]!r}: a scan is cut by `scan_schedule`")
        names = [a for a in item.args if isinstance(a, str)]
        stage[item.result] = max((stage[n] for n in names), default=0)
        on_rows = item.args[0] not in program.reduced if item.op == "index" else all(n in rows for n in names)
        on_rows = on_rows and not (isinstance(item, Load) and item.dims & set(program.reduced))
        if program.reduced and on_rows:
            rows.add(item.result)
    return stage, rows


def schedule(program: Program) -> Schedule:
    """Cut a program into sweeps over its rows, each with the element statements it needs (recomputed, not kept)."""
    stage, rows = _levels(program)
    statements = {s.result: s for s in program.body if isinstance(s, Statement | Load)}
    order = {name: i for i, name in enumerate(statements)}
    reductions = [r for r in program.body if isinstance(r, Reduction)]

    def elements_for(names: Iterable[str]) -> tuple[Plain, ...]:
        found: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name in statements and name not in rows and name not in found:
                found.add(name)
                todo += [a for a in statements[name].args if isinstance(a, str)]
        return tuple(statements[n] for n in sorted(found, key=order.__getitem__))

    def rows_at(level: int) -> tuple[Plain, ...]:
        return tuple(s for s in statements.values() if s.result in rows and stage[s.result] == level)

    passes = []
    for level in range(max((stage[r.arg] for r in reductions), default=-1) + 1):
        mine = tuple(r for r in reductions if stage[r.arg] == level)
        passes.append(Pass(elements=elements_for(r.arg for r in mine), reductions=mine, rows=rows_at(level + 1)))
    element_outputs = tuple(o for o in program.outputs if o.name not in rows)
    return Schedule(
        head=rows_at(0),
        passes=tuple(passes),
        final=elements_for(o.name for o in element_outputs),
        element_outputs=element_outputs,
        row_outputs=tuple(o for o in program.outputs if o.name in rows),
        row_names=frozenset(rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSchedule:
    """A Program with a Scan, cut in one sweep: `head` (row level, no outputs among it), then for each element `before`,
    which the scan's argument needs, the scan, and `after`, which the outputs need besides (recomputed, not kept)."""

    head: tuple[Plain, ...]
    before: tuple[Plain, ...]
    scan: Scan
    after: tuple[Plain, ...]
    row_names: frozenset[str]


def scan_schedule(program: Program) -> ScanSchedule:
    """Raises ValueError where there is no Scan, or an output at row level."""
    scan = program.scan
    if scan is None:
        raise ValueError("there is no scan")
    plain = tuple(s for s in program.body if isinstance(s, Statement | Load))
    # The scan's results are like operands that vary along every dimension.
    given = tuple(
        Operand(name=name, dtype=dtype, shape=program.domain)
        for name, dtype in zip(scan.results, scan.dtypes, strict=True)
    )
    rest = Program(
        domain=program.domain, reduced=program.reduced, operands=(*program.operands, *given), body=plain,
        outputs=program.outputs,
    )  # fmt: skip
    after = schedule(rest)
    if after.row_outputs:
        raise ValueError(f"output {after.row_outputs[0].name!r} is at row level")
    names = dict.fromkeys(a for a in scan.args if isinstance(a, str))
    arguments = tuple(Output(name=name, dtype=scan.dtype, shape=program.domain) for name in names)
    before = schedule(replace(rest, outputs=arguments))
    return ScanSchedule(
        head=after.head, before=before.final, scan=scan, after=after.final, row_names=after.row_names
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSchedule:
    """A Program with one RANKED reduction, cut: `rest` is everything else, and after its passes `elements` are computed
    for the reduction's argument."""

    rest: Schedule
    elements: tuple[Plain, ...]
    rank: Reduction


def rank_schedule(program: Program) -> RankSchedule:
    """Raises ValueError where there are none of these reductions, or several."""
    ranks = [item for item in program.body if isinstance(item, Reduction) and item.op in RANKED]
    if len(ranks) != 1:
        raise ValueError(f"{len(ranks)} reductions that give the first of a row, not one")
    rank = ranks[0]
    body = tuple(item for item in program.body if item is not rank)
    outputs = tuple(o for o in program.outputs if o.name not in rank.results)
    argument = Output(name=rank.arg, dtype=rank.dtype, shape=program.domain)
    return RankSchedule(
        rest=schedule(replace(program, body=body, outputs=outputs)),
        elements=schedule(replace(program, body=body, outputs=(argument,))).final,
        rank=rank,
    )
