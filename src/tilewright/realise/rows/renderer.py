"""Rows: pointwise Programs, reductions, scans, windows and gathers as CuTe DSL kernels, for GPUs from sm_80 on."""

from __future__ import annotations

from math import prod

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Knob, Point, Space, point
from ...ir.partial import adding_up, in_parts, usual_parts
from ...ir.program import DTYPE_BYTES, RANKED, Operand, Program, Reduction, Statement, multiplies
from ...ir.schedule import schedule
from ..float8 import computes_in_float8
from ..realiser import Fit, Refused, carried, refused
from .over_windows import over_windows
from .text import by_rows, fused_text, summed_text

target: Target = "cuda"
digest, writers = "kernels", ("rows/text.py",)
_KNOBS = (
    Knob(name="threads", values=(128, 256, 512, 1024), about="most threads of a CTA"),
    Knob(name="unroll", values=(1, 2, 4, 8), about="vectors that a thread loads before it computes"),
    Knob(
        name="row_storage", values=("auto", "registers", "shared", "reread"), about="where a row stays between sweeps"
    ),
    Knob(
        name="cta_split",
        values=("auto", "none", "cluster", "grid", "split"),
        about="over how many CTAs a row is cta_split",
    ),
    Knob(
        name="tile",
        values=("auto", "none", 32, 64, 128),
        about="elements of a tile along the lanes, where operands lie across them; none: they are read as they lie",
    ),
)
SKELETONS = ("", "cuda", "cuda/common", "cuda/rows")  # folders of `kernels` from which files are copied


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    if multiplies(program):
        return Refused("products of matrices", foreign=True)
    return refused(_unsupported(program, device), open=() if dynamic_rows(program) is None else (0,))


def _unsupported(program: Program, device: Device) -> str | None:
    if program.sums:
        reason = _no_sums(program, device)
        if reason is not None:
            return reason
    dtypes = {v.dtype for v in (*program.operands, *program.body, *program.outputs)}
    if "f64" in dtypes:
        return "f64 has no skeleton"
    if computes_in_float8(program):
        return "arithmetic in float8"
    if not program.operands:
        return "nothing is read"
    ranks = [item for item in program.body if isinstance(item, Reduction) and item.op in RANKED]
    if len(ranks) > 1:
        return "the first of a row in two orders"
    if any(rank.dtype == "i64" for rank in ranks):
        return "the first of a row of whole numbers in 64 bits"
    if ranks and program.inner_size >= 2**31:
        return "the first of a row of more than 2**31"
    if prod(program.domain) == 0:
        return f"the domain {program.domain} is empty"
    if len(program.operands) + len(program.outputs) > 32:
        return "more than 32 tensors"
    if program.scan and any(o.shape != program.domain for o in program.outputs):
        return "an output smaller than the domain beside a scan"
    for item in program.body:
        if not isinstance(item, Statement):
            continue
        if item.op == "pow" and item.dtype not in ("f32", "f16", "bf16") and item.args[1] not in (0, 1, 2, 3):
            return "an integer power with an exponent other than 0 to 3"
    return None


_SUMMED_WORDS = 36 * 1024  # of a row's operands and sums, in the registers of a CTA
_RING_BYTES = 128 * 1024  # of what passes of a row, in the shared memory of a CTA; less where a CTA has less
_RING_REST = 16 * 1024  # of shared memory, for boards and what is reserved
_SUMS = 16 * 1024  # of columns, in the registers of a CTA
_KEPT_BYTES = 2**24  # of an operand that all rows share, in the registers of the whole chip
_WIDEST_SUMMED = 2**16  # elements of a row; beyond, nothing was measured (docs/measured.md)


def _no_sums(program: Program, device: Device) -> str | None:
    """Why sums over the rows are left to a kernel of their own."""
    if any(o.indexed for o in program.operands) or program.ranked:
        return "sums over rows beside loads or ranks"
    passing = [DTYPE_BYTES[o.dtype] for o in program.operands if o.shape == program.domain]
    vectors = all(program.inner_size * item % 16 == 0 for item in passing)
    few = program.inner_size * len(program.sums) <= _SUMS * device.largest_cluster
    few = few and program.inner_size <= _WIDEST_SUMMED
    ring_bytes = min(_RING_BYTES, device.cta_shared_bytes - _RING_REST) * device.largest_cluster
    in_a_ring = vectors and few and program.inner_size * sum(passing) <= ring_bytes
    if not (_sums_in_registers(program) or in_a_ring) or program.inner_size < 32:
        return f"sums over rows of {program.inner_size}"
    return None


