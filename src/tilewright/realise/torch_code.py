"""Graph nodes as torch expressions: what model.py runs of an operator of which only a part is fused."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.facts.pattern import Bind
from tilewright.ir.graph import Code, Node, Ref, Struct, Template
from tilewright.ir.program import POINTWISE, RANKED, REDUCTIONS, SCANS

TORCH_DTYPES = {"f64": "torch.float64", "f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16",
                "i64": "torch.int64", "i32": "torch.int32", "i16": "torch.int16", "i8": "torch.int8",
                "u8": "torch.uint8", "bool": "torch.bool",
                "float8_e4m3fn": "torch.float8_e4m3fn"}  # fmt: skip
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
          "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}  # fmt: skip


def literal(value: object) -> str:
    """A Python expression for a scalar, infinities and NaN included."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def template(value: Template, names: dict[str, str]) -> str:
    """A Python expression for a template; `names` has an expression for every node in it."""
    if isinstance(value, Ref):
        return names[value.name]
    if isinstance(value, Code):
        return value.text
    if not isinstance(value, Struct):
        return literal(value)
    items = [template(item, names) for item in value.items]
    if value.kind == "dict":
        return "{" + ", ".join(f"{key!r}: {item}" for key, item in zip(value.keys, items, strict=True)) + "}"
    if value.kind == "list":
        return "[" + ", ".join(items) + "]"
    made = "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"
    return made if value.kind == "tuple" else f"{value.kind}({made})"


def expression(node: Node, sources: Sequence[Node], args: Sequence[str], device: str) -> str:
    """What computes `node` with torch. `args` are expressions of its arguments, `sources` the nodes among them."""
    if node.op in REDUCTIONS:
        return _reduction(node, sources[0], args[0])
    if node.op in POINTWISE:
        return _pointwise(node, args, device)
    if node.op in ("reshape", "expand"):
        return f"{args[0]}.{node.op}({literal(node.shape)})"
    if node.op == "permute":
        return f"{args[0]}.permute({literal(node.dims)})"
    if node.op == "slice":
        return f"{args[0]}.narrow({', '.join(map(str, node.dims))})"
    if node.op == "load":
        if any(p.value for p in node.at):
            return _gather(node, args[0], args[len(node.args) :], device)
        return _load(node, sources[0].shape, args[0])
    if node.op == "flip":
        return f"{args[0]}.flip({literal(node.dims)})"
    if node.op in SCANS:
        return _scan(node, args)
    raise ValueError(f"{node.name}: no expression for {node.op!r}")


def _pointwise(node: Node, args: Sequence[str], device: str) -> str:
    dtype = TORCH_DTYPES[node.dtype]
    numbers = [not isinstance(a, str) for a in node.args]
    if node.op == "inside":
        return _load(node, node.dims, f"torch.ones({literal(node.dims)}, dtype=torch.bool, device={device})")
    if node.op == "index":
        return f"torch.arange({node.shape[0]}, device={device})"
    if node.op == "to":
        return f"{args[0]}.to({dtype}, copy=True)"
    if node.op == "where":
        return f"torch.where({', '.join(args)})" + (f".to({dtype})" if any(numbers) else "")
    if node.op in _INFIX:
        return f"{args[0]} {_INFIX[node.op]} {args[1]}"
    if node.op in ("maximum", "minimum") and any(numbers):
        tensor, number = (args[1], args[0]) if numbers[0] else (args[0], args[1])
        return f"torch.clamp({tensor}, {'min' if node.op == 'maximum' else 'max'}={number})"
    if len(args) == 2 and node.op not in ("pow", "fmod", "remainder", "floor_divide"):
        args = [f"torch.tensor({a}, device={device})" if n else a for a, n in zip(args, numbers, strict=True)]
    return f"torch.{node.op}({', '.join(args)})"


def _load(node: Node, shape: Sequence[int], arg: str) -> str:
    """The source `arg`, with its surroundings and in one subproblem, seen with other strides."""
    reach = [p.span(node.shape) for p in node.at]
    ahead = [max(-low, 0) for low, _ in reach]
    sizes = [max(size, high + 1) + more for size, (_, high), more in zip(shape, reach, ahead, strict=True)]
    if sizes != list(shape):
        around = [n for size, whole, more in zip(shape, sizes, ahead, strict=True) for n in (whole - size - more, more)]
        arg = f"torch.nn.functional.pad({arg}, {tuple(reversed(around))}, value={literal(node.fill)})"
    strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    first = sum((p.start + more) * stride for p, more, stride in zip(node.at, ahead, strides, strict=True))
    moving = [0] * len(node.shape)
    for position, stride in zip(node.at, strides, strict=True):
        for dim, step in position.steps:
            moving[dim] += step * stride
    return f"{arg}.contiguous().as_strided({literal(node.shape)}, {literal(tuple(moving))}, {first})"


