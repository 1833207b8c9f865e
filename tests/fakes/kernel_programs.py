"""Programs that the kernel tests share, a builder for them, and what they mean in torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from fakes.program_interpreter import least_of, load, positions, scanned
from tilewright.ir.access import Position
from tilewright.ir.matrices import product_of
from tilewright.ir.program import RANKED, SCANS, Load, Operand, Output, Program, Reduction, Scan, Statement
from tilewright.ir.validation import validate

TORCH = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
    "float8_e4m3fn": torch.float8_e4m3fn,
}  # fmt: skip
_BOOLEAN = {
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "isinf",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "inside",
}


class Builder:
    """Writes a Program line by line: `b.read`, `b.op`, `b.reduce`, `b.write`, then `b.done()`."""

    def __init__(self, domain: Sequence[int], reduced: Sequence[int] = ()) -> None:
        self.domain = tuple(domain)
        self.reduced = tuple(reduced)
        self.operands: list[Operand] = []
        self.body: list[Statement | Load | Reduction | Scan] = []
        self.outputs: list[Output] = []
        self.dtypes: dict[str, str] = {}

    def _name(self) -> str:
        return f"v{len(self.body)}"

    def read(self, name: str, shape: Sequence[int] | None = None, dtype: str = "f32", order: Sequence[int] = ()) -> str:
        operand = Operand(name=name, dtype=dtype, shape=tuple(shape or self.domain), order=tuple(order))
        self.operands.append(operand)
        self.dtypes[name] = dtype
        return name

    def source(self, name: str, shape: Sequence[int], dtype: str = "f32") -> str:
        """An indexed operand."""
        self.operands.append(Operand(name=name, dtype=dtype, shape=tuple(shape), indexed=True))
        self.dtypes[name] = dtype
        return name

    def load(self, source: str, at: Sequence[Position], fill: float | None = None) -> str:
        name = self._name()
        self.body.append(Load(result=name, source=source, at=tuple(at), dtype=self.dtypes[source], fill=fill))
        self.dtypes[name] = self.dtypes[source]
        return name

    def op(self, op: str, *args: str | float | int | bool, dtype: str | None = None) -> str:
        name = self._name()
        if dtype is None:
            known = [self.dtypes[a] for a in args if isinstance(a, str)]
            dtype = "bool" if op in _BOOLEAN else "i64" if op == "index" else known[-1] if known else "f32"
        self.body.append(Statement(result=name, op=op, args=args, dtype=dtype))
        self.dtypes[name] = dtype
        return name

    def rank(self, op: str, arg: str, count: int) -> tuple[str, ...]:
        """The first `count` of each row in order, and where they are; both are written."""
        names = (f"r{len(self.body)}_0", f"r{len(self.body)}_1")
        made = Reduction(results=names, op=op, arg=arg, dtype=self.dtypes[arg], count=count)
        self.body.append(made)
        self.dtypes.update(zip(names, made.dtypes, strict=True))
        for name in names:
            self.write(name, tuple(count if d in self.reduced else s for d, s in enumerate(self.domain)))
        return names

    def reduce(self, op: str, arg: str, dtype: str | None = None) -> tuple[str, ...]:
        count = 2 if op in ("moments", "softmax_stats") else 1
        names = tuple(f"r{len(self.body)}_{i}" for i in range(count))
        dtype = dtype or {"argmax": "i64", "argmin": "i64", "any": "bool", "all": "bool"}.get(op, self.dtypes[arg])
        self.body.append(Reduction(results=names, op=op, arg=arg, dtype=dtype))
        self.dtypes.update(dict.fromkeys(names, dtype))
        return names

    def scans(
        self, op: str, *args: str | float, dtype: str | None = None, reverse: bool = False, exclusive: bool = False
    ) -> tuple[str, ...]:
        """All results of a scan."""
        dtype = dtype or next(self.dtypes[a] for a in args if isinstance(a, str))
        names = tuple(f"c{len(self.body)}_{i}" for i in range(SCANS[op][1]))
        (dim,) = self.reduced
        made = Scan(results=names, op=op, args=args, dim=dim, dtype=dtype, reverse=reverse, exclusive=exclusive)
        self.body.append(made)
        self.dtypes.update(zip(names, made.dtypes, strict=True))
        return names

    def scan(self, op: str, *args: str | float, dtype: str | None = None, **flags: bool) -> str:
        """The first result of a scan; positions are given to what wants them."""
        if op in ("cummax", "cummin"):
            args = (*args, self.op("index", *self.reduced))
        return self.scans(op, *args, dtype=dtype, **flags)[0]

    def write(self, name: str, shape: Sequence[int] | None = None) -> None:
        self.outputs.append(Output(name=name, dtype=self.dtypes[name], shape=tuple(shape or self.domain)))

    def write_row(self, name: str) -> None:
        self.write(name, tuple(1 if d in self.reduced else s for d, s in enumerate(self.domain)))

    def write_sum(self, name: str, dtype: str | None = None) -> None:
        """Its sum over the rows; after all other outputs."""
        own = self.op("to", name, dtype="f32")
        shape = tuple(s if d in self.reduced else 1 for d, s in enumerate(self.domain))
        self.outputs.append(Output(name=own, dtype=dtype or self.dtypes[name], shape=shape, parts=1))

    def done(self) -> Program:
        program = Program(
            domain=self.domain, reduced=self.reduced, operands=tuple(self.operands), body=tuple(self.body),
            outputs=tuple(self.outputs),
        )  # fmt: skip
        validate(program)
        return program


# ---- programs ------------------------------------------------------------------------------------------------------


def softmax(shape: Sequence[int], dim: int = -1, *, dtype: str = "f32", log: bool = False) -> Program:
    b = Builder(shape, (dim % len(shape),))
    x = b.read("x", dtype=dtype)
    top, total = b.reduce("softmax_stats", x, "f32")
    shifted = b.op("sub", x, top, dtype="f32")
    y = b.op("sub", shifted, b.op("log", total)) if log else b.op("div", b.op("exp", shifted), total)
    b.write(b.op("to", y, dtype=dtype))
    return b.done()


def norm(
    shape: Sequence[int], dims: Sequence[int], *, affine: Sequence[int] | None = None, residual: bool = False,
    dtype: str = "f32",
) -> Program:  # fmt: skip
    """Layer, group, instance or batch norm: moments over `dims`; weight and bias of aligned shape `affine`."""
    b = Builder(shape, dims)
    x = b.read("x", dtype=dtype)
    if residual:
        x = b.op("add", x, b.read("r", dtype=dtype), dtype="f32")
    mean, deviations = b.reduce("moments", x, "f32")
    count = prod(shape[d] for d in dims)
    scale = b.op("rsqrt", b.op("add", b.op("div", deviations, float(count)), 1e-5))
    y = b.op("mul", b.op("sub", x, mean, dtype="f32"), scale)
    if affine is not None:
        weight, bias = b.read("w", affine, dtype), b.read("b", affine, dtype)
        y = b.op("add", b.op("mul", y, weight, dtype="f32"), bias, dtype="f32")
    b.write(b.op("to", y, dtype=dtype))
    return b.done()


def norm_backward(shape: Sequence[int], dim: int = -1, *, dtype: str = "f32", rms: bool = False) -> Program:
    """The gradients of a layer or RMS norm, from its input, its statistics and the gradient of its result: of the
    input, and, summed over the rows, of weight and bias; and the sum of the first, as of a bias before the norm."""
    dim %= len(shape)
    b = Builder(shape, (dim,))
    line, rows = [[s if (d == dim) == along else 1 for d, s in enumerate(shape)] for along in (True, False)]
    x, gradient = b.read("x", dtype=dtype), b.read("g", dtype=dtype)
    scale = b.op("rsqrt", b.op("add", b.op("square", b.read("s", rows)), 0.5))
    centred = b.op("to", x, dtype="f32") if rms else b.op("sub", x, b.read("m", rows), dtype="f32")
    inner = b.op("mul", gradient, b.read("w", line, dtype), dtype="f32")
    hat = b.op("mul", centred, scale)
    (along,) = b.reduce("sum", b.op("mul", inner, hat))
    back = b.op("sub", inner, b.op("mul", hat, b.op("div", along, float(shape[dim]))))
    if not rms:
        (total,) = b.reduce("sum", inner)
        back = b.op("sub", back, b.op("div", total, float(shape[dim])))
    made = b.op("to", b.op("mul", back, scale), dtype=dtype)
    b.write(made)
    b.write_row(along)
    for summed in (b.op("mul", gradient, hat, dtype="f32"), gradient, made):
        b.write_sum(summed, dtype)
    return b.done()


def gelu_backward(shape: Sequence[int], *, inner: int = 1, dtype: str = "f32") -> Program:
    """The gradient before a GELU, from what entered it and the gradient of its result, and its sums over the rows, as a
    bias's; rows are the last `inner` dimensions."""
    rank = len(shape)
    b = Builder(shape, tuple(range(rank - inner, rank)))
    x, gradient = b.read("x", dtype=dtype), b.read("g", dtype=dtype)
    bell = b.op("mul", b.op("exp", b.op("mul", b.op("square", x, dtype="f32"), -0.5)), 0.3989422804014327)
    below = b.op("mul", b.op("add", b.op("erf", b.op("mul", x, 0.7071067811865476, dtype="f32")), 1.0), 0.5)
    slope = b.op("add", below, b.op("mul", x, bell, dtype="f32"))
    made = b.op("to", b.op("mul", gradient, slope, dtype="f32"), dtype=dtype)
    b.write(made)
    b.write_sum(made, dtype)
    return b.done()


