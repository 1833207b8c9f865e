"""Strength reduction for CUDA: what costs many instructions an element gives way to what costs few and is as right.

- A division by what a whole row shares becomes two multiplications by its inverse, which the row computes once in two
  parts: to the same accuracy as a division (`quotient` of `kernels/cuda/common/math.py`; `approx_quotient` in one
  part).
- An element's share of a softmax, exp(x - maximum) / sum, is found among what is computed: where a row stays in
  registers, its exponentials need not be taken again (`shares.py` of the skeletons).
- A position is compared with what a row holds in 32 bits, not in 64.
- The tanh of log1p of exp(x), of which Mish is made, is one exponential and one inverse.
- `exp`, `sigmoid` and what divisions are left are the hardware's own, wherever all that becomes of them is rounded to
  16 bits. So is an `erf` to which 1 is added (GELU): it is wanted to 1e-6 of 1, not of itself.

Their relative error is at most 2^-16 at the ends of fp32's range and 2^-20 around 1; a result in fp16 is rounded by
2^-11. Where later sums cancel so much that this shows, the contract's amplification (docs/precision.md) allows as much
more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.program import AttentionOp, Contraction, Load, Plain, Program, Reduction, Scan, Statement
from ..ir.recurrence import RecurrenceOp
from ..ir.schedule import Schedule, schedule

_NARROW = ("f16", "bf16")
_FLOATS = ("f32", *_NARROW)
# Through these a relative error stays what it is, but for cancellation.
_PASSING = frozenset(("add", "sub", "mul", "div", "neg", "abs", "where", "to", "sum"))
_APPROXIMATED = ("exp", "sigmoid")
_APPROXIMATED_LAST = ("div",)  # what rows share has been divided by before

Item = Statement | Load | Reduction | Scan | Contraction | AttentionOp | RecurrenceOp


def reduced_in_strength(program: Program) -> Program:
    """The same, with operations that only the renderer for CUDA knows: approx_exp, approx_sigmoid, approx_div,
    approx_erf, divisor, ordinary_divisor, quotient, approx_quotient, place, tanh_of_softplus."""
    program = _with_softplus(program)
    exact = _exact(program)
    program = _with_approximated(program, _APPROXIMATED, exact)
    if program.reduced and not program.scan and not program.ranked:
        program = _divided_once(_compared_in_32_bits(program), exact)
    program = _with_approximated(program, _APPROXIMATED_LAST, exact)
    return _with_approximated(program, ("erf",), exact | _relative_erfs(program))


def _with_softplus(program: Program) -> Program:
    """tanh(log1p(exp(x))) as one operation, where nothing else reads what lies between."""
    made = {item.result: item for item in program.body if isinstance(item, Statement)}
    read = [a for i in program.body for a in ((i.arg,) if isinstance(i, Reduction) else i.args) if isinstance(a, str)]
    read += [o.name for o in program.outputs]
    gone: set[str] = set()
    body: list[Item] = []
    for item in program.body:
        chain = [item] if isinstance(item, Statement) and item.op == "tanh" else []
        for op in ("log1p", "exp") if chain else ():
            inner = made.get(str(chain[-1].args[0]))
            if inner is not None and inner.op == op and inner.dtype == item.dtype and read.count(inner.result) == 1:
                chain.append(inner)
        if len(chain) == 3:
            gone |= {s.result for s in chain[1:]}
            item = replace(chain[0], op="tanh_of_softplus", args=chain[2].args)
        body.append(item)  # type: ignore[arg-type]
    left = (i for i in body if not (isinstance(i, Statement) and i.result in gone))
    return replace(program, body=tuple(left))


def _exact(program: Program) -> set[str]:
    """The values that have to be as accurate as fp32: something other than a number of 16 bits comes of them."""
    written: dict[str, set[str]] = {}
    for output in program.outputs:
        written.setdefault(output.name, set()).add(output.dtype)
    found = {name for name, dtypes in written.items() if not dtypes <= set(_NARROW)}
    for item in reversed(program.body):
        if item.op == "to" and item.dtype in _NARROW:
            continue
        results = item.results if isinstance(item, Reduction | Scan) else (item.result,)
        args = (item.arg,) if isinstance(item, Reduction) else item.args
        if item.op not in _PASSING or item.dtype not in _FLOATS or found.intersection(results):
            found.update(a for a in args if isinstance(a, str))
    return found


def _relative_erfs(program: Program) -> set[str]:
    """Results of `erf` that something reads beside an addition of 1, or that are written."""
    found = {o.name for o in program.outputs}
    for item in program.body:
        args = (item.arg,) if isinstance(item, Reduction) else item.args
        if item.op != "add" or not any(type(a) in (int, float) and a == 1 for a in args):
            found.update(a for a in args if isinstance(a, str))
    return found


def _with_approximated(program: Program, ops: tuple[str, ...], exact: set[str]) -> Program:
    def approximated(item: Item) -> Item:
        if isinstance(item, Statement) and item.op in ops and item.dtype in _FLOATS and item.result not in exact:
            return replace(item, op=f"approx_{item.op}")
        return item

    return replace(program, body=tuple(approximated(item) for item in program.body))  # type: ignore[arg-type]


def _compared_in_32_bits(program: Program) -> Program:
    """Positions along dimensions of fewer than 2**31, compared with numbers of 64 bits that a row shares."""
    rows = schedule(program).row_names
    dtypes = {o.name: o.dtype for o in program.operands}
    dims: dict[str, int] = {}
    added: set[str] = set()
    body: list[Item] = []
    for item in program.body:
        if isinstance(item, Statement):
            dtypes[item.result] = item.dtype
            if item.op == "index" and item.dtype == "i64" and program.domain[int(item.args[0])] < 2**31:
                dims[item.result] = int(item.args[0])
        names = [a for a in item.args if isinstance(a, str)] if isinstance(item, Statement) and item.op == "eq" else []
        position = next((a for a in names if a in dims and a not in rows), None)
        other = next((a for a in names if a in rows and dtypes.get(a) == "i64"), None)
        if not isinstance(item, Statement) or position is None or other is None:
            body.append(item)  # type: ignore[arg-type]
            continue
        dim = dims[position]
        here, there = f"{position}_i32", f"{other}_along_{dim}"
        if here not in added:
            body.append(Statement(result=here, op="index", args=(dim,), dtype="i32"))
        if there not in added:
            body.append(Statement(result=there, op="place", args=(other, program.domain[dim]), dtype="i32"))
        added |= {here, there}
        body.append(replace(item, args=(here, there)))
    return replace(program, body=tuple(body))


def _divided_once(program: Program, exact: set[str]) -> Program:
    """Each row divides once."""
    rows = schedule(program).row_names
    totals = {item.results[1] for item in program.body if isinstance(item, Reduction) and item.op == "softmax_stats"}
    inverses: dict[str, str] = {}
    body: list[Item] = []
    for item in program.body:
        if not isinstance(item, Statement) or item.op != "div" or item.dtype not in _FLOATS:
            body.append(item)  # type: ignore[arg-type]
            continue
        above, below = item.args
        if not isinstance(below, str) or below not in rows or item.result in rows or not isinstance(above, str):
            body.append(item)
            continue
        if below not in inverses:
            inverses[below] = f"by_{below}"
            op = "ordinary_divisor" if below in totals else "divisor"
            body.append(Statement(result=inverses[below], op=op, args=(below,), dtype="f32"))
        op = "quotient" if item.result in exact else "approx_quotient"
        body.append(replace(item, op=op, args=(above, inverses[below])))
    return replace(program, body=tuple(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxShares:
    """The value `name` of `plan.final` is the share of each element in reduction number `reduction` of sweep `sweep`;
    `final` are the statements that are needed beside it. `exact`: it is wanted in fp32's accuracy."""

    name: str
    sweep: int
    reduction: int
    exact: bool
    final: tuple[Plain, ...]


