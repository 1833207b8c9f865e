"""The text of a product's `fused_K.py`, whose epilogue is the rest of the Program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...facts.space import Point
from ...ir.access import each_of
from ...ir.program import Operand, Output, Program, Statement
from ..float8 import rounded_once
from ..rows.text import RUN_OP, Lines, safe_names, tensors
from ..strength import reduced_in_strength
from .column_groups import column_group_texts, has_column_groups
from .kept_diagonals import NO_ZEROS, kept_diagonals
from .prologues import prologue_of, prologue_texts
from .reduced import blocked, blocks_of
from .shape import factors, is_tf32, matrices, sizes

PRODUCTS = ("product", "product_1")  # as epilogues name them (gemm/finish.py)
_TEXT = '''\
"""{title}"""

from tilewright_kernels.cuda.common import math as m
{imports}from tilewright_kernels.cuda.gemm.host.fused import FusedProduct, ProductSpec
{more_imports}

{made}{functions}

SPEC = ProductSpec(
    name="{name}",
    left={left}
    right={right}
    operands=({operands}
    ),
    output={output}{rest}
)

_FUSED = FusedProduct(SPEC, {knobs}, source=__file__{architecture})
'''
_SPECS = "from tilewright_kernels.cuda.common.spec import ArraySpec\n"
_OP = "from tilewright_kernels.ops import torch_op\n"
_GROUPS = """\
from tilewright_kernels.cuda.gemm.epilogue.column_groups import ColumnGroups
from tilewright_kernels.cuda.common.spec import ReductionSpec, Sweep, ArraySpec
"""
_REDUCED = (
    '''\
"""{name}: {name}_product.py, a product whose rows are reduced in blocks of columns, and {name}_rows.py, which joins the
blocks. Made by Tilewright: CuTe DSL, for CUDA."""

import {name}_product
import {name}_rows

from tilewright_kernels.cuda.common.chained import Chained
from tilewright_kernels.ops import torch_op

_FUSED = Chained({name}_product._FUSED, {name}_rows._FUSED, first={first}, second={second}, stacked=True)
'''
    + RUN_OP
)


def reduced_texts(program: Program, name: str, settings: Point) -> tuple[str, str, Program]:
    """Of a product whose rows are reduced: the file that calls both kernels, that of the product (`NAME_product.py`),
    and the Program of the other (`NAME_rows.py`)."""
    cut = blocked(program)
    assert cut is not None
    ahead = safe_names(rounded_once(cut.ahead))
    arguments = tuple(o.name for o in ahead.outputs)
    body = [item for item in ahead.body if isinstance(item, Statement)]
    batch, rows, columns, _ = sizes(program)
    product = _product(
        program, name, settings,
        what="and its rows reduced in blocks of columns. Made by Tilewright: CuTe DSL, for\nCUDA.",
        functions=Lines(ahead).function("epilogue", "Per element: what is reduced.", body, arguments,
                                        f"({', '.join(arguments)},)"),
        operands=[o for o in ahead.operands if o.name != "product"], more_imports=_SPECS,
        output=_spec(Output(name="states", dtype="f32", shape=(cut.states, batch, rows, blocks_of(columns)))),
        rest=("epilogue=epilogue,", _tf32(program), *_factor_arguments(program),
              f"reductions={tuple(r.op for r in cut.reductions)!r},"),
    )  # fmt: skip
    places = {o.name: i for i, o in enumerate(program.operands)}
    read = [o.name for o in cut.ahead.operands if o.name != "product"]
    first = tuple(places[n] for n in (*_read(program), *read))
    second = tuple(places[o.name] for o in cut.behind.operands[cut.states :])
    whole = _REDUCED.format(
        name=name, first=repr(first), second=repr(second), reads=", ".join(places),
        writes=", ".join(o.name for o in program.outputs), arity=len(program.operands),
        outputs=repr(tuple((o.shape, o.dtype) for o in program.outputs)),
    )  # fmt: skip
    return whole, product, cut.behind


def fused_text(program: Program, name: str, settings: Point, *, architecture: str = "") -> str:
    """The whole file; `architecture`: where it is not the skeleton's own."""
    if has_column_groups(program):
        return _grouped_text(program, name, settings)
    kept = kept_diagonals(program)
    ends = next((o for o in program.operands if o.name == matrices(program).ends), None)
    beside = next((o for o in program.operands if o.name in [p.right.operand for p in program.products[1:]]), None)
    more = (name for name, operand in (("beside", beside), ("ends", ends)) if operand)
    first = (*_read(program, "left", "right"), *more)
    rest = safe_names(reduced_in_strength(rounded_once(epilogue_of(program))))
    others = [o for o in rest.operands if o.name not in PRODUCTS]
    partly = tuple((o.name, each_of(o.at)) for o in others if o.at)
    output, *further = rest.outputs
    body = [item for item in rest.body if isinstance(item, Statement)]
    results = [o.name for o in rest.outputs]
    given = f"({', '.join(results)})" if further else output.name
    text = _product(
        program, name, settings, what="and what is computed of it. Made by Tilewright: CuTe DSL, for CUDA.",
        functions=Lines(rest).function("epilogue", "Per element: what is written.", body, results, given),
        operands=others, more_imports=_SPECS + _OP, output=_spec(output),
        rest=(
            f"further=({tensors(further)}\n    )," if further else "", "epilogue=epilogue,", _tf32(program),
            "" if kept == (None, None) else f"diagonals={kept!r},", f"ends={_spec(ends)}" if ends else "",
            *_factor_arguments(program), f"beside={_spec(beside)}" if beside else "",
            f"partly={partly!r}," if partly else "",
        ),
        architecture=f", arch={architecture!r}" if architecture else "",
    )  # fmt: skip
    return text + _entry(name, (*first, *(o.name for o in others)), rest.outputs)