def rms_norm(shape: Sequence[int], dim: int, *, dtype: str = "f32") -> Program:
    b = Builder(shape, (dim % len(shape),))
    x = b.read("x", dtype=dtype)
    (total,) = b.reduce("sum", b.op("square", x, dtype="f32"))
    scale = b.op("sqrt", b.op("add", b.op("div", total, float(shape[dim])), 1e-5))
    b.write(b.op("to", b.op("div", x, scale, dtype="f32"), dtype=dtype))
    return b.done()


def l1_norm(shape: Sequence[int], *, l2: bool = False) -> Program:
    b = Builder(shape, (len(shape) - 1,))
    x = b.read("x")
    (total,) = b.reduce("sum", b.op("square" if l2 else "abs", x))
    b.write(b.op("div", x, b.op("sqrt", total) if l2 else b.op("div", total, float(shape[-1]))))
    return b.done()


def reduction(op: str, shape: Sequence[int], dims: Sequence[int], *, dtype: str = "f32") -> Program:
    b = Builder(shape, dims)
    x = b.read("x", dtype=dtype)
    result = "i64" if op == "sum" and dtype not in ("f32", "f16", "bf16") else None
    for name in b.reduce(op, x, result):
        b.write_row(name)
    return b.done()


def mse(shape: Sequence[int]) -> Program:
    b = Builder(shape, tuple(range(len(shape))))
    d = b.op("sub", b.read("x"), b.read("t"))
    (total,) = b.reduce("sum", b.op("mul", d, d))
    b.write_row(b.op("div", total, float(prod(shape))))
    return b.done()


