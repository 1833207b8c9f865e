"""Products of matrices in CUTLASS C++ (3.x collectives for sm_90a, the epilogue a visitor tree): beside a skeleton of
ours another realisation of the same pattern, where CUTLASS's headers and nvcc are installed.

What CUTLASS's hierarchy leaves open is swept: tile, cluster, kernel and epilogue schedule, scheduler (tiles whole, or
split along K in streams), each a file of its own, so that they are built in parallel; and the swizzle, when it is
called. Stages are as many as fit. Whatever is computed of the product is one function at the root of the tree, whose
leaves are the sums, vectors along rows or columns, and one whole matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import isinf, isnan, prod

from tilewright.facts.candidate import LIBRARY, Candidate, SourceFile
from tilewright.facts.device import Device
from tilewright.facts.devices import DEVICES
from tilewright.facts.pattern import Bind, Choice, Match, Pattern, Recipe, Written
from tilewright.ir.graph import Graph
from tilewright.ir.program import Operand, Program, Statement

from ..gemm.shape import matrices, no_matrices
from ..subproblem_code import NotAlone, arguments
from ..templates import template
from ..torch_code import TORCH_DTYPES

_TYPES = {"f32": "float", "f16": "cutlass::half_t", "bf16": "cutlass::bfloat16_t"}
_ARCHITECTURE = DEVICES["h200"].architecture
_MOST_VECTORS = 4
_LEAST_WORK = 1 << 30  # multiplications: below, nothing is won that would pay for the compiler


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One setting of what is swept."""

    tile: tuple[int, int]
    cluster: tuple[int, int]
    schedule: str = "Cooperative"
    scheduler: str = "PersistentScheduler"


_SETTINGS = (
    _Setting(tile=(128, 256), cluster=(2, 1)),
    _Setting(tile=(256, 128), cluster=(1, 2)),
    _Setting(tile=(128, 128), cluster=(2, 1), schedule="Pingpong"),
    _Setting(tile=(64, 256), cluster=(2, 1), schedule="Pingpong"),
    _Setting(tile=(128, 128), cluster=(2, 1), scheduler="StreamKScheduler"),
)
_UNARY = {
    "neg": "-{0}", "abs": "fabsf({0})", "exp": "expf({0})", "exp2": "exp2f({0})", "log": "logf({0})",
    "log1p": "log1pf({0})", "sqrt": "sqrtf({0})", "rsqrt": "rsqrtf({0})", "square": "{0} * {0}", "tanh": "tanhf({0})",
    "erf": "erff({0})", "sigmoid": "1.f / (1.f + expf(-{0}))", "reciprocal": "1.f / {0}", "to": "{0}",
}  # fmt: skip
_BINARY = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "pow": "powf({0}, {1})",
    "maximum": "larger({0}, {1})", "minimum": "smaller({0}, {1})", "gt": "{0} > {1} ? 1.f : 0.f",
    "lt": "{0} < {1} ? 1.f : 0.f", "ge": "{0} >= {1} ? 1.f : 0.f", "le": "{0} <= {1} ? 1.f : 0.f",
}  # fmt: skip
_OPERATORS = {**_UNARY, **_BINARY, "where": "{0} != 0.f ? {1} : {2}"}


class _Refused(Exception):
    """Why a product is none of CUTLASS's."""


def products_by_cutlass(graph: Graph, patterns: Sequence[Pattern], headers: str, *, device: Device) -> Recipe:
    """A choice for each product of whole matrices that CUTLASS takes, by the names `cutlass_0`, ...; `headers`: the
    folder of its headers. None on a device of another architecture than the collectives' own."""
    if device.architecture != _ARCHITECTURE:
        return ()
    shapes = {n.name: (n.shape, n.dtype, n.order) for n in graph.nodes}
    choices: list[Choice] = []
    for pattern in patterns:
        try:
            candidate = _candidate(graph, pattern, headers)
        except (_Refused, NotAlone):
            continue
        first = pattern.matches[0]
        alike = tuple(s.region for s in pattern.matches if _looks(s, shapes) == _looks(first, shapes))
        written = Written(title=f"{pattern.title} by CUTLASS", candidate=candidate, regions=alike)
        choices.append(Choice(pattern=f"cutlass_{len(choices)}", point=(), written=written))
    return tuple(choices)


