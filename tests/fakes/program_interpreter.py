"""Runs Programs and Graphs with torch, one primitive at a time: the plainest reading of what they mean."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from tilewright.facts.pattern import Bind, Match, Pattern
from tilewright.ir.access import Access, Bounds, GroupIndex, Position, Quotient
from tilewright.ir.graph import Call, Code, Graph, Node, Ref, Struct
from tilewright.ir.program import (  # fmt: skip
    RANKED,
    SCANS,
    AttentionBackwardOp,
    AttentionOp,
    Contraction,
    Load,
    Program,
    Reduction,
    Scan,
)
from tilewright.ir.recurrence import RecurrenceOp

from .recurrent_layers import layers

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
          "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
          "bool": torch.bool, "float8_e4m3fn": torch.float8_e4m3fn}  # fmt: skip
_RENAMED = {"atan2": "arctan2", "maximum": "maximum", "minimum": "minimum"}


def dtype_of(name: str, *, exact: bool) -> torch.dtype:
    """The torch dtype; with `exact`, every floating one is float64."""
    dtype = DTYPES[name]
    return torch.float64 if exact and dtype.is_floating_point else dtype


def pointwise(op: str, args: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """One POINTWISE operation other than `index`."""
    if op == "to":
        return torch.as_tensor(args[0]).to(dtype)
    if op == "where":
        return torch.where(args[0], *(torch.as_tensor(a, dtype=dtype) for a in args[1:]))
    sample = next((a.dtype for a in args if isinstance(a, torch.Tensor)), dtype)
    result = getattr(torch, _RENAMED.get(op, op))(*(torch.as_tensor(a, dtype=sample) for a in args))
    return result.to(dtype)


def reduction(
    op: str, x: torch.Tensor, dims: Sequence[int], dtype: torch.dtype, count: int = 0
) -> tuple[torch.Tensor, ...]:
    """One REDUCTION over `dims`, which stay with size 1."""
    over = tuple(dims)
    if op == "moments":
        mean = x.mean(over, keepdim=True)
        return mean, (x - mean).square().sum(over, keepdim=True)
    if op == "softmax_stats":
        top = x.amax(over, keepdim=True)
        return top, (x - top).exp().sum(over, keepdim=True)
    if op in ("max", "min"):
        return (getattr(torch, f"a{op}")(x, over, keepdim=True),)
    if op in ("sum", "any", "all"):
        return (getattr(torch, op)(x, over, keepdim=True).to(dtype),)
    if op in RANKED:
        return tuple(x.topk(count, over[0], op == "largest"))
    kept = [d for d in range(x.dim()) if d not in over]
    rows = x.permute(*kept, *over).reshape(*(x.shape[d] for d in kept), -1)
    shape = [1 if d in over else s for d, s in enumerate(x.shape)]
    return (getattr(torch, op)(rows, -1).reshape(shape).to(dtype),)


def _step(op: str, state: list[torch.Tensor], given: list[torch.Tensor]) -> list[torch.Tensor]:
    """The state of a scan after one more element."""
    if op == "recurrence":
        return [given[0] * state[0] + given[1]]
    if op in ("cummax", "cummin"):
        (best, number), (value, at) = state, given
        reached = value >= best if op == "cummax" else value <= best
        takes = value.isnan() | (reached & ~best.isnan()) if value.is_floating_point() else reached
        return [torch.where(takes, value, best), torch.where(takes, at, number)]
    join = {"cumsum": torch.add, "cumprod": torch.mul, "logcumsumexp": torch.logaddexp}[op]
    return [join(state[0], given[0])]


def least_of(op: str, dtype: torch.dtype) -> float:
    """What a scan starts from."""
    if op in ("cumsum", "cumprod", "recurrence"):
        return op == "cumprod"
    if dtype.is_floating_point:
        return math.inf if op == "cummin" else -math.inf
    if dtype == torch.bool:
        return op == "cummin"
    return torch.iinfo(dtype).max if op == "cummin" else torch.iinfo(dtype).min


def scan(op: str, args: Sequence[torch.Tensor], dim: int, *, reverse: bool, exclusive: bool) -> list[torch.Tensor]:
    """The results of one SCAN of values of one shape, element by element."""
    length = args[0].shape[dim]
    state = [torch.full_like(args[0].select(dim, 0), least_of(op, args[0].dtype))]
    state += [torch.full_like(a.select(dim, 0), -1) for a in args[1:] if op != "recurrence"]
    results = [torch.empty_like(part).unsqueeze(dim).repeat_interleave(length, dim) for part in state]
    for i in reversed(range(length)) if reverse else range(length):
        before, state = state, _step(op, state, [a.select(dim, i) for a in args])
        for result, value in zip(results, before if exclusive else state, strict=True):
            result.select(dim, i).copy_(value)
    return results


def scanned(
    op: str, args: Sequence[torch.Tensor | float], dtype: torch.dtype, shape: Sequence[int]
) -> list[torch.Tensor]:
    """A scan's arguments, all of one shape; those of whole numbers that go with others as they are."""
    device = next(a.device for a in args if isinstance(a, torch.Tensor))
    wide = [a if isinstance(a, torch.Tensor) else torch.tensor(a, device=device, dtype=dtype) for a in args]
    tensors = [a.expand(tuple(shape)) for a in wide]
    return [tensors[0].to(dtype), *(t if op in ("cummax", "cummin") else t.to(dtype) for t in tensors[1:])]


