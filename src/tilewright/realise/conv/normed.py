"""Convolutions with a norm on the way out: one that measures, what joins its states, and what normalises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ...ir.channelled import unchannelled
from ...ir.program import Operand, Output, Program, Statement
from ...ir.schedule import Schedule, schedule
from ...kernels.cuda.conv.reduction import MOMENTS, WARPS, slots
from ...kernels.cuda.conv.shape import ConvShape
from ..float8 import rounded_once
from ..gemm.column_groups import named_product, without_product
from ..gemm.reduced import blocked, needed
from ..rows.text import RUN_OP, Lines, safe_names
from ..strength import reduced_in_strength

_NARROW = ("f16", "bf16")
_IMPORTS = "from tilewright_kernels.cuda.conv.reduction import ConvReduction\n"
_TEXT = (
    '''\
"""{name}: {name}_conv.py, a convolution that measures, and what goes on from that: {others}. Made by Tilewright: CuTe
DSL, for CUDA."""

{imports}

from tilewright_kernels.cuda.conv.in_turn import InTurn
from tilewright_kernels.ops import torch_op

_FUSED = InTurn(
    [
{steps}
    ],
    {results},
)
'''
    + RUN_OP
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normed:
    """`ahead`: pointwise, over the convolution's pixels and channels, of `product`; its last output is measured, the
    one before, if any, is `kept` (the value's name). `join`: of the states the row's values. `behind`: pointwise, of
    what is kept and of those; None where no element is written."""

    ahead: Program
    join: Program
    behind: Program | None
    kept: str


def normed(program: Program, shape: ConvShape) -> Normed | None:
    """The three of a convolution with a norm; None where elements are gone through in another way."""
    rest = without_product(program)
    cut = schedule(rest)
    (product, *_) = rest.operands
    if len(cut.passes) != 1 or [r.op for r in cut.passes[0].reductions] != ["moments"]:
        return None
    measured = cut.passes[0].reductions[0].arg
    kept = _as_stored(program, rest, measured) if cut.element_outputs else ""
    behind = (
        _behind(rest, cut, Operand(name=kept, dtype=_dtypes(program, rest)[kept], shape=rest.domain)) if kept else None
    )
    ahead = _ahead(program, rest, measured, kept)
    if ahead is None or (kept and (behind is None or product.name in {o.name for o in behind.operands} - {kept})):
        return None
    wanted = [o.name for o in behind.operands] if behind is not None else []
    given = {o.name for o in rest.operands}
    rows = [*cut.row_outputs, *(_row(rest, n) for n in wanted if n in cut.row_names - given)]
    joined = blocked(replace(program, outputs=tuple({o.name: o for o in rows}.values())), chunks(program, shape))
    return None if joined is None else Normed(ahead=ahead, join=joined.behind, behind=behind, kept=kept)


def _as_stored(program: Program, rest: Program, name: str) -> str:
    """The value of 16 bits of which this one is a wider copy; else itself."""
    dtypes = _dtypes(program, rest)
    made = next((i for i in _statements(rest) if i.result == name), None)
    narrow = made is not None and made.op == "to" and dtypes.get(str(made.args[0])) in _NARROW
    return str(made.args[0]) if made is not None and narrow else name


def _dtypes(program: Program, rest: Program) -> dict[str, str]:
    """Of all values without reductions; the product's as it would be written."""
    assert program.product is not None
    known = {o.name: o.dtype for o in rest.operands} | {i.result: i.dtype for i in _statements(rest)}
    return known | {program.product.result: program.product.dtype}


def _statements(program: Program) -> list[Statement]:
    return [i for i in program.body if isinstance(i, Statement)]


def _row(rest: Program, name: str) -> Output:
    dtype = next(i.dtype for i in _statements(rest) if i.result == name) if name in _made(rest) else "f32"
    return Output(name=name, dtype=dtype, shape=rest.aligned(name))


def _made(rest: Program) -> set[str]:
    return {i.result for i in _statements(rest)}


def _behind(rest: Program, cut: Schedule, kept: Operand) -> Program | None:
    """What is computed of each element, from what is kept on; None where another value of before is needed."""
    made = {i.result: i for i in _statements(rest)}
    body: dict[str, Statement] = {}
    read: dict[str, None] = {}
    todo = [o.name for o in cut.element_outputs]
    while todo:
        name = todo.pop()
        if name == kept.name or name in cut.row_names or name not in made:
            read[name] = None
        elif name not in body:
            body[name] = made[name]
            todo += [a for a in made[name].args if isinstance(a, str)]
    known = {o.name: o for o in rest.operands}
    fresh = [kept]
    rows = [_row(rest, n) for n in read if n in cut.row_names and n not in known]
    fresh += [Operand(name=o.name, dtype=o.dtype, shape=o.shape) for o in rows]
    others = [o for o in rest.operands if o.name in read and o.name != kept.name]
    if kept.name not in read:
        return None
    return Program(
        domain=rest.domain, operands=(*fresh, *others), body=tuple(i for i in _statements(rest) if i.result in body),
        outputs=cut.element_outputs,
    )  # fmt: skip


def _ahead(program: Program, rest: Program, measured: str, kept: str) -> Program | None:
    """What is computed of the product before it is measured, over the convolution's own domain; None where an operand
    has one element for several channels, or lies in another order."""
    body = needed(rest, [n for n in (kept, measured) if n])
    read = {a for i in body for a in i.args if isinstance(a, str)} | {measured, kept}
    operands = tuple(o for o in rest.operands if o.name in read)
    whole = unchannelled(program)
    domain = program.domain if whole is None else whole.domain
    split = whole is not None

    def merged(of: tuple[int, ...]) -> tuple[int, ...]:
        return (of[0], of[1] * of[2], *of[3:]) if split else of

    if split and any(o.shape[1:3] not in ((1, 1), program.domain[1:3]) or o.order for o in operands):
        return None
    dtypes = _dtypes(program, rest)
    outputs = [Output(name=n, dtype=dtypes[n], shape=domain) for n in (kept,) if n]
    outputs.append(Output(name=measured, dtype="f32", shape=domain))
    own = tuple(replace(o, shape=merged(o.shape)) for o in operands)
    if rest.operands[0].name not in read:
        return None
    return named_product(Program(domain=domain, operands=own, body=body, outputs=tuple(outputs)))


def chunks(program: Program, shape: ConvShape) -> tuple[int, ...]:
    """The domain of what joins states: as many dimensions as the program's."""
    assert program.product is not None
    spatial = len(program.product.over) - 1
    count = slots(shape)
    inner = {1: (count * WARPS,), 2: (count, WARPS), 3: (count, WARPS // 2, 2)}[spatial]
    assert prod(inner) == count * WARPS
    return (*program.domain[:-spatial], *inner)


def measuring(program: Program, shape: ConvShape) -> tuple[str, str, tuple[Operand, ...], tuple[Output, ...], str]:
    """Of the convolution that measures: functions, argument, operands and outputs, and imports, as a file has them."""
    made = normed(program, shape)
    assert made is not None
    small = safe_names(reduced_in_strength(rounded_once(made.ahead)))
    names = [o.name for o in small.outputs]
    given = f"({', '.join(names)})" if len(names) > 1 else names[0]
    function = Lines(small).function("epilogue", "Per element: what is written, and what is measured.",
                                     _statements(small), names, given)  # fmt: skip
    states = (MOMENTS, shape.batch, shape.groups * shape.columns, slots(shape), WARPS)
    outputs = (*small.outputs[:-1], Output(name="states", dtype="f32", shape=states))
    return (function, 'epilogue=epilogue,\n    reduction=ConvReduction(over="moments")',
            tuple(o for o in small.operands if o.name != "product"), outputs, _IMPORTS)  # fmt: skip


def in_turn_text(program: Program, name: str, shape: ConvShape) -> str:
    """The file that calls the kernels one after the other."""
    made = normed(program, shape)
    item = program.product
    assert made is not None and item is not None
    numbers = {o.name: i for i, o in enumerate(program.operands)}
    given = {o.name: o for o in program.operands}
    after = len(numbers) + bool(made.kept)
    if made.kept:
        numbers[made.kept] = len(given)
    states = [o.name for o in made.join.operands[:MOMENTS]]
    numbers |= {n: after + i for i, n in enumerate(states)}
    numbers |= {o.name: after + MOMENTS + i for i, o in enumerate(made.join.outputs)}
    ahead = [(numbers[n], given[n].shape) for n in (item.left.operand, item.right.operand)]
    ahead += [(numbers[o.name], o.shape) for o in made.ahead.operands if o.name != "product"]
    steps = [("conv", ahead), ("join", _reads(made.join.operands, numbers))]
    if made.behind is not None:
        steps.append(("norm", _reads(made.behind.operands, numbers)))
        first = after + MOMENTS + len(made.join.outputs)
        numbers |= {o.name: first + i for i, o in enumerate(made.behind.outputs)}
    kinds = [kind for kind, _ in steps]
    return _TEXT.format(
        name=name, others=" and ".join(f"{name}_{kind}.py" for kind in kinds[1:]),
        imports="\n".join(f"import {name}_{kind}" for kind in kinds),
        steps="\n".join(f"        ({name}_{kind}._FUSED, {tuple(reads)!r})," for kind, reads in steps),
        results=repr(tuple((numbers[o.name], o.shape) for o in program.outputs)),
        reads=", ".join(given), writes=", ".join(o.name for o in program.outputs),
        outputs=repr(tuple((o.shape, o.dtype) for o in program.outputs)), arity=len(given),
    )  # fmt: skip


def _reads(operands: Sequence[Operand], numbers: dict[str, int]) -> list[tuple[int, tuple[int, ...]]]:
    return [(numbers[o.name], o.shape) for o in operands]
