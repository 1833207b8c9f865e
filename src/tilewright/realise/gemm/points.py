"""The knobs of a matrix product, and the points that are tried, in the order of a model of their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import ceil

from ...facts.device import Device
from ...facts.space import Knob, Point, Space, point
from ...ir.program import DTYPE_BYTES, Program
from .column_groups import fits, has_column_groups, is_row
from .kept_diagonals import NO_ZEROS, kept_diagonals
from .prologues import takes_prologue
from .reduced import BLOCK
from .shape import factors, is_dual, is_grouped_gemm, is_k_major, is_plain, is_small_m, is_tf32, matrices, sizes
from .small_m import is_mixed_input, small_m_points, small_m_space
from .tiles import KERNEL, bare_points, is_bare, turn
from .time import DEPTH, GemmWork, work_ns

EIGHT_BITS = "float8_e4m3fn"
# Below, products of three fp16 ones are farther off than fp32's own (docs/precision.md), and bound by memory anyway.
LEAST_K = 32
_LEAST_SIDE = 64  # the smallest tile
_LEAST_STREAMED_SIDE = 32  # of fp32, in half such a tile: below, thin matrices are bound by memory
TMA_BYTES = 16  # at whose multiples lines start that TMA reads
_POINTS = 8
KNOBS = (
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
_DUAL = (("128x256", "2x1", "cooperative", 1.0), ("128x192", "2x1", "pingpong", 1.02),
          ("256x128", "1x2", "cooperative", 1.02), ("256x192", "1x2", "cooperative", 1.02),
          ("128x128", "2x1", "pingpong", 1.06), ("64x256", "2x1", "pingpong", 1.08),
          ("128x256", "1x1", "cooperative", 1.1), ("128x128", "1x1", "cooperative", 1.2))  # fmt: skip
# Of rows in stretches, where these are long (8 stretches of 1024 and 2048 rows, 128 of 128), and where one tile holds
# each (64 of 64 rows): within 2% of the best (H200, 2026-11-24; beside-torch.json of the results).
_LONG_STRETCHES = (("128x192", "2x1", "pingpong"), ("256x128", "1x2", "cooperative"), ("256x192", "1x2", "cooperative"),
                   ("128x128", "2x1", "pingpong"), ("128x256", "1x1", "cooperative"))  # fmt: skip
_SHORT_STRETCHES = (("128x256", "1x1", "cooperative"), ("128x128", "1x1", "cooperative"),
                    ("64x128", "1x1", "cooperative"), ("128x192", "2x1", "pingpong"),
                    ("64x64", "1x1", "cooperative"))  # fmt: skip
_LONG = 128  # rows
_THIRDS = ("128x192", "256x192")  # 96 columns of each: no whole lines of 64
_REDUCED_IN_TURNS = (("128x128", "2x1", "direct"), ("64x256", "2x1", "direct"))
# Of products in 16 bits whose rows lie in a tile of so many columns: in turns, or beside another CTA, or not.
_WHOLE_ROWS = {
    64: (("128x64", "2x1", "pingpong"), ("64x64", "2x1", "cooperative")),
    128: (("128x128", "2x1", "pingpong"), ("64x128", "2x1", "cooperative"), ("128x128", "2x1", "cooperative")),
    256: (("64x256", "2x1", "pingpong"), ("128x256", "2x1", "cooperative")),
}
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
FAR = 1.5  # times as long in the model as what else there is, a point or a library: not worth a measurement
_BEGIN_NS = 3000.0  # that every product takes beside, and the model leaves out


def is_thin(program: Program) -> bool:
    """Whether it is fp32 with a side under the smallest tile's."""
    return factors(program)[0].dtype == "f32" and min(sizes(program)[1:3]) < _LEAST_SIDE


def thin_points(program: Program, device: Device) -> tuple[Point, ...]:
    """Of what is thin: the large matrix is streamed, or its planes alone would take as long as the library. Below
    _LEAST_STREAMED_SIDE that takes as long as the matrix takes to come (a side s at 4.2 TB/s is 2.1 s TFLOP/s; cuBLAS's
    fp32 does 51)."""
    _, m, n, k = sizes(program)
    if min(m, n) < _LEAST_STREAMED_SIDE or k < LEAST_K:
        return ()
    if program.reduced or is_tf32(program) or is_dual(program):
        return ()
    wanted = ("128x64", "left") if n < m else ("64x128", "right")
    return tuple(p for _, p in ranked_points(program, device) if (dict(p)["tile"], dict(p)["streamed"]) == wanted)


