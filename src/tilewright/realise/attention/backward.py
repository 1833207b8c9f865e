"""Gradients of attention for CUDA: which regions the skeletons take, and their files."""

from __future__ import annotations

from math import ceil, prod

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Knob, Point, Space, point
from ...ir.alone import attention_backward_in
from ...ir.program import Operand, Program, Statement
from ...kernels.cuda.attention_backward.roles import KNOBS as LEGAL
from ...kernels.cuda.attention_backward.roles import MOST_COLUMNS, GradientPoint, make_point, roles_of
from ...kernels.cuda.attention_backward.shape import GradientShape
from ..float8 import computes_in_float8, rounded_once
from ..gemm import renderer as gemm
from ..realiser import Fit, Refused, carried, refused
from ..rows.text import RUN_OP, Lines, tensors
from ..strength import reduced_in_strength
from .gradient_shape import gradient_shape, gradients_of, maps_of

target: Target = "cuda"
digest, writers = "attention_backward", (
    "rows/text.py", "attention/backward.py", "attention/gradient_shape.py", "attention/shape.py",
    "attention/visible.py",
)  # fmt: skip
ARCHITECTURE = "sm_90a"
_TYPES = ("f16", "bf16")
_READ = ("f32", "f16", "bf16", "i32", "i64", "bool")
_LINE = 8  # columns at whose multiples rows of 16 bits begin
_LEAST = 16  # keys and columns
_MOST_LAYERS = 3  # dimensions of a batch that TMA takes beside rows and columns
_LONGEST = 1 << 31
_LEAST_SCORES = 1 << 16  # below, it is all launch
_MOST_POINTS = 8
# Clocks, and what is done in one, of a multiprocessor.
_PRODUCTS, _LANES = 2048.0 * 0.85, 128.0
_BESIDE_MAP = 12.0  # instructions of a score beside the map's own
_BESIDE, _WAIT, _BEGIN = 0.35, 900.0, 2500.0
_ABOUT = {
    "groups": "warpgroups that multiply, of 64 queries or keys each", "tile_n": "keys or queries of a visited tile",
    "stages": "buffers of visited tiles",
}  # fmt: skip
_KNOBS = tuple(Knob(name=name, values=values, about=_ABOUT[name]) for name, values in LEGAL.items())
_TEXT = (
    '''\
"""{name}: gradients of attention over {domain}. Made by Tilewright: CuTe DSL, for CUDA."""

from tilewright_kernels.cuda.attention.shape import BatchStep, Layers
from tilewright_kernels.cuda.attention_backward.fused import FusedAttentionBackward, GradientSpec
from tilewright_kernels.cuda.attention_backward.shape import GradientShape
from tilewright_kernels.cuda.common import math as m
from tilewright_kernels.cuda.common.spec import ArraySpec
from tilewright_kernels.ops import torch_op

{functions}
SPEC = GradientSpec(
    name="{name}",
    shape={shape},
    factors=({factors}
    ),
    operands=({operands}
    ),
    outputs=({written}
    ),
    whole=whole,
    inner=inner,
)

_FUSED = FusedAttentionBackward(SPEC, {knobs}, source=__file__)
'''
    + RUN_OP
)


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    if attention_backward_in(program) is None:
        return Refused("no gradients of attention", foreign=True)
    if device.architecture != ARCHITECTURE:
        return Refused(f"the skeleton of attention's gradients needs {ARCHITECTURE} (wgmma)")
    shape = gradient_shape(program)
    if shape is None:
        return Refused("gradients of attention whose factors are not layers of rows")
    why = _unsupported(program, shape, device)
    return refused(why, ranked=True, guess=True, kernel="attention gradients")