def cross_entropy_rows(rows: int, classes: int) -> Program:
    b = Builder((rows, classes), (1,))
    x, t = b.read("x"), b.read("t", (rows, 1), "i64")
    top, total = b.reduce("softmax_stats", x)
    (picked,) = b.reduce("sum", b.op("where", b.op("eq", t, b.op("index", 1)), x, 0.0, dtype="f32"))
    b.write_row(b.op("sub", b.op("add", b.op("log", total), top), picked))
    return b.done()


def chain(shape: Sequence[int], *, dtype: str = "f32", bias: Sequence[int] | None = None) -> Program:
    """Four operations: gelu-like, with a bias where `bias` gives its aligned shape."""
    b = Builder(shape)
    x = b.read("x", dtype=dtype)
    y = (
        b.op("add", x, b.read("bias", bias, dtype), dtype="f32")
        if bias is not None
        else b.op("mul", x, 1.5, dtype="f32")
    )
    y = b.op("mul", b.op("mul", b.op("add", b.op("erf", b.op("mul", y, 0.7071067811865476)), 1.0), y), 0.5)
    b.write(b.op("to", y, dtype=dtype))
    return b.done()


def swiglu_two_outputs(shape: Sequence[int]) -> Program:
    b = Builder(shape)
    gate, up = b.read("gate", dtype="bf16"), b.read("up", dtype="f16")
    s = b.op("sigmoid", gate, dtype="f32")
    y = b.op("mul", b.op("mul", gate, s, dtype="f32"), up, dtype="f32")
    b.write(y)
    b.write(b.op("gt", y, 0.25))
    return b.done()


