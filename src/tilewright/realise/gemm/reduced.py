"""A product whose rows are only reduced, as two Programs: what its kernel reduces while it has them, in blocks of
columns, and what joins the blocks of a row and goes on from there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ...ir.program import Operand, Output, Program, Reduction, Statement
from ...ir.schedule import schedule
from ..strength import reduced_in_strength
from .column_groups import without_product

BLOCK = 64  # columns; `gemm/blocks.py` has the same
# The components of a reduction's state over a block; see `gemm/blocks.py`.
STATES = {
    "sum": ("sum",), "max": ("best",), "min": ("best",), "softmax_stats": ("best", "sum"),
    "moments": ("count", "mean", "squares"), "argmax": ("best", "place"), "argmin": ("best", "place"),
}  # fmt: skip
_BEST = {"softmax_stats": "max", "argmax": "max", "argmin": "min", "max": "max", "min": "min"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """`ahead`: pointwise, over the product as an operand of that name; its outputs are what `reductions` take.
    `behind`: along the blocks of a row; its first operands are the components of all states, in order."""

    ahead: Program
    reductions: tuple[Reduction, ...]
    behind: Program

    @property
    def states(self) -> int:
        """Components of all states."""
        return sum(len(STATES[r.op]) for r in self.reductions)


def blocks_of(columns: int) -> int:
    return -(-columns // BLOCK)


def blocked(program: Program, behind: tuple[int, ...] = ()) -> Blocked | None:
    """Both; None where a row would have to be read a second time, or something is reduced that has no state. `behind`:
    the domain of the second, where states are not of blocks of columns."""
    product = program.product
    assert product is not None
    rest = without_product(program)
    cut = schedule(rest)
    if len(cut.passes) != 1 or cut.element_outputs or any(r.op not in STATES for r in cut.passes[0].reductions):
        return None
    reductions = cut.passes[0].reductions
    own = needed(rest, [r.arg for r in reductions])
    ahead = Program(
        domain=program.domain, operands=_read(rest, own, [r.arg for r in reductions]), body=own,
        outputs=tuple(Output(name=r.arg, dtype="f32", shape=program.domain) for r in reductions),
    )  # fmt: skip
    ahead = _named_product(reduced_in_strength(ahead), product.result)
    reductions = tuple(replace(r, arg="product") if r.arg == product.result else r for r in reductions)
    return Blocked(ahead=ahead, reductions=reductions, behind=_behind(rest, cut.passes[0].reductions, behind))


def needed(program: Program, names: list[str]) -> tuple[Statement, ...]:
    """The statements without reductions that these values need."""
    made = {i.result: i for i in program.body if isinstance(i, Statement)}
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in made and name not in found:
            found.add(name)
            todo += [a for a in made[name].args if isinstance(a, str)]
    return tuple(i for i in made.values() if i.result in found)


def _read(program: Program, body: tuple[Statement, ...], names: list[str]) -> tuple[Operand, ...]:
    wanted = {a for i in body for a in i.args if isinstance(a, str)} | set(names)
    return tuple(o for o in program.operands if o.name in wanted)


def _named_product(program: Program, name: str) -> Program:
    def named(value: str | float) -> str | float:
        return "product" if value == name else value

    return replace(
        program,
        operands=tuple(replace(o, name=str(named(o.name))) for o in program.operands),
        body=tuple(replace(i, args=tuple(named(a) for a in i.args)) for i in program.body if isinstance(i, Statement)),
        outputs=tuple(replace(o, name=str(named(o.name))) for o in program.outputs),
    )


class _Behind:
    """Writes the Program that joins states: operands, and statements under names of their own."""

    def __init__(self, program: Program, shape: tuple[int, ...]) -> None:
        self.shape = shape or (*program.domain[:-1], blocks_of(program.domain[-1]))
        self.columns = prod(program.domain[d] for d in program.reduced)
        self.states: list[Operand] = []
        self.body: list[Statement | Reduction] = []

    def state(self) -> str:
        self.states.append(Operand(name=f"b{len(self.states)}", dtype="f32", shape=self.shape))
        return self.states[-1].name

    def do(self, op: str, *args: str | float, dtype: str = "f32") -> str:
        self.body.append(Statement(result=f"j{len(self.body)}", op=op, args=args, dtype=dtype))
        return self.body[-1].result  # type: ignore[union-attr]

    def reduce(self, op: str, arg: str, result: str = "", dtype: str = "f32") -> str:
        name = result or f"j{len(self.body)}"
        self.body.append(Reduction(results=(name,), op=op, arg=arg, dtype=dtype))
        return name

    def to(self, value: str, dtype: str, result: str) -> None:
        self.body.append(Statement(result=result, op="to", args=(value,), dtype=dtype))

    def join(self, item: Reduction) -> None:
        """The results of a reduction from the states of its blocks."""
        parts = [self.state() for _ in STATES[item.op]]
        if item.op == "moments":
            self._moments(item, parts)
            return
        if item.op == "sum":
            total = self.reduce("sum", parts[0])
            self.to(total, item.dtype, item.results[0])
            return
        best = self.reduce(_BEST[item.op], parts[0])
        same = self.do("eq", parts[0], best, dtype="bool")
        if item.op == "softmax_stats":
            # Of the best itself nothing is taken: infinity from infinity would be NaN.
            below = self.do("where", same, 0.0, self.do("sub", parts[0], best))
            total = self.reduce("sum", self.do("mul", parts[1], self.do("exp", below)))
            self.to(best, item.dtype, item.results[0])
            self.to(total, item.dtype, item.results[1])
        elif item.op in ("argmax", "argmin"):
            # NaN wins: where one is, it is the best, and blocks that have one say so.
            same = self.do("logical_or", same, self.do("isnan", parts[0], dtype="bool"), dtype="bool")
            first = self.reduce("min", self.do("where", same, parts[1], float(self.columns)))
            self.to(first, "i64", item.results[0])
        else:
            self.to(best, item.dtype, item.results[0])

    def _moments(self, item: Reduction, parts: list[str]) -> None:
        """Means weighted by their counts; squares about the common mean."""
        count, mean, squares = parts
        total = self.reduce("sum", self.do("mul", count, mean))
        whole = self.do("div", total, float(self.columns))
        off = self.do("sub", mean, whole)
        about = self.do("add", squares, self.do("mul", count, self.do("mul", off, off)))
        deviations = self.reduce("sum", about)
        self.to(whole, item.dtype, item.results[0])
        self.to(deviations, item.dtype, item.results[1])


def _behind(program: Program, reductions: tuple[Reduction, ...], shape: tuple[int, ...]) -> Program:
    made = _Behind(program, shape)
    for item in reductions:
        made.join(item)
    taken = {a.result for a in made.body if isinstance(a, Statement)} | {o.name for o in made.states}
    taken |= {name for i in made.body if isinstance(i, Reduction) for name in i.results}
    results = {name for r in reductions for name in r.results}
    others = needed(program, [o.name for o in program.outputs])
    clash = (taken - results) & {*(i.result for i in others), *(o.name for o in program.operands)}
    if clash:
        raise ValueError(f"names of states: {sorted(clash)}")
    return Program(
        domain=made.shape, reduced=program.reduced,
        operands=(*made.states, *_read(program, others, [])), body=(*made.body, *others), outputs=program.outputs,
    )  # fmt: skip
