"""A Program: one fused computation over an index space, as typed SSA; every skeleton realises Programs.

A Program has a *domain* (an index space of some rank) and the set of its *reduced* dimensions. Every value in it has
an *aligned shape*: the rank of the domain, each dimension either the domain's size or 1. A value whose aligned shape
is 1 in all reduced dimensions, or that is computed from such values alone, lives at **row level** (once per point of
the kept dimensions); all others live at **element level**. A Program without reduced dimensions is pointwise, and all
its values are elements.

Arithmetic between loads and stores is done in fp32 for floating dtypes narrower than it; `to` a narrower type rounds.
Of float8_e4m3fn there are loads, stores and `to` alone; what is too large for it becomes 448, its largest number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from .access import Access, Bounds, Position, Quotient
from .recurrence import RecurrenceOp

Literal = float | int | bool

# Name -> number of arguments. Semantics are those of the torch function of the same name on the argument dtypes;
# comparisons, is* and logical_* give "bool"; `maximum`/`minimum` propagate NaN; `div` is true division; `to` casts to
# the statement's dtype; `index` takes one literal, a dimension of the domain, and is the position along it (i64);
# `inside` takes the result of a Load and says whether it came out of the source.
POINTWISE: Mapping[str, int] = MappingProxyType({
    **dict.fromkeys(
        ["neg", "abs", "sign", "floor", "ceil", "round", "trunc", "square", "sqrt", "rsqrt", "reciprocal",
         "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
         "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid",
         "isnan", "isinf", "logical_not", "bitwise_not", "to", "index", "inside"], 1),
    **dict.fromkeys(
        ["add", "sub", "mul", "div", "fmod", "remainder", "floor_divide", "pow", "atan2", "maximum", "minimum",
         "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
         "bitwise_and", "bitwise_or", "bitwise_xor"], 2),
    "where": 3,
})  # fmt: skip

# Pointwise ones that take many instructions each, on any processor.
TRANSCENDENTAL = frozenset((
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "pow", "atan2",
))  # fmt: skip

# Name -> number of results. `moments` gives (mean, sum of squared deviations from the mean), `softmax_stats` gives
# (maximum, sum of exp(x - maximum)), both by a numerically stable method; `max`/`min` propagate NaN; `argmax`/`argmin`
# give the i64 position in the reduced dimensions flattened row-major: NaN wins, then the extremum's first position.
REDUCTIONS: Mapping[str, int] = MappingProxyType({
    "sum": 1, "prod": 1, "max": 1, "min": 1, "argmax": 1, "argmin": 1, "any": 1, "all": 1,
    "moments": 2, "softmax_stats": 2, "largest": 2, "smallest": 2,
})  # fmt: skip
# Those that give several values a row, `Reduction.count`, in order: values, the greatest or the least first (NaN is the
# greatest), and their positions (i64) along the one reduced dimension; of equals the first come first.
RANKED = ("largest", "smallest")

# Running reductions along one dimension: name -> (arguments, results). `cumsum`, `cumprod` and `logcumsumexp` are
# torch's. `cummax`/`cummin` take values and whole numbers that go with them (their positions), and give the extremum so
# far and its number (i64): a NaN wins, of equals the latest in the order of the scan, as in torch. `recurrence` takes a
# and b and gives h = a * (h before) + b, where 0 is before the first.
SCANS: Mapping[str, tuple[int, int]] = MappingProxyType({
    "cumsum": (1, 1), "cumprod": (1, 1), "logcumsumexp": (1, 1), "cummax": (2, 2), "cummin": (2, 2),
    "recurrence": (2, 1),
})  # fmt: skip

DTYPE_BYTES: Mapping[str, int] = MappingProxyType({
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1,
    "float8_e4m3fn": 1,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A tensor read by the program. `shape` is aligned: len(domain) dimensions, each the domain's size or 1; unless the
    tensor is `indexed`: then its shape is its own, and it is read by Loads, or a Contraction, alone.

    `order` says how it is likely to lie in memory: its dimensions, outermost first; empty: row-major. Kernels are right
    for any strides.

    Beside a contraction it may be broadcast over parts of dimensions: it is read at the positions `at`, one for each of
    its dimensions, then, as an Access is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    indexed: bool = False
    order: tuple[int, ...] = ()
    at: tuple[Position | Quotient, ...] = ()

    @property
    def transposed(self) -> bool:
        """Whether neighbours in memory are not neighbours along the innermost of its dimensions."""
        wide = [d for d in self.order if self.shape[d] > 1]
        return bool(wide) and wide[-1] != max(wide)

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements, where it lies densely in its `order`."""
        steps, step = dict.fromkeys(range(len(self.shape)), 0), 1
        for d in reversed(self.order or tuple(range(len(self.shape)))):
            steps[d], step = step, step * self.shape[d]
        return tuple(steps.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """`result = op(*args)`, pointwise; an argument is a value's name or a literal."""

    result: str
    op: str
    args: tuple[str | Literal, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`result = source[at]`: one Position for each dimension of an indexed operand, of its dtype; `fill` where any of
    them lies outside. So windows overlap, stride and are padded, and a value may choose what is read (a gather).
    `fill` None: it's the caller's error if a position lies outside; nothing is read there all the same."""

    result: str
    source: str
    at: tuple[Position, ...]
    dtype: str
    fill: Literal | None = None

    @property
    def op(self) -> str:
        return "load"

    @property
    def args(self) -> tuple[str, ...]:
        """The values on which the positions depend."""
        return tuple(p.value for p in self.at if p.value)

    @property
    def dims(self) -> frozenset[int]:
        """The dimensions of the domain along which the positions move by themselves."""
        return frozenset(d for p in self.at for d, _ in p.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """`results = op(arg)` over all reduced dimensions of the domain; the results are at row level. Those of a RANKED
    operation have `count` elements along the reduced dimension, and nothing but an Output takes them."""

    results: tuple[str, ...]
    op: str
    arg: str
    dtype: str
    count: int = 0

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of the results."""
        return (self.dtype, "i64") if self.op in RANKED else (self.dtype,) * len(self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """`results[..., i, ...] = op(args[..., :i + 1, ...])` along the one reduced dimension `dim`, at element level; an
    argument is a value's name or a literal.

    `reverse`: from `i` to the end instead. `exclusive`: without position `i` itself; of nothing the sum and the
    recurrence are 0, the product 1, the maximum and the logarithm of a sum -inf (or the least whole number), and what
    goes with an extremum is open. `dtype` is that of the first result. Narrow floats accumulate in fp32."""

    results: tuple[str, ...]
    op: str
    args: tuple[str | Literal, ...]
    dim: int
    dtype: str
    reverse: bool = False
    exclusive: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of the results."""
        return (self.dtype, *("i64" for _ in self.results[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prologue:
    """What makes the operand `factor` (its name) of a product of matrices: `program`, whose domain is that factor's
    shape, of the `operands` of these names, indexed ones of the Program around it, in order. It has Statements,
    Reductions along K, and one output, of the factor's shape. Without reductions K may be two dimensions of the domain:
    group, place in it."""

    factor: str
    program: Program
    operands: tuple[str, ...]

    @property
    def made(self) -> Operand:
        """The factor, as if it were an operand."""
        (output,) = self.program.outputs
        return Operand(name=self.factor, dtype=output.dtype, shape=output.shape, indexed=True)

    @property
    def by_itself(self) -> Program:
        """The Program with the factor as its domain has it, where K is two dimensions."""
        outputs = tuple(replace(output, shape=self.program.domain) for output in self.program.outputs)
        return replace(self.program, outputs=outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """`result[i] = sum over j of left[i, j] * right[i, j]`, of `dtype` (accumulated in fp32 at least): i counts the
    domain, and j the contracted dimensions, of sizes `over`. Positions of both accesses count the domain's dimensions
    first and those of `over` behind them. So a matrix product, one broadcast over parts of its batch (grouped-query
    heads), a ragged one (each row's matrix by its segment), a convolution and a transposed one are one notion;
    `matrices` says which of them are products of matrices.

    Operands are of `dtype`, or float8_e4m3fn. `allow_tf32`: those in fp32 may be rounded to TF32's 11 bits.
    `prologues`: what an access's operand is computed of on its way in. `within`: the result is read where all of these
    hold; elsewhere it may be anything."""

    result: str
    left: Access
    right: Access
    over: tuple[int, ...]
    dtype: str
    allow_tf32: bool = False
    prologues: tuple[Prologue, ...] = ()
    within: tuple[Bounds, ...] = ()

    op = "product"
    args = ()  # its operands are no values


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOp:
    """`result[i, d] = sum over k of weights[i, k] * value[i, k, d]`, of `dtype`: d is the domain's last dimension, i
    counts the others, and k the `keys`. Positions of the accesses count the domain's dimensions, then k, then the
    contracted dimension of size `depth`.

    `scores` is a pointwise Program over (i, k). Its first operand is the product of query and key, summed in fp32 at
    least; the others are the indexed operands named in `operands`, in order, aligned with (i, k). Its one output is the
    score. `softmax`: the weights are the softmax of the scores over k, else the scores. A row whose scores are all
    minus infinity gives NaN, or 0 where `empty_is_zero`.

    `sink`: the last of `operands`, which the scores do not read, and which does not move along k; it is the score of
    one key more, whose value is 0. "": none.

    `spares`: values where the weight is surely 0 need not be read, so that infinities there may come to nothing.

    `logsum` names a second result, in fp32: log(sum over k of exp(score)), of which the domain's last dimension has
    size 1; "": none."""

    result: str
    query: Access
    key: Access
    value: Access
    keys: int
    depth: int
    scores: Program
    operands: tuple[str, ...]
    dtype: str
    softmax: bool = True
    empty_is_zero: bool = False
    spares: bool = False
    sink: str = ""
    logsum: str = ""

    op = "attention"
    args = ()  # its operands are no values


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackwardOp:
    """Gradients of an attention over a domain (batch .., queries, columns of the value). i counts batch and queries, k
    the `keys`, d the columns, e the `depth`; positions of accesses count as in an AttentionOp.

        score[i, k] = sum over e of query * key        weight_gradient[i, k] = sum over d of upstream * value

    `map` is a pointwise Program over (i, k). Its first two operands are these products, summed in fp32 at least; the
    others are the indexed operands named in `operands`, aligned with (i, k). Its first two outputs are the weights and
    the gradient of the score. The results are

        query gradient (batch .., queries, depth)      sum over k of score gradient * key
        key gradient   (batch .., keys, depth)         sum over queries of score gradient * query
        value gradient (batch .., keys, columns)       sum over queries of weight * upstream

    of `dtype`, then a gradient for each further output of the map. Where the Output of a result has size 1 along a
    dimension of (i, k) that is longer, it is summed along it. `spares` as in an AttentionOp."""

    results: tuple[str, ...]
    query: Access
    key: Access
    value: Access
    upstream: Access
    keys: int
    depth: int
    map: Program
    operands: tuple[str, ...]
    dtype: str
    spares: bool = False

    op = "attention_backward"
    args = ()  # its operands are no values

    @property
    def result(self) -> str:
        """The first of the results."""
        return self.results[0]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of the results."""
        return (*(self.dtype,) * 3, *(o.dtype for o in self.map.outputs[2:]))

    def shapes(self, domain: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Of the results, where nothing is summed."""
        *batch, rows, columns = domain
        scores = (*batch, rows, self.keys)
        factors = ((*batch, rows, self.depth), (*batch, self.keys, self.depth), (*batch, self.keys, columns))
        return (*factors, *(scores for _ in self.map.outputs[2:]))


Item = Statement | Load | Reduction | Scan | Contraction | AttentionOp | AttentionBackwardOp | RecurrenceOp


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A value written to memory, contiguous, with its aligned shape.

    `parts`: of an element-level value the sums over the rows, in so many equal shares of them in order. They lie along
    the first dimension that is not reduced; the others have size 1. They come last, each under a name of its own."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """See the module's docstring. `body` is in SSA order; every name is defined once, before its use.

    A body with a Scan has that one alone and no Reduction; `reduced` is the Scan's dimension. One with a Contraction
    has Statements beside it, its epilogue, and Reductions of its rows, or of groups of columns: `reduced` is the last;
    of a convolution they are of its channels, of its places, or of windows of these (see `pooled`).
    A dual GEMM is two Contractions of one left access, with Statements alone. An attention, or its gradients, stand
    alone; so do recurrent layers, of whose outputs only the sequence aligns with the domain.

    `open`: dimensions of the domain whose size may change from call to call, without a new kernel; the domain and the
    shapes then hold one size of many."""

    domain: tuple[int, ...]
    reduced: tuple[int, ...] = ()
    operands: tuple[Operand, ...]
    body: tuple[Item, ...]
    outputs: tuple[Output, ...]
    open: tuple[int, ...] = ()

    @property
    def scan(self) -> Scan | None:
        return next((item for item in self.body if isinstance(item, Scan)), None)

    @property
    def product(self) -> Contraction | None:
        return next((item for item in self.body if isinstance(item, Contraction)), None)

    @property
    def products(self) -> tuple[Contraction, ...]:
        """One, or the two of a dual GEMM."""
        return tuple(item for item in self.body if isinstance(item, Contraction))

    @property
    def sums(self) -> tuple[Output, ...]:
        """The outputs that are sums over the rows: columns reduced beside the rows, in one pass."""
        return tuple(o for o in self.outputs if o.parts)

    def shape_in_parts(self, parts: int) -> tuple[int, ...]:
        """Of an output with `parts`."""
        kept = [d for d in range(len(self.domain)) if d not in self.reduced]
        sizes = {d: parts if d == kept[0] else 1 for d in kept}
        return tuple(sizes.get(d, size) for d, size in enumerate(self.domain))

    @property
    def inner_size(self) -> int:
        """Elements of one row: the product of the reduced dimensions (1 for a pointwise program)."""
        return prod(self.domain[d] for d in self.reduced)

    @property
    def rows(self) -> int:
        return prod(self.domain) // max(self.inner_size, 1)

    @property
    def traffic_bytes(self) -> int:
        """The fewest bytes through memory: operands read once (or what Loads ask for), outputs written once."""
        read = sum(DTYPE_BYTES[o.dtype] * min(prod(o.shape), self._asked(o)) for o in self.operands)
        return read + sum(DTYPE_BYTES[o.dtype] * prod(o.shape) for o in self.outputs)

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(item for item in self.body if isinstance(item, Load))

    def _asked(self, operand: Operand) -> int:
        """Elements of an operand that are read; where Loads read them, with repetitions."""
        if not operand.indexed or multiplies(self):
            return prod(operand.shape)
        return sum(prod(self.aligned(load.result)) for load in self.loads if load.source == operand.name)

    @property
    def ranked(self) -> Mapping[str, Reduction]:
        """What has several values a row, and what makes it."""
        items = [item for item in self.body if isinstance(item, Reduction) and item.op in RANKED]
        return {name: item for item in items for name in item.results}

    def aligned(self, name: str) -> tuple[int, ...]:
        """The aligned shape of an operand that is not indexed, or of a value."""
        dims = _reach(self)[name]
        return tuple(size if d in dims else 1 for d, size in enumerate(self.domain))


def multiplies(program: Program) -> bool:
    """Whether a Program contracts tensors."""
    return any(isinstance(item, _WHOLE) for item in program.body)


def _reach(program: Program) -> dict[str, frozenset[int]]:
    """The dimensions along which each value varies."""
    reach = {o.name: frozenset(d for d, size in enumerate(o.shape) if size > 1) for o in program.operands
             if not o.indexed}  # fmt: skip
    for item in program.body:
        if isinstance(item, Reduction):
            reach.update(dict.fromkeys(item.results, reach[item.arg] - set(program.reduced)))
        elif isinstance(item, Scan):
            found = frozenset({item.dim}).union(*(reach[a] for a in item.args if isinstance(a, str)))
            reach.update(dict.fromkeys(item.results, found))
        elif isinstance(item, AttentionBackwardOp):
            reach.update(dict.fromkeys(item.results, frozenset[int]()))
        elif isinstance(item, _WHOLE):
            names = item.results if isinstance(item, RecurrenceOp) else (item.result,)
            reach.update(dict.fromkeys(names, frozenset(d for d, size in enumerate(program.domain) if size > 1)))
            if isinstance(item, AttentionOp) and item.logsum:
                reach[item.logsum] = reach[item.result] - {len(program.domain) - 1}
        elif isinstance(item, Statement) and item.op == "index":
            reach[item.result] = frozenset({int(item.args[0])})
        else:
            own = item.dims if isinstance(item, Load) else frozenset[int]()
            reach[item.result] = own.union(*(reach[a] for a in item.args if isinstance(a, str)))
    return reach


Plain = Statement | Load  # what is computed point by point
_WHOLE = Contraction | AttentionOp | AttentionBackwardOp | RecurrenceOp  # what reads whole operands
