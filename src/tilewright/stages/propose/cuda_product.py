"""Propose matrix products for CUDA: which the skeleton `gemm` takes, and its knobs with a model that ranks them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from ...facts.program import DTYPE_BYTES, Program
from ...facts.space import Knob, Point, Space, point
from .diagonals import NO_ZEROS, kept_diagonals
from .entered import enters, unenterable
from .grouped import fits, is_grouped, ungroupable
from .narrow import computes_in_float8
from .product_sides import (
    SKINNY_SIDE,
    factors,
    is_gated,
    is_plain,
    is_rounded,
    is_routed,
    is_skinny,
    lies_along_k,
    line_of,
    sizes,
)
from .product_tiles import KERNEL, bare_points, is_bare, turn
from .product_time import DEPTH, PROCESSORS, work_ns
from .reduced import BLOCK, blocked
from .skinny import is_unpacked, skinny_points, skinny_space, unpackable

_TYPES = ("f32", "f16", "bf16")
_EIGHT_BITS = "float8_e4m3fn"
_ALSO_WRITTEN = ("float8_e4m3fn", "i8", "u8", "i32", "i64", "bool")
_ALSO_READ = ("i64", "i32", "bool")  # beside a product of which rows are reduced: labels, masks
_LEAST_REDUCED = 128  # columns
_MOST_PLACES = 1 << 24  # columns: their numbers are exact in fp32
_WORTH = 1.02  # times as long a product may take whose rows it reduces, beside what else it saves
_MOST_OPERANDS = 6  # beside the two matrices
# Below, products of three fp16 ones are farther off than fp32's own (docs/precision.md), and bound by memory anyway.
_LEAST_K = 32
_LEAST_EXACT_K = 8  # of six products of bf16, which are as near as fp32's own there, and take no time beside the result
_LEAST_SIDE = 64  # in fp32, which has no skinny kernels; in 16 bits these take what is thinner, alone
_LEAST_WORK = 1 << 24  # M N K: below, it is all launch
_POINTS = 8

_KNOBS = (
    Knob(
        name="tile", values=("16x64", "16x128", "32x64", "32x128", "64x16", "64x32", "64x64", "64x128", "64x256",
                             "128x16", "128x32", "128x64", "128x128", "128x144", "128x160", "128x176", "128x192",
                             "128x208", "128x224", "128x240", "128x256", "256x128", "256x144", "256x160", "256x176",
                             "256x192", "256x208"),
        about="rows x columns of the result that a CTA makes",
    ),
    Knob(name="cluster", values=("1x1", "2x1", "1x2", "2x2"), about="CTAs, along rows x columns, that share loads"),
    Knob(name="stages", values=("auto", 2, 3, 4, 5, 6, 7, 8), about="buffers of 64 of K; auto: as many as fit"),
    Knob(name="split_k", values=(1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128), about="parts of K, summed afterwards"),
    Knob(name="streamed", values=("none", "left", "right"), about="the fp32 matrix that whoever multiplies it splits"),
    Knob(name="store", values=("direct", "bulk", "staged"),
         about="who writes the result: threads, or TMA from shared memory (staged: whole tiles, a matrix comes there)"),
    Knob(name="schedule", values=("cooperative", "pingpong", "stream_k"),
         about="warpgroups share a tile, or take tiles in turns; stream_k: CTAs share the steps of all tiles equally"),
    Knob(name="split", values=("fp16x3", "bf16x6"),
         about="what stands for fp32; six products take twice as long, and hold exponents as wide as fp32's own"),
    Knob(name="sum", values=("kernel", "cluster"), about="who adds parts of K up: a second kernel, or one cluster"),
)  # fmt: skip
_SHAPES = (("256x128", "1x2"), ("128x256", "2x1"), ("128x256", "1x1"), ("128x128", "2x1"), ("128x128", "1x1"),
           ("128x64", "1x1"), ("64x128", "1x1"), ("64x64", "1x1"))  # fmt: skip
# In 16 bits, for sizes that the others cut into too many waves: 512 x 6144 x 4096 takes 38.5 us instead of 46 (H200,
# 2026-11-22).
_WIDE_SHAPES = (("256x192", "1x2"), ("256x160", "1x2"), ("128x192", "2x1"), ("128x160", "2x1"))
# What is done with a product in 16 bits, in whole tiles of shared memory (tile, cluster, schedule): in turns it takes
# no time from the next tile, together it takes less from the tensor cores where K is large. Bias + GELU + residual
# takes 81 us at 8192 x 3072 x 768 (97 before), a gate 378 at 2048 x 18944 x 3584 (406), the bare product there 361
# (369; H200, 2026-11-22).
_FUSED_STAGED = (("128x128", "2x1", "pingpong"), ("128x256", "2x1", "cooperative"), ("64x256", "2x1", "pingpong"))
# Half of the columns are of each product; behind, how much longer a tile of as many elements takes (six sizes from
# 8192 x 3072 x 768 to 2048 x 28672 x 8192; H200, 2026-11-23).
_GATED = (("128x256", "2x1", "cooperative", 1.0), ("128x192", "2x1", "pingpong", 1.02),
          ("256x128", "1x2", "cooperative", 1.02), ("256x192", "1x2", "cooperative", 1.02),
          ("128x128", "2x1", "pingpong", 1.06), ("64x256", "2x1", "pingpong", 1.08),
          ("128x256", "1x1", "cooperative", 1.1), ("128x128", "1x1", "cooperative", 1.2))  # fmt: skip
_THIRDS = ("128x192", "256x192")  # 96 columns of each: no whole lines of 64
_REDUCED_IN_TURNS = (("128x128", "2x1", "direct"), ("64x256", "2x1", "direct"))
_STREAMED_POINTS = 4  # at most; of those that are proposed
_BULK_POINTS = 1  # the same with another store: measured within 2% of one another (H200, 2026-11-22)
# From this K on fp32 is faster in tiles of 128 x 256 than of 256 x 128 (1024 x 8192 x 8192: 687 us, 752; 4096 cubed:
# 614, 624; 64 of K: 1577, 1547), and bare in bulk (4096 cubed: 608; 16384 x 768 x 2048: 291, 307; H200, 2026-11-22).
_FLAT_K = 1024
_THREE_PLANES = ("128x128", "128x64", "64x64")  # of which two stages of three planes fit
_BULK_TILES = ("256x128", "128x256", "128x128")
_STREAMED_K = 16  # a multiple of which K is
_SHORT_K = 2048  # the end of a tile weighs much
_WHOLE_TILE = 128  # rows and columns at least
# Intervals of promotion, and from which K on the bound of their error is at most that of one fp32 accumulator (see
# `intervals` of gemm/bounds.py).
_PROVEN = ((64, 54), (32, 34), (16, 26))
# One H200, 2026-11-23, K of 8192: 96 tiles of 128 x 256 in 277 us instead of 299, 32 in 131 instead of 133; 16 bits
# gain nothing. Whole waves of 128 x 128 take half as long as those; the model has them longer.
_STREAM_K_SHAPES = (("128x256", "2x1"), ("256x128", "1x2"), ("128x128", "2x1"))
_STREAM_K_LEAST = 4096  # of K
_STREAM_K_GAIN = 0.95
_STREAM_K_POINTS = 2
_SQUARE_RATE = 0.93


def unsupported(program: Program) -> str | None:
    """Why the skeleton can't, or shouldn't, make this product; None if it does."""
    batch, m, n, k = sizes(program)
    left, right = factors(program)
    others = [o for o in program.operands if not o.indexed]
    read, written = {o.dtype for o in others}, {o.dtype for o in program.outputs}
    if left.dtype not in (*_TYPES, _EIGHT_BITS):
        return f"a product in {left.dtype} has no skeleton"
    if left.dtype == _EIGHT_BITS and not all(lies_along_k(program)):
        return "a product in eight bits whose matrices don't lie along K"
    if (not program.reduced or is_grouped(program)) and not read <= set(_TYPES):
        return "an epilogue that reads other types than fp32, fp16, bf16"
    if is_grouped(program) and (not written <= set(_TYPES) or len(program.outputs) != 1):
        return "groups of columns of other types than fp32, fp16, bf16, or of several results"
    if not program.reduced and not written <= {*_TYPES, *_ALSO_WRITTEN}:
        return "an epilogue of float64 or of 16-bit integers"
    if any(item.dtype == "f64" for item in program.body) or computes_in_float8(program):
        return "an epilogue in float64 or in float8"
    if len(others) + (0 if program.reduced else len(program.outputs) - 1) > _MOST_OPERANDS:
        return f"an epilogue of more than {_MOST_OPERANDS} operands and further results"
    exact = left.dtype == "f32" and not (program.reduced or is_rounded(program))
    if k < (_LEAST_EXACT_K if exact else _LEAST_K) or (min(m, n) < _LEAST_SIDE and left.dtype == "f32"):
        return f"{m} x {n} x {k} is bound by memory, or too short for fp32's accuracy"
    if batch * m * n * k < _LEAST_WORK and not is_skinny(program):
        return f"{m} x {n} x {k} is all launch"
    if is_routed(program) and (program.reduced or not is_plain(program)):
        return "rows of experts in other types than fp16 and bf16, or reduced"
    read_by_tma = [o for o in (left, right) if left.dtype != "f32" and o in program.operands]
    if any(line_of(o) % (16 // DTYPE_BYTES[o.dtype]) for o in read_by_tma):
        return "rows that don't start at multiples of 16 bytes, which TMA can't read"
    if max(batch * m * n, m * k, k * n) >= 1 << 31:
        return "more than 2^31 elements"
    if is_gated(program):
        return _ungateable(program)
    if is_unpacked(program):
        return unpackable(program)
    return unenterable(program) or (_unreducible(program) if program.reduced else None)


def _ungateable(program: Program) -> str | None:
    """Why both products of a gated pair are better made by kernels of their own."""
    named = {o.name: o for o in program.operands}
    right, beside = (named[p.right] for p in program.products)
    if len(program.domain) > 2 or right.dtype not in _TYPES or is_routed(program):
        return "a gated pair in eight bits, or of batches"
    if sizes(program)[3] < _LEAST_K:
        return "a gated pair of few sums"
    if is_skinny(program) and sizes(program)[1] > SKINNY_SIDE:
        return "a gated pair of few columns"
    if right.dtype != "f32" and (line_of(beside) % 8 or right.order != beside.order):
        return "a gated pair whose matrices lie in different ways"
    return None


def _unreducible(program: Program) -> str | None:
    """Why this product's rows are better reduced by another kernel."""
    if is_grouped(program):
        if is_routed(program) or factors(program)[0].dtype not in _TYPES:
            return "groups of columns of eight bits, or of stretches of rows"
        return ungroupable(program) or unhidden(program) or _slower(program)
    n = sizes(program)[2]
    cut = blocked(program)
    others = [o for o in program.operands if not o.indexed]
    if cut is None or n < _LEAST_REDUCED or any(o.dtype not in (*_TYPES, *_ALSO_READ) for o in others):
        return "a row that is read twice, or is short"
    if any(o.dtype not in _TYPES and o.shape == program.domain for o in others):
        return "whole matrices of numbers that are no floats"
    if n >= _MOST_PLACES and any(r.op in ("argmax", "argmin") for r in cut.reductions):
        return "positions that fp32 does not hold"
    return _slower(program)