def laid_out(shape: Sequence[int], order: Sequence[int], *, dtype: str = "f32") -> Program:
    """A copy, row-major, of what lies in this order."""
    b = Builder(shape)
    b.write(b.op("to", b.read("x", dtype=dtype, order=order), dtype=dtype))
    return b.done()


def turned_sum(shape: Sequence[int], order: Sequence[int], *, dtype: str = "f32") -> Program:
    """relu(x + y + bias), where x lies in this order and the rest row-major."""
    b = Builder(shape)
    x, y = b.read("x", dtype=dtype, order=order), b.read("y", dtype=dtype)
    row = b.read("bias", (*(1,) * (len(shape) - 1), shape[-1]), dtype=dtype)
    y = b.op("add", b.op("add", x, y, dtype="f32"), row, dtype="f32")
    b.write(b.op("to", b.op("maximum", y, 0.0), dtype=dtype))
    return b.done()


def masked_temperature_softmax(rows: int, width: int) -> Program:
    b = Builder((rows, width), (1,))
    x, mask, t = b.read("x"), b.read("mask", (1, width), "bool"), b.read("t", (rows, 1))
    z = b.op("where", mask, b.op("div", x, t), float("-inf"), dtype="f32")
    top, total = b.reduce("softmax_stats", z)
    b.write(b.op("div", b.op("exp", b.op("sub", z, top)), total))
    b.write_row(total)
    return b.done()


def cosine_rows(rows: int, width: int) -> Program:
    """Three reductions in one sweep."""
    b = Builder((rows, width), (1,))
    x, y = b.read("x"), b.read("y")
    (dot,) = b.reduce("sum", b.op("mul", x, y))
    (xx,) = b.reduce("sum", b.op("square", x))
    (yy,) = b.reduce("sum", b.op("square", y))
    b.write_row(b.op("div", dot, b.op("maximum", b.op("sqrt", b.op("mul", xx, yy)), 1e-8)))
    return b.done()


def integer_mix(shape: Sequence[int]) -> Program:
    b = Builder(shape)
    i, j, u = b.read("i", dtype="i64"), b.read("j", dtype="i32"), b.read("u", dtype="u8")
    k = b.op("add", b.op("to", j, dtype="i64"), i)
    b.write(b.op("remainder", k, 7))
    b.write(b.op("floor_divide", k, -3))
    b.write(b.op("fmod", k, 5))
    b.write(b.op("bitwise_xor", u, b.op("bitwise_not", b.op("mul", u, 3))))
    b.write(b.op("to", b.op("div", i, 4, dtype="f32"), dtype="i16"))
    b.write(b.op("maximum", i, b.op("index", len(shape) - 1)))
    return b.done()


def unary(op: str, shape: Sequence[int], dtype: str = "f32") -> Program:
    b = Builder(shape)
    b.write(b.op(op, b.read("x", dtype=dtype)))
    return b.done()


def binary(op: str, shape: Sequence[int], dtype: str = "f32") -> Program:
    b = Builder(shape)
    b.write(b.op(op, b.read("x", dtype=dtype), b.read("y", dtype=dtype)))
    return b.done()


def cumulative(
    op: str, shape: Sequence[int], dim: int = -1, *, dtype: str = "f32", reverse: bool = False, exclusive: bool = False
) -> Program:
    b = Builder(shape, (dim % len(shape),))
    wide = "f32" if dtype in ("f16", "bf16") else dtype
    y = b.scan(op, b.read("x", dtype=dtype), dtype=wide, reverse=reverse, exclusive=exclusive)
    b.write(y if wide == dtype else b.op("to", y, dtype=dtype))
    return b.done()


def extrema(
    op: str, shape: Sequence[int], dim: int = -1, *, dtype: str = "f32", reverse: bool = False, fused: bool = False
) -> Program:
    """cummax or cummin with positions; `fused`: of whole numbers, so that there are ties, and written scaled."""
    b = Builder(shape, (dim % len(shape),))
    x = b.read("x", dtype=dtype)
    if fused:
        x = b.op("round", b.op("mul", x, 2.0))
    best, at = b.scans(op, x, b.op("index", *b.reduced), reverse=reverse)
    b.write(b.op("mul", best, 0.5) if fused else best)
    b.write(b.op("add", at, 1) if fused else at)
    return b.done()


