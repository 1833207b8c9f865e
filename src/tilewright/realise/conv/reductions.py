"""Convolutions that reduce on the way out: which of them the skeleton `conv` takes, and their texts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...ir.pooled import unwindowed
from ...ir.program import Operand, Output, Program, Reduction, Statement
from ...ir.schedule import schedule
from ...kernels.cuda.conv.reduction import WARPS, slots
from ...kernels.cuda.conv.shape import ConvShape, Triple
from ..float8 import rounded_once
from ..gemm.column_groups import REDUCES, sweep_texts, without_product
from ..gemm.reduced import blocked
from ..rows.text import RUN_OP, Lines, safe_names
from .normed import chunks, measuring, normed

_POOLED = ("sum", "max", "min")
_MOST_SWEEPS = 2
_IMPORTS = """\
from tilewright_kernels.cuda.common.spec import ReductionSpec, Sweep
from tilewright_kernels.cuda.conv.reduction import ConvReduction
"""
_CHAINED = (
    '''\
"""{name}: {name}_places.py, a convolution whose places are reduced in chunks, and {name}_rows.py, which joins the
chunks. Made by Tilewright: CuTe DSL, for CUDA."""

import {name}_places
import {name}_rows

from tilewright_kernels.cuda.common.chained import Chained
from tilewright_kernels.ops import torch_op

_FUSED = Chained({name}_places._FUSED, {name}_rows._FUSED, first={first}, second={second}, stacked=True)
'''
    + RUN_OP
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvText:
    """What a file says of an epilogue: imports, functions, the argument of its ConvSpec, operands and outputs."""

    functions: str
    argument: str
    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    imports: str = ""


def over_of(program: Program) -> tuple[str, Triple] | None:
    """What is reduced of a convolution, as a ConvReduction has it, and the window; None where nothing is."""
    if not program.reduced:
        return None
    pooled = unwindowed(program)
    if pooled is not None:
        one, two, three = (*(1 for _ in range(3 - len(pooled[1]))), *pooled[1])
        return "window", (one, two, three)
    item = program.product
    assert item is not None
    spatial = len(item.over) - 1
    measured = any(i.op == "moments" for i in program.body)
    if measured and {*program.reduced} >= {*range(len(program.domain) - spatial, len(program.domain))}:
        return "moments", (1, 1, 1)
    places = len(program.reduced) == spatial and program.reduced != _channels(program)
    return "places" if places else "channels", (1, 1, 1)


def _channels(program: Program) -> tuple[int, ...]:
    """The dimension of the right operand's own, which has no place of the left one."""
    item = program.product
    assert item is not None
    right = {d for p in item.right.at for d, _ in p.steps if d < len(program.domain)}
    return tuple(sorted(right))


def kernel_of(program: Program, shape: ConvShape) -> str:
    """The name in `table.UNPROVEN`."""
    found = over_of(program)
    new = found is not None and (found[0] == "moments" or (found[0] == "places" and shape.groups > 1))
    return "conv norms" if new or any(o.at for o in _others(program)) else "conv reductions" if found else ""


def unreducible(program: Program, shape: ConvShape) -> str | None:
    """Why the skeleton can't reduce so; None if it can, at some point, or where nothing is reduced."""
    found = over_of(program)
    if found is None:
        return None
    over, _ = found
    if over == "moments":
        return _unmeasurable(program, shape)
    reductions = [i for i in program.body if isinstance(i, Reduction)]
    cut = schedule(without_product(program))
    if any(r.op not in (REDUCES if over == "channels" else _POOLED) for r in reductions):
        return f"a convolution whose {over} are reduced by another operation than a sum, a maximum or a minimum"
    if over != "channels" and (len(cut.passes) != 1 or cut.element_outputs):
        return f"a convolution whose {over} are gone through more than once"
    row_major = shape.columns == program.domain[-len(program.reduced) - 1]
    if over == "places" and (not row_major or any(o.order for o in _others(program))):
        return "places of a convolution in channels-last"
    if over == "window" and len(reductions) > 1:
        return "windows that are reduced twice"
    if over != "places" and (len(program.outputs) != 1 or len(cut.passes) > _MOST_SWEEPS):
        return "channels that are gone through more than twice, or of which several results are kept"
    return None