def unhidden(program: Program) -> str | None:
    """Why the elements of groups are better written by a kernel of their own: in a product's, its end takes as long as
    that kernel or longer (fp32, K of 8192: as long; of 1024, 0.45 ms longer than 1.55; H200, 2026-11-22), unless
    another tile is multiplied meanwhile."""
    if program.outputs[0].shape != program.domain:
        return None
    if factors(program)[0].dtype == "f32" or sizes(program)[3] < _SHORT_K:
        return "groups of columns whose elements are written while nothing is multiplied"
    return None


def _slower(program: Program) -> str | None:
    """Whether to reduce a product's rows, or groups of columns, costs more than it saves."""
    batch, m, n, _ = sizes(program)
    left, _ = factors(program)
    best, mine = (min((w for w, _ in ranked), default=None) for ranked in (_ranked(program), _reducing(program)))
    if best is None or mine is None or is_skinny(program):
        return "a product whose sums are not whole in one kernel"
    saved = 2.0 * batch * m * n * (4.0 if left.dtype == "f32" else 2.0) / 4000.0  # ns: it is neither written nor read
    if mine > _WORTH * best + saved:
        return "a product that is faster where its sums are made in parts"
    return None


def space(program: Program) -> Space:
    """The knobs, and at most 8 points in the order in which the model has them."""
    if is_unpacked(program) or (is_gated(program) and is_skinny(program)):
        return skinny_space(program, _KNOBS, KERNEL)
    if is_gated(program):
        return Space(knobs=_KNOBS, points=_gated_points(program))
    skinny = skinny_points(program) if is_skinny(program) else ()
    others = () if skinny and min(sizes(program)[1:3]) < _LEAST_SIDE else _points(program)
    wide = _exact_points(program)
    if sizes(program)[3] < _LEAST_K:
        return Space(knobs=_KNOBS, points=wide)
    points = (*(*skinny, *others)[: _POINTS - len(wide)], *wide)
    allowed = _intervals(program)
    if len(allowed) < 2:
        return Space(knobs=_KNOBS, points=points)
    knob = Knob(name="interval", values=("auto", *allowed), about="K of hi*hi that is added up by tensor cores alone")
    return Space(knobs=(*_KNOBS, knob), points=tuple(point(**dict(p), interval="auto") for p in points))


