"""Sums over rows, made by a kernel that goes along them: a row reduction, or a pointwise kernel, takes with it the
column sums of what it reads or computes, so that neither is read again.

As for products: what was found without this stays possible, for a candidate that does better so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.facts.pattern import Bind, Match
from tilewright.ir.partial import usual_parts
from tilewright.ir.program import DTYPE_BYTES, Load, Operand, Output, Program, Reduction, Scan, Statement
from tilewright.ir.schedule import schedule

from .region import Flow

Found = tuple[Program, Match]
Unsupported = Callable[[Program], str | None]

_FLOATS = ("f64", "f32", "bf16", "f16")
# Statements that column sums may compute anew, so that the rows' kernel need not write what it has computed already.
MOST_RECOMPUTED = 16
# Between one reading of a large tensor less, and writing and reading partial sums: what else a pass with sums costs.
LEAST_GAIN = 2


def with_sums(flow: Flow, regions: Sequence[Found], unsupported: Unsupported) -> list[Found]:
    """For each row reduction, or pointwise kernel, that takes column sums along: the Program that does both."""
    made = []
    taken: set[int] = set()
    columns = [(i, c) for i, region in enumerate(regions) if (c := _column_sums(region)) is not None]
    for number, region in enumerate(regions):
        if not (_goes_along_rows(region[0]) or _is_pointwise(region[0])):
            continue
        found, mine = _joined(flow, regions, number, [(i, c) for i, c in columns if i not in taken])
        if found is not None and _gains(regions, mine, found[0]) and unsupported(found[0]) is None:
            taken.update(mine)
            made.append(found)
    return made


def recomputed(flow: Flow, regions: Sequence[Found], unsupported: Unsupported) -> list[Found]:
    """The regions, where column sums compute anew what rows wrote for them alone, in one kernel, if that moves less."""
    made: list[Found | None] = list(regions)
    columns = [(i, c) for i, region in enumerate(regions) if (c := _column_sums(region)) is not None]
    for number, region in enumerate(regions):
        if not _goes_along_rows(region[0]):
            continue
        left = [(i, c) for i, c in columns if made[i] is not None]
        found, mine = _joined(flow, regions, number, left, wait=False)
        if found is None or not found[1].spared:
            continue
        rows, sums = _apart(found, region[1].nodes)
        before = sum(regions[i][0].traffic_bytes for i in (number, *mine))
        worth = rows[0].traffic_bytes + sums[0].traffic_bytes < before and len(sums[0].body) <= MOST_RECOMPUTED
        if worth and unsupported(rows[0]) is None and unsupported(sums[0]) is None:
            made[number], made[mine[0]] = rows, sums
            for i in mine[1:]:
                made[i] = None
    return [region for region in made if region is not None]


def _joined(
    flow: Flow, regions: Sequence[Found], number: int, columns: Sequence[tuple[int, _Sums]], *, wait: bool = True
) -> tuple[Found | None, list[int]]:
    """The row reduction of this number with the column sums that it can take along, and their numbers; without `wait`,
    none that needs what is known after a row alone."""
    joint = _Joint(flow, regions[number])
    mine: list[int] = []
    for i, column in columns:
        free = joint.fits(column) and (wait or not joint.waits(column))
        if free and not _makes_cycle(flow, regions, number, [*mine, i]):
            joint.take(column)
            mine.append(i)
    return joint.finish(_read_elsewhere(flow, regions, {number, *mine})) if mine else None, mine


def _apart(found: Found, nodes: tuple[str, ...]) -> tuple[Found, Found]:
    """A Program with sums as two that read the same: the rows, which are these nodes, and the sums."""
    program, site = found
    count = len(program.outputs) - len(program.sums)
    rows = _live(program, replace(site, nodes=nodes), program.outputs[:count], site.outputs[:count])
    body = list(program.body)
    outputs = []
    for i, output in enumerate(program.sums):
        dtype = "f64" if output.dtype == "f64" else "f32"
        names = (f"s{i}", f"r{i}")
        body.append(Reduction(results=names[:1], op="sum", arg=output.name, dtype=dtype))
        if output.dtype != dtype:
            body.append(Statement(result=names[1], op="to", args=names[:1], dtype=output.dtype))
        name = names[output.dtype != dtype]
        outputs.append(Output(name=name, dtype=output.dtype, shape=output.shape))
    kept = tuple(d for d in range(len(program.domain)) if d not in program.reduced)
    whole = replace(program, reduced=kept, body=tuple(body))
    return rows, _live(whole, site, outputs, site.outputs[count:])


def _live(program: Program, site: Match, outputs: Sequence[Output], binds: Sequence[Bind]) -> Found:
    """What of a Program these outputs need."""
    needed = {o.name for o in outputs}
    body = []
    for item in reversed(program.body):
        results = item.results if isinstance(item, Reduction | Scan) else (item.result,)
        if needed & set(results):
            body.append(item)
            needed |= {a for a in ((item.arg,) if isinstance(item, Reduction) else item.args) if isinstance(a, str)}
            needed |= {item.source} if isinstance(item, Load) else set()
    pairs = [(o, b) for o, b in zip(program.operands, site.operands, strict=True) if o.name in needed]
    made = replace(program, operands=tuple(o for o, _ in pairs), body=tuple(reversed(body)), outputs=tuple(outputs))
    return made, Match(nodes=site.nodes, operands=tuple(b for _, b in pairs), outputs=tuple(binds))


def _goes_along_rows(program: Program) -> bool:
    along = bool(program.reduced) and len(program.domain) - 1 in program.reduced and program.rows > 1
    return along and not program.scan and not program.ranked


def _is_pointwise(program: Program) -> bool:
    return not program.reduced and not program.loads and all(o.shape == program.domain for o in program.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """A region that does nothing but sum columns: `before`, what is computed on the way; per output the value that is
    summed."""

    program: Program
    site: Match
    before: tuple[Statement, ...]
    summed: tuple[str, ...]


def _column_sums(region: Found) -> _Sums | None:
    program, site = region
    if not program.reduced or len(program.domain) - 1 in program.reduced or program.loads or program.scan:
        return None
    reductions = [item for item in program.body if isinstance(item, Reduction)]
    if any(r.op != "sum" or r.dtype not in _FLOATS for r in reductions) or schedule(program).element_outputs:
        return None
    sums = {r.results[0]: r for r in reductions}
    casts = {
        s.result: sums[s.args[0]] for s in program.body
        if isinstance(s, Statement) and s.op == "to" and s.args[0] in sums and s.dtype in _FLOATS
        and sums[str(s.args[0])].dtype in ("f32", s.dtype)
    }  # fmt: skip
    found = sums | casts
    if any(o.name not in found for o in program.outputs):
        return None
    before = tuple(s for s in program.body if isinstance(s, Statement) and s.result not in casts)
    after = {s.result for s in before if set(s.args) & found.keys()}
    if after:
        return None
    summed = tuple(found[o.name].arg for o in program.outputs)
    return _Sums(program=program, site=site, before=before, summed=summed)


class _Joint:
    """A row reduction's Program, or a pointwise one's, while it takes sums over its rows along."""

    def __init__(self, flow: Flow, region: Found) -> None:
        self.flow = flow
        self.program, self.site = region
        self.operands = list(self.program.operands)
        self.binds = list(self.site.operands)
        self.body = list(self.program.body)
        self.sums: list[tuple[Output, Bind]] = []
        self.nodes = dict.fromkeys(self.site.nodes)
        self.known = {(s.op, s.args, s.dtype): s.result for s in self.body if isinstance(s, Statement)}

    def fits(self, column: _Sums) -> bool:
        """Whether its columns are these rows' elements, and it reads nothing large but what is at hand."""
        kept = tuple(d for d in range(len(self.program.domain)) if d not in self._rows(column))
        if column.program.domain != self.program.domain or column.program.reduced != kept:
            return False
        whole = [(o, b) for o, b in zip(column.program.operands, column.site.operands, strict=True)
                 if o.shape == self.program.domain]  # fmt: skip
        return bool(whole) and all(self._at_hand(operand, bind) is not None for operand, bind in whole)

    def _rows(self, column: _Sums) -> tuple[int, ...]:
        """What a row is made of: of a pointwise kernel any last dimensions."""
        rank = len(self.program.domain)
        return self.program.reduced or tuple(range(len(column.program.reduced), rank))

    def waits(self, column: _Sums) -> bool:
        """Whether what it sums rests on these rows' reductions."""
        names = {
            self._at_hand(operand, bind)
            for operand, bind in zip(column.program.operands, column.site.operands, strict=True)
        }
        live, _ = _live(self.program, self.site, [o for o in self.program.outputs if o.name in names], ())
        return any(isinstance(item, Reduction) for item in live.body)

    def take(self, column: _Sums) -> None:
        self.program = replace(self.program, reduced=self._rows(column))
        names = {
            operand.name: self._operand(operand, bind)
            for operand, bind in zip(column.program.operands, column.site.operands, strict=True)
        }
        for s in column.before:
            args = tuple(names[a] if isinstance(a, str) else a for a in s.args)
            names[s.result] = self._state(s.op, args, s.dtype)
        shape = self.program.shape_in_parts(1)
        for output, bind, arg in zip(column.program.outputs, column.site.outputs, column.summed, strict=True):
            dtype = "f64" if output.dtype == "f64" else "f32"
            name = self._fresh()  # of its own, even where the value is written, too
            self.body.append(Statement(result=name, op="to", args=(names[arg],), dtype=dtype))
            self.sums.append((Output(name=name, dtype=output.dtype, shape=shape, parts=1), bind))
        self.nodes.update(dict.fromkeys(column.site.nodes))

    def finish(self, read_elsewhere: Collection[str]) -> Found | None:
        """The Program of both. What only its own parts read of one another is not written; None where nothing but the
        sums is left to write."""
        pairs = list(zip(self.program.outputs, self.site.outputs, strict=True))
        left = [(o, b) for o, b in pairs if b.node in read_elsewhere]
        if not left:
            return None
        outputs = [*left, *self.sums]
        program = replace(self.program, operands=tuple(self.operands), body=tuple(self.body),
                          outputs=tuple(o for o, _ in outputs))  # fmt: skip
        spared = tuple(b.node for _, b in pairs if b.node not in read_elsewhere)
        return program, Match(nodes=tuple(self.nodes), operands=tuple(self.binds), outputs=tuple(b for _, b in outputs),
                             spared=spared)  # fmt: skip

    def _at_hand(self, operand: Operand, bind: Bind) -> str | None:
        """What the rows have of this already."""
        for own, place in zip(self.operands, self.binds, strict=True):
            if (place, own.shape, own.order, own.indexed) == (bind, operand.shape, operand.order, operand.indexed):
                return own.name
        in_order = tuple(range(len(bind.order)))
        for output, place in zip(self.program.outputs, self.site.outputs, strict=True):
            straight = place.order == bind.order == in_order and not operand.order
            if place.node == bind.node and straight and output.shape == operand.shape:
                return output.name
        return None

    def _operand(self, operand: Operand, bind: Bind) -> str:
        name = self._at_hand(operand, bind)
        if name is None:
            name = f"x{len(self.operands)}"
            self.operands.append(replace(operand, name=name))
            self.binds.append(bind)
        if name in {o.name for o in self.program.outputs} and operand.dtype in ("f16", "bf16"):
            name = self._state("to", (name,), operand.dtype)  # as it would have been written and read
        return name

    def _state(self, op: str, args: tuple[str | float, ...], dtype: str) -> str:
        if (op, args, dtype) not in self.known:
            self.known[op, args, dtype] = self._fresh()
            self.body.append(Statement(result=self.known[op, args, dtype], op=op, args=args, dtype=dtype))
        return self.known[op, args, dtype]

    def _fresh(self) -> str:
        taken = {n for s in self.body for n in (s.results if isinstance(s, Reduction | Scan) else (s.result,))}
        return next(name for n in range(len(taken) + 1) if (name := f"v{n}") not in taken)