def writes_apart(program: Program, shape: ConvShape) -> bool:
    """Whether each element leaves, and neighbours belong to several phases: kernels of one phase each would write every
    sector several times (KernelBench 2/91 on an H100: 4.0 ms, 2.8 as a convolution and a softmax)."""
    return shape.spread[2] > 1 and prod(program.outputs[0].shape) >= shape.pixels * shape.groups * shape.columns


def _unmeasurable(program: Program, shape: ConvShape) -> str | None:
    """The same, of a norm over places."""
    if shape.groups > 1 or program.domain[-1] != shape.out[2] or any(o.at for o in _others(program)):
        return "a norm of a grouped convolution, or of one in channels-last"
    return None if normed(program, shape) is not None else "a norm whose elements are gone through in another way"


def _others(program: Program) -> list[Operand]:
    return [o for o in program.operands if not o.indexed]


def reduction_text(program: Program) -> ConvText:
    """Of reduced channels and windows."""
    found = over_of(program)
    assert found is not None
    over, window = found
    functions, arguments, rest = sweep_texts(program)
    more = [f"over={over!r}".replace("'", '"'), *([f"window={window!r}"] if over == "window" else []), *arguments]
    return ConvText(
        imports=_IMPORTS, functions="\n\n".join(functions), argument=f"reduction=ConvReduction({', '.join(more)})",
        operands=rest.operands[1:], outputs=rest.outputs,
    )  # fmt: skip


def moments_text(program: Program, shape: ConvShape) -> ConvText:
    """Of a norm: the convolution that measures."""
    functions, argument, operands, outputs, imports = measuring(program, shape)
    return ConvText(functions=functions, argument=argument, operands=operands, outputs=outputs, imports=imports)


def places_text(program: Program, shape: ConvShape) -> tuple[ConvText, Program]:
    """Of reduced places, and the Program that joins chunks."""
    cut = blocked(program, chunks(program, shape))
    assert cut is not None
    ahead = safe_names(rounded_once(cut.ahead))
    arguments = [o.name for o in ahead.outputs]
    body = [i for i in ahead.body if isinstance(i, Statement)]
    elements = Lines(ahead).function(
        "elements", "Per element: what is reduced.", body, arguments, f"({', '.join(arguments)},)"
    )  # fmt: skip
    specs = [
        f'ReductionSpec(op="{r.op}", source="f32", dtype="f32", results=("s{i}",))'
        for i, r in enumerate(cut.reductions)
    ]  # fmt: skip
    sweeps = f"sweeps=(Sweep(elements=elements, reductions=({', '.join(specs)},)),)"
    states = (cut.states, shape.batch, shape.groups * shape.columns, slots(shape), WARPS)
    return ConvText(
        imports=_IMPORTS, functions=elements, argument=f'reduction=ConvReduction(over="places", {sweeps})',
        operands=tuple(o for o in ahead.operands if o.name != "product"),
        outputs=(Output(name="states", dtype="f32", shape=states),),
    ), cut.behind  # fmt: skip


def chained_text(program: Program, name: str, shape: ConvShape) -> str:
    """The file that calls both kernels of reduced places."""
    cut = blocked(program, chunks(program, shape))
    assert cut is not None
    item = program.product
    assert item is not None
    at = {o.name: i for i, o in enumerate(program.operands)}
    read = [item.left.operand, item.right.operand, *(o.name for o in cut.ahead.operands if o.name != "product")]
    return _CHAINED.format(
        name=name, first=repr(tuple(at[n] for n in read)),
        second=repr(tuple(at[o.name] for o in cut.behind.operands[cut.states :])), reads=", ".join(at),
        writes=", ".join(o.name for o in program.outputs), arity=len(program.operands),
        outputs=repr(tuple((o.shape, o.dtype) for o in program.outputs)),
    )  # fmt: skip