def _sums_in_registers(program: Program) -> bool:
    whole = sum(1 for o in program.operands if o.shape == program.domain) + len(program.sums)
    return program.inner_size * whole <= _SUMMED_WORDS


def _parts(program: Program, device: Device) -> int:
    """In how many parts a program's rows are summed: fewer where rows are wide, so that the parts stay small."""
    wide = 16 * 1024
    if program.inner_size <= wide:
        return usual_parts(program.rows, least=device.processors * min(16, wide // program.inner_size))
    return usual_parts(program.rows, least=max(2**22 // program.inner_size, 1))


def _setting(
    threads: int, unroll: int, row_storage: str = "auto", cta_split: str = "auto", *, tile: int | str = "auto"
) -> Point:
    return point(threads=threads, unroll=unroll, row_storage=row_storage, cta_split=cta_split, tile=tile)


def points(program: Program, device: Device) -> Space:
    """At most 8 points; clusters are proposed where the device has them."""
    found = _points(program, device)
    if device.largest_cluster == 1:
        found = [p for p in found if dict(p)["cta_split"] != "cluster"]
    return Space(knobs=_KNOBS, points=tuple(found))


def _points(program: Program, device: Device) -> list[Point]:
    if not program.reduced and any(o.transposed for o in program.operands):
        points = [_setting(256, 4), _setting(256, 8), _setting(128, 8), _setting(512, 4), _setting(256, 4, tile=32),
                  _setting(512, 8), _setting(128, 4), _setting(256, 4, tile="none")]  # fmt: skip
        return points
    if not program.reduced:
        narrow = any(o.dtype in ("f16", "bf16") for o in program.operands)
        points = [_setting(128, 4), _setting(256, 4), _setting(256, 8), _setting(512, 2), _setting(256, 2)]
        if narrow:  # 8 elements a vector: arithmetic weighs more, and wants more of it between loads
            points = [_setting(256, 8), _setting(256, 4), _setting(128, 4), _setting(512, 2), _setting(256, 2)]
        return points
    if program.scan:
        points = [_setting(256, 4), _setting(512, 4), _setting(256, 2), _setting(128, 4), _setting(256, 8)]
        if _few_long_rows(program, device):
            points[3:] = [_setting(512, 4, cta_split="grid"), _setting(256, 4, cta_split="grid")]
            if program.scan.op == "cumsum":  # logarithms compute more than a second reading costs
                points = points[3:] + points[:3]
        return points
    if program.sums and not any(isinstance(item, Reduction) for item in program.body):
        # Threads of a row wait for nobody: the more of it each has, the more registers, and none spill (4 vectors do).
        return [_setting(256, unroll) for unroll in (8, 2, 4, 1)]
    if program.sums:
        points = [_setting(256, 4), _setting(256, 2), _setting(256, 8), _setting(256, 1)]
        if program.inner_size > 2**12:  # one CTA of many threads would have a multiprocessor to itself
            points[1:1] = [_setting(256, 4, cta_split="cluster"), _setting(256, 8, cta_split="cluster")]
        if _sums_in_registers(program):
            points.insert(3, _setting(256, 4, "registers"))
        return points
    cut = schedule(program)
    sweeps = len(cut.passes) + bool(cut.element_outputs)
    if program.ranked:
        points = [_setting(256, 4), _setting(512, 4), _setting(256, 4, "auto", "split"), _setting(1024, 4),
                  _setting(512, 4, "auto", "none"), _setting(128, 4), _setting(256, 8)]  # fmt: skip
        return points
    if sweeps == 1:
        points = [_setting(256, 4), _setting(256, 8), _setting(512, 4), _setting(128, 8), _setting(512, 2)]
        if over_windows(program):  # short walks: more of them at once; last, no walks at all (docs/measured.md)
            points = [_setting(256, 2), _setting(256, 4), _setting(512, 4), _setting(512, 2), _setting(128, 2),
                      _setting(256, 4, "reread")]  # fmt: skip
        return points
    points = [
        _setting(512, 4), _setting(256, 8, "shared"), _setting(256, 4), _setting(512, 8, "shared"), _setting(1024, 4),
        _setting(1024, 4, "shared"), _setting(512, 4, "reread"),
    ]  # fmt: skip
    if _better_in_shared(program):
        points.insert(0, points.pop(1))
    if len(cut.passes) == 1 and _rows_for_teams(program):
        of_two, fine = _setting(512, 2, "auto", "grid"), _setting(1024, 1, "auto", "grid")
        teams = [_setting(1024, 2, "auto", "grid"), of_two]
        if _long_weights(program):
            teams = [_setting(512, 4, "auto", "grid"), of_two]
        elif program.inner_size > 2**18:
            teams.insert(1, fine)
            points.remove(_setting(1024, 4, "shared"))
        else:
            teams.reverse()
        at = 0 if _row_bytes(program) > 2**20 else 1  # what is less does well in a cluster
        points[at:at] = teams
        points.remove(_setting(256, 4))
    return points


def _few_long_rows(program: Program, device: Device) -> bool:
    """Whether a scan's rows are too few to give each multiprocessor one, and long (docs/measured.md, Scans)."""
    along = len(program.domain) - 1 in program.reduced
    return along and program.rows * 2 <= device.processors and program.inner_size >= 2**18


def _along(program: Program) -> list[Operand]:
    """The operands that have elements along a row."""
    return [o for o in program.operands if not o.indexed and any(o.shape[d] > 1 for d in program.reduced)]


def _row_bytes(program: Program) -> int:
    return program.inner_size * sum(DTYPE_BYTES[o.dtype] for o in _along(program))


def _better_in_shared(program: Program) -> bool:
    """Whether rows are so wide that shared memory beats registers untuned: by up to a third from 65536 elements on, and
    at 16384 where two operands are read; in fp32 beside weights, registers of clusters do better from there on
    (docs/measured.md). Beyond 2**18 nothing was measured."""
    if len(program.domain) - 1 not in program.reduced or program.inner_size > 2**18:
        return False
    read = _along(program)
    if program.inner_size >= 2**16 and {o.dtype for o in read} == {"f32"} and len({o.shape for o in read}) > 1:
        return False
    return program.inner_size > 2**14 or (program.inner_size == 2**14 and len(read) > 1)


def _rows_for_teams(program: Program) -> bool:
    """Whether CTAs that stay on the chip may win: several rows, long, and none of their operands shared by all rows,
    which would have to come from memory again for each, unless threads keep them in registers (docs/measured.md)."""
    kept = [d for d in range(len(program.domain)) if d not in program.reduced]
    several = prod(program.domain[d] for d in kept) >= 8 and program.inner_size >= 2**16
    return several and (not _shared_bytes(program) or _long_weights(program))


def _shared_bytes(program: Program) -> list[int]:
    """Of the operands that all rows share."""
    shared = [o for o in program.operands if not o.indexed and prod(o.shape) == program.inner_size]
    return [program.inner_size * DTYPE_BYTES[o.dtype] for o in shared]


def _long_weights(program: Program) -> bool:
    """Whether the L2 holds what all rows share no better than the registers of the whole chip do one of them."""
    found = _shared_bytes(program)
    return sum(found) >= _KEPT_BYTES and min(found) <= _KEPT_BYTES


def dynamic_rows(program: Program) -> int | None:
    """The operand that says how many rows there are, where a kernel may take any number of them: rows lie along
    dimension 0, are not what is reduced, and are read at their own position. Which numbers a compiled kernel takes,
    `takes` of the fused file says."""
    plain = not (program.product or program.sums) and all(by_rows(load, program) is not None for load in program.loads)
    kept = len(program.domain) > 1 and program.domain[0] > 1 and 0 not in program.reduced
    if not (plain and kept) or any(o.transposed for o in program.operands):
        return None
    loaded = {load.source for load in program.loads if by_rows(load, program)}
    having = (o.name in loaded if o.indexed else o.shape[0] > 1 for o in program.operands)
    return next((i for i, has in enumerate(having) if has), None)


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`<name>.py`: element functions and the contract of a fused file; sums over the rows have two more."""
    if program.sums:
        parts = _parts(program, device)
        rows, sums = in_parts(program, parts), adding_up(program, parts)
        return (
            SourceFile(path=f"{name}.py", text=summed_text(program, name)),
            SourceFile(path=f"{name}_rows.py", text=fused_text(rows, f"{name}_rows", point)),
            SourceFile(
                path=f"{name}_sums.py", text=fused_text(sums, f"{name}_sums", points(sums, device).points[0])
            ),
        )  # fmt: skip
    text = fused_text(program, name, point, rows_of=dynamic_rows(program), slides=over_windows(program))
    return (SourceFile(path=f"{name}.py", text=text),)


def skeleton_files() -> tuple[SourceFile, ...]:
    """See `realiser`."""
    return carried(SKELETONS)
