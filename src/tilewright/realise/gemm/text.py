"""The text of a product's `fused_K.py`, whose epilogue is the rest of the Program."""

from __future__ import annotations

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
_TEXT = (
    '''\
"""{name}: a product of {left} and {right}, and what is computed of it. Made by Tilewright: CuTe DSL, for CUDA."""

from tilewright_kernels.cuda.common import math as m
{imports}from tilewright_kernels.cuda.gemm.host.fused import FusedProduct, ProductSpec
from tilewright_kernels.cuda.common.spec import ArraySpec
from tilewright_kernels.ops import torch_op


{made}{epilogue}

SPEC = ProductSpec(
    name="{name}",
    left={left_spec}
    right={right_spec}
    operands=({operands}
    ),
    output={output}{further}
    epilogue=epilogue,{rounded}{diagonals}{ends}{before}{beside}{partly}
)

_FUSED = FusedProduct(SPEC, {knobs}, source=__file__{architecture})
'''
    + RUN_OP
)

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

_GROUPED = (
    '''\
"""{name}: a product of {left} and {right}, and what is done with groups of {size} columns of it. Made by Tilewright:
CuTe DSL, for CUDA."""

from tilewright_kernels.cuda.common import math as m
{imports}from tilewright_kernels.cuda.gemm.host.fused import FusedProduct, ProductSpec
from tilewright_kernels.cuda.gemm.epilogue.column_groups import ColumnGroups
from tilewright_kernels.cuda.common.spec import ReductionSpec, Sweep, ArraySpec
from tilewright_kernels.ops import torch_op


{made}{functions}

SPEC = ProductSpec(
    name="{name}",
    left={left_spec}
    right={right_spec}
    operands=({operands}
    ),
    output={output}
    groups={groups},{rounded}{before}
)

_FUSED = FusedProduct(SPEC, {knobs}, source=__file__)
'''
    + RUN_OP
)

_REDUCED_PRODUCT = '''\
"""{name}: a product of {left} and {right}, and its rows reduced in blocks of columns. Made by Tilewright: CuTe DSL, for
CUDA."""

from tilewright_kernels.cuda.common import math as m
{imports}from tilewright_kernels.cuda.gemm.host.fused import FusedProduct, ProductSpec
from tilewright_kernels.cuda.common.spec import ArraySpec


{made}{epilogue}

SPEC = ProductSpec(
    name="{name}",
    left={left_spec}
    right={right_spec}
    operands=({operands}
    ),
    output={output}
    epilogue=epilogue,{rounded}{before}
    reductions={reductions},
)

_FUSED = FusedProduct(SPEC, {knobs}, source=__file__)
'''


def reduced_texts(program: Program, name: str, settings: Point) -> tuple[str, str, Program]:
    """Of a product whose rows are reduced: the file that calls both kernels, that of the product (`NAME_product.py`),
    and the Program of the other (`NAME_rows.py`)."""
    left, right = factors(program)
    cut = blocked(program)
    assert cut is not None
    ahead = safe_names(rounded_once(cut.ahead))
    arguments = tuple(o.name for o in ahead.outputs)
    others = [o for o in ahead.operands if o.name != "product"]
    body = [item for item in ahead.body if isinstance(item, Statement)]
    batch, rows, columns, _ = sizes(program)
    imports, made, before = prologue_texts(program)
    before += _zeros(program)
    states = (cut.states, batch, rows, blocks_of(columns))
    product = _REDUCED_PRODUCT.format(
        name=name, left=left.shape, right=right.shape,
        epilogue=Lines(ahead).function("epilogue", "Per element: what is reduced.", body, arguments,
                                       f"({', '.join(arguments)},)"),
        left_spec=_spec(left), right_spec=_spec(right), operands=tensors(others),
        output=tensors([Output(name="states", dtype="f32", shape=states)]).strip(),
        reductions=repr(tuple(r.op for r in cut.reductions)), knobs=repr(dict(settings)),
        rounded="\n    rounded=True," if is_tf32(program) else "", imports=imports, made=made, before=before,
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
    left, right = factors(program)
    product = program.product
    assert product is not None
    kept = kept_diagonals(program)
    ends = next((o for o in program.operands if o.name == matrices(program).ends), None)
    beside = next((o for o in program.operands if o.name in [p.right.operand for p in program.products[1:]]), None)
    more = (name for name, operand in (("beside", beside), ("ends", ends)) if operand)
    first = (*_read(program, "left", "right"), *more)
    imports, made, before = prologue_texts(program)
    before += _zeros(program)
    program = safe_names(reduced_in_strength(rounded_once(epilogue_of(program))))
    others = [o for o in program.operands if o.name not in PRODUCTS]
    partly = [(o.name, each_of(o.at)) for o in others if o.at]
    output, *further = program.outputs
    body = [item for item in program.body if isinstance(item, Statement)]
    results = [o.name for o in program.outputs]
    given = f"({', '.join(results)})" if further else output.name
    return _TEXT.format(
        name=name,
        left=left.shape, right=right.shape,
        epilogue=Lines(program).function("epilogue", "Per element: what is written.", body, results, given),
        left_spec=_spec(left), right_spec=_spec(right),
        operands=tensors(others), output=_spec(output),
        further=f"\n    further=({tensors(further)}\n    )," if further else "",
        rounded="\n    rounded=True," if product.allow_tf32 else "",
        diagonals="" if kept == (None, None) else f"\n    diagonals={kept!r},",
        ends=f"\n    ends={_spec(ends)}" if ends else "", knobs=repr(dict(settings)),
        beside=f"\n    beside={_spec(beside)}" if beside else "",
        partly=f"\n    partly={tuple(partly)!r}," if partly else "",
        architecture=f", arch={architecture!r}" if architecture else "",
        imports=imports, made=made, before=before,
        reads=", ".join((*first, *(o.name for o in others))), writes=", ".join(results),
        outputs=repr(tuple((o.shape, o.dtype) for o in program.outputs)), arity=len(first) + len(others),
    )  # fmt: skip


def _grouped_text(program: Program, name: str, settings: Point) -> str:
    left, right = factors(program)
    functions, groups, operands, output = column_group_texts(program)
    first = _read(program, "left", "right")
    imports, made, before = prologue_texts(program)
    before += _zeros(program)
    return _GROUPED.format(
        name=name, left=left.shape, right=right.shape, functions=functions, groups=groups,
        size=program.domain[-1], left_spec=_spec(left), right_spec=_spec(right), operands=tensors(operands),
        output=_spec(output), rounded="\n    rounded=True," if is_tf32(program) else "", knobs=repr(dict(settings)),
        reads=", ".join((*first, *(o.name for o in operands))), writes=output.name,
        outputs=repr(((output.shape, output.dtype),)), arity=len(first) + len(operands),
        imports=imports, made=made, before=before,
    )  # fmt: skip


def _read(program: Program, left: str = "", right: str = "") -> tuple[str, ...]:
    """What is read of both factors: the matrices, under these names if any, or what they are made of."""
    product = program.product
    assert product is not None
    found: list[str] = []
    for side, own, told in (("left", product.left.operand, left), ("right", product.right.operand, right)):
        prologue = prologue_of(program, side)
        found += prologue.operands if prologue else (told or own,)
    return tuple(found)


def _zeros(program: Program) -> str:
    """The arguments of the ProductSpec that say between which diagonals of factors there are elements, and for how many
    of a batch each of their matrices is."""
    of = matrices(program)
    zeros = "" if of.zeros == NO_ZEROS else f"\n    zeros={of.zeros!r},"
    return zeros + ("" if of.each == (1, 1) else f"\n    each={of.each!r},")


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
