"""What a product's factors are computed of on their way in: which of it the skeleton `gemm` takes, and the functions
that a `fused_K.py` hands to it."""

from __future__ import annotations

import re
from dataclasses import replace

from ...ir.program import Operand, Program, Prologue, Reduction
from ...ir.schedule import schedule
from ..float8 import computes_in_float8
from ..rows.text import Lines, dict_of, dtypes_of, safe_names, sweeps_of, tensors
from ..strength import reduced_in_strength
from .shape import is_grouped_gemm
from .small_m import in_fp32

REDUCES = ("sum", "max", "min", "softmax_stats", "moments")
LONGEST_ROW = 1024 * 8 * 4  # of K, that is reduced; as in `gemm/entering.py`
_TYPES = ("f32", "f16", "bf16", "float8_e4m3fn", "i8", "u8")
_MOST_OPERANDS = 6
_MOST_SWEEPS = 2


def prologue_of(program: Program, side: str) -> Prologue | None:
    """What makes the `left` or the `right` factor of this product, if anything does."""
    assert program.product is not None
    name = getattr(program.product, side).operand
    return next((p for p in program.product.prologues if p.factor == name), None)


def no_prologue(program: Program) -> str | None:
    """Why factors are better made by a kernel of their own; None if the split makes them, or there are none."""
    product = program.product
    assert product is not None
    if not product.prologues:
        return None
    if product.dtype != "f32" or is_grouped_gemm(program):
        return "factors that nothing splits, so that nothing could compute them on their way in"
    for prologue in product.prologues:
        why = _unmakable(prologue.program, along=-1 if prologue.factor == product.left.operand else -2)
        if why is not None:
            return why
    return None


def _unmakable(program: Program, *, along: int) -> str | None:
    """`along`: K among the dimensions."""
    if program.outputs[0].shape != program.domain:
        return "a factor of which something is of a group of K"
    if len(program.operands) > _MOST_OPERANDS or any(o.dtype not in _TYPES for o in program.operands):
        return f"a factor made of more than {_MOST_OPERANDS} operands, or of other types than floats and bytes"
    if any(item.dtype == "f64" for item in program.body) or computes_in_float8(program):
        return "a factor computed in float64 or in float8"
    if not program.reduced:
        return None
    cut = schedule(program)
    if len(cut.passes) > _MOST_SWEEPS or any(r.op not in REDUCES for r in program.body if isinstance(r, Reduction)):
        return "a factor whose rows are gone through more than twice, or reduced to positions"
    whole = [o for o in program.operands if o.shape == program.domain]
    if program.inner_size > LONGEST_ROW or any(_innermost(o) != len(o.shape) + along for o in whole):
        return "a factor whose rows are longer than registers hold, or lie across memory"
    return None


def _innermost(operand: Operand) -> int:
    return operand.order[-1] if operand.order else len(operand.shape) - 1


def takes_prologue(program: Program, point: dict[str, str | int]) -> bool:
    """Whether this point makes the factors: those that are streamed can't be made, rows that are reduced are whole."""
    assert program.product is not None
    if not program.product.prologues:
        return True
    rows = any(p.program.reduced for p in program.product.prologues)
    streamed = str(point["streamed"])
    return (streamed == "none" or prologue_of(program, streamed) is None) and not (rows and point["split_k"] != 1)


def prologue_texts(program: Program) -> tuple[str, str, str]:
    """Imports, the functions, and the argument of the ProductSpec; nothing where nothing is made."""
    sides = [_side_text(side, prologue_of(program, side)) for side in ("left", "right")]
    if all(argument == "None" for _, argument in sides):
        return "", "", ""
    sweeps = any("Sweep(" in argument for _, argument in sides)
    imports = "from tilewright_kernels.cuda.gemm.prologue.fused import PrologueSpec\n"
    functions = "\n\n".join(text for text, _ in sides if text) + "\n\n"
    argument = f"\n    before=(\n        {sides[0][1]},\n        {sides[1][1]},\n    ),"
    return (
        (imports + "from tilewright_kernels.cuda.common.spec import ReductionSpec, Sweep\n" if sweeps else imports),
        functions,
        argument,
    )


def _side_text(side: str, prologue: Prologue | None) -> tuple[str, str]:
    if prologue is None:
        return "", "None"
    made = in_fp32(prologue) if prologue.made.dtype in ("f16", "bf16") else prologue.program
    program = safe_names(reduced_in_strength(made))
    plan, lines = schedule(program), Lines(program)
    functions, entries = sweeps_of(plan, lines, dtypes_of(program))
    operands = tensors([replace(o, indexed=False) for o in program.operands])
    parts = [f'side="{side}"', f"operands=({operands}\n        )", "final=final"]
    if plan.head:
        functions.insert(0, lines.function("head", "Per row, before any sweep.", plan.head, (), dict_of(plan.head)))
        parts.append("head=head")
    if entries:
        parts.append("sweeps=(" + " ".join(e.strip() for e in entries) + ")")
    (output,) = program.outputs
    about = f"Per element: what is the {side} factor."
    functions.append(lines.function("final", about, plan.final, [output.name], output.name))
    text, argument = "\n\n".join(functions), f"PrologueSpec({', '.join(parts)})"
    text = re.sub(r"^def (\w+)\(", rf"def {side}_\1(", text, flags=re.MULTILINE)
    return text, re.sub(r"(elements|rows|head|final)=(?!None)(\w+)", rf"\1={side}_\2", argument)