def recurrence(
    shape: Sequence[int], dim: int = -1, *, dtype: str = "f32", decay: Sequence[int] | None = None,
    reverse: bool = False, exclusive: bool = False,
) -> Program:  # fmt: skip
    """h = a * h + (1 - a) * x with gates a = sigmoid(g), or with `decay`, an aligned shape, for g's; then h * x."""
    b = Builder(shape, (dim % len(shape),))
    x, g = b.read("x", dtype=dtype), b.read("g", decay, dtype)
    a = b.op("sigmoid", g, dtype="f32")
    rest = b.op("mul", b.op("sub", 1.0, a, dtype="f32"), x, dtype="f32")
    h = b.scan("recurrence", a, rest, dtype="f32", reverse=reverse, exclusive=exclusive)
    b.write(b.op("to", h, dtype=dtype))
    b.write(b.op("to", b.op("mul", h, x, dtype="f32"), dtype=dtype))
    return b.done()


def ranked(
    shape: Sequence[int], count: int, dim: int = -1, *, op: str = "largest", dtype: str = "f32", fused: bool = False
) -> Program:
    """The `count` largest or smallest along a dimension; `fused`: of the probabilities that a softmax makes."""
    b = Builder(shape, (dim % len(shape),))
    x = b.read("x", dtype=dtype)
    if fused:
        top, total = b.reduce("softmax_stats", x, "f32")
        x = b.op("div", b.op("exp", b.op("sub", x, top, dtype="f32")), total)
    b.rank(op, x, count)
    return b.done()


def masked_cumsum(shape: Sequence[int], dim: int = -1, *, reverse: bool = False) -> Program:
    b = Builder(shape, (dim % len(shape),))
    b.write(b.scan("cumsum", b.op("mul", b.read("x"), b.read("mask", dtype="bool"), dtype="f32"), reverse=reverse))
    return b.done()


def busy_cumsum(shape: Sequence[int], dim: int, *, reverse: bool = False) -> Program:
    """Scan with a producer that is written too, row operands, broadcasts, positions and a consumer that reads again."""
    dim %= len(shape)
    b = Builder(shape, (dim,))
    row = tuple(1 if d == dim else s for d, s in enumerate(shape))
    along = tuple(s if d == dim else 1 for d, s in enumerate(shape))
    x, scale, shift = b.read("x", dtype="bf16"), b.read("scale", row), b.read("shift", along)
    y = b.op("add", b.op("mul", x, b.op("tanh", scale), dtype="f32"), shift)
    total = b.scan("cumsum", y, reverse=reverse)
    count = b.op("add", b.op("to", b.op("index", dim), dtype="f32"), 1.0)
    b.write(b.op("sub", b.op("div", total, count), x, dtype="f32"))
    b.write(y)
    return b.done()


def along(*steps: tuple[int, int], start: int = 0) -> Position:
    return Position(start=start, steps=steps)