def space(program: Program, device: Device) -> Space:
    """The knobs, and at most 8 points in the order in which the model has them."""
    if is_mixed_input(program) or (is_dual(program) and is_small_m(program)):
        return small_m_space(program, KNOBS, KERNEL, device)
    if is_dual(program):
        return Space(knobs=KNOBS, points=_dual_points(program, device))
    small_m = small_m_points(program, device) if is_small_m(program) and not program.reduced else ()
    others = () if small_m and min(sizes(program)[1:3]) < _LEAST_SIDE else _points(program, device)
    wide = () if is_thin(program) else _exact_points(program, device)
    if sizes(program)[3] < LEAST_K:
        return Space(knobs=KNOBS, points=wide)
    points = (*(*small_m, *others)[: _POINTS - len(wide)], *wide)
    allowed = _intervals(program)
    if len(allowed) < 2:
        return Space(knobs=KNOBS, points=points)
    knob = Knob(name="interval", values=("auto", *allowed), about="K of hi*hi that is added up by tensor cores alone")
    return Space(knobs=(*KNOBS, knob), points=tuple(point(**dict(p), interval="auto") for p in points))


def _intervals(program: Program) -> tuple[int, ...]:
    """Of promotion, those that are proven as accurate as fp32's own sums; which are found by the size, if "auto"."""
    if factors(program)[0].dtype != "f32" or is_tf32(program):
        return ()
    return tuple(interval for interval, least in _PROVEN if sizes(program)[3] >= least)


def _dual_points(program: Program, device: Device) -> tuple[Point, ...]:
    """Tiles of both products' columns together; whole ones in shared memory first, where the result is of 16 bits."""
    _, m, n, _ = sizes(program)

    def work(shape: tuple[str, str, str, float]) -> float:
        tall, wide = map(int, shape[0].split("x"))
        together = [int(s) for s in shape[1].split("x")]
        tiles = ceil(m / (tall * together[0])) * ceil(2 * n / (wide * together[1])) * together[0] * together[1]
        return ceil(tiles / device.processors) * tall * wide * shape[3]

    if not is_plain(program):
        together = [shape for shape in sorted(_DUAL, key=work) if shape[2] == "cooperative" and shape[0] not in _THIRDS]
        points = [turn(tile, cluster, "direct", "cooperative") for tile, cluster, *_ in together]
        exact = {**dict(turn("128x128", "1x1", "direct", "cooperative")), "split": "bf16x6"}
        return (*points, *(() if is_tf32(program) else (point(**exact),)))
    lines = program.outputs[0].dtype in ("f16", "bf16") and n % 8 == 0
    shapes = [s for s in sorted(_DUAL, key=work) if s[0] not in _THIRDS or is_k_major(program)[1]]
    stores = ["direct" if not lines else "bulk" if s[0] in _THIRDS else "staged" for s in shapes]
    return tuple(turn(s[0], s[1], store, s[2]) for s, store in zip(shapes, stores, strict=True))


def _exact_points(program: Program, device: Device) -> tuple[Point, ...]:
    """Of fp32 one with six products of bf16: half as fast, and right where three of fp16 are not accurate enough; where
    K is short several, and nothing else."""
    if factors(program)[0].dtype != "f32" or is_tf32(program):
        return ()
    ranked = reducing_points(program, device) if program.reduced else ranked_points(program, device)
    fitting = (dict(p) for _, p in ranked if dict(p)["tile"] in _THREE_PLANES and dict(p)["streamed"] == "none")
    points = [point(**{**p, "split": "bf16x6"}) for p in fitting]
    if sizes(program)[3] >= LEAST_K:
        return tuple(points[:1])
    bulk = [point(**{**dict(p), "store": "bulk"}) for p in points[:1] if dict(p)["tile"] in _BULK_TILES]
    return (*points[:1], *bulk, *points[1:])