def _intervals(program: Program) -> tuple[int, ...]:
    """Of promotion, those that are proven as accurate as fp32's own sums; which are found by the size, if "auto"."""
    if factors(program)[0].dtype != "f32" or is_rounded(program):
        return ()
    return tuple(interval for interval, least in _PROVEN if sizes(program)[3] >= least)


def _gated_points(program: Program) -> tuple[Point, ...]:
    """Tiles of both products' columns together; whole ones in shared memory first, where the result is of 16 bits."""
    _, m, n, _ = sizes(program)

    def work(shape: tuple[str, str, str, float]) -> float:
        tall, wide = map(int, shape[0].split("x"))
        together = [int(s) for s in shape[1].split("x")]
        tiles = ceil(m / (tall * together[0])) * ceil(2 * n / (wide * together[1])) * together[0] * together[1]
        return ceil(tiles / PROCESSORS) * tall * wide * shape[3]

    if not is_plain(program):
        together = [
            shape for shape in sorted(_GATED, key=work) if shape[2] == "cooperative" and shape[0] not in _THIRDS
        ]
        points = [turn(tile, cluster, "direct", "cooperative") for tile, cluster, *_ in together]
        exact = {**dict(turn("128x128", "1x1", "direct", "cooperative")), "split": "bf16x6"}
        return (*points, *(() if is_rounded(program) else (point(**exact),)))
    lines = program.outputs[0].dtype in ("f16", "bf16") and n % 8 == 0
    shapes = [s for s in sorted(_GATED, key=work) if s[0] not in _THIRDS or lies_along_k(program)[1]]
    stores = ["direct" if not lines else "bulk" if s[0] in _THIRDS else "staged" for s in shapes]
    return tuple(turn(s[0], s[1], store, s[2]) for s, store in zip(shapes, stores, strict=True))


