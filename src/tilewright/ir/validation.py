"""Whether a Program is well formed; see `program` for what is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from .access import Access, GroupIndex, Position, Quotient
from .alone import recurrence_in
from .program import (
    DTYPE_BYTES,
    POINTWISE,
    RANKED,
    REDUCTIONS,
    SCANS,
    AttentionBackwardOp,
    AttentionOp,
    Contraction,
    Load,
    Operand,
    Output,
    Program,
    Prologue,
    Reduction,
    Scan,
    Statement,
)
from .recurrence import CELLS, RecurrenceOp


def validate(program: Program) -> None:
    """Raise ValueError, with the offending name, unless the program is well formed."""
    rank = len(program.domain)
    defined: dict[str, str] = {}

    def define(name: str, dtype: str) -> None:
        if name in defined or not name.isidentifier():
            raise ValueError(f"{name!r}: defined twice or not an identifier")
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"{name!r}: unknown dtype {dtype!r}")
        defined[name] = dtype

    if sorted(set(program.reduced)) != list(program.reduced) or any(not 0 <= d < rank for d in program.reduced):
        raise ValueError(
            f"reduced dimensions {program.reduced} are not sorted, distinct dimensions of {program.domain}"
        )
    ranked = program.ranked
    apart = {name for i in program.body if isinstance(i, AttentionBackwardOp) for name in i.results}
    values: tuple[Operand | Output, ...] = (
        *program.operands,
        *(
            o
            for o in program.outputs
            if not o.parts and o.name not in ranked and o.name not in apart and recurrence_in(program) is None
        ),
    )
    for value in values:
        if isinstance(value, Operand) and value.indexed:
            continue
        if isinstance(value, Operand) and value.at:
            _validate_broadcast(value, program)
            continue
        if len(value.shape) != rank or any(s not in (1, d) for s, d in zip(value.shape, program.domain, strict=True)):
            raise ValueError(f"{value.name!r}: shape {value.shape} does not align with the domain {program.domain}")
    for operand in program.operands:
        define(operand.name, operand.dtype)
        if operand.order and sorted(operand.order) != list(range(len(operand.shape))):
            raise ValueError(f"{operand.name!r}: {operand.order} is no order of {len(operand.shape)} dimensions")
    indexed = {o.name: o for o in program.operands if o.indexed}
    loaded: set[str] = set()
    for item in program.body:
        args = (item.arg,) if isinstance(item, Reduction) else item.args
        for arg in args:
            if isinstance(arg, str) and arg not in defined:
                raise ValueError(f"{arg!r} is used before it is defined")
            if arg in indexed:
                raise ValueError(f"{arg!r} is indexed: only loads may read it")
            if arg in ranked:
                raise ValueError(f"{arg!r} has several values a row: nothing but an output takes it")
        if isinstance(item, Load):
            _validate_load(item, indexed.get(item.source), program.domain, defined)
            define(item.result, item.dtype)
            loaded.add(item.result)
            continue
        if isinstance(item, Contraction):
            _validate_contraction(item, indexed, program)
            define(item.result, item.dtype)
            continue
        if isinstance(item, AttentionOp):
            _validate_attention(item, indexed, program)
            define(item.result, item.dtype)
            if item.logsum:
                define(item.logsum, "f32")
            continue
        if isinstance(item, AttentionBackwardOp):
            _validate_gradients(item, indexed, program)
            for name, dtype in zip(item.results, item.dtypes, strict=True):
                define(name, dtype)
            continue
        if isinstance(item, RecurrenceOp):
            _validate_recurrence(item, indexed, program)
            for name in item.results:
                define(name, item.dtype)
            continue
        if isinstance(item, Scan):
            _validate_scan(item, program)
            for name, dtype in zip(item.results, item.dtypes, strict=True):
                define(name, dtype)
            continue
        if isinstance(item, Statement):
            if POINTWISE.get(item.op) != len(item.args):
                raise ValueError(f"{item.result!r}: {item.op!r} of {len(item.args)} arguments is not pointwise")
            if item.op == "inside" and item.args[0] not in loaded:
                raise ValueError(f"{item.result!r}: {item.args[0]!r} is no load, so nothing is inside of anything")
            define(item.result, item.dtype)
        else:
            if REDUCTIONS.get(item.op) != len(item.results) or not program.reduced:
                raise ValueError(f"{item.results}: {item.op!r} with {len(item.results)} results is no reduction here")
            if item.op in RANKED:
                _validate_ranked(item, program)
            for name, dtype in zip(item.results, item.dtypes, strict=True):
                define(name, dtype)
    for output in program.outputs:
        if output.name not in defined:
            raise ValueError(f"output {output.name!r} is never computed")
    _validate_sums(program)


def _validate_broadcast(operand: Operand, program: Program) -> None:
    item = program.product
    if item is None or (program.reduced and len(item.over) == 1) or len(operand.shape) != len(program.domain):
        raise ValueError(f"{operand.name!r}: broadcast over parts of {program.domain}, which no contraction makes")
    _validate_access(Access(operand=operand.name, at=operand.at), operand, program.domain, {})


def _validate_ranked(item: Reduction, program: Program) -> None:
    if len(program.reduced) != 1 or not 1 <= item.count <= program.inner_size:
        raise ValueError(f"{item.results}: {item.count} of dimensions {program.reduced} of {program.domain}")
    shape = tuple(item.count if d in program.reduced else size for d, size in enumerate(program.domain))
    for output in program.outputs:
        if output.name in item.results and output.shape != shape:
            raise ValueError(f"{output.name!r}: shape {output.shape} is not {shape}")


def _validate_sums(program: Program) -> None:
    names = [o.name for o in program.outputs]
    if program.sums and (not program.reduced or program.scan or program.rows == 1):
        raise ValueError(f"{program.sums[0].name!r}: summed over the rows where there are none")
    for output in program.sums:
        if program.aligned(output.name) != program.domain:
            raise ValueError(f"{output.name!r}: summed over the rows, but not at element level")
        if output.shape != program.shape_in_parts(output.parts) or output.parts > program.rows:
            raise ValueError(f"{output.name!r}: shape {output.shape} is not that of {output.parts} part(s)")
        if names.count(output.name) > 1 or output not in program.outputs[-len(program.sums) :]:
            raise ValueError(f"{output.name!r}: sums come last, under names of their own")


def _validate_scan(scan: Scan, program: Program) -> None:
    name = scan.results[0]
    if SCANS.get(scan.op) != (len(scan.args), len(scan.results)):
        raise ValueError(f"{name!r}: {scan.op!r} from {len(scan.args)} to {len(scan.results)} values is no scan")
    if program.reduced != (scan.dim,):
        raise ValueError(f"{name!r}: scans dimension {scan.dim}, but {program.reduced} are reduced")
    if any(isinstance(item, Reduction) or (isinstance(item, Scan) and item is not scan) for item in program.body):
        raise ValueError(f"{name!r}: a scan stands with no reduction and no other scan")


def _validate_contraction(item: Contraction, indexed: Mapping[str, Operand], program: Program) -> None:
    name, whole = item.result, program.domain + item.over
    one = program.reduced in ((), (len(program.domain) - 1,)) or len(item.over) > 1
    if program.loads or program.ranked or not one:
        raise ValueError(f"{name!r}: a contraction has statements beside it, reductions of its rows, and nothing else")
    apart = program.reduced or any(p.prologues or p.left != item.left for p in program.products)
    if len(program.products) > 2 or (len(program.products) == 2 and apart):
        raise ValueError(f"{name!r}: contractions beside one another are two, of one left access, and statements")
    for prologue in item.prologues:
        _validate_prologue(prologue, item, indexed)
    made = {**indexed, **{p.factor: p.made for p in item.prologues}}
    if not {item.left.operand, item.right.operand} <= made.keys():
        raise ValueError(f"{name!r}: {item.left.operand!r} and {item.right.operand!r} are no two indexed operands")
    left, right = made[item.left.operand], made[item.right.operand]
    if left.dtype != right.dtype or left.dtype not in (item.dtype, "float8_e4m3fn"):
        raise ValueError(f"{name!r}: {left.dtype} times {right.dtype} in {item.dtype}")
    for access, operand in ((item.left, left), (item.right, right)):
        _validate_access(access, operand, whole, indexed)
        read = {d for position in access.at for d, _ in position.steps}
        if not item.over or not {*range(len(program.domain), len(whole))} <= read:
            raise ValueError(f"{name!r}: {operand.name!r} is not read along all that is contracted, {item.over}")
    for band in item.within:
        _validate_steps(name, band.at, program.domain)


def _validate_attention(item: AttentionOp, indexed: Mapping[str, Operand], program: Program) -> None:
    name, whole = item.result, (*program.domain, item.keys, item.depth)
    column, key, depth = range(len(program.domain) - 1, len(whole))
    if len(program.body) > 1 or program.reduced or not program.domain:
        raise ValueError(f"{name!r}: an attention stands alone")
    for access, own, foreign in (
        (item.query, depth, (column, key)), (item.key, depth, (column,)), (item.value, column, (depth,)),
    ):  # fmt: skip
        if access.operand not in indexed:
            raise ValueError(f"{name!r}: {access.operand!r} is no indexed operand")
        operand = indexed[access.operand]
        _validate_access(access, operand, whole, indexed)
        read = {d for position in access.at for d, _ in position.steps}
        if access.at[-1] != Position(steps=((own, 1),)) or read & set(foreign) or operand.dtype != item.dtype:
            raise ValueError(f"{name!r}: {operand.name!r} is no factor of its products")
    if len(item.scores.outputs) != 1 or (item.logsum and not item.softmax):
        raise ValueError(f"{name!r}: an attention has one score, and sums of exponentials with a softmax alone")
    _validate_map(name, item.scores, (*program.domain[:-1], item.keys), [indexed.get(n) for n in item.operands])
    last = item.scores.operands[-1]
    if item.sink and (item.sink != item.operands[-1] or last.shape[-1] > 1 or not item.softmax):
        raise ValueError(f"{name!r}: {item.sink!r} is no sink of its scores")


def _validate_map(name: str, scores: Program, rows: tuple[int, ...], given: Sequence[Operand | None]) -> None:
    """Of a pointwise Program over scores whose last operands are these."""
    validate(scores)
    products = scores.operands[: len(scores.operands) - len(given)]
    if scores.domain != rows or {*(o.shape for o in products), *(o.shape for o in scores.outputs)} != {rows}:
        raise ValueError(f"{name!r}: its scores are not over {rows}")
    if any(not isinstance(i, Statement) or i.op == "inside" for i in scores.body):
        raise ValueError(f"{name!r}: its scores are no pointwise program")
    read = [(o.dtype, o.shape) for o in scores.operands[len(products) :]]
    if len(products) < 1 or read != [o and (o.dtype, o.shape) for o in given]:
        raise ValueError(f"{name!r}: its operands are not those that its scores read")


def _validate_gradients(item: AttentionBackwardOp, indexed: Mapping[str, Operand], program: Program) -> None:
    name, whole = item.results[0], (*program.domain, item.keys, item.depth)
    row, column, key, depth = range(len(program.domain) - 2, len(whole))
    if len(program.body) > 1 or program.reduced or len(program.domain) < 2:
        raise ValueError(f"{name!r}: gradients of an attention stand alone")
    for access, own, foreign in (
        (item.query, depth, (column, key)), (item.key, depth, (row, column)), (item.value, column, (row, depth)),
        (item.upstream, column, (key, depth)),
    ):  # fmt: skip
        if access.operand not in indexed:
            raise ValueError(f"{name!r}: {access.operand!r} is no indexed operand")
        operand = indexed[access.operand]
        _validate_access(access, operand, whole, indexed)
        read = {d for position in access.at for d, _ in position.steps}
        if access.at[-1] != Position(steps=((own, 1),)) or read & set(foreign) or operand.dtype != item.dtype:
            raise ValueError(f"{name!r}: {operand.name!r} is no factor of its products")
    _validate_map(name, item.map, (*program.domain[:-1], item.keys), [indexed.get(n) for n in item.operands])
    shapes = dict(zip(item.results, item.shapes(program.domain), strict=True))
    for output in program.outputs:
        full = shapes.get(output.name, ())
        fits = len(full) == len(output.shape) and all(n in (1, m) for n, m in zip(output.shape, full, strict=True))
        if not fits or (output.name in item.results[:3] and output.shape[-2:] != full[-2:]):
            raise ValueError(f"{output.name!r}: {output.shape} is no gradient over {full}")


def _validate_recurrence(item: RecurrenceOp, indexed: Mapping[str, Operand], program: Program) -> None:
    name = item.results[0]
    if len(program.body) > 1 or program.reduced or item.cell not in CELLS or item.directions not in (1, 2):
        raise ValueError(f"{name!r}: recurrent layers of {item.cell!r} in {item.directions} directions, standing alone")
    sequence = indexed.get(item.sequence)
    if sequence is None or len(sequence.shape) != 3:
        raise ValueError(f"{name!r}: {item.sequence!r} is no sequence of vectors")
    steps, batch, inputs = sequence.shape
    if program.domain != (steps, batch, item.directions * item.hidden):
        raise ValueError(f"{name!r}: {program.domain} is not what is made of {sequence.shape}")
    state, count = (item.layers * item.directions, batch, item.hidden), CELLS[item.cell][1]
    wanted: list[tuple[str, tuple[int, ...]]] = [(n, state) for n in item.states]
    wanted += zip(item.weights, item.weight_shapes(inputs), strict=True)
    for operand, shape in wanted:
        if operand not in indexed or (indexed[operand].shape, indexed[operand].dtype) != (shape, item.dtype):
            raise ValueError(f"{name!r}: {operand!r} is not {item.dtype} {shape}")
    if len(item.states) != count or len(item.results) != count + 1 or sequence.dtype != item.dtype:
        raise ValueError(f"{name!r}: {item.cell!r} has {count} states")
    for output in program.outputs:
        if output.name in item.results and output.shape != (program.domain if output.name == name else state):
            raise ValueError(f"{output.name!r}: shape {output.shape}")


def _validate_access(
    access: Access, operand: Operand, domain: tuple[int, ...], indexed: Mapping[str, Operand]
) -> None:  # fmt: skip
    name, shape = operand.name, operand.shape
    if len(access.at) != len(shape):
        raise ValueError(f"{name!r}: {len(access.at)} positions for {shape}")
    for position, size in zip(access.at, shape, strict=True):
        _validate_steps(name, position, domain)
        if isinstance(position, Quotient) and (position.each < 1 or position.wrap < 0):
            raise ValueError(f"{name!r}: divided by {position.each}, modulo {position.wrap}")
        if isinstance(position, GroupIndex):
            offsets = indexed.get(position.offsets)
            if offsets is None or (offsets.dtype, offsets.shape) != ("i32", (size,)):
                raise ValueError(f"{name!r}: {position.offsets!r} are no offsets of {size} groups in i32")
        if not access.padded and not position.surely_inside(size, domain):
            raise ValueError(f"{name!r}: what is read outside of {shape}?")
    for band in access.within:
        _validate_steps(name, band.at, domain)


def _validate_steps(name: str, position: Position, domain: Sequence[int]) -> None:
    dims = [d for d, step in position.steps if 0 <= d < len(domain) and step]
    if len(dims) != len(position.steps) or len(set(dims)) != len(dims):
        raise ValueError(f"{name!r}: {position.steps} are not steps along distinct dimensions of {tuple(domain)}")
    if position.value:
        raise ValueError(f"{name!r}: a contraction reads at no position that a value gives, as {position.value!r}")


def _validate_prologue(prologue: Prologue, product: Contraction, indexed: Mapping[str, Operand]) -> None:
    name, program = prologue.factor, prologue.program
    k = len(program.outputs[0].shape) - (1 if name == product.left.operand else 2) if program.outputs else 0
    if len(program.outputs) == 1 and program.outputs[0].shape == _merged(program.domain, k) and not program.reduced:
        program = prologue.by_itself
    validate(program)
    if name not in (product.left.operand, product.right.operand) or name in indexed:
        raise ValueError(f"{name!r}: no factor of {product.result!r} that is to be made")
    if len(program.outputs) != 1 or program.outputs[0].shape != program.domain or program.sums:
        raise ValueError(f"{name!r}: a prologue has one output, and that is a whole factor")
    if any(not isinstance(item, Statement | Reduction) for item in program.body) or program.ranked:
        raise ValueError(f"{name!r}: a prologue has statements and reductions")
    if program.reduced not in ((), (len(program.domain) - (1 if name == product.left.operand else 2),)):
        raise ValueError(f"{name!r}: a prologue reduces along K")
    if [(o.dtype, o.shape) for o in program.operands] != [
        (indexed[n].dtype, indexed[n].shape) if n in indexed else None for n in prologue.operands
    ]:
        raise ValueError(f"{name!r}: {prologue.operands} are not the operands that its prologue reads")


def _merged(domain: tuple[int, ...], at: int) -> tuple[int, ...]:
    """With two neighbouring dimensions as one."""
    return (*domain[:at], prod(domain[at : at + 2]), *domain[at + 2 :])


def _validate_load(load: Load, source: Operand | None, domain: Sequence[int], defined: Mapping[str, str]) -> None:
    if source is None:
        raise ValueError(f"{load.result!r}: {load.source!r} is no indexed operand")
    if len(load.at) != len(source.shape) or load.dtype != source.dtype:
        raise ValueError(f"{load.result!r}: {len(load.at)} positions in {load.dtype} for {source.shape} {source.dtype}")
    for position, size in zip(load.at, source.shape, strict=True):
        if type(position) is not Position:
            raise ValueError(f"{load.result!r}: a load reads at steps and values, not at {position}")
        _validate_steps(load.result, replace(position, value=""), domain)
        if position.value and defined[position.value] not in ("i32", "i64"):
            raise ValueError(f"{load.result!r}: {position.value!r} is no position but {defined[position.value]}")
        if load.fill is None and not position.value and not position.surely_inside(size, domain):
            raise ValueError(f"{load.result!r}: what is read outside of {load.source!r}?")
