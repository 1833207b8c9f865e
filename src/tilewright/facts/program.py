"""A Program: one fused computation over an index space, as typed SSA; every skeleton realises Programs.

A Program has a *domain* (an index space of some rank) and the set of its *reduced* dimensions. Every value in it has
an *aligned shape*: the rank of the domain, each dimension either the domain's size or 1. A value whose aligned shape
is 1 in all reduced dimensions, or that is computed from such values alone, lives at **row level** (once per point of
the kept dimensions); all others live at **element level**. A Program without reduced dimensions is pointwise, and all
its values are elements.

Arithmetic between loads and stores is done in fp32 for floating dtypes narrower than it; `to` a narrower type rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

Literal = float | int | bool

# Name -> number of arguments. Semantics are those of the torch function of the same name on the argument dtypes;
# comparisons, is* and logical_* give "bool"; `maximum`/`minimum` propagate NaN; `div` is true division; `to` casts to
# the statement's dtype; `index` takes one literal, a dimension of the domain, and is the position along it (i64).
POINTWISE: Mapping[str, int] = MappingProxyType({
    **dict.fromkeys(
        ["neg", "abs", "sign", "floor", "ceil", "round", "trunc", "square", "sqrt", "rsqrt", "reciprocal",
         "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
         "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid",
         "isnan", "isinf", "logical_not", "bitwise_not", "to", "index"], 1),
    **dict.fromkeys(
        ["add", "sub", "mul", "div", "fmod", "remainder", "floor_divide", "pow", "atan2", "maximum", "minimum",
         "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
         "bitwise_and", "bitwise_or", "bitwise_xor"], 2),
    "where": 3,
})  # fmt: skip

# Name -> number of results. `moments` gives (mean, sum of squared deviations from the mean), `softmax_stats` gives
# (maximum, sum of exp(x - maximum)), both by a numerically stable method; `max`/`min` propagate NaN; `argmax`/`argmin`
# give the i64 position in the reduced dimensions flattened row-major: NaN wins, then the extremum's first position.
REDUCTIONS: Mapping[str, int] = MappingProxyType({
    "sum": 1, "prod": 1, "max": 1, "min": 1, "argmax": 1, "argmin": 1, "any": 1, "all": 1,
    "moments": 2, "softmax_stats": 2,
})  # fmt: skip

# Running reductions along one dimension, torch's `cumsum` and `cumprod`.
SCANS = ("cumsum", "cumprod")

DTYPE_BYTES: Mapping[str, int] = MappingProxyType({
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A tensor read by the program. `shape` is aligned: len(domain) dimensions, each the domain's size or 1."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """`result = op(*args)`, pointwise; an argument is a value's name or a literal."""

    result: str
    op: str
    args: tuple[str | Literal, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """`results = op(arg)` over all reduced dimensions of the domain; the results are at row level."""

    results: tuple[str, ...]
    op: str
    arg: str
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """`result[..., i, ...] = op(arg[..., :i + 1, ...])` along the one reduced dimension `dim`, at element level.

    `reverse`: from `i` to the end instead. `exclusive`: without position `i` itself; of nothing the sum is 0 and the
    product 1. Narrow floats accumulate in fp32."""

    result: str
    op: str
    arg: str
    dim: int
    dtype: str
    reverse: bool = False
    exclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A value written to memory, contiguous, with its aligned shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """See the module's docstring. `body` is in SSA order; every name is defined once, before its use.

    A body with a Scan has that one alone and no Reduction; `reduced` is the Scan's dimension."""

    domain: tuple[int, ...]
    reduced: tuple[int, ...] = ()
    operands: tuple[Operand, ...]
    body: tuple[Statement | Reduction | Scan, ...]
    outputs: tuple[Output, ...]

    @property
    def scan(self) -> Scan | None:
        return next((item for item in self.body if isinstance(item, Scan)), None)

    @property
    def inner_size(self) -> int:
        """Elements of one row: the product of the reduced dimensions (1 for a pointwise program)."""
        return prod(self.domain[d] for d in self.reduced)

    @property
    def rows(self) -> int:
        return prod(self.domain) // max(self.inner_size, 1)

    @property
    def traffic_bytes(self) -> int:
        """The fewest bytes through memory: every operand read once, every output written once."""
        values: tuple[Operand | Output, ...] = (*self.operands, *self.outputs)
        return sum(prod(v.shape) * DTYPE_BYTES[v.dtype] for v in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One sweep over a row's elements: compute `elements`, then reduce; `rows` become computable afterwards."""

    elements: tuple[Statement, ...]
    reductions: tuple[Reduction, ...]
    rows: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A Program cut into sweeps. `head` holds the row-level statements that need no reduction; `final` the element
    statements of the last sweep, which writes the element-level outputs (empty outputs: no last sweep)."""

    head: tuple[Statement, ...]
    passes: tuple[Pass, ...]
    final: tuple[Statement, ...]
    element_outputs: tuple[Output, ...]
    row_outputs: tuple[Output, ...]
    row_names: frozenset[str]

    def operands_of(self, statements: Iterable[Statement], program: Program, *more: str) -> tuple[Operand, ...]:
        """The operands that these statements (and these names) read directly, in the program's order."""
        used = {a for s in statements for a in s.args if isinstance(a, str)} | set(more)
        return tuple(o for o in program.operands if o.name in used)


def _levels(program: Program) -> tuple[dict[str, int], set[str]]:
    """Each value's stage (how many sweeps must end before it is known) and the set of row-level names."""
    stage: dict[str, int] = {}
    rows: set[str] = set()
    for operand in program.operands:
        stage[operand.name] = 0
        if program.reduced and all(operand.shape[d] == 1 for d in program.reduced):
            rows.add(operand.name)
    for item in program.body:
        if isinstance(item, Reduction):
            for name in item.results:
                stage[name] = stage[item.arg] + 1
                rows.add(name)
            continue
        if isinstance(item, Scan):
            raise ValueError(f"{item.result!r}: a scan is cut by `scan_schedule`")
        names = [a for a in item.args if isinstance(a, str)]
        stage[item.result] = max((stage[n] for n in names), default=0)
        on_rows = item.args[0] not in program.reduced if item.op == "index" else all(n in rows for n in names)
        if program.reduced and on_rows:
            rows.add(item.result)
    return stage, rows


def schedule(program: Program) -> Schedule:
    """Cut a program into sweeps over its rows, each with the element statements it needs (recomputed, not kept)."""
    stage, rows = _levels(program)
    statements = {s.result: s for s in program.body if isinstance(s, Statement)}
    order = {name: i for i, name in enumerate(statements)}
    reductions = [r for r in program.body if isinstance(r, Reduction)]

    def elements_for(names: Iterable[str]) -> tuple[Statement, ...]:
        found: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name in statements and name not in rows and name not in found:
                found.add(name)
                todo += [a for a in statements[name].args if isinstance(a, str)]
        return tuple(statements[n] for n in sorted(found, key=order.__getitem__))

    def rows_at(level: int) -> tuple[Statement, ...]:
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

    head: tuple[Statement, ...]
    before: tuple[Statement, ...]
    scan: Scan
    after: tuple[Statement, ...]
    row_names: frozenset[str]


def scan_schedule(program: Program) -> ScanSchedule:
    """Raises ValueError where there is no Scan, or an output at row level."""
    scan = program.scan
    if scan is None:
        raise ValueError("there is no scan")
    plain = tuple(s for s in program.body if isinstance(s, Statement))
    # The scan's result is like an operand that varies along every dimension.
    given = Operand(name=scan.result, dtype=scan.dtype, shape=program.domain)
    rest = Program(
        domain=program.domain, reduced=program.reduced, operands=(*program.operands, given), body=plain,
        outputs=program.outputs,
    )  # fmt: skip
    after = schedule(rest)
    if after.row_outputs:
        raise ValueError(f"output {after.row_outputs[0].name!r} is at row level")
    argument = Output(name=scan.arg, dtype=scan.dtype, shape=program.domain)
    before = schedule(replace(rest, outputs=(argument,)))
    return ScanSchedule(
        head=after.head, before=before.final, scan=scan, after=after.final, row_names=after.row_names
    )  # fmt: skip


def validate(program: Program) -> None:
    """Raise ValueError, with the offending name, unless the program is well formed."""
    rank = len(program.domain)
    defined: dict[str, str] = {}

    def define(name: str, dtype: str) -> None:
        if name in defined or not name.isidentifier():
            raise ValueError(f"{name!r}: defined twice or not an identifier")
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"{name!r}: unknown dtype {dtype!r}")
        defined[name] = dtype

    if sorted(set(program.reduced)) != list(program.reduced) or any(not 0 <= d < rank for d in program.reduced):
        raise ValueError(
            f"reduced dimensions {program.reduced} are not sorted, distinct dimensions of {program.domain}"
        )
    values: tuple[Operand | Output, ...] = (*program.operands, *program.outputs)
    for value in values:
        if len(value.shape) != rank or any(s not in (1, d) for s, d in zip(value.shape, program.domain, strict=True)):
            raise ValueError(f"{value.name!r}: shape {value.shape} does not align with the domain {program.domain}")
    for operand in program.operands:
        define(operand.name, operand.dtype)
    for item in program.body:
        args = item.args if isinstance(item, Statement) else (item.arg,)
        for arg in args:
            if isinstance(arg, str) and arg not in defined:
                raise ValueError(f"{arg!r} is used before it is defined")
        if isinstance(item, Scan):
            _validate_scan(item, program)
            define(item.result, item.dtype)
            continue
        if isinstance(item, Statement):
            if POINTWISE.get(item.op) != len(item.args):
                raise ValueError(
                    f"{item.result!r}: {item.op!r} with {len(item.args)} arguments is no pointwise operation"
                )
            define(item.result, item.dtype)
        else:
            if REDUCTIONS.get(item.op) != len(item.results) or not program.reduced:
                raise ValueError(f"{item.results}: {item.op!r} with {len(item.results)} results is no reduction here")
            for name in item.results:
                define(name, item.dtype)
    for output in program.outputs:
        if output.name not in defined:
            raise ValueError(f"output {output.name!r} is never computed")


def _validate_scan(scan: Scan, program: Program) -> None:
    if scan.op not in SCANS:
        raise ValueError(f"{scan.result!r}: {scan.op!r} is no scan")
    if program.reduced != (scan.dim,):
        raise ValueError(f"{scan.result!r}: scans dimension {scan.dim}, but {program.reduced} are reduced")
    if any(isinstance(item, Reduction) or (isinstance(item, Scan) and item is not scan) for item in program.body):
        raise ValueError(f"{scan.result!r}: a scan stands with no reduction and no other scan")