def _looks(site: Match, shapes: Mapping[str, tuple[object, ...]]) -> list[tuple[object, ...]]:
    binds = [(b.split, b.order) for b in (*site.operands, *site.outputs)]
    return [*binds, *(shapes[n] for n in (*site.region.inputs, *site.region.outputs))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """An operand of the epilogue in the tree."""

    name: str
    leaf: str
    arguments: str


def _candidate(graph: Graph, pattern: Pattern, headers: str) -> Candidate:
    program, site = pattern.program, pattern.matches[0]
    product = program.product
    if product is None or program.reduced or (product.dtype == "f32" and not product.allow_tf32):
        raise _Refused("fp32's own accuracy")
    if product.prologues:
        raise _Refused("factors that are made on their way in")
    if no_matrices(program) or matrices(program).each != (1, 1) or any(o.at for o in program.operands):
        raise _Refused("what is broadcast over a part of a batch, or of rows")
    if len(program.products) > 1 or len(program.outputs) > 1:
        raise _Refused("a gated pair, or several results")
    named = {o.name: o for o in program.operands}
    left, right = named[product.left.operand], named[product.right.operand]
    others = [o for o in program.operands if o not in (left, right)]
    *batch, m, n = program.domain
    if left.shape[:-2] != right.shape[:-2]:
        raise _Refused("one matrix for a batch of others")
    k = left.shape[-1]
    aligned = 4 if product.dtype == "f32" else 8
    if prod(batch) * m * n * k < _LEAST_WORK or any(size % aligned for size in (m, n, k)):
        raise _Refused("too small, or rows that start anywhere")
    majors = [_major(left, along=-1), _major(right, along=-2)]
    if product.dtype == "f32" and majors != ["k", "k"]:
        raise _Refused("TF32 is multiplied along K alone")
    leaves, source_at = _leaves(others, program)
    source = others[source_at - 3] if source_at else None
    text = _Text(program)
    (output,) = program.outputs
    common: dict[str, object] = {
        "title": pattern.title, "operands": leaves, "lines": text.lines, "result": text.value(output.name),
        "element": _TYPES[product.dtype], "out": _TYPES[output.dtype],
        "source": _TYPES[source.dtype] if source else "void",
        "source_aligned": _aligned(source.dtype if source else output.dtype), "out_aligned": _aligned(output.dtype),
        "aligned": aligned, "left": "RowMajor" if majors[0] == "k" else "ColumnMajor",
        "right": "ColumnMajor" if majors[1] == "k" else "RowMajor", "source_at": source_at,
        "tile_k": 32 if product.dtype == "f32" else 64,
    }  # fmt: skip
    kernels = {f"kernel_{i}.cu": _kernel(s, common) for i, s in enumerate(_SETTINGS)}
    names = arguments(graph, site.region)
    parameters = {node: f"x{i}" for i, node in enumerate(names)}
    views = [_view("left", site.operands[program.operands.index(left)], left, parameters, major=majors[0])]
    rights = site.operands[program.operands.index(right)]
    views.append(_view("right", rights, right, parameters, major="r" if majors[1] == "k" else "k"))
    views += [_view(o.name, site.operands[program.operands.index(o)], o, parameters, major="k") for o in others]
    (bind,) = site.outputs
    node = next(node for node in graph.nodes if node.name == bind.node)
    model = template(__package__, "cutlass.py.jinja", trim=True).render(
        title=pattern.title, kernels=tuple(kernels), headers=headers, size=f"{m}, {n}, {k}, {prod(batch)}",
        parameters=", ".join(parameters.values()), views=views, shape=program.domain,
        dtype=TORCH_DTYPES[output.dtype].removeprefix("torch."), operands=leaves,
        back=f"made.reshape({bind.split}).permute({bind.order}).reshape({node.shape})",
    )  # fmt: skip
    sources = [SourceFile(path=path, text=text) for path, text in kernels.items()]
    builder = files("tilewright.kernels").joinpath("nvcc.py").read_text(encoding="utf-8")
    everything = (SourceFile(path="model.py", text=model), SourceFile(path="nvcc.py", text=builder), *sources)
    return Candidate(files=everything, language=LIBRARY)


def _kernel(setting: _Setting, common: dict[str, object]) -> str:
    (tile_m, tile_n), (cluster_m, cluster_n) = setting.tile, setting.cluster
    about = f"{tile_m} x {tile_n}, clusters of {cluster_m} x {cluster_n}, {setting.schedule}, {setting.scheduler}"
    return template(__package__, "cutlass.cu.jinja", trim=True).render(
        about=about, tile_m=tile_m, tile_n=tile_n, cluster_m=cluster_m, cluster_n=cluster_n,
        schedule=setting.schedule, scheduler=setting.scheduler, **common,
    )  # fmt: skip


def _aligned(dtype: str) -> int:
    return 4 if dtype == "f32" else 8


def _major(operand: Operand, *, along: int) -> str:
    """ "k" where neighbours in memory lie along K, the dimension `along`, else "r"; refused where a batch does not lie
    outermost."""
    rank = len(operand.shape)
    order = operand.order or tuple(range(rank))
    if rank == 3 and order[0] != 0:
        raise _Refused("matrices of a batch that lie in one another")
    if 1 in operand.shape[-2:]:
        raise _Refused("a vector")
    return "k" if order[-1] == rank + along else "r"


def _leaves(others: Sequence[Operand], program: Program) -> tuple[list[_Leaf], int]:
    """The leaves of the tree, and the number among the tensors of the one whole matrix (0: there is none)."""
    found: list[_Leaf] = []
    source_at = 0
    for number, operand in enumerate(others, start=3):
        kind = _TYPES.get(operand.dtype)
        if kind is None or operand.indexed or operand.order:
            raise _Refused(f"an operand of {operand.dtype}, or one that lies otherwise")
        *batch, rows, columns = operand.shape
        pointer = f"static_cast<{kind} const*>(t[{number}])"
        if operand.shape == program.domain and not source_at:
            source_at = number
            found.append(_Leaf(name=operand.name, leaf="fusion::Sm90SrcFetch<Source>", arguments="{}"))
        elif rows == 1 and columns == program.domain[-1] and prod(batch) == 1:
            leaf = f"fusion::Sm90RowBroadcast<0, CtaTile, {kind}, float, Stride<_0, _1, int64_t>>"
            found.append(_Leaf(name=operand.name, leaf=leaf, arguments=f"{{{pointer}, {kind}(0), {{}}}}"))
        elif columns == 1 and rows == program.domain[-2] and prod(batch) == 1:
            leaf = f"fusion::Sm90ColBroadcast<0, CtaTile, {kind}, float, Stride<_1, _0, int64_t>>"
            found.append(_Leaf(name=operand.name, leaf=leaf, arguments=f"{{{pointer}, {kind}(0), {{}}}}"))
        else:
            raise _Refused("an operand that is no vector, nor the one whole matrix")
    if len(found) > _MOST_VECTORS:
        raise _Refused("many operands")
    return found, source_at


class _Text:
    """The statements of an epilogue in C++."""

    def __init__(self, program: Program) -> None:
        assert program.product is not None
        self._names = {o.name: f"{o.name}[i]" for o in program.operands} | {program.product.result: "product[i]"}
        self.lines: list[str] = []
        for item in program.body:
            if item is program.product:
                continue
            if not isinstance(item, Statement) or item.op not in _OPERATORS or item.dtype not in (*_TYPES, "bool"):
                raise _Refused(f"{item.op} in an epilogue")
            self.lines.append(f"float {item.result} = {_OPERATORS[item.op].format(*map(self.value, item.args))};")
            self._names[item.result] = item.result

    def value(self, argument: str | float) -> str:
        if isinstance(argument, str):
            return self._names[argument]
        number = float(argument)
        if isnan(number) or isinf(number):
            return "NAN" if isnan(number) else "INFINITY" if number > 0 else "-INFINITY"
        return f"{number!r}f" if number >= 0 else f"({number!r}f)"


def _view(name: str, bind: Bind, operand: Operand, parameters: dict[str, str], *, major: str) -> str:
    """The operand as the program has it; copied where it does not lie as its kernel expects it. `major`: "k" where
    rows lie in one piece."""
    value = f"{parameters[bind.node]}.reshape({bind.split}).permute({bind.order}).reshape({operand.shape})"
    if major == "k":
        return f"{name} = {value}.contiguous()"
    return f"{name} = {value}.mT.contiguous().mT"