def _exact_points(program: Program) -> tuple[Point, ...]:
    """Of fp32 one with six products of bf16: half as fast, and right where three of fp16 are not accurate enough; where
    K is short several, and nothing else."""
    if factors(program)[0].dtype != "f32" or is_rounded(program):
        return ()
    ranked = _reducing(program) if program.reduced else _ranked(program)
    fitting = (dict(p) for _, p in ranked if dict(p)["tile"] in _THREE_PLANES and dict(p)["streamed"] == "none")
    points = [point(**{**p, "split": "bf16x6"}) for p in fitting]
    if sizes(program)[3] >= _LEAST_K:
        return tuple(points[:1])
    bulk = [point(**{**dict(p), "store": "bulk"}) for p in points[:1] if dict(p)["tile"] in _BULK_TILES]
    return (*points[:1], *bulk, *points[1:])


def _reducing(program: Program) -> list[tuple[float, Point]]:
    """The points at which rows can be reduced, with the model's time of each."""

    def takes(point: dict[str, str | int]) -> bool:
        columns = int(str(point["tile"]).split("x")[1])
        whole = fits(program, columns) if is_grouped(program) else columns % BLOCK == 0
        return point["split_k"] == 1 and point["streamed"] != "right" and whole

    return [(work, p) for work, p in _ranked(program) if takes(dict(p))]


