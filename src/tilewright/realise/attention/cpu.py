"""Attention for CPUs: blocks of queries over tiles of keys, in C++; the scores are never in memory."""

from __future__ import annotations

from collections.abc import Sequence

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Knob, Point, Space, point
from ...ir.alone import attention_in
from ...ir.program import DTYPE_BYTES, Operand, Program, Statement
from ...kernels.cuda.attention.shape import AttentionShape, Layers
from ..cpu import renderer as cpu
from ..cpu.text import MEMORY, VALUE, CannotRender, Writer, convert
from ..float8 import computes_in_float8, rounded_once
from ..realiser import Fit, Refused, copied, refused
from .shape import attention_of, scores_of, shape_of

target: Target = "cpu"
digest, writers = "attention", ("attention/cpu.py", "attention/shape.py", "attention/visible.py", "cpu/text.py")
TYPES = ("f32", "f16", "bf16")
_CODES = {"f": "kDLFloat", "b": "kDLBfloat", "i": "kDLInt", "u": "kDLUInt"}  # by a dtype's first letter
READ = ("f32", "f16", "bf16", "i64", "i32", "bool")
MOST_COLUMNS = 512
_LEAST_SCORES = 1 << 12
KEYS = Knob(name="keys", values=(24, 48, 96), about="keys of a tile")


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    if attention_in(program) is None:
        return Refused("no attention", foreign=True)
    shape = shape_of(program)
    if shape is None:
        return Refused("attention whose factors are not layers of rows")
    return refused(_unsupported(program, shape), ranked=True)


