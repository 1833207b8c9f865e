"""Attention as one kernel for CUDA: which regions the skeleton takes, and their files."""

from __future__ import annotations

from math import prod

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Point, Space
from ...ir.alone import attention_in
from ...ir.program import Operand, Program, Statement
from ...kernels.cuda.attention.shape import AttentionShape
from ...kernels.cuda.attention.tiles import MOST_COLUMNS, PLAIN, VARIANTS
from ..float8 import computes_in_float8, rounded_once
from ..gemm import renderer as gemm
from ..realiser import Fit, Refused, carried, refused
from ..rows.text import RUN_OP, Lines, tensors
from ..strength import reduced_in_strength
from .points import space
from .shape import attention_of, scores_of, shape_of

target: Target = "cuda"
digest, writers = "attention", ("rows/text.py", "attention/renderer.py", "attention/shape.py", "attention/visible.py")
ARCHITECTURE = "sm_90a"
_TYPES = ("f32", "f16", "bf16")
_READ = ("f32", "f16", "bf16", "i32", "i64", "bool")
_LINE = 8  # columns at whose multiples rows of 16 bits begin
_LEAST_KEYS, _LEAST_COLUMNS = 16, 16
_MOST_LAYERS = 3  # dimensions of a batch that TMA takes beside rows and columns
_LONGEST = 1 << 31
_LEAST_SCORES = 1 << 16  # below, it is all launch
_FUNCTIONS = {
    "whole": "A score.",
    "inner": "The same where all of a tile is visible.",
    "clear": "The same where all of a tile is kept.",
    "kept": "Whether a score is not hidden.",
}
_TEXT = (
    '''\
"""{name}: attention over {domain}, {keys} keys. Made by Tilewright: CuTe DSL, for CUDA."""

from tilewright_kernels.cuda.attention.fused import AttentionSpec, FusedAttention
from tilewright_kernels.cuda.attention.shape import AttentionShape, BatchStep, Layers
from tilewright_kernels.cuda.common import math as m
from tilewright_kernels.cuda.common.spec import ArraySpec
from tilewright_kernels.ops import torch_op

{functions}
SPEC = AttentionSpec(
    name="{name}",
    shape={shape},
    factors=({factors}
    ),
    operands=({operands}
    ),
    output={output}
    scale={scale!r},{more}
)

_FUSED = FusedAttention(SPEC, {knobs}, source=__file__)
'''
    + RUN_OP
)


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    if attention_in(program) is None:
        return Refused("no attention", foreign=True)
    if device.architecture != ARCHITECTURE:
        return Refused(f"attention's skeleton needs {ARCHITECTURE} (wgmma)")
    shape = shape_of(program)
    if shape is None:
        return Refused("attention whose factors are not layers of rows")
    why = _unsupported(program, shape, device)
    return refused(why, ranked=True, guess=True, kernel=_kernel(program))


def points(program: Program, device: Device) -> Space:
    """See `realiser`."""
    return space(program, _shape(program), device)


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.py`."""
    item = attention_of(program)
    maps = scores_of(program)
    functions, more = "", ""
    own = [(name, about) for name, about in _FUNCTIONS.items() if name in ("whole", "inner") or maps.kept is not None]
    for name_of_map, about in own:
        small = reduced_in_strength(rounded_once(getattr(maps, name_of_map)))
        body = [i for i in small.body if isinstance(i, Statement)]
        result = small.outputs[0].name
        if body or result != "score":
            functions += "\n" + Lines(small).function(name_of_map, about, body, [result], result)
            more += f"\n    {name_of_map}={name_of_map},"
    more += "\n    softmax=False," * (not item.softmax) + "\n    empty_is_zero=True," * item.empty_is_zero
    more += f"\n    sink={item.sink!r}," if item.sink else ""
    more += "\n    sums=True," * bool(item.logsum)
    named = {o.name: o for o in program.operands}
    others = [named[n] for n in item.operands]
    output = program.outputs[0]
    written = ((output.shape, output.dtype), *(((output.shape[:-1]), o.dtype) for o in program.outputs[1:]))
    text = _TEXT.format(
        name=name, domain=program.domain, keys=item.keys, functions=functions + "\n" * bool(functions),
        shape=repr(_shape(program)), factors=tensors(list(map(_plain, program.operands[:3]))),
        operands=tensors(list(map(_plain, others))), output=tensors([output]).strip(), scale=maps.scale, more=more,
        knobs=repr(dict(point)), reads=", ".join(o.name for o in program.operands),
        writes=", ".join(o.name for o in program.outputs),
        outputs=repr(written), arity=len(program.operands),
    )  # fmt: skip
    return (SourceFile(path=f"{name}.py", text=text),)


def skeleton_files() -> tuple[SourceFile, ...]:
    """The product's and the convolution's, too: keeping kernels, and splitting numbers, is done in one way."""
    return (*gemm.skeleton_files(), *carried(["cuda/host", "cuda/conv", "cuda/attention"]))


def _plain(operand: Operand) -> Operand:
    """As its Spec has it: aligned, or a factor that lies in some order."""
    return Operand(name=operand.name, dtype=operand.dtype, shape=operand.shape, order=operand.order)


def _shape(program: Program) -> AttentionShape:
    found = shape_of(program)
    assert found is not None
    return found


def _kernel(program: Program) -> str:
    """The name in `table.UNPROVEN`: sinks, logarithms of sums, and weights without softmax in fp32, are more than GPUs
    have run."""
    item = attention_of(program)
    return VARIANTS if item.sink or item.logsum or (item.dtype == "f32" and not item.softmax) else PLAIN


def _unsupported(program: Program, shape: AttentionShape, device: Device) -> str | None:
    """Why the skeleton can't, or shouldn't, make this attention; None if it does."""
    item = attention_of(program)
    factor = program.operands[0].dtype
    others = [o for o in program.operands if o.name in item.operands]
    if factor not in _TYPES:
        return f"attention in {factor} has no skeleton"
    if not {o.dtype for o in others} <= set(_READ):
        return "scores of other types than fp32, fp16, bf16, integers and booleans"
    if any(i.dtype == "f64" for i in item.scores.body) or computes_in_float8(item.scores):
        return "scores in float64 or in float8"
    if shape.depth % _LINE or shape.columns % _LINE or shape.depth < _LEAST_COLUMNS or shape.columns < _LEAST_COLUMNS:
        return f"heads of {shape.depth} and {shape.columns} columns, which are no multiples of {_LINE} from 16 on"
    if max(shape.depth, shape.columns) > MOST_COLUMNS:
        return f"heads of more than {MOST_COLUMNS} columns"
    if shape.keys < _LEAST_KEYS or shape.batches * shape.rows * shape.keys < _LEAST_SCORES:
        return "an attention so small is all launch"
    if any(sum(step.size > 1 for step in x.batch) > _MOST_LAYERS for x in (shape.query, shape.key, shape.value)):
        return f"a batch of more than {_MOST_LAYERS} dimensions"
    if max(shape.rows, shape.keys, shape.batches * shape.rows) >= _LONGEST or prod(shape.domain) >= _LONGEST << 8:
        return "2^31 queries, or keys, and more"
    return None if space(program, shape, device).points else "no tile of it fits shared memory"