def _gains(regions: Sequence[Found], columns: Iterable[int], program: Program) -> bool:
    """Whether partial sums, written and read, are small beside what the columns' own kernels would read."""
    partial = program.shape_in_parts(usual_parts(program.rows))
    ours = sum(2 * prod(partial) * max(DTYPE_BYTES[o.dtype], 4) for o in program.sums)
    theirs = sum(DTYPE_BYTES[o.dtype] * prod(o.shape) for i in columns for o in regions[i][0].operands)
    return theirs > LEAST_GAIN * ours


def _read_elsewhere(flow: Flow, regions: Sequence[Found], inside: Collection[int]) -> set[str]:
    """The values that somebody else needs in memory: other kernels, operators left to torch, the caller."""
    fused = {name for _, site in regions for name in site.nodes}
    found = set(flow.kept)
    for i, (_, site) in enumerate(regions):
        if i not in inside:
            found |= {flow.root(bind.node) for bind in site.operands}
    for name, readers in flow.readers.items():
        if any(r not in fused for r in readers):
            found.add(name)
    return found


def _makes_cycle(flow: Flow, regions: Sequence[Found], rows: int, columns: Collection[int]) -> bool:
    """Whether the columns, or what somebody else makes of either, must be there before the kernel of both can run. To
    enter a region is to reach all of it."""
    readers: dict[str, list[int]] = {}
    for i, (_, site) in enumerate(regions):
        for bind in site.operands:
            readers.setdefault(flow.root(bind.node), []).append(i)
    fused = {name for _, site in regions for name in site.nodes}
    own = {bind.node for bind in regions[rows][1].outputs}
    todo = [bind.node for i in (rows, *columns) for bind in regions[i][1].outputs]
    seen, left = set[str](), set[int]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        todo += [reader for reader in flow.readers[name] if reader not in fused]
        for i in readers.get(name, ()):
            if i == rows or (i in columns and name not in own):
                return True
            if i not in columns and i not in left:
                left.add(i)
                todo += [bind.node for bind in regions[i][1].outputs]
    return False
