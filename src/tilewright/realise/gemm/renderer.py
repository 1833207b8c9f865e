"""Products of matrices by TMA and wgmma: which of them the skeleton `gemm` takes, its points and its files."""

from __future__ import annotations

from math import prod

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Point, Space
from ...ir.program import DTYPE_BYTES, Program
from ..float8 import computes_in_float8
from ..realiser import Fit, Refused, carried, copied, refused
from ..rows import renderer as rows
from ..rows.text import fused_text as rows_text
from .column_groups import has_column_groups, is_row, no_column_groups
from .points import EIGHT_BITS, FAR, LEAST_K, TMA_BYTES, is_thin, ranked_points, reducing_points, space, thin_points
from .prologues import no_prologue
from .reduced import blocked
from .shape import (
    SMALL_M,
    factors,
    is_dual,
    is_grouped_gemm,
    is_k_major,
    is_plain,
    is_small_m,
    is_tf32,
    line_of,
    no_matrices,
    sizes,
)
from .small_m import is_mixed_input, no_mixed_input
from .text import fused_text, reduced_texts
from .time import FITTED, Rates, copies_ns, least_ns

target: Target = "cuda"
digest, writers = "products", ("rows/text.py", "gemm/points.py")
_SKELETONS = ("cuda/gemm", *(f"cuda/gemm/{part}" for part in ("mainloop", "epilogue", "prologue", "fp32", "host")))
_TYPES = ("f32", "f16", "bf16")
_ALSO_WRITTEN = ("float8_e4m3fn", "i8", "u8", "i32", "i64", "bool")
_ALSO_READ = ("i64", "i32", "bool")  # beside a product of which rows are reduced: labels, masks
_READ_BESIDE = (*_TYPES, "bool", "i32", "i64", "u8", "i8")  # beside one whose elements are written
_LEAST_REDUCED = 128  # columns
_MOST_PLACES = 1 << 24  # columns: their numbers are exact in fp32
_WORTH = 1.02  # times as long a product may take whose rows it reduces, beside what else it saves
_MOST_OPERANDS = 6  # beside the two matrices
_LEAST_EXACT_K = 8  # of six products of bf16, which are as near as fp32's own there, and take no time beside the result
_LONGEST_SIDE = (1 << 31) - (1 << 16)  # positions have 32 bits, behind the last tile, too; what they stand for has 64
_LEAST_WORK = 1 << 24  # M N K: below, it is all launch
# From which K on the elements of what is reduced are written in a product's end, by the bits of its factors; what is
# not here is written by a kernel of its own (see `unhidden`). Whole rows of 64 to 256 columns: one kernel takes 0.80 to
# 1.005 of the time of two, from 512 of K on (H200, 2026-11-24; whole-rows.json of the results).
_WRITTEN_FROM = {("groups of columns", 16): 2048, ("rows", 16): 512}
_SMALL_M_TILE = 64  # rows; from so many times the multiprocessors' number on, K is not cut


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    if program.product is None:
        return Refused("no product of matrices", foreign=True)
    if device.architecture != FITTED.architecture:
        return Refused(f"the product's skeleton needs {FITTED.architecture} (TMA and wgmma)")
    why = no_matrices(program)
    if why is not None:
        return Refused(why, foreign=True)
    of_16_bits = program.operands[0].dtype in ("f16", "bf16")
    return refused(unsupported(program, device), ranked=True, guess=of_16_bits)