def _grouped_text(program: Program, name: str, settings: Point) -> str:
    functions, groups, operands, output = column_group_texts(program)
    size, reads = program.domain[-1], (*_read(program, "left", "right"), *(o.name for o in operands))
    text = _product(
        program, name, settings, functions=functions, operands=operands, more_imports=_GROUPS + _OP,
        what=f"and what is done with groups of {size} columns of it. Made by Tilewright:\nCuTe DSL, for CUDA.",
        output=_spec(output), rest=(f"groups={groups},", _tf32(program), *_factor_arguments(program)),
    )  # fmt: skip
    return text + _entry(name, reads, (output,))


def _product(
    program: Program, name: str, settings: Point, *, what: str, operands: Sequence[Operand], rest: Sequence[str],
    architecture: str = "", **texts: str,
) -> str:  # fmt: skip
    """The file but for its entry point; `rest`: further arguments of its ProductSpec, "" for none."""
    left, right = factors(program)
    imports, made, _ = prologue_texts(program)
    return _TEXT.format(
        title=f"{name}: a product of {left.shape} and {right.shape}, {what}", name=name, left=_spec(left),
        right=_spec(right), operands=tensors(operands), rest="".join(f"\n    {own}" for own in rest if own),
        knobs=repr(dict(settings)), architecture=architecture, imports=imports, made=made, **texts,
    )  # fmt: skip


def _entry(name: str, reads: Sequence[str], outputs: Sequence[Output]) -> str:
    return RUN_OP.format(
        name=name, reads=", ".join(reads), writes=", ".join(o.name for o in outputs), arity=len(reads),
        outputs=repr(tuple((o.shape, o.dtype) for o in outputs)),
    )  # fmt: skip


def _tf32(program: Program) -> str:
    return "rounded=True," if is_tf32(program) else ""


def _read(program: Program, left: str = "", right: str = "") -> tuple[str, ...]:
    """What is read of both factors: the matrices, under these names if any, or what they are made of."""
    product = program.product
    assert product is not None
    found: list[str] = []
    for side, own, told in (("left", product.left.operand, left), ("right", product.right.operand, right)):
        prologue = prologue_of(program, side)
        found += prologue.operands if prologue else (told or own,)
    return tuple(found)


def _factor_arguments(program: Program) -> tuple[str, str, str]:
    """The arguments of the ProductSpec that say what makes factors, between which diagonals of them there are elements,
    and for how many of a batch each of their matrices is; "" for none."""
    of, before = matrices(program), prologue_texts(program)[2].removeprefix("\n    ")
    zeros = "" if of.zeros == NO_ZEROS else f"zeros={of.zeros!r},"
    return before, zeros, "" if of.each == (1, 1) else f"each={of.each!r},"


def _spec(tensor: Operand | Output) -> str:
    """Its ArraySpec; a matrix has strides there, as an operand that is not read at positions of its own."""
    return tensors([replace(tensor, indexed=False) if isinstance(tensor, Operand) else tensor]).strip()


def epilogue_of(program: Program) -> Program:
    """What is left when the products are at hand, as operands of these names."""
    found = dict(zip((p.result for p in program.products), PRODUCTS, strict=False))

    def named(value: str | float) -> str | float:
        return found.get(value, value) if isinstance(value, str) else value

    body = tuple(replace(item, args=tuple(named(a) for a in item.args))
                 for item in program.body if isinstance(item, Statement))  # fmt: skip
    whole = [Operand(name=name, dtype="f32", shape=program.domain) for name in found.values()]
    outputs = tuple(replace(o, name=str(named(o.name))) for o in program.outputs)
    operands = (*whole, *(o for o in program.operands if not o.indexed))
    return replace(program, operands=operands, body=body, outputs=outputs)
