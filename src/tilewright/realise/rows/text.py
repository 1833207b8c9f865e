"""Program -> the text of a `fused_K.py` for CUDA: small element functions, a Spec, an entry point and the contract."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isfinite, isnan

from ...facts.space import Point
from ...ir.access import Position
from ...ir.program import Contraction, Load, Operand, Output, Plain, Program, Reduction, Scan, Statement
from ...ir.schedule import Schedule, rank_schedule, scan_schedule, schedule
from ..float8 import rounded_once
from ..strength import reduced_in_strength, shares
from .ragged import stretch_of

_TAKEN = {"m", "cute", "cutlass", "kernel", "work", "stream", "position", "entry", "float", "Any"}

_HEADER = '''\
"""{name}: {about}. Made by Tilewright: CuTe DSL, for CUDA."""

import cutlass
import cutlass.cute as cute

from tilewright_kernels.cuda.common import math as m
from tilewright_kernels.cuda.rows.launch import Fused
from tilewright_kernels.cuda.common.spec import {spec_names}
'''

_FOOTER = '''

@cute.jit
def entry(kernel: cutlass.Constexpr, {parameters}, work: cute.Tensor, stream) -> None:
    """Emits the launches of one plan."""
    kernel(({tensors},), work, stream)


_FUSED = Fused(SPEC, entry, {knobs}, source=__file__)
KNOBS = _FUSED.knobs
configure = _FUSED.configure  # replaces settings; raises ValueError on an unknown knob or value
# run({reads}) -> ({writes},), contiguous, on torch's current stream
run = _FUSED.op("{name}")
'''

_FREE = """\
takes = _FUSED.takes  # takes(rows): whether a kernel takes so many
"""

# The end of a file whose `_FUSED` is more than one kernel, or none of `Fused`'s own.
RUN_OP = """\
KNOBS = _FUSED.knobs
configure = _FUSED.configure  # replaces settings; raises ValueError on an unknown knob or value
# run({reads}) -> ({writes},), contiguous, on torch's current stream
run = torch_op("{name}", _FUSED, {outputs}, {arity})
"""

_SUMMED = (
    '''\
"""{name}: {name}_rows.py, which also sums over rows in parts, and {name}_sums.py, which adds the parts up."""

import {name}_rows
import {name}_sums

from tilewright_kernels.cuda.common.chained import Chained
from tilewright_kernels.ops import torch_op

_FUSED = Chained({name}_rows._FUSED, {name}_sums._FUSED, keeps={keeps}, aligned=True)
'''
    + RUN_OP
)


def safe_names(program: Program) -> Program:
    """The same program with names that a generated file can use as they are."""
    items = [*program.operands, *program.body]
    names: list[str] = []
    for item in items:
        if isinstance(item, Reduction | Scan):
            names += item.results
        else:
            names.append(item.name if isinstance(item, Operand) else item.result)
    taken = set(names)
    new: dict[str, str] = {}
    for name in names:
        fresh = name
        while keyword.iskeyword(fresh) or fresh in _TAKEN or fresh.startswith(("index_", "out_", "__")) or (
            fresh != name and fresh in taken
        ):  # fmt: skip
            fresh = f"v_{fresh.strip('_')}" if fresh == name else f"{fresh}_"
        new[name] = fresh
        taken.add(fresh)

    def body(item: Plain | Reduction | Scan | Contraction) -> Plain | Reduction | Scan | Contraction:
        if isinstance(item, Contraction):
            left, right = (replace(x, operand=new[x.operand]) for x in (item.left, item.right))
            return replace(item, result=new[item.result], left=left, right=right)
        if isinstance(item, Reduction):
            return replace(item, results=tuple(new[r] for r in item.results), arg=new[item.arg])
        if isinstance(item, Load):
            at = tuple(replace(p, value=new[p.value] if p.value else "") for p in item.at)
            return replace(item, result=new[item.result], source=new[item.source], at=at)
        args = tuple(new[a] if isinstance(a, str) else a for a in item.args)
        if isinstance(item, Scan):
            return replace(item, results=tuple(new[r] for r in item.results), args=args)
        return replace(item, result=new[item.result], args=args)

    return replace(
        program, operands=tuple(replace(o, name=new[o.name]) for o in program.operands),
        body=tuple(body(i) for i in program.body),  # type: ignore[arg-type]  # no attention comes here
        outputs=tuple(replace(o, name=new[o.name]) for o in program.outputs),
    )  # fmt: skip


def _literal(value: float | int | bool) -> str:
    if isinstance(value, float) and not isfinite(value):
        return f'float("{"nan" if isnan(value) else "inf" if value > 0 else "-inf"}")'
    return repr(value)


class Lines:
    """Writes statements; it knows the program's loads."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.sizes = {o.name: o.shape for o in program.operands}
        self.loads = {load.result: load for load in program.loads}

    def line(self, item: Plain) -> str:
        if isinstance(item, Load):
            fill = "" if item.fill is None else f", fill={_literal(item.fill)}"
            return f"    {item.result} = {item.source}.load({self._where(item)}{fill})"
        if item.op == "inside":
            load = self.loads[str(item.args[0])]
            return f"    {item.result} = {load.source}.inside({self._where(load)})"
        if item.op == "index":
            return f'    {item.result} = m.index(index_{item.args[0]}, "{item.dtype}")'
        args = ", ".join(a if isinstance(a, str) else _literal(a) for a in item.args)
        return f'    {item.result} = m.{item.op}({args}, "{item.dtype}")'

    def _where(self, load: Load) -> str:
        sizes = self.sizes[load.source]
        checked = tuple(k for k, p in enumerate(load.at) if not p.surely_inside(sizes[k], self.program.domain))
        return f"{_tuple([_position(p) for p in load.at])}, {checked!r}"

    def reads(self, item: Plain) -> list[str]:
        """Names of what it reads, positions among them."""
        if isinstance(item, Statement) and item.op == "index":
            return [f"index_{item.args[0]}"]
        load = self.loads[str(item.args[0])] if item.op == "inside" else item
        if isinstance(load, Load):
            return [load.source, *(f"index_{d}" for p in load.at for d, _ in p.steps), *load.args]
        return [a for a in item.args if isinstance(a, str)]

    def function(self, name: str, about: str, items: Sequence[Plain], more: Iterable[str], result: str) -> str:
        """A function over what the items (and `more`) read and do not compute themselves."""
        made = {s.result for s in items}
        wanted = [*(n for s in items for n in self.reads(s)), *more]
        reads = [n for n in dict.fromkeys(wanted) if n not in made]
        lines = [
            f"def {name}({', '.join(reads)}):",
            f'    """{about}"""',
            *(self.line(s) for s in items),
            f"    return {result}",
        ]
        return "\n".join(lines) + "\n"