def reducing_points(program: Program, device: Device) -> list[tuple[float, Point]]:
    """The points at which rows can be reduced, with the model's time of each."""

    def takes(point: dict[str, str | int]) -> bool:
        columns = int(str(point["tile"]).split("x")[1])
        whole = fits(program, columns) if has_column_groups(program) else columns % BLOCK == 0
        return point["split_k"] == 1 and point["streamed"] != "right" and whole

    return [(work, p) for work, p in ranked_points(program, device) if takes(dict(p))]


def ranked_points(program: Program, device: Device) -> list[tuple[float, Point]]:
    """All points, in the order in which the model has them, with its time of each."""
    k = sizes(program)[3]
    split = factors(program)[0].dtype == "f32"
    takes_ns = _model(program, device)
    batch = sizes(program)[0]
    shared = any(x.shape[0] not in (1, batch) for x in factors(program)) if len(program.domain) > 2 else False
    # Of a triangle's parts of K some are empty, and the longest tile is as long; exponents of parts of K are a batch's
    # own, those of a factor that serves several are not.
    whole = matrices(program).zeros != NO_ZEROS or (split and shared)
    ranked: list[tuple[float, int, Point]] = []
    streams = _streams(program) if split and not is_tf32(program) else ()
    flat = split and k >= _FLAT_K
    shapes = (*(_SHAPES[1::-1] if flat else _SHAPES[:2]), *_SHAPES[2:], *(_WIDE_SHAPES if is_plain(program) else ()))
    for rank, (tile, cluster, streamed) in enumerate((*((t, c, "none") for t, c in shapes), *streams)):
        for parts in (1, 2, 3, 4, 8, 16, 32, 64, 128):
            if parts > 1 and (whole or ceil(k / DEPTH) // parts < 4):
                break
            setting = point(tile=tile, cluster=cluster, split_k=parts, streamed=streamed, **KERNEL)
            if takes_prologue(program, dict(setting)):
                ranked.append((takes_ns(setting), rank, setting))
    ranked.sort(key=lambda item: item[:2])
    return [(work, p) for work, _, p in ranked]


def _points_of_stretches(program: Program) -> tuple[Point, ...]:
    """Tiles of them are written by the threads that made them."""
    _, right = factors(program)
    shapes = _LONG_STRETCHES if sizes(program)[1] >= _LONG * right.shape[0] else _SHORT_STRETCHES
    return tuple(turn(tile, cluster, "direct", how) for tile, cluster, how in shapes)


def _model(program: Program, device: Device) -> Callable[[Point], float]:
    """Its time at a point, in ns."""
    batch, m, n, k = sizes(program)
    work = GemmWork(
        batch=batch, m=m, n=n, k=k, fp32=factors(program)[0].dtype == "f32", tf32=is_tf32(program),
        kept=(None, None) if program.reduced else kept_diagonals(program), zeros=matrices(program).zeros,
        k_major=is_k_major(program),
    )  # fmt: skip

    def takes_ns(setting: Point) -> float:
        knobs = dict(setting)
        return work_ns(
            work, tile=str(knobs["tile"]), cluster=str(knobs["cluster"]), parts=int(knobs["split_k"]),
            streamed=str(knobs["streamed"]), stream_k=knobs["schedule"] == "stream_k", device=device,
        )  # fmt: skip

    return takes_ns


def _points(program: Program, device: Device) -> tuple[Point, ...]:
    if is_thin(program):
        return thin_points(program, device)[:_STREAMED_POINTS]
    plain = is_plain(program)
    if is_grouped_gemm(program):
        return _points_of_stretches(program)
    points = [p for _, p in (reducing_points(program, device) if program.reduced else ranked_points(program, device))]
    streaming = [p for p in points if dict(p)["streamed"] != "none"][:_STREAMED_POINTS]
    chosen = [p for p in points if p in streaming or dict(p)["streamed"] == "none"]
    if is_row(program) and plain:
        columns = next(wide for wide in _WHOLE_ROWS if program.domain[-1] <= wide)
        return tuple(turn(tile, cluster, "direct", how) for tile, cluster, how in _WHOLE_ROWS[columns])
    if program.reduced:
        shapes = [
            s for s in _REDUCED_IN_TURNS if not has_column_groups(program) or fits(program, int(s[0].split("x")[1]))
        ]
        turns = tuple(turn(*shape) for shape in shapes) if plain else ()  # not yet measured: never first
        if turns and has_column_groups(program) and program.outputs[0].shape == program.domain:
            return turns  # else nothing is multiplied while elements are written (see `unhidden`)
        return (*chosen[:1], *_in_turn(turns, chosen[1:]))
    in_lines = sizes(program)[2] * DTYPE_BYTES[program.outputs[0].dtype] % TMA_BYTES == 0
    direct = [p for p in chosen if in_lines and p not in streaming and dict(p)["tile"] in _BULK_TILES][:_BULK_POINTS]
    narrow = factors(program)[0].dtype == EIGHT_BITS  # 2 to 6% faster in bulk (H200, 2026-11-24)
    bare = narrow or (not plain and len(program.operands) == 2 and sizes(program)[3] >= _FLAT_K)
    for p in direct:
        chosen.insert(chosen.index(p) + (0 if bare else 1), point(**{**dict(p), "store": "bulk"}))
    return _with_turns(program, device, chosen) if plain else (*_streamed_in_k(program, device), *chosen)


def _streamed_in_k(program: Program, device: Device) -> tuple[Point, ...]:
    """Of fp32 the points by stream-K that the model has before all others, by so much that it may be believed."""
    zeros, kept = matrices(program).zeros, kept_diagonals(program)
    if sizes(program)[3] < _STREAM_K_LEAST or kept != (None, None) or zeros != NO_ZEROS:
        return ()
    takes_ns = _model(program, device)
    best = min(
        work * (_SQUARE_RATE if dict(p)["tile"] == "128x128" else 1.0) for work, p in ranked_points(program, device)
    )
    settings = [turn(tile, cluster, "direct", "stream_k") for tile, cluster in _STREAM_K_SHAPES]
    found = [(takes_ns(p), p) for p in settings if takes_prologue(program, dict(p))]
    return tuple(p for work, p in sorted(found)[:_STREAM_K_POINTS] if work < _STREAM_K_GAIN * best)


def _with_turns(program: Program, device: Device, others: list[Point]) -> tuple[Point, ...]:
    """Of bare products tiles of all widths, between others where parts of K or small tiles are ahead of these. Of other
    products whole tiles in shared memory, and warpgroups that take turns, between the rest. What the model has far
    behind is left out: such tiles are too few where K is long, as they are not cut along it."""
    takes_ns = _model(program, device)
    most = FAR * (min(map(takes_ns, others)) + _BEGIN_NS)

    def near(points: Sequence[Point]) -> list[Point]:
        return [p for p in points if takes_ns(p) + _BEGIN_NS <= most]

    if is_bare(program):
        first = dict(others[0])
        few = first["split_k"] != 1 or min(map(int, str(first["tile"]).split("x"))) < _WHOLE_TILE
        return _in_turn(near(others), near(bare_points(program, device))) if few else bare_points(program, device)
    staged = program.outputs[0].dtype in ("f16", "bf16") and program.domain[-1] % 8 == 0
    short = sizes(program)[3] <= _SHORT_K
    shapes = _FUSED_STAGED if short else (*_FUSED_STAGED[1::-1], *_FUSED_STAGED[2:])
    turns = [turn(t, c, "staged" if staged else "direct", s) for t, c, s in shapes]
    return _in_turn(near(turns), near(others))


def _in_turn(turns: Sequence[Point], others: Sequence[Point]) -> tuple[Point, ...]:
    """One of both after the other, then what is left of either."""
    both = min(len(turns), len(others))
    return tuple(dict.fromkeys((*chain.from_iterable(zip(turns, others, strict=False)), *turns[both:], *others[both:])))


def _streams(program: Program) -> tuple[tuple[str, str, str], ...]:
    """Tiles, clusters and sides of the matrices that can be streamed: those that lie K by K."""
    if sizes(program)[3] % _STREAMED_K:
        return ()
    if not program.reduced and kept_diagonals(program) != (None, None):
        return ()
    left, right = is_k_major(program)
    found: list[tuple[str, str, str]] = []
    if left:
        found += [("128x128", "2x1", "left"), ("128x128", "1x1", "left"), ("128x64", "1x1", "left")]
    if right:
        found += [("128x128", "1x2", "right"), ("128x128", "1x1", "right"), ("64x128", "1x1", "right")]
    return tuple(found)
