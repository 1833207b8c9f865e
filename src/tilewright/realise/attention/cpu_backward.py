"""Gradients of attention for CPUs, in C++; the scores are never in memory."""

from __future__ import annotations

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Point, Space, point
from ...ir.alone import attention_backward_in
from ...ir.program import Program
from ...kernels.cuda.attention_backward.shape import GradientShape
from ..cpu.text import MEMORY, CannotRender
from ..float8 import computes_in_float8, rounded_once
from ..realiser import Fit, Refused, copied, refused
from . import cpu
from .cpu import KEYS, factor, statements, tensors
from .gradient_shape import gradient_shape, gradients_of, maps_of

target: Target = "cpu"
digest, writers = "attention_backward", (
    "attention/cpu.py", "attention/cpu_backward.py", "attention/gradient_shape.py", "attention/shape.py",
    "attention/visible.py", "cpu/text.py",
)  # fmt: skip
# The judge refuses fp32: the logarithm of the sums, of about 2^-22, is an error that all weights of a row share, and
# with inputs of one sign a gradient is off by 3.8e-6 where 2.6e-6 is allowed (pair_bias_attention, 2026-11-28).
PROPOSED = ("f16", "bf16")
_TEXT = """\
// Gradients of attention over {domain}.
{widest}#include "attention_backward.h"

using namespace tilewright;

{further}
struct Program {{
  using Element = {element};
  using Further = std::tuple<{names}>;
  static constexpr int RANK = {rank}, CODE = {code}, OPERANDS = {count}, MORE = {more};
  static constexpr int64_t DOMAIN[] = {sizes};
  static constexpr int64_t LOW = {low}, HIGH = {high};
  static constexpr int DEPTH = {depth}, COLUMNS = {columns};
  static constexpr bool SHARED[] = {shared};
{factors}
{operands}
{results}
  template <class At>
  static TW_INLINE void map([[maybe_unused]] const At& at, const F32 score, const F32 gradient, F32& weight,
                            F32& scored, [[maybe_unused]] F32* further) {{
{body}
  }}
}};

TW_EXPORT_ATTENTION_GRADIENTS(Program)
"""
_FURTHER = """\
struct Further{number} {{
  using Element = {element};
  static constexpr int NUMBER = {number};
  static constexpr bool SUMMED[] = {summed};
}};
"""


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    if attention_backward_in(program) is None:
        return Refused("no gradients of attention", foreign=True)
    shape = gradient_shape(program)
    if shape is None:
        return Refused("gradients of attention whose factors are not layers of rows")
    return refused(_unsupported(program, shape), ranked=True)


def points(program: Program, device: Device) -> Space:
    """See `realiser`."""
    return Space(knobs=(KEYS,), points=tuple(point(keys=n) for n in (48, 96, 24)))


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.cpp` and `NAME.py`."""
    return (SourceFile(path=f"{name}.cpp", text=_source(program)), cpu.python_file(program, name, point))


def skeleton_files() -> tuple[SourceFile, ...]:
    """The headers and the launcher."""
    return (*cpu.skeleton_files(), *copied(["cpu/attention_backward.h"]))


def _unsupported(program: Program, shape: GradientShape) -> str | None:
    """Why the skeleton can't, or shouldn't, make these gradients; None if it does."""
    item = gradients_of(program)
    if program.operands[0].dtype not in cpu.TYPES or {o.dtype for o in program.outputs} - {*cpu.TYPES}:
        return f"gradients of attention in {program.operands[0].dtype} have no skeleton"
    if item.dtype not in PROPOSED:
        return "gradients of attention in fp32: the logarithm of a softmax's sums is too coarse for them"
    if not {o.dtype for o in program.operands} <= {*cpu.READ}:
        return "scores of other types than fp32, fp16, bf16, integers and booleans"
    if any(i.dtype == "f64" for i in item.map.body) or computes_in_float8(item.map):
        return "scores in float64 or in float8"
    if max(shape.depth, shape.columns) > cpu.MOST_COLUMNS:
        return f"heads of more than {cpu.MOST_COLUMNS} columns"
    try:
        _source(program)
    except CannotRender as reason:
        return str(reason)
    return None


def _source(program: Program) -> str:
    shape, item = gradient_shape(program), gradients_of(program)
    assert shape is not None
    named = {o.name: o for o in program.operands}
    others = [named[n] for n in item.operands]
    map_, _ = maps_of(program)
    wide, lines, (weight, scored, *further) = statements(rounded_once(map_), given=2)
    assigned = [("weight", weight), ("scored", scored), *((f"further[{i}]", text) for i, text in enumerate(further))]
    rank, more = len(shape.domain), program.outputs[3:]
    low, high = shape.visible
    factors = zip(("Query", "Key", "Value", "Upstream"), (shape.query, shape.key, shape.value, shape.upstream),
                  program.operands, strict=False)  # fmt: skip
    return _TEXT.format(
        domain=shape.domain, widest="#define TW_WIDEST 8\n" if wide else "",
        further="".join(
            _FURTHER.format(number=i, element=MEMORY[o.dtype],
                            summed=_flags([n < m for n, m in zip(o.shape, shape.domain, strict=True)]))
            for i, o in enumerate(more)
        ),
        names=", ".join(f"Further{i}" for i in range(len(more))), element=MEMORY[item.dtype], rank=rank,
        code=cpu.code(item.dtype), count=len(others), more=len(more), sizes=cpu.braces(shape.domain),
        low="INT64_MIN" if low is None else low, high="INT64_MAX" if high is None else high, depth=shape.depth,
        columns=shape.columns, shared=_flags([d in shape.shared for d in range(rank)]),
        factors="\n".join(factor(name, layers, o.shape) for name, layers, o in factors),
        operands=tensors("operand", [(o.dtype, o.shape) for o in others], rank),
        results=tensors("result", [(o.dtype, o.shape) for o in program.outputs], rank),
        body="\n".join((*lines, *(f"    {name} = {text};" for name, text in assigned))),
    )  # fmt: skip


def _flags(values: list[bool]) -> str:
    return cpu.braces(["true" if value else "false" for value in values])