def _position(position: Position) -> str:
    terms = [f"index_{d}" if step == 1 else f"index_{d} * {step}" for d, step in position.steps]
    terms += [position.value] if position.value else []
    terms += [str(position.start)] if position.start or not terms else []
    return " + ".join(terms)


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def dict_of(statements: Sequence[Plain]) -> str:
    return "{" + ", ".join(f'"{s.result}": {s.result}' for s in statements) + "}"


def sweeps_of(plan: Schedule, lines: Lines, dtypes: dict[str, str]) -> tuple[list[str], list[str]]:
    """The functions of the sweeps, and the lines of their entries in the Spec."""
    functions, entries = [], []
    for k, sweep in enumerate(plan.passes):
        arguments = [r.arg for r in sweep.reductions]
        about = f"Sweep {k}, per element: what {', '.join(r.op for r in sweep.reductions)} reduce over the row."
        functions.append(lines.function(f"sweep_{k}", about, sweep.elements, arguments, _tuple(arguments)))
        rows = "None"
        if sweep.rows:
            rows = f"rows_{k}"
            functions.append(lines.function(rows, f"Per row, after sweep {k}.", sweep.rows, (), dict_of(sweep.rows)))
        reductions = [
            f'ReductionSpec(op="{r.op}", source="{dtypes[r.arg]}", dtype="{r.dtype}", results={_strings(r.results)})'
            for r in sweep.reductions
        ]
        entries.append(f"        Sweep(elements=sweep_{k}, reductions=({', '.join(reductions)},), rows={rows}),")
    return functions, entries


def _strings(names: Sequence[str]) -> str:
    return _tuple([f'"{n}"' for n in names])