def pool(
    op: str, shape: Sequence[int], window: Sequence[int], *, stride: int = 1, padding: int = 0, dilation: int = 1,
    dtype: str = "f32", fused: bool = False,
) -> Program:  # fmt: skip
    """Windows over the last dimensions of `shape`, their dimensions ahead of the innermost that stays; `fused`: a
    sigmoid and a bias before, a product after."""
    rank, lead = len(window), len(shape) - len(window)
    span = [dilation * (k - 1) + 1 for k in window]
    outs = [(n + 2 * padding - s) // stride + 1 for n, s in zip(shape[lead:], span, strict=True)]
    b = Builder((*shape[:lead], *outs[:-1], *window, outs[-1]), tuple(range(lead + rank - 1, lead + 2 * rank - 1)))
    kept = [*range(lead + rank - 1), lead + 2 * rank - 1]
    at = [along((d, 1)) for d in range(lead)]
    at += [along((kept[lead + i], stride), (lead + rank - 1 + i, dilation), start=-padding) for i in range(rank)]
    neutral = float("-inf") if op == "max" else 0.0
    x = b.load(b.source("x", shape, dtype), at, 0.0 if fused else neutral)
    if fused:
        bias = b.read("bias", tuple(n if d == lead - 1 else 1 for d, n in enumerate(b.domain)))
        y = b.op("sigmoid", b.op("add", x, bias, dtype="f32"))
        x = b.op("where", b.op("inside", x), y, neutral, dtype="f32")
    (y,) = b.reduce(op, x, "f32")
    b.write_row(b.op("to", b.op("mul", y, 0.25), dtype=dtype))
    return b.done()


def rotary(batch: int, length: int, half: int, *, dtype: str = "f32", pairs: bool = False) -> Program:
    """Rotary embedding of two halves, or of neighbouring pairs, whose cosines and sines are given."""
    b = Builder((batch, length, half, 2) if pairs else (batch, length, 2, half))
    angles = (1, length, half, 1) if pairs else (1, length, 1, half)
    if pairs:
        x = b.source("x", (batch, length, 2 * half), dtype)
        left, right = (b.load(x, [along((0, 1)), along((1, 1)), along((2, 2), start=k)]) for k in range(2))
    else:
        left, right = (b.read(name, (batch, length, 1, half), dtype) for name in ("left", "right"))
    cos, sin = b.read("cos", angles), b.read("sin", angles)
    first = b.op("sub", b.op("mul", left, cos, dtype="f32"), b.op("mul", right, sin, dtype="f32"))
    second = b.op("add", b.op("mul", right, cos, dtype="f32"), b.op("mul", left, sin, dtype="f32"))
    here = b.op("eq", b.op("index", 3 if pairs else 2), 0)
    b.write(b.op("to", b.op("where", here, first, second, dtype="f32"), dtype=dtype))
    return b.done()


def joined(rows: int, left: int, right: int) -> Program:
    """exp(x) and y, one after the other along each row, scaled."""
    b = Builder((rows, left + right))
    x, y = b.source("x", (rows, left)), b.source("y", (rows, right))
    first = b.op("exp", b.load(x, [along((0, 1)), along((1, 1))], 0.0))
    second = b.load(y, [along((0, 1)), along((1, 1), start=-left)], 0.0)
    chosen = b.op("where", b.op("lt", b.op("index", 1), left), first, second, dtype="f32")
    b.write(b.op("mul", chosen, b.read("scale", (1, left + right))))
    return b.done()


def embedded(rows: int, width: int, *, dtype: str = "f32", dim: int = 0, index: str = "i64") -> Program:
    """Rows of a table (or columns, with `dim` 1) that the whole numbers `t` choose, scaled, and a bias."""
    b = Builder((rows, width))
    table = (width + 3, width) if dim == 0 else (rows, width + 3)
    source, chosen = b.source("x", table, dtype), b.read("t", (rows, 1) if dim == 0 else (1, width), index)
    at = [along((0, 1)), along((1, 1))]
    at[dim] = Position(value=chosen)
    scaled = b.op("mul", b.load(source, at), 3.0, dtype="f32")
    b.write(b.op("to", b.op("add", scaled, b.read("bias", (1, width))), dtype=dtype))
    return b.done()


# ---- meaning -------------------------------------------------------------------------------------------------------

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "sign": torch.sign, "index": torch.arange, "rsqrt": torch.rsqrt, "div": torch.true_divide,
    "mul": torch.mul, "add": torch.add, "sub": torch.sub,
}  # fmt: skip


def bags(count: int, length: int, width: int, *, dtype: str = "f32") -> Program:
    """The mean of `length` rows of a table of width x width."""
    b = Builder((count, length, width), (1,))
    place = b.read("t", (count, length, 1), "i64")
    table = b.source("x", (width, width), dtype)
    row = b.load(table, [Position(value=place), Position(steps=((2, 1),))])
    (total,) = b.reduce("sum", b.op("to", row, dtype="f32"))
    b.write_row(b.op("to", b.op("div", total, float(length)), dtype=dtype))
    return b.done()


def ragged(bags: int, places: int, width: int, *, op: str = "sum", dtype: str = "f32") -> Program:
    """Sums, or the greatest, of rows of a table of 256 x width from each offset to the next; they may be anything."""
    b = Builder((bags, places, width), (1,))
    offsets = b.source("o", (bags,), "i64")
    begin = b.load(offsets, [Position(steps=((0, 1),))])
    end = b.load(offsets, [Position(start=1, steps=((0, 1),))], places)
    index = b.read("u", (1, places, 1), "u8")
    table = b.source("x", (256, width), dtype)
    row = b.load(table, [Position(value=b.op("to", index, dtype="i64")), Position(steps=((2, 1),))])
    place = b.op("index", 1)
    inside = b.op("logical_and", b.op("ge", place, begin), b.op("lt", place, end))
    neutral = 0.0 if op == "sum" else -math.inf
    (found,) = b.reduce(op, b.op("where", inside, b.op("to", row, dtype="f32"), neutral))
    b.write_row(b.op("to", b.op("where", b.op("gt", end, begin), found, 0.0), dtype=dtype))
    return b.done()