def points(program: Program, device: Device) -> Space:
    """See `realiser`."""
    shape = _shape(program)
    found: list[tuple[float, GradientPoint]] = []
    for groups in LEGAL["groups"]:
        for tile_n in LEGAL["tile_n"]:
            for stages in (2, 1, 3):
                try:
                    knobs = {"groups": groups, "tile_n": tile_n, "stages": stages}
                    made = make_point(shape, knobs, _further(program))
                except ValueError:
                    continue
                found.append((_clocks(program, made, device), made))
    ranked = [p for _, p in sorted(found, key=lambda own: own[0])][:_MOST_POINTS]
    settings = (point(groups=p.groups, tile_n=p.tile_n, stages=p.stages) for p in ranked)
    return Space(knobs=_KNOBS, points=tuple(settings))


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.py`."""
    functions = ""
    for own, scores in zip(("whole", "inner"), maps_of(program), strict=True):
        small = reduced_in_strength(rounded_once(scores))
        body = [i for i in small.body if isinstance(i, Statement)]
        results = [o.name for o in small.outputs]
        about = "A weight, the gradient of its score, and of operands." if own == "whole" else "Where all is visible."
        functions += "\n" + Lines(small).function(own, about, body, results, f"({', '.join(results)})") + "\n"
    named = {o.name: o for o in program.operands}
    others = [named[n] for n in gradients_of(program).operands]
    text = _TEXT.format(
        name=name, domain=_shape(program).domain, functions=functions, shape=repr(_shape(program)),
        factors=tensors(list(map(_plain, program.operands[:4]))), operands=tensors(list(map(_plain, others))),
        written=tensors(list(program.outputs)), knobs=repr(dict(point)),
        reads=", ".join(o.name for o in program.operands), writes=", ".join(o.name for o in program.outputs),
        outputs=repr(tuple((o.shape, o.dtype) for o in program.outputs)), arity=len(program.operands),
    )  # fmt: skip
    return (SourceFile(path=f"{name}.py", text=text),)


def skeleton_files() -> tuple[SourceFile, ...]:
    """Those of the product, the convolution and attention, too: tiles are loaded and kernels kept in one way."""
    return (*gemm.skeleton_files(), *carried(["cuda/host", "cuda/conv", "cuda/attention", "cuda/attention_backward"]))


def _plain(operand: Operand) -> Operand:
    """As its Spec has it: aligned, or a factor that lies in some order."""
    return Operand(name=operand.name, dtype=operand.dtype, shape=operand.shape, order=operand.order)


def _shape(program: Program) -> GradientShape:
    found = gradient_shape(program)
    assert found is not None
    return found


def _further(program: Program) -> tuple[tuple[int, ...], ...]:
    """Of each further result the dimensions of the batch over which it is summed."""
    batch = program.domain[:-2]
    return tuple(tuple(d for d, n in enumerate(batch) if o.shape[d] < n) for o in program.outputs[3:])


def _clocks(program: Program, made: GradientPoint, device: Device) -> float:
    """The model, of an H100's vendor's numbers: CTAs one after the other on each multiprocessor, of which each visit
    takes as long as its products and the map beside one another, and a part of the shorter one. No time has been
    measured yet."""
    shape, operations = _shape(program), len(gradients_of(program).map.body)
    scores, total = made.tile_m * made.tile_n, 0.0
    for role in roles_of(shape, made, _further(program)):
        own, others = (shape.keys, shape.rows) if role.by_keys else (shape.rows, shape.keys)
        widths = made.depth + made.columns + sum((made.depth, made.columns)[i] for i in role.makes)
        products = scores * widths / _PRODUCTS
        map_ = scores * (operations + _BESIDE_MAP) / _LANES
        waits = _WAIT / made.groups * (1.5 if made.stages == 1 else 1.0)
        beside = _BESIDE if made.groups > 1 else 1.0  # a warpgroup alone maps while nothing multiplies
        visit = max(products, map_) + beside * min(products, map_) + waits
        ctas = shape.batches * -(-own // made.tile_m)
        total += ceil(ctas / max(device.processors, 1)) * (_BEGIN + -(-others // made.tile_n) * visit)
    return total


def _unsupported(program: Program, shape: GradientShape, device: Device) -> str | None:
    """Why the skeletons can't, or shouldn't, make these gradients; None if they do."""
    item = gradients_of(program)
    others = [o for o in program.operands if o.name in item.operands]
    if item.dtype not in _TYPES:
        return f"gradients of attention in {item.dtype}: the skeletons multiply in fp16 and bf16 alone"
    if not {*(o.dtype for o in others), *(o.dtype for o in program.outputs)} <= {*_READ}:
        return "scores of other types than fp32, fp16, bf16, integers and booleans"
    if any(i.dtype == "f64" for i in item.map.body) or computes_in_float8(item.map):
        return "scores in float64 or in float8"
    if any(o.shape[-2:] != shape.domain[-2:] for o in program.outputs[3:]):
        return "the gradient of an operand that is the same for several queries or keys"
    widths = (shape.depth, shape.columns)
    if any(n % _LINE or n < _LEAST or n > MOST_COLUMNS for n in widths):
        wanted = f"multiples of {_LINE} from {_LEAST} to {MOST_COLUMNS}"
        return f"heads of {shape.depth} and {shape.columns} columns, which are no {wanted}"
    if min(shape.keys, shape.rows) < _LEAST or prod(shape.domain) < _LEAST_SCORES:
        return "an attention so small is all launch"
    factors = (shape.query, shape.key, shape.value, shape.upstream)
    if any(sum(step.size > 1 for step in x.batch) > _MOST_LAYERS for x in factors):
        return f"a batch of more than {_MOST_LAYERS} dimensions"
    if max(shape.rows, shape.keys, shape.batches * max(shape.rows, shape.keys)) >= _LONGEST:
        return "2^31 queries, or keys, and more"
    return None if points(program, device).points else "no tile of it fits shared memory"