def _read_at(program: Program, operand: Operand) -> str:
    """Where an operand is read, if one load alone reads it, at positions that nothing computes."""
    found = [load for load in program.loads if load.source == operand.name]
    if len(found) != 1 or any(p.value for p in found[0].at):
        return ""
    (load,) = found
    inside = all(p.surely_inside(size, program.domain) for p, size in zip(load.at, operand.shape, strict=True))
    if load.fill is None and not inside:
        return ""
    at = tuple((p.start, tuple((d, step) for d, step in p.steps)) for p in load.at)
    return f", at={at!r}" + ("" if load.fill is None else f", fill={_literal(float(load.fill))}")


def by_rows(load: Load, program: Program) -> bool | None:
    """Whether a load reads its operand's first dimension at the row's own position; None: it moves along the rows in
    another way."""
    shape = next(o.shape for o in program.operands if o.name == load.source)
    own = load.at[:1] == (Position(steps=((0, 1),)),) and shape[0] == program.domain[0]
    others = load.at[1:] if own else load.at
    return None if any(d == 0 for p in others for d, _ in p.steps) else own


def tensors(values: Sequence[Operand | Output], program: Program | None = None, *, free: bool = False) -> str:
    """Their ArraySpecs; the program, where it tells more of operands, also which loads read rows that are free."""
    operands = [t for t in values if isinstance(t, Operand)]
    more = {t.name: ", indexed=True" if t.indexed else f", strides={t.strides!r}" if t.order else "" for t in operands}
    if program is not None:
        rows = {load.source for load in program.loads if by_rows(load, program)} if free else set()
        more |= {
            t.name: more[t.name] + _read_at(program, t) + (", free=True" if t.name in rows else "")
            for t in operands
            if t.indexed
        }
    return "".join(
        f'\n        ArraySpec(name="{t.name}", dtype="{t.dtype}", shape={t.shape!r}{more.get(t.name, "")}),'
        for t in values
    )


def dtypes_of(program: Program) -> dict[str, str]:
    found = {o.name: o.dtype for o in program.operands}
    for item in program.body:
        if isinstance(item, Scan | Reduction):
            found.update(zip(item.results, item.dtypes, strict=True))
        else:
            found[item.result] = item.dtype
    return found


def _scanned(program: Program, lines: Lines, dtypes: dict[str, str]) -> tuple[Schedule, str, list[str]]:
    """A scan as the engine has it: what is left of the schedule, the function of its arguments, and its ScanSpec."""
    cut = scan_schedule(program)
    scan = cut.scan
    plan = Schedule(
        head=cut.head, passes=(), final=cut.after, element_outputs=program.outputs, row_outputs=(),
        row_names=cut.row_names,
    )  # fmt: skip
    arguments = [a if isinstance(a, str) else _literal(a) for a in scan.args]
    names = [a for a in scan.args if isinstance(a, str)]
    about = f"Per element: what {scan.op} takes."
    function = lines.function("scanned", about, cut.before, names, _tuple(arguments))
    sources = [dtypes[a] if isinstance(a, str) else scan.dtype for a in scan.args]
    return plan, function, [
        "    scan=ScanSpec(",
        f'        op="{scan.op}", elements=scanned, sources={_strings(sources)}, dtype="{scan.dtype}",',
        f"        results={_strings(scan.results)}, reverse={scan.reverse}, exclusive={scan.exclusive},",
        "    ),",
    ]  # fmt: skip


def _ranked(program: Program, lines: Lines, dtypes: dict[str, str]) -> tuple[Schedule, str, list[str]]:
    """What is left of the schedule beside the first of a row, the function of their argument, and their RankSpec."""
    cut = rank_schedule(program)
    rank = cut.rank
    function = lines.function(
        "ranked", f"Per element: what {rank.op} orders.", cut.elements, [rank.arg], f"({rank.arg},)"
    )
    return cut.rest, function, [
        "    rank=RankSpec(",
        f'        op="{rank.op}", elements=ranked, source="{dtypes[rank.arg]}", results={_strings(rank.results)},',
        f"        count={rank.count},",
        "    ),",
    ]  # fmt: skip