def interpret(program: Program, operands: Sequence[Tensor], *, exact: bool) -> list[Tensor]:
    """The program in torch, one operation at a time: floating values in float64 where `exact`, else as an eager module
    would have them (narrow floats in float32 until a `to`)."""
    float_type = torch.float64 if exact else torch.float32

    def held(dtype: str) -> torch.dtype:
        return float_type if dtype in ("f32", "f16", "bf16") else TORCH[dtype]

    values = {o.name: t.to(held(o.dtype)) for o, t in zip(program.operands, operands, strict=True)}
    device = operands[0].device
    masks: dict[object, Tensor] = {}
    for item in program.body:
        if isinstance(item, Reduction):
            results = _reduce(item, values[item.arg], program, held(item.dtype))
            values.update(zip(item.results, results, strict=True))
            continue
        if isinstance(item, Load):
            given = {name: values[name].cpu() for name in item.args}
            places, masks[item.result] = positions(
                item.at, values[item.source].shape, program.aligned(item.result), given
            )
            read = load(values[item.source].cpu(), places, masks[item.result], item.fill)
            values[item.result] = read.to(device)
            continue
        if isinstance(item, Statement) and item.op == "inside":
            values[item.result] = masks[item.args[0]].to(device)
            continue
        if isinstance(item, Scan):
            args = [values[a] if isinstance(a, str) else a for a in item.args]
            made = _scan(item, args, held(item.dtype), program.domain)
            values.update(zip(item.results, (m.to(device) for m in made), strict=True))
            continue
        values[item.result] = _statement(item, values, program, exact=exact, held=held, device=device)
    return [values[o.name].expand(o.shape).to(held(o.dtype) if exact else TORCH[o.dtype]) for o in program.outputs]


def _statement(item, values, program, *, exact, held, device):
    if item.op == "index":
        dim = item.args[0]
        shape = [-1 if d == dim else 1 for d in range(len(program.domain))]
        return torch.arange(program.domain[dim], device=device).view(shape).to(held(item.dtype))
    args = [values[a] if isinstance(a, str) else a for a in item.args]
    if item.op == "to":
        narrow = not exact and item.dtype in ("f16", "bf16")
        return args[0].to(TORCH[item.dtype]).float() if narrow else args[0].to(held(item.dtype))
    if item.op == "where":
        yes, no = (
            a if isinstance(a, Tensor) else torch.tensor(a, device=device, dtype=held(item.dtype)) for a in args[1:]
        )
        return torch.where(args[0].bool(), yes, no).to(held(item.dtype))
    function = _FUNCTIONS.get(item.op) or getattr(torch, item.op)
    if item.op in ("maximum", "minimum", "fmod", "remainder", "floor_divide", "atan2") or item.op.startswith("logical"):
        args = [a if isinstance(a, Tensor) else torch.tensor(a, device=device, dtype=held(item.dtype)) for a in args]
    return function(*args).to(held(item.dtype))


def _scan(item, args, dtype, domain):
    """torch's own scan where it has one, on flipped values where reversed; what goes with nothing is -1."""
    given = scanned(item.op, args, dtype, domain)
    dim, length = item.dim, domain[item.dim]
    given = [a.flip(dim) if item.reverse else a for a in given]
    if item.op == "recurrence":
        made = [_recurrence(*given, dim)]
    elif item.op in ("cummax", "cummin"):
        best, at = getattr(torch, item.op)(given[0], dim)
        made = [best, given[1].gather(dim, at)]
    else:
        made = [getattr(torch, item.op)(given[0], dim, **({} if item.op == "logcumsumexp" else {"dtype": dtype}))]
    if item.exclusive:
        least = [least_of(item.op, dtype), -1]
        parts = [(torch.full_like(m.narrow(dim, 0, 1), v), m.narrow(dim, 0, length - 1))
                 for m, v in zip(made, least, strict=False)]  # fmt: skip
        made = [torch.cat(pair, dim) for pair in parts]
    return [m.flip(dim) if item.reverse else m for m in made]