def _ranked(program: Program) -> list[tuple[float, Point]]:
    """All points, in the order in which the model has them, with its time of each."""
    batch, m, n, k = sizes(program)
    split = factors(program)[0].dtype == "f32"
    rounded = is_rounded(program)
    kept = (None, None) if program.reduced else kept_diagonals(program)
    assert program.product is not None
    zeros = program.product.zeros
    ranked: list[tuple[float, int, Point]] = []
    streams = _streams(program) if split and not rounded else ()
    flat = split and k >= _FLAT_K
    shapes = (*(_SHAPES[1::-1] if flat else _SHAPES[:2]), *_SHAPES[2:], *(_WIDE_SHAPES if is_plain(program) else ()))
    for rank, (tile, cluster, streamed) in enumerate((*((t, c, "none") for t, c in shapes), *streams)):
        for parts in (1, 2, 3, 4, 8, 16, 32, 64, 128):
            # Of a triangle's parts of K some are empty, and the longest tile is as long.
            if parts > 1 and (ceil(k / DEPTH) // parts < 4 or zeros != NO_ZEROS):
                break
            work = work_ns(batch, m, n, k, tile=tile, cluster=cluster, parts=parts, fp32=split, streamed=streamed,
                           kept=kept, rounded=rounded, zeros=zeros, along=lies_along_k(program))  # fmt: skip
            setting = point(tile=tile, cluster=cluster, split_k=parts, streamed=streamed, **KERNEL)
            if enters(program, dict(setting)):
                ranked.append((work, rank, setting))
    ranked.sort(key=lambda item: item[:2])
    return [(work, p) for work, _, p in ranked]


def _points(program: Program) -> tuple[Point, ...]:
    plain = is_plain(program)
    points = [p for _, p in (_reducing(program) if program.reduced else _ranked(program))]
    streaming = [p for p in points if dict(p)["streamed"] != "none"][:_STREAMED_POINTS]
    chosen = [p for p in points if p in streaming or dict(p)["streamed"] == "none"]
    if program.reduced:
        shapes = [s for s in _REDUCED_IN_TURNS if not is_grouped(program) or fits(program, int(s[0].split("x")[1]))]
        turns = tuple(turn(*shape) for shape in shapes) if plain else ()  # not yet measured: never first
        if turns and is_grouped(program) and program.outputs[0].shape == program.domain:
            return turns  # else nothing is multiplied while elements are written (see `unhidden`)
        return (*chosen[:1], *_in_turn(turns, chosen[1:]))
    if is_routed(program):
        return tuple(p for p in chosen if dict(p)["split_k"] == 1)
    direct = [p for p in chosen if p not in streaming and dict(p)["tile"] in _BULK_TILES][:_BULK_POINTS]
    bare = not plain and len(program.operands) == 2 and sizes(program)[3] >= _FLAT_K
    for p in direct:
        chosen.insert(chosen.index(p) + (0 if bare else 1), point(**{**dict(p), "store": "bulk"}))
    return _with_turns(program, chosen) if plain else (*_streamed_in_k(program), *chosen)


def _streamed_in_k(program: Program) -> tuple[Point, ...]:
    """Of fp32 the points by stream-K that the model has before all others, by so much that it may be believed."""
    batch, m, n, k = sizes(program)
    assert program.product is not None
    if k < _STREAM_K_LEAST or kept_diagonals(program) != (None, None) or program.product.zeros != NO_ZEROS:
        return ()
    best = min(work * (_SQUARE_RATE if dict(p)["tile"] == "128x128" else 1.0) for work, p in _ranked(program))
    found = []
    for tile, cluster in _STREAM_K_SHAPES:
        work = work_ns(batch, m, n, k, tile=tile, cluster=cluster, parts=1, fp32=True, rounded=is_rounded(program),
                       along=lies_along_k(program), stream_k=True)  # fmt: skip
        setting = {
            **KERNEL,
            "split_k": 1,
            "streamed": "none",
            "schedule": "stream_k",
            "tile": tile,
            "cluster": cluster,
        }
        if work < _STREAM_K_GAIN * best and enters(program, setting):
            found.append((work, point(**setting)))
    return tuple(p for _, p in sorted(found)[:_STREAM_K_POINTS])


def _with_turns(program: Program, others: list[Point]) -> tuple[Point, ...]:
    """Of bare products tiles of all widths, between others where parts of K or small tiles are ahead of these. Of other
    products whole tiles in shared memory, and warpgroups that take turns, between the rest."""
    if is_bare(program):
        first = dict(others[0])
        few = first["split_k"] != 1 or min(map(int, str(first["tile"]).split("x"))) < _WHOLE_TILE
        return _in_turn(others[:4], bare_points(program)) if few else bare_points(program)
    staged = program.outputs[0].dtype in ("f16", "bf16") and program.domain[-1] % 8 == 0
    short = sizes(program)[3] <= _SHORT_K
    shapes = _FUSED_STAGED if short else (*_FUSED_STAGED[1::-1], *_FUSED_STAGED[2:])
    return _in_turn([turn(t, c, "staged" if staged else "direct", s) for t, c, s in shapes], others)


def _in_turn(turns: Sequence[Point], others: Sequence[Point]) -> tuple[Point, ...]:
    """One of both after the other."""
    pairs = list(zip(turns, others, strict=False))
    return (*(p for pair in pairs for p in pair), *others[len(pairs) :])


def _streams(program: Program) -> tuple[tuple[str, str, str], ...]:
    """Tiles, clusters and sides of the matrices that can be streamed: those that lie K by K."""
    if sizes(program)[3] % _STREAMED_K:
        return ()
    if not program.reduced and kept_diagonals(program) != (None, None):
        return ()
    left, right = lies_along_k(program)
    found: list[tuple[str, str, str]] = []
    if left:
        found += [("128x128", "2x1", "left"), ("128x128", "1x1", "left"), ("128x64", "1x1", "left")]
    if right:
        found += [("128x128", "1x2", "right"), ("128x128", "1x1", "right"), ("64x128", "1x1", "right")]
    return tuple(found)