def positions(
    at: Sequence[Position], sizes: Sequence[int], shape: Sequence[int], values: Mapping[str, torch.Tensor]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Where each dimension is read, clamped into it, and whether all of them lay inside; over `shape`."""
    device = next((v.device for v in values.values()), torch.device("cpu"))
    clamped, inside = [], torch.ones(tuple(shape), dtype=torch.bool, device=device)
    for position, size in zip(at, sizes, strict=True):
        place = torch.full(tuple(shape), position.start, device=device)
        for d, step in position.steps:
            count = torch.arange(shape[d], device=device)
            place = place + count.reshape([-1 if i == d else 1 for i in range(len(shape))]) * step
        if position.value:
            place = place + values[position.value].long()
        inside &= (place >= 0) & (place < size)
        clamped.append(place.clamp(0, size - 1))
    return clamped, inside


def load(source: torch.Tensor, where: list[torch.Tensor], inside: torch.Tensor, fill: Any) -> torch.Tensor:
    """One Load; raises IndexError where it may not lie outside."""
    if fill is None and not bool(inside.all()):
        raise IndexError("a position lies outside")
    read = source[tuple(where)]
    return read if fill is None else torch.where(inside, read, torch.tensor(fill, dtype=source.dtype))


def in_parts(value: torch.Tensor, program: Program, parts: int) -> torch.Tensor:
    """The sums of an element-level value over the rows, in so many parts of them."""
    kept = [d for d in range(len(program.domain)) if d not in program.reduced]
    rows = value.permute(*kept, *program.reduced).reshape(program.rows, -1)
    shares = [rows[program.rows * i // parts : program.rows * (i + 1) // parts] for i in range(parts)]
    return torch.stack([share.sum(0) for share in shares]).reshape(program.shape_in_parts(parts))


def _along(index: torch.Tensor, d: int, rank: int) -> torch.Tensor:
    return index.reshape([-1 if i == d else 1 for i in range(rank)])


def _placed(
    position: Position, ranges: Sequence[torch.Tensor], values: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Where a position is over these indices of each dimension, and whether anything is read there."""
    rank = len(ranges)
    place = torch.full((1,) * rank, position.start, device=ranges[0].device)
    for d, step in position.steps:
        place = place + _along(ranges[d], d, rank) * step
    read = torch.ones_like(place, dtype=torch.bool)
    if isinstance(position, Quotient):
        read = place % position.each == 0 if position.exact else read
        place = place.div(position.each, rounding_mode="floor")
        place = place % position.wrap if position.wrap else place
    if isinstance(position, GroupIndex):
        place = torch.searchsorted(values[position.offsets].long(), place, right=True)
    return place, read


def accessed(
    access: Access, ranges: Sequence[torch.Tensor], values: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:  # fmt: skip
    """What an Access reads over these indices, of size 1 along the dimensions that do not move it."""
    source = values[access.operand].to(dtype)
    where, inside = [], torch.ones((1,) * len(ranges), dtype=torch.bool, device=source.device)
    for position, size in zip(access.at, source.shape, strict=True):
        place, read = _placed(position, ranges, values)
        inside = inside & read & (place >= 0) & (place < size)
        where.append(place.clamp(0, size - 1))
    if not (access.padded or bool(inside.all())):
        raise IndexError("a position lies outside")
    for band in access.within:
        inside = inside & held(band, ranges)
    return source[tuple(where)].where(inside, source.new_zeros(()))


def held(band: Bounds, ranges: Sequence[torch.Tensor]) -> torch.Tensor:
    """Where a band holds."""
    place, _ = _placed(band.at, ranges, {})
    low, high = (-math.inf if band.first is None else band.first), (math.inf if band.last is None else band.last)
    return (place >= low) & (place <= high)


def contracted(
    item: Contraction, domain: Sequence[int], values: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:  # fmt: skip
    """The contraction over the domain. Of segments one after the other: their matrices are not laid side by side."""
    device = values[item.left.operand].device
    ranges = [torch.arange(size, device=device) for size in (*domain, *item.over)]
    cuts = [p for p in item.right.at if isinstance(p, GroupIndex)]
    if not cuts:
        return _multiplied(item, len(domain), ranges, values, dtype)
    ((d, _),) = cuts[0].steps
    places = [0, *values[cuts[0].offsets].tolist(), domain[d]]
    parts = []
    for low, high in itertools.pairwise(places):
        ranges[d] = torch.arange(low, high, device=device)
        if high > low:
            parts.append(_multiplied(item, len(domain), ranges, values, dtype, each=d))
    return torch.cat(parts, d)


def _multiplied(
    item: Contraction, rank: int, ranges: list[torch.Tensor], values: Mapping[str, torch.Tensor], dtype: torch.dtype,
    *, each: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """`each`: the dimension along which the right factor is the same throughout."""
    right_ranges = [r[:1] if d == each else r for d, r in enumerate(ranges)]
    left, right = accessed(item.left, ranges, values, dtype), accessed(item.right, right_ranges, values, dtype)
    letters = "abcdefghijklmnop"[: len(ranges)]
    moved = {name: {d for p in access.at for d, _ in p.steps if d != each or access is item.left}
             | {d for band in access.within for d, _ in band.at.steps}
             for name, access in (("left", item.left), ("right", item.right))}  # fmt: skip
    words = {name: "".join(c for d, c in enumerate(letters) if d in moved[name]) for name in moved}
    thin = [x.reshape([size for d, size in enumerate(x.shape) if d in moved[name]])
            for name, x in (("left", left), ("right", right))]  # fmt: skip
    kept = "".join(c for c in letters[:rank] if c in words["left"] + words["right"])
    product = torch.einsum(f"{words['left']},{words['right']}->{kept}", *thin)
    shape = [len(ranges[d]) if letters[d] in kept else 1 for d in range(rank)]
    return product.reshape(shape).expand([len(r) for r in ranges[:rank]])


def attended(
    item: AttentionOp, domain: Sequence[int], values: Mapping[str, torch.Tensor], *, exact: bool
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The attention over the domain, with all of its scores in memory, and the logarithm of the sums."""
    dtype, device = dtype_of(item.dtype, exact=exact), values[item.query.operand].device
    ranges = [torch.arange(size, device=device) for size in (*domain, item.keys, item.depth)]
    query, key, value = (accessed(a, ranges, values, dtype) for a in (item.query, item.key, item.value))
    scores = (query * key).sum(-1).squeeze(len(domain) - 1)
    scores = scores.expand(item.scores.domain).to(dtype_of(item.scores.operands[0].dtype, exact=exact))
    (weights,) = run_program(item.scores, [scores, *(values[n] for n in item.operands)], exact=exact)
    logsum = weights.to(dtype_of("f32", exact=exact)).logsumexp(-1, keepdim=True)
    if item.softmax:
        sinks = [values[item.sink].to(weights.dtype).expand(*weights.shape[:-1], 1)] if item.sink else []
        weights = torch.cat([weights, *sinks], -1).softmax(-1)[..., : item.keys]
        weights = weights.nan_to_num(0.0) if item.empty_is_zero else weights
    product = weights.to(dtype).unsqueeze(len(domain) - 1) * value.squeeze(-1)
    return product.sum(-1).to(dtype), logsum


def attention_gradients(
    item: AttentionBackwardOp, program: Program, values: Mapping[str, torch.Tensor], *, exact: bool
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The results, with all of the scores in memory."""
    domain, dtype = program.domain, dtype_of(item.dtype, exact=exact)
    ranges = [torch.arange(size) for size in (*domain, item.keys, item.depth)]
    query, key, value, upstream = (  # (batch .., rows, columns, keys, depth), of size 1 where they don't move
        accessed(a, ranges, values, dtype) for a in (item.query, item.key, item.value, item.upstream)
    )
    column, keys, depth = range(len(domain) - 1, len(domain) + 2)
    score = (query * key).sum(depth).squeeze(column)
    gradient = (upstream * value).sum(column).squeeze(-1)
    given = [
        x.expand(item.map.domain).to(dtype_of(o.dtype, exact=exact))
        for x, o in zip((score, gradient), item.map.operands, strict=False)
    ]
    weights, scored, *more = run_program(item.map, [*given, *(values[n] for n in item.operands)], exact=exact)
    weights, scored = (x.to(dtype)[..., None, :, None] for x in (weights, scored))
    rows = column - 1
    made = (
        (scored * key).sum(keys).squeeze(column), (scored * query).sum(rows).squeeze(column - 1),
        (weights * upstream).sum(rows).squeeze(-1).movedim(-1, -2), *more,
    )  # fmt: skip
    found = []
    for output, x in zip(program.outputs, made, strict=True):
        over = [d for d, (n, m) in enumerate(zip(output.shape, x.shape, strict=True)) if n < m]
        found.append(x.sum(over, keepdim=True) if over else x)
    return tuple(found)


def run_program(program: Program, operands: Sequence[torch.Tensor], *, exact: bool = False) -> tuple[torch.Tensor, ...]:
    """The outputs of a Program on aligned operands; with `exact`, in float64 throughout."""
    values: dict[str, Any] = {}
    device = operands[0].device if operands else torch.device("cpu")
    masks: dict[Any, torch.Tensor] = {}  # of the loads: what lay inside
    for spec, tensor in zip(program.operands, operands, strict=True):
        assert tuple(tensor.shape) == spec.shape, (spec, tensor.shape)
        assert tensor.dtype == dtype_of(spec.dtype, exact=exact), (spec, tensor.dtype)
        values[spec.name] = tensor
        if spec.at:
            ranges = [torch.arange(size, device=device) for size in program.domain]
            values[spec.name] = accessed(Access(operand=spec.name, at=spec.at), ranges, values, tensor.dtype)
    for item in program.body:
        dtype = dtype_of(item.dtype, exact=exact)
        if isinstance(item, Load):
            domain = program.aligned(item.result)
            where, masks[item.result] = positions(item.at, values[item.source].shape, domain, values)
            values[item.result] = load(values[item.source], where, masks[item.result], item.fill)
        elif isinstance(item, Reduction):
            whole = values[item.arg].expand(program.domain)
            made = reduction(item.op, whole, program.reduced, dtype, item.count)
            values.update(zip(item.results, made, strict=True))
        elif isinstance(item, Scan):
            given = [values[a] if isinstance(a, str) else a for a in item.args]
            made = scan(item.op, scanned(item.op, given, dtype, program.domain), item.dim, reverse=item.reverse,
                        exclusive=item.exclusive)  # fmt: skip
            values.update(zip(item.results, made, strict=True))
        elif isinstance(item, AttentionOp):
            values[item.result], logsum = attended(item, program.domain, values, exact=exact)
            values |= {item.logsum: logsum} if item.logsum else {}
        elif isinstance(item, RecurrenceOp):
            values.update(layers(item, values))
        elif isinstance(item, AttentionBackwardOp):
            made = attention_gradients(item, program, values, exact=exact)
            values.update(zip(item.results, made, strict=True))
        elif isinstance(item, Contraction):
            for prologue in item.prologues:
                given = [values[name] for name in prologue.operands]
                (made,) = run_program(prologue.by_itself, given, exact=exact)
                values[prologue.factor] = made.reshape(prologue.made.shape)
            product = contracted(item, program.domain, values, dtype)
            ranges = [torch.arange(size, device=device) for size in program.domain]
            for band in item.within:  # what nobody reads may be anything
                product = product.where(held(band, ranges), 1e9)
            values[item.result] = product
        elif item.op == "inside":
            values[item.result] = masks[item.args[0]]
        elif item.op == "index":
            dim = int(item.args[0])
            shape = [size if d == dim else 1 for d, size in enumerate(program.domain)]
            values[item.result] = torch.arange(program.domain[dim], device=device).reshape(shape)
        else:
            args = [values[a] if isinstance(a, str) else a for a in item.args]
            values[item.result] = pointwise(item.op, args, dtype)
    for output in program.sums:
        values[output.name] = in_parts(values[output.name], program, output.parts)
    for output in program.outputs:
        assert tuple(values[output.name].shape) == output.shape, (output, values[output.name].shape)
    return tuple(values[o.name].to(dtype_of(o.dtype, exact=exact)).contiguous() for o in program.outputs)


class GraphRun:
    """Evaluates a Graph node by node; the nodes of `patterns` come from their Programs, which `execute` runs."""

    def __init__(
        self, graph: Graph, module: torch.nn.Module, *, patterns: Iterable[Pattern] = (), exact: bool = True,
        execute: Callable[..., Sequence[torch.Tensor]] | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.module, self.exact = graph, module, exact
        self.execute = execute or functools.partial(run_program, exact=exact)
        self.nodes = {n.name: n for n in graph.nodes}
        self.calls = {c.name: c for c in graph.calls}
        self.matches = {b.node: (p, s) for p in patterns for s in p.matches for b in s.outputs}
        self.values: dict[str, torch.Tensor] = {}
        self.fused: set[str] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for template, value in zip(self.graph.arguments, args, strict=True):
            self._bind(template, value)
        for name, template in self.graph.keywords:
            self._bind(template, kwargs[name])
        return self._fill(self.graph.result)

    def updates(self) -> dict[str, torch.Tensor]:
        return {self.nodes[u.target].path: self.value(u.value) for u in self.graph.updates}

    def _bind(self, template: Any, value: Any) -> None:
        if isinstance(template, Ref):
            self.values[template.name] = value
        elif isinstance(template, Struct):
            for key, item in zip(template.keys or range(len(template.items)), template.items, strict=True):
                self._bind(item, value[key])

    def _fill(self, template: Any) -> Any:
        if isinstance(template, Ref):
            return self.value(template.name)
        if isinstance(template, Code):
            return eval(template.text, {"torch": torch})
        if isinstance(template, Struct):
            items = [self._fill(i) for i in template.items]
            return dict(zip(template.keys, items, strict=True)) if template.kind == "dict" else (
                tuple(items) if template.kind == "tuple" else items)  # fmt: skip
        return template

    def value(self, name: str) -> torch.Tensor:
        if name not in self.values:
            if name in self.matches:
                self._run_site(*self.matches[name])
            else:
                self._run_node(self.nodes[name])
        return self.values[name]

    def _run_site(self, pattern: Pattern, site: Match) -> None:
        operands = [view(self.value(b.node), b, spec.shape)
                    for b, spec in zip(site.operands, pattern.program.operands, strict=True)]  # fmt: skip
        for bind, result in zip(site.outputs, self.execute(pattern.program, operands), strict=True):
            self.values[bind.node] = view(result, bind, self.nodes[bind.node].shape)
        self.fused.update(site.nodes)

    def _run_node(self, node: Node) -> None:
        dtype = DTYPES.get(node.dtype) and dtype_of(node.dtype, exact=self.exact)
        if node.op == "call":
            return self._run_call(self.calls[node.origin])
        if node.op == "state":
            value: Any = self.module
            for part in node.path.split("."):
                value = getattr(value, part)
        elif node.op == "constant":
            value = torch.tensor(json.loads(node.path)[1], dtype=dtype).reshape(node.shape)
        elif node.op == "index":
            value = torch.arange(node.shape[0])
        else:
            args = [self.value(a) if isinstance(a, str) else a for a in node.args]
            given = {p.value: self.value(p.value) for p in node.at if p.value}
            value = _read(node, args, given) if node.at else _apply(node, args, dtype)
        assert tuple(value.shape) == node.shape, (node, value.shape)
        self.values[node.name] = value

    def _run_call(self, call: Call) -> None:
        operator: Any = torch.ops
        for part in call.target.split("."):
            operator = getattr(operator, part)
        args = [self._fill(a) for a in call.args]
        kwargs = {k: self._fill(v) for k, v in call.kwargs}
        if self.exact and kwargs.get("dtype") in (torch.float32, torch.float16, torch.bfloat16):
            kwargs["dtype"] = torch.float64
        results = operator(*args, **kwargs)
        for name, result in zip(call.results, (results,) if call.single else results, strict=True):
            if name:
                wide = self.exact and result.dtype.is_floating_point
                self.values[name] = result.double() if wide else result


def _read(node: Node, args: list[Any], given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    sizes = node.dims if node.op == "inside" else args[0].shape
    where, inside = positions(node.at, sizes, node.shape, given)
    return inside if node.op == "inside" else load(args[0], where, inside, node.fill)


def _apply(node: Node, args: list[Any], dtype: torch.dtype | None) -> torch.Tensor:
    if node.op in ("reshape", "expand"):
        return getattr(args[0], node.op)(node.shape)  # type: ignore[no-any-return]
    if node.op == "permute":
        return args[0].permute(node.dims)  # type: ignore[no-any-return]
    if node.op == "flip":
        return args[0].flip(node.dims)  # type: ignore[no-any-return]
    if node.op in SCANS:
        *given, reverse, exclusive = args
        kind = given[0].dtype if node.op in ("cummax", "cummin") else dtype
        whole = scanned(node.op, given, kind, node.shape)
        return scan(node.op, whole, node.dims[0], reverse=bool(reverse), exclusive=bool(exclusive))[node.item]
    if node.op == "slice":
        return args[0].narrow(*node.dims)  # type: ignore[no-any-return]
    assert dtype is not None
    if node.op in RANKED:
        return reduction(node.op, args[0], node.dims, dtype, args[1])[node.item]
    if node.op in ("sum", "prod", "max", "min", "argmax", "argmin", "any", "all", "moments", "softmax_stats"):
        return reduction(node.op, args[0], node.dims, dtype)[node.item].reshape(node.shape)
    return pointwise(node.op, args, dtype)


def view(value: torch.Tensor, bind: Bind, shape: Sequence[int]) -> torch.Tensor:
    value = value.reshape(bind.split).permute(bind.order)
    return (value if bind.part is None else value[bind.part]).reshape(tuple(shape))


def widened(tree: Mapping[str, Any] | Any) -> Any:
    """Every floating tensor in float64."""
    from torch.utils._pytree import tree_map

    return tree_map(lambda v: v.double() if isinstance(v, torch.Tensor) and v.dtype.is_floating_point else v, tree)