def _gather(node: Node, arg: str, values: Sequence[str], device: str) -> str:
    """The source, indexed by a tensor of positions for each of its dimensions."""
    rank, given, places = len(node.shape), iter(values), []
    for position in node.at:
        terms = [str(position.start)] if position.start or not (position.steps or position.value) else []
        for dim, step in position.steps:
            moving = (
                f"torch.arange({node.shape[dim]}, device={device}).reshape({literal((-1,) + (1,) * (rank - dim - 1))})"
            )
            terms.append(f"{moving} * {step}" if step != 1 else moving)
        places.append(" + ".join([*terms, next(given)] if position.value else terms))
    return f"{arg}[{', '.join(places)}].expand({literal(node.shape)})"


# What a scan gives for nothing, as a torch function of a tensor's likeness.
_NOTHING = {
    "cumsum": "torch.zeros_like({})", "cumprod": "torch.ones_like({})",
    "logcumsumexp": "torch.full_like({}, -torch.inf)", "cummax": "torch.full_like({}, -torch.inf)",
    "cummin": "torch.full_like({}, torch.inf)", "recurrence": "torch.zeros_like({})",
}  # fmt: skip


def _scan(node: Node, given: Sequence[str]) -> str:
    (dim,), (*values, reverse, exclusive) = node.dims, node.args
    length = node.shape[dim]
    args = [f"{a}.expand({literal(node.shape)})" if isinstance(v, str) else a
            for a, v in zip(given, values, strict=False)]  # fmt: skip
    args = [f"{a}.flip({dim})" if reverse and isinstance(v, str) else a for a, v in zip(args, values, strict=True)]
    if node.op in ("cumsum", "cumprod"):
        made = f"torch.{node.op}({args[0]}, {dim}, dtype={TORCH_DTYPES[node.dtype]})"
    elif node.op in ("cummax", "cummin"):
        made = f"torch.{node.op}({args[0]}, {dim})[{node.item}]"
        made = f"{args[1]}.gather({dim}, {made})" if node.item else made
    elif node.op == "recurrence":
        pairs = ", ".join(f"{a}.unbind({dim})" if isinstance(v, str) else f"[{a}] * {length}"
                          for a, v in zip(args, values, strict=True))  # fmt: skip
        steps = "(_state := _b if _i == 0 else _a * _state + _b)"
        made = f"torch.stack([{steps} for _i, (_a, _b) in enumerate(zip({pairs}))], {dim})"
    else:
        made = f"torch.{node.op}({args[0]}, {dim})"
    if exclusive:
        first = _NOTHING[node.op].format(f"{args[-1 if node.op == 'recurrence' else 0]}.narrow({dim}, 0, 1)")
        made = f"torch.cat(({first}, {made}.narrow({dim}, 0, {length - 1})), {dim})"
    return f"{made}.flip({dim})" if reverse else made


def _reduction(node: Node, source: Node, arg: str) -> str:
    dims = literal(node.dims)
    count = math.prod(source.shape[d] for d in node.dims)
    if node.op == "moments":
        return f"{arg}.var({dims}, correction=0) * {count}" if node.item else f"{arg}.mean({dims})"
    if node.op == "softmax_stats":
        total = f"torch.exp({arg} - {arg}.amax({dims}, keepdim=True)).sum({dims})"
        return total if node.item else f"{arg}.amax({dims})"
    if node.op in ("max", "min"):
        return f"{arg}.a{node.op}({dims})"
    if node.op in RANKED:
        return f"{arg}.topk({node.args[1]}, {node.dims[0]}, {node.op == 'largest'})[{node.item}]"
    if node.op in ("sum", "any", "all"):
        return f"{arg}.{node.op}({dims})"
    if len(node.dims) == 1:
        return f"{arg}.{node.op}({node.dims[0]})"
    kept = [d for d in range(len(source.shape)) if d not in node.dims]
    rows = f"{arg}.permute({literal((*kept, *node.dims))}).reshape({literal((*node.shape, count))})"
    return f"{rows}.{node.op}(-1)"


def viewed(value: str, shape: tuple[int, ...], bind: Bind, into: tuple[int, ...]) -> str:
    """`value.reshape(split).permute(order).reshape(into)` without the steps that change nothing; of a part that one."""
    if bind.part is not None:
        return _part(value, bind, into)
    if bind.order == tuple(sorted(bind.order)):
        return value if shape == into else f"{value}.reshape({literal(into)})"
    split = value if shape == bind.split else f"{value}.reshape({literal(bind.split)})"
    turned = f"{split}.permute({literal(bind.order)})"
    return turned if tuple(bind.split[d] for d in bind.order) == into else f"{turned}.reshape({literal(into)})"


def _part(value: str, bind: Bind, into: tuple[int, ...]) -> str:
    """A half of the value, in as few views as can be: each costs the host as much as a launch."""
    dim, *rest = bind.order
    left = tuple(bind.split[d] for d in rest)
    order = tuple(d if d < dim else d - 1 for d in rest)
    if rest[-1] == dim + 1:  # halves in a row, not every other
        half = bind.split[dim + 1]
        made = f"{value}.narrow({dim}, {bind.part * half if bind.part else 0}, {half})"
    else:
        made = f"{value}.reshape({literal(bind.split)}).select({dim}, {bind.part})"
    made = made if order == tuple(sorted(order)) else f"{made}.permute({literal(order)})"
    return made if left == into else f"{made}.reshape({literal(into)})"