def shares(plan: Schedule) -> SoftmaxShares | None:
    """The first share that `plan`, of a program reduced in strength, computes at its end."""
    made = {item.result: item for item in plan.final if isinstance(item, Statement)}
    rows = {item.result: item for p in plan.passes for item in p.rows if isinstance(item, Statement)}
    for k, sweep in enumerate(plan.passes):
        for number, reduction in enumerate(sweep.reductions):
            if reduction.op != "softmax_stats":
                continue
            for item in made.values():
                if _is_share(item, reduction, made, rows):
                    return SoftmaxShares(
                        name=item.result, sweep=k, reduction=number, exact=item.op == "quotient",
                        final=_without(item.result, plan),
                    )  # fmt: skip
    return None


def _is_share(item: Statement, of: Reduction, made: dict[str, Statement], rows: dict[str, Statement]) -> bool:
    """Whether this is exp(x - maximum) / sum."""
    if item.op not in ("quotient", "approx_quotient") or item.dtype != "f32":
        return False
    above, by = made.get(str(item.args[0])), rows.get(str(item.args[1]))
    if above is None or by is None or above.op not in ("exp", "approx_exp") or by.args != (of.results[1],):
        return False
    below = made.get(str(above.args[0]))
    return below is not None and (below.op, below.args, below.dtype) == ("sub", (of.arg, of.results[0]), "f32")


def _without(name: str, plan: Schedule) -> tuple[Plain, ...]:
    """The statements of `plan.final` that are needed where `name` is given."""
    needed, todo = set[str](), [o.name for o in plan.element_outputs]
    by_name: dict[str, Plain] = {item.result: item for item in plan.final}
    while todo:
        found = todo.pop()
        if found != name and found in by_name and found not in needed:
            needed.add(found)
            todo += [a for a in by_name[found].args if isinstance(a, str)]
    return tuple(item for item in plan.final if item.result in needed)
