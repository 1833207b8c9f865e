"""A product of which groups of neighbouring columns are reduced, or whole rows of one group: which the skeleton `gemm`
takes, and the functions that a `fused_K.py` hands to it."""

from __future__ import annotations

from dataclasses import replace

from ...ir.program import Operand, Output, Program, Reduction, Statement
from ...ir.schedule import Schedule, schedule
from ..float8 import rounded_once
from ..rows.text import Lines, dict_of, dtypes_of, safe_names, sweeps_of
from ..strength import reduced_in_strength
from .shape import factors

REDUCES = ("sum", "max", "min", "softmax_stats", "moments")
LEAST_TOGETHER = 16  # columns; as in `gemm/groups.py`
_MOST = {True: 128, False: 256}  # columns of a group, in fp32 and in 16 bits: of one wgmma's sum
_MOST_SWEEPS = 2


def has_column_groups(program: Program) -> bool:
    """Whether the product's columns are in two dimensions, of which the last is reduced."""
    product = program.product
    if product is None:
        return False
    return len(factors(program)[0].shape) < len(program.domain)


def is_row(program: Program) -> bool:
    """Whether it is grouped, and a group is a whole row."""
    return has_column_groups(program) and program.domain[-2] == 1


def no_column_groups(program: Program) -> str | None:
    """Why the skeleton can't reduce these groups; None if it can."""
    size, reductions = program.domain[-1], [i for i in program.body if isinstance(i, Reduction)]
    product = program.product
    assert product is not None
    if size < 2 or size > _MOST[product.dtype == "f32"] or (size & (size - 1) and not is_row(program)):
        return f"groups of {size} columns, which lie in no tile"
    if len(program.outputs) != 1 or any(r.op not in REDUCES for r in reductions):
        return "groups of columns of which several results are kept, or positions"
    if len(schedule(without_product(program)).passes) > _MOST_SWEEPS:
        return "groups of columns that are gone through more than twice"
    return None


def fits(program: Program, columns: int) -> bool:
    """Whether groups lie in tiles of so many columns; whole rows end in one."""
    if is_row(program):
        return columns >= program.domain[-1]
    return columns % max(program.domain[-1], LEAST_TOGETHER) == 0


def without_product(program: Program) -> Program:
    """What is left when the product is at hand, as an operand of its name."""
    product = program.product
    assert product is not None
    whole = Operand(name=product.result, dtype="f32", shape=program.domain)
    others = tuple(o for o in program.operands if not o.indexed)
    return replace(program, operands=(whole, *others), body=tuple(i for i in program.body if i is not product))


def column_group_texts(program: Program) -> tuple[str, str, tuple[Operand, ...], Output]:
    """The functions, the ColumnGroups, the operands beside the matrices, and the output, as the file has them."""
    functions, arguments, rest = sweep_texts(program)
    groups = [f"size={rest.domain[-1]}", *(["whole=True"] if is_row(program) else []), *arguments]
    columns = rest.domain[-2:]
    apart = () if is_row(program) else (("within", (1, columns[1])), ("of_groups", (columns[0], 1)))
    for kind, shape in apart:
        names = [o.name for o in rest.operands if o.shape[-2:] == shape]
        groups += [f"{kind}=({', '.join(map(repr, names))},)"] if names else []
    return "\n\n".join(functions), f"ColumnGroups({', '.join(groups)})", rest.operands[1:], rest.outputs[0]


def sweep_texts(program: Program) -> tuple[list[str], list[str], Program]:
    """Of a contraction whose results are reduced on the way out, the functions of its sweeps, of what goes before and
    what is written, as arguments they go by, and what is left of the Program without it."""
    rest = named_product(without_product(program))
    rest = safe_names(reduced_in_strength(rounded_once(rest)))
    plan, lines = schedule(rest), Lines(rest)
    functions, entries = sweeps_of(plan, lines, dtypes_of(rest))
    arguments = ["sweeps=(" + " ".join(e.strip() for e in entries) + ")"]
    if plan.head:
        functions.insert(0, lines.function("head", "Per group, before any sweep.", plan.head, (), dict_of(plan.head)))
        arguments.append("head=head")
    arguments.append(_end(plan, lines, rest.outputs[0], functions))
    return functions, arguments, rest


def _end(plan: Schedule, lines: Lines, output: Output, functions: list[str]) -> str:
    if not plan.element_outputs:
        return f'row="{output.name}"'
    functions.append(
        lines.function("final", "Per element: what is written.", plan.final, [output.name], output.name)
    )  # fmt: skip
    return "final=final"


def named_product(program: Program) -> Program:
    """With its first operand under the name that the skeleton has for it."""
    name = program.operands[0].name

    def named(value: str | float) -> str | float:
        return "product" if value == name else value

    def renamed(item: Statement | Reduction) -> Statement | Reduction:
        if isinstance(item, Reduction):
            return replace(item, arg=str(named(item.arg)))
        return replace(item, args=tuple(named(a) for a in item.args))

    return replace(
        program,
        operands=tuple(replace(o, name=str(named(o.name))) for o in program.operands),
        body=tuple(renamed(i) for i in program.body if isinstance(i, Statement | Reduction)),
        outputs=tuple(replace(o, name=str(named(o.name))) for o in program.outputs),
    )