def points(program: Program, device: Device) -> Space:
    """See `realiser`."""
    return space(program, device)


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`NAME.py`; where rows are reduced across tiles, the product and the kernel that joins its blocks beside it."""
    if not program.reduced or has_column_groups(program):
        return (SourceFile(path=f"{name}.py", text=fused_text(program, name, point)),)
    whole, product, joined = reduced_texts(program, name, point)
    first = rows.points(joined, device).points[0]
    return (
        SourceFile(path=f"{name}.py", text=whole),
        SourceFile(path=f"{name}_product.py", text=product),
        SourceFile(path=f"{name}_rows.py", text=rows_text(joined, f"{name}_rows", first)),
    )


def skeleton_files() -> tuple[SourceFile, ...]:
    """Those of rows, too: products share their element functions and their cache."""
    return (*carried((*rows.SKELETONS, *_SKELETONS)), *copied(["cuda/common/cubin.py"]))


def unsupported(program: Program, device: Device) -> str | None:
    """Why the skeleton can't, or shouldn't, make this product; None if it does."""
    batch, m, n, k = sizes(program)
    left, _ = factors(program)
    others = [o for o in program.operands if not o.indexed]
    read, written = {o.dtype for o in others}, {o.dtype for o in program.outputs}
    if left.dtype not in (*_TYPES, EIGHT_BITS):
        return f"a product in {left.dtype} has no skeleton"
    if left.dtype == EIGHT_BITS and not all(is_k_major(program)):
        return "a product in eight bits whose matrices don't lie along K"
    if has_column_groups(program) and not read <= set(_TYPES):
        return "groups of columns beside other types than fp32, fp16, bf16"
    if not program.reduced and not read <= set(_READ_BESIDE):
        return "an epilogue that reads other types than fp32, fp16, bf16, bool, and integers of 8, 32 and 64 bits"
    if has_column_groups(program) and (not written <= set(_TYPES) or len(program.outputs) != 1):
        return "groups of columns of other types than fp32, fp16, bf16, or of several results"
    if not program.reduced and not written <= {*_TYPES, *_ALSO_WRITTEN}:
        return "an epilogue of float64 or of 16-bit integers"
    if any(item.dtype == "f64" for item in program.body) or computes_in_float8(program):
        return "an epilogue in float64 or in float8"
    if len(others) + (0 if program.reduced else len(program.outputs) - 1) > _MOST_OPERANDS:
        return f"an epilogue of more than {_MOST_OPERANDS} operands and further results"
    exact = left.dtype == "f32" and not (program.reduced or is_tf32(program))
    if k < (_LEAST_EXACT_K if exact else LEAST_K):
        return f"{m} x {n} x {k} is bound by memory, or too short for fp32's accuracy"
    if is_thin(program) and not thin_points(program, device):
        return f"{m} x {n} x {k} in fp32 is bound by memory, or fills half a tile that isn't streamed"
    if batch * m * n * k < _LEAST_WORK and not is_small_m(program):
        return f"{m} x {n} x {k} is all launch"
    if is_grouped_gemm(program) and (program.reduced or not is_plain(program)):
        return "rows of experts in other types than fp16 and bf16, or reduced"
    if max(batch, m, n, k) > _LONGEST_SIDE:
        return "a side of 2^31 and more"
    if _is_copied_for_long(program, device):
        return "rows that don't start at multiples of 16 bytes, and whose copy costs more than it brings"
    if is_dual(program):
        return _no_dual(program)
    if is_mixed_input(program):
        return no_mixed_input(program)
    return no_prologue(program) or (_unreducible(program, device) if program.reduced else None)


def _is_copied_for_long(program: Program, device: Device) -> bool:
    """Whether factors that TMA can't read as they lie take so long to be copied to lines that it can, in every call,
    that a library which reads them as they are is clearly faster. What is written may start anywhere: threads write
    it; and the split of fp32 reads what it likes."""
    batch, m, n, k = sizes(program)
    left, right = factors(program)
    if left.dtype == "f32":
        return False
    item = DTYPE_BYTES[left.dtype]
    named = {o.name: o for o in program.operands}
    read = [named[p] for p in (left.name, *(p.right.operand for p in program.products)) if p in named]
    anywhere = [o for o in read if line_of(o) * item % TMA_BYTES and line_of(o) < prod(o.shape)]  # not of one line
    if not anywhere:
        return False
    sides = [float(item * prod(o.shape)) for o in anywhere]
    several, results = len(program.products), float(m * n * (1 if is_grouped_gemm(program) else batch))
    moved = item * (prod(left.shape) + several * prod(right.shape) + results)
    flops = 2.0 * several * results * k
    ours, theirs = (least_ns(flops, moved, anywhere=a, device=device) for a in (False, True))
    return copies_ns(sides, device) + ours > FAR * theirs


def _no_dual(program: Program) -> str | None:
    """Why both products of a dual GEMM are better made by kernels of their own."""
    named = {o.name: o for o in program.operands}
    right, beside = (named[p.right.operand] for p in program.products)
    if len(program.domain) > 2 or right.dtype not in _TYPES or is_grouped_gemm(program):
        return "a gated pair in eight bits, or of batches"
    if sizes(program)[3] < LEAST_K:
        return "a gated pair of few sums"
    if is_small_m(program) and sizes(program)[1] > SMALL_M:
        return "a gated pair of few columns"
    if right.dtype != "f32" and right.order != beside.order:
        return "a gated pair whose matrices lie in different ways"
    return None


def _unreducible(program: Program, device: Device) -> str | None:
    """Why this product's rows are better reduced by another kernel."""
    if has_column_groups(program):
        if is_grouped_gemm(program) or factors(program)[0].dtype not in _TYPES:
            return "groups of columns of eight bits, or of stretches of rows"
        return no_column_groups(program) or unhidden(program) or _slower(program, device)
    n = sizes(program)[2]
    cut = blocked(program)
    others = [o for o in program.operands if not o.indexed]
    if cut is None or n < _LEAST_REDUCED or any(o.dtype not in (*_TYPES, *_ALSO_READ) for o in others):
        return "a row that is read twice, or is short"
    if any(o.dtype not in _TYPES and o.shape == program.domain for o in others):
        return "whole matrices of numbers that are no floats"
    if n >= _MOST_PLACES and any(r.op in ("argmax", "argmin") for r in cut.reductions):
        return "positions that fp32 does not hold"
    return _slower(program, device)


def unhidden(program: Program) -> str | None:
    """Why the elements of groups, or of rows, are better written by a kernel of their own: in a product's, its end
    takes as long as that kernel or longer (fp32, K of 8192: as long; of 1024, 0.45 ms longer than 1.55; H200,
    2026-11-22), unless another tile is multiplied meanwhile."""
    if program.outputs[0].shape != program.domain:
        return None
    kind = "rows" if is_row(program) else "groups of columns"
    least = _WRITTEN_FROM.get((kind, 8 * DTYPE_BYTES[factors(program)[0].dtype]))
    if least is None or sizes(program)[3] < least:
        return f"{kind} whose elements are written while little or nothing is multiplied"
    return None


def _slower(program: Program, device: Device) -> str | None:
    """Whether to reduce a product's rows, or groups of columns, costs more than it saves."""
    batch, m, n, _ = sizes(program)
    left, _ = factors(program)
    best, mine = (
        min((work for work, _ in ranked(program, device)), default=None) for ranked in (ranked_points, reducing_points)
    )
    few = batch * m < _SMALL_M_TILE * device.processors or n > SMALL_M or not is_row(program)
    if best is None or mine is None or (few and is_small_m(program)):
        return "a product whose sums are not whole in one kernel"
    spared = 2.0 * batch * m * n * (4.0 if left.dtype == "f32" else 2.0)  # bytes neither written nor read
    if mine > _WORTH * best + spared / Rates(device).bytes:
        return "a product that is faster where its sums are made in parts"
    return None