def _recurrence(a, b, dim):
    """h = a * (h before) + b, from runs of 1, 2, 4, ... steps."""
    length, run = a.shape[dim], 1
    while run < length:
        ahead = [torch.cat([torch.full_like(v.narrow(dim, 0, run), nothing), v.narrow(dim, 0, length - run)], dim)
                 for v, nothing in ((a, 1), (b, 0))]  # fmt: skip
        a, b, run = a * ahead[0], a * ahead[1] + b, 2 * run
    return b


def _reduce(item, arg, program, dtype):
    dims = list(program.reduced)
    arg = arg.expand(program.domain)
    if item.op in ("sum", "any", "all"):
        if item.op == "sum":
            return (arg.sum(dims, keepdim=True, dtype=dtype),)
        return (getattr(arg.bool(), item.op)(dim=dims, keepdim=True),)
    if item.op in RANKED:
        return tuple(arg.topk(item.count, dims[0], item.op == "largest"))
    if item.op in ("max", "min"):
        return (getattr(arg, "a" + item.op)(dims, keepdim=True),)
    if item.op == "moments":
        mean = arg.mean(dims, keepdim=True)
        return mean, ((arg - mean) ** 2).sum(dims, keepdim=True)
    if item.op == "softmax_stats":
        top = arg.amax(dims, keepdim=True)
        return top, torch.exp(arg - top).nan_to_num(0.0).sum(dims, keepdim=True)
    kept = [d for d in range(arg.ndim) if d not in dims]
    flat = arg.permute(*kept, *dims).reshape(*[arg.shape[d] for d in kept], -1)
    shape = [1 if d in dims else s for d, s in enumerate(arg.shape)]
    if item.op == "prod":
        return (flat.prod(-1).reshape(shape),)
    return (getattr(flat, item.op)(-1).reshape(shape).to(dtype),)


def make_operands(program: Program, device: str, seed: int = 0) -> list[Tensor]:
    """Operands in their `order`: normal floats, small integers, fair coins; `t` of positive integers below the last
    size."""
    generator = torch.Generator(device=device).manual_seed(seed)
    made = []
    for operand in program.operands:
        dtype, shape = TORCH[operand.dtype], operand.shape
        if dtype.is_floating_point:
            x = torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
            made.append(x.abs().add(0.5) if operand.name == "t" and shape != program.domain else x)
        elif dtype == torch.bool:
            made.append(torch.rand(shape, generator=generator, device=device) < 0.5)
        else:
            low = 0 if dtype == torch.uint8 or operand.name == "t" else -100
            high = program.domain[-1] if operand.name == "t" else 100
            made.append(torch.randint(low, high, shape, generator=generator, device=device).to(dtype))
        if operand.order:
            made[-1] = torch.empty_strided(shape, operand.strides, dtype=dtype, device=device).copy_(made[-1])
    return made


def sum_of_matrices(count: int, shape: tuple[int, ...] = (4096, 4096)) -> Program:
    """The sum of `count` matrices: a thread holds what it loads of all of them."""
    names = [f"x{i}" for i in range(count)]
    body = [
        Statement(result=f"s{i}", op="add", args=(f"s{i - 1}" if i > 1 else "x0", f"x{i}"), dtype="f32")
        for i in range(1, count)
    ]
    return Program(
        domain=shape, operands=tuple(Operand(name=n, dtype="f32", shape=shape) for n in names), body=tuple(body),
        outputs=(Output(name=f"s{count - 1}", dtype="f32", shape=shape),),
    )  # fmt: skip


def product(m: int, n: int, k: int, dtype: str = "f32", *, out: str = "", order: tuple[int, ...] = (1, 0)) -> Program:
    """relu(a @ b), b as a linear layer's weight has it."""
    left = Operand(name="x0", dtype=dtype, shape=(m, k), indexed=True)
    right = Operand(name="x1", dtype=dtype, shape=(k, n), indexed=True, order=order)
    wide = "f32" if dtype == "float8_e4m3fn" else dtype
    return Program(
        domain=(m, n), operands=(left, right),
        body=(product_of("v0", left, right, domain=(m, n), dtype=wide),
              Statement(result="v1", op="maximum", args=("v0", 0), dtype=out or dtype)),
        outputs=(Output(name="v1", dtype=out or dtype, shape=(m, n)),),
    )  # fmt: skip