def fused_text(
    program: Program, name: str, settings: Point, *, rows_of: int | None = None, slides: bool = False
) -> str:
    """The whole file. `rows_of`: the operand that says how many rows there are, where that is free. `slides`: threads
    may slide over windows (see `over_windows`)."""
    program = safe_names(reduced_in_strength(rounded_once(program)))
    lines, dtypes, scan, rank = Lines(program), dtypes_of(program), list[str](), list[str]()
    if program.scan:
        plan, function, scan = _scanned(program, lines, dtypes)
        functions, entries = [function], list[str]()
    elif program.ranked:
        plan, function, rank = _ranked(program, lines, dtypes)
        functions, entries = sweeps_of(plan, lines, dtypes)
        functions.append(function)
    else:
        plan = schedule(program)
        functions, entries = sweeps_of(plan, lines, dtypes)
    spec = [f'    name="{name}",', f"    domain={program.domain!r},", f"    reduced={program.reduced!r},"]
    spec += [
        f"    operands=({tensors(program.operands, program, free=rows_of is not None)}\n    ),",
        f"    outputs=({tensors(program.outputs)}\n    ),",
    ]
    if plan.head:
        functions.insert(0, lines.function("head", "Per row, before any sweep.", plan.head, (), dict_of(plan.head)))
        spec.append("    head=head,")
    if rows_of is not None:
        spec.append("    free=True,")
    if slides:
        spec.append("    slides=True,")
    stretch = stretch_of(program)
    if stretch is not None:
        spec.append(f'    stretch=RaggedSpec(begin="{stretch.begin}", end="{stretch.end}", usual={stretch.usual}),')
    if entries:
        spec += ["    sweeps=(", *entries, "    ),"]
    if plan.element_outputs:
        names = [o.name for o in plan.element_outputs]
        functions.append(lines.function("final", "Per element: what is written.", plan.final, names, _tuple(names)))
        written = [o.name for o in plan.element_outputs if not o.parts]
        spec += ["    final=final,", f"    element_outputs={_strings(written) if written else '()'},"]
        spec += [f"    sums={_strings([o.name for o in program.sums])},"] if program.sums else []
        kept = shares(plan)
        if kept is not None:
            about = f"The same, where {kept.name} is known."
            functions.append(lines.function("final_of_shares", about, kept.final, names, _tuple(names)))
            spec += [
                f'    shares=SoftmaxSpec(name="{kept.name}", sweep={kept.sweep}, reduction={kept.reduction}, '
                f"exact={kept.exact}, final=final_of_shares),"
            ]
    spec += [*scan, *rank]
    classes = ["Spec", "ArraySpec"] + (["ReductionSpec", "Sweep"] if entries else []) + (["ScanSpec"] if scan else [])
    classes += ["RankSpec"] if rank else []
    classes += ["RaggedSpec"] if stretch is not None else []
    classes += ["SoftmaxSpec"] if any("shares=" in line for line in spec) else []
    about = f"{len(program.body)} operations over {program.domain}"
    about += f", {'scanning' if scan else 'reducing'} dimensions {program.reduced}" if program.reduced else ""
    header = _HEADER.format(name=name, about=about, spec_names=", ".join(sorted(classes)))
    inputs = [o.name for o in program.operands]
    results = [f"out_{o.name}" for o in program.outputs]
    footer = _FOOTER.format(
        name=name, parameters=", ".join(f"{n}: cute.Tensor" for n in (*inputs, *results)),
        tensors=", ".join((*inputs, *results)), knobs=repr(dict(settings)), reads=", ".join(inputs),
        writes=", ".join(o.name for o in program.outputs),
    )  # fmt: skip
    footer += "" if rows_of is None else _FREE
    return header + "\n\n" + "\n\n".join(functions) + "\n\nSPEC = Spec(\n" + "\n".join(spec) + "\n)\n" + footer


def summed_text(program: Program, name: str) -> str:
    """The file that runs both kernels of a Program with sums over the rows."""
    return _SUMMED.format(
        name=name, keeps=len(program.outputs) - len(program.sums), reads=", ".join(o.name for o in program.operands),
        writes=", ".join(o.name for o in program.outputs),
        outputs=repr(tuple((o.shape, o.dtype) for o in program.outputs)), arity=len(program.operands),
    )  # fmt: skip