def points(program: Program, device: Device) -> Space:
    """See `realiser`."""
    return Space(knobs=(KEYS,), points=tuple(point(keys=n) for n in (48, 96, 24)))


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.cpp` and `NAME.py`."""
    return (SourceFile(path=f"{name}.cpp", text=_source(program)), python_file(program, name, point))


def python_file(program: Program, name: str, point: Point) -> SourceFile:
    """What calls `NAME.cpp`."""
    text = _PYTHON.format(
        name=name, knobs=repr(dict(point)), legal=repr({KEYS.name: KEYS.values}),
        outputs=repr(tuple((o.shape, o.dtype) for o in program.outputs)), count=len(program.operands),
        reads=", ".join(o.name for o in program.operands),
    )  # fmt: skip
    return SourceFile(path=f"{name}.py", text=text)


def skeleton_files() -> tuple[SourceFile, ...]:
    """The headers and the launcher."""
    return (*cpu.skeleton_files(), *copied(["cpu/attention.h"]))


_PYTHON = '''"""Attention; built from {name}.cpp on first use."""

from pathlib import Path

from tilewright_kernels.cpu.launch import Kernel
from tilewright_kernels.ops import torch_op

KNOBS = {knobs}
_OUTPUTS = {outputs}

_kernel = Kernel(Path(__file__).with_suffix(".cpp"), outputs=_OUTPUTS, knobs=KNOBS, legal={legal})
configure = _kernel.configure
# run({reads})
run = torch_op("{name}", _kernel.launch, _OUTPUTS, {count})
'''
_TEXT = """\
// Attention over {domain}, {keys} keys.
{widest}#include "attention.h"

using namespace tilewright;

struct Program {{
  using Element = {element};
  static constexpr int RANK = {rank}, ROW = {row}, CODE = {code}, OPERANDS = {count};
  static constexpr int64_t DOMAIN[] = {sizes};
  static constexpr int64_t ROWS = {rows}, KEYS = {keys}, LOW = {low}, HIGH = {high};
  static constexpr int DEPTH = {depth}, COLUMNS = {columns};
  static constexpr bool SOFTMAX = {softmax}, EMPTY_IS_ZERO = {empty}, SPARES = {spares}, LOGSUM = {logsum};
{factors}
{operands}
  static constexpr int STAGED = TW_KEYS * QUERIES * {widest_operand}, SINK = {sink};
  template <class At>
  static TW_INLINE F32 score([[maybe_unused]] const At& at, F32 score) {{
{body}
  }}
{of_sink}}};

TW_EXPORT_ATTENTION(Program)
"""
_SINK = """\
  template <class At>
  static TW_INLINE F32 sink(const At& at) {{
    const {value} sink = at.template operand<{number}, {memory}>();
    return {made};
  }}
"""


def _unsupported(program: Program, shape: AttentionShape) -> str | None:
    """Why the skeleton can't, or shouldn't, make this attention; None if it does."""
    item = attention_of(program)
    others = [o for o in program.operands if o.name in item.operands]
    if program.operands[0].dtype not in TYPES:
        return f"attention in {program.operands[0].dtype} has no skeleton"
    if not {o.dtype for o in others} <= set(READ):
        return "scores of other types than fp32, fp16, bf16, integers and booleans"
    if any(i.dtype == "f64" for i in item.scores.body) or computes_in_float8(item.scores):
        return "scores in float64 or in float8"
    if max(shape.depth, shape.columns) > MOST_COLUMNS:
        return f"heads of more than {MOST_COLUMNS} columns"
    if shape.batches * shape.rows * shape.keys < _LEAST_SCORES:
        return "an attention so small is all launch"
    if shape.rows == 1:
        return "a single query: the lanes of its block would be idle"
    try:
        _source(program)
    except CannotRender as reason:
        return str(reason)
    return None


def _source(program: Program) -> str:
    shape = shape_of(program)
    assert shape is not None
    item = attention_of(program)
    named = {o.name: o for o in program.operands}
    others = [named[n] for n in item.operands]
    low, high = shape.visible
    wide, body = _score(program)
    return _TEXT.format(
        domain=program.domain, keys=shape.keys, widest="#define TW_WIDEST 8\n" if wide else "",
        element=MEMORY[program.operands[0].dtype], rank=len(program.domain), row=shape.row,
        code=code(program.operands[0].dtype), count=len(others), sizes=braces(program.domain), rows=shape.rows,
        low="INT64_MIN" if low is None else low, high="INT64_MAX" if high is None else high, depth=shape.depth,
        columns=shape.columns, softmax=_bool(item.softmax), empty=_bool(item.empty_is_zero),
        spares=_bool(item.spares), sink=others.index(named[item.sink]) if item.sink else -1,
        widest_operand=max((DTYPE_BYTES[o.dtype] for o in others), default=1),
        of_sink=_sink(others) if item.sink else "",
        logsum=_bool(bool(item.logsum)),
        factors="\n".join(
            factor(name, layers, o.shape)
            for name, layers, o in zip(
                ("Query", "Key", "Value"), (shape.query, shape.key, shape.value), program.operands, strict=False
            )
        ),
        operands=tensors("operand", [(o.dtype, o.shape) for o in others], len(program.domain)),
        body="\n".join(body),
    )  # fmt: skip


def tensors(name: str, given: Sequence[tuple[str, tuple[int, ...]]], rank: int) -> str:
    """Types and shapes of tensors, as arrays."""
    return "\n".join((
        f"  static constexpr int {name}_code[] = {braces([code(d) for d, _ in given] or [0])};",
        f"  static constexpr int {name}_bytes[] = {braces([DTYPE_BYTES[d] for d, _ in given] or [0])};",
        f"  static constexpr int64_t {name}_shape[][{rank}] = "
        f"{braces([braces(s) for _, s in given] or [braces([0])])};",
    ))  # fmt: skip


def factor(name: str, layers: Layers, shape: tuple[int, ...]) -> str:
    """A factor as a type."""
    steps = [braces((s.dim, s.each, s.size)) for s in layers.batch] or ["{0, 1, 1}"]
    return "\n".join((
        f"  struct {name} {{",
        "    using Element = Program::Element;",
        f"    static constexpr int RANK = {len(shape)}, ROWS_AT = {-1 if layers.at is None else layers.at};",
        f"    static constexpr int64_t SHAPE[] = {braces(shape)};",
        f"    static constexpr BatchStep BATCH[] = {braces(steps)};",
        "  };",
    ))  # fmt: skip


def _score(program: Program) -> tuple[bool, list[str]]:
    """Whether 8 bytes are the widest of its values, and the lines of the function."""
    maps = scores_of(program)
    lines = [f"    score = score * f32({maps.scale!r}f);"] if maps.scale != 1.0 else []
    wide, body, (last,) = statements(rounded_once(maps.whole), given=1)
    return wide, [*lines, *body, f"    return {last};"]


def statements(program: Program, *, given: int) -> tuple[bool, list[str], list[str]]:
    """Of a pointwise Program, whose first `given` operands are there already: whether 8 bytes are the widest of its
    values, the lines of a function, and its outputs in fp32."""
    dtypes = {o.name: o.dtype for o in program.operands} | {
        i.result: i.dtype for i in program.body if hasattr(i, "result")
    }
    writer = Writer(dtypes, along=False)
    lines = []
    for number, operand in enumerate(program.operands[given:]):
        lines.append(f"    const {VALUE[operand.dtype]} {operand.name} = at.template operand<{number}, "
                     f"{MEMORY[operand.dtype]}>();")  # fmt: skip
    for item in program.body:
        assert isinstance(item, Statement)
        lines.append(f"    const {VALUE[item.dtype]} {item.result} = {writer.plain(item, str)};")
    made = [convert(o.name, VALUE[dtypes[o.name]], "F32") for o in program.outputs]
    return any(DTYPE_BYTES[d] == 8 for d in dtypes.values()), lines, made


def _sink(others: Sequence[Operand]) -> str:
    """What the last operand says, as a score."""
    own, number = others[-1].dtype, len(others) - 1
    text = _SINK.format(value=VALUE[own], number=number, memory=MEMORY[own], made=convert("sink", VALUE[own], "F32"))
    return text


def code(dtype: str) -> str:
    return "kDLBool" if dtype == "bool" else _CODES[dtype[0]]


def braces(values: object) -> str:
    return "{" + ", ".join(map(str, values)) + "}"  # type: ignore[call-overload]


def _bool(value: bool) -> str:
    return "true" if value else "false"
