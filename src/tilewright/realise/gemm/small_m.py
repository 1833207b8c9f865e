"""Products with a small side, which take as long as the large matrix takes to come from memory: their points, and those
whose large matrix comes in eight bits and is made 16 on its way in (`gemm/unpacked.py`)."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from ...facts.device import Device
from ...facts.space import Knob, Point, Space, point
from ...ir.program import Program, Prologue, Statement
from .shape import is_dual, is_grouped_gemm, is_k_major, is_plain, is_small_m, sizes
from .tiles import KERNEL
from .time import DEPTH, Rates

EIGHT_BITS = ("i8", "u8", "float8_e4m3fn")
_FLOATS = ("f32", "f16", "bf16")
_LINE = 128  # of K, that an unpacked stage has
_GROUPS = (32, 64)  # of K, that share a scale; and multiples of a line
_PARTS = (1, 2, 3, 4, 6, 8)
_MOST_POINTS = 4
_MOST_FACTORS = 3  # beside the matrix
_MOST_SETTINGS, _MOST_ALIKE = 6, 2  # of a bare product; of those, that differ in stages alone
_WIDTHS = {16: (64, 128), 32: (64, 128), 64: (32, 64, 128)}  # rows of the large matrix in a tile, by those of the small
_FEWEST_STAGES = 3  # where nothing is summed; with sums, one more holds them
# One H200, 2026-11-22, weights of 63 MB to 2.1 GB: what a CTA draws alone, and what a cluster of p parts costs a wave.
_CTA_RATE, _MOST_RATE = 45.0, 4200.0  # bytes/ns, alone and of all CTAs
_CLUSTER_SUM_NS = 35.0  # times p squared, of 2 and more
# Rows of either matrix to a gated tile: as many as fill whole waves. 14336 x 4096 takes 58.5 us with 56 (256 CTAs, two
# to a multiprocessor), 60.1 with 64; 18944 x 3584 68.5 with 48 (395, three), 70.1 with 64; sums of clusters 2 us more
# (H200, 2026-11-23).
_ROWS = (64, 56, 48, 40)
_UNEVEN = 0.2  # of the time, per share of the places of a wave that nobody has
_DUAL_SUM_NS = 100.0  # of a cluster, a column of a tile
_MOST_STAGES = 8
_TILES = ("16x128", "32x128", "64x128", "128x16", "128x32", "128x64")


def parts_of_k(program: Program, large: int, *, wide: int, resident: int, device: Device) -> list[int]:
    """In how many a cluster divides K: the likeliest first, `wide` rows of the `large` matrix to a CTA."""
    batch, _, _, k = sizes(program)
    item, depth = (1.0, _LINE) if is_mixed_input(program) else (2.0, DEPTH)
    memory = Rates(device).memory

    def takes_ns(parts: int) -> float:
        ctas = ceil(large / wide) * batch * parts
        waves = max(ctas / (device.processors * resident), 1.0)
        summing = _CLUSTER_SUM_NS * parts**2 * waves if parts > 1 else 0.0
        return item * batch * large * k / (memory * min(_MOST_RATE, ctas * _CTA_RATE)) + summing

    possible = [parts for parts in _PARTS if parts == 1 or ceil(k / depth) // parts >= 2]
    return sorted(possible, key=takes_ns)[:_MOST_POINTS]


def small_m_points(program: Program, device: Device) -> tuple[Point, ...]:
    """Of two matrices of 16 bits: the smallest tiles that hold the small side, with the parts of K and the stages that
    the model has first."""
    batch, m, n, k = sizes(program)
    side, large, steps = min(m, n), max(m, n), ceil(k / DEPTH)
    small = next(s for s in _WIDTHS if side <= s)
    found: list[tuple[float, int, int, int]] = []
    for wide in _WIDTHS[small]:
        tiles, bytes_of_row = ceil(large / wide) * batch, 2 * DEPTH
        for parts in (p for p in PARTS if p == 1 or steps // p >= 2):
            settings = []
            for stages in range(_FEWEST_STAGES + (parts > 1), _MOST_STAGES + 1):
                places = resident(stages, (small + wide) * bytes_of_row, warpgroups=2 if wide == 128 else 1,
                                  device=device)  # fmt: skip
                work = work_ns(tiles, steps, parts=parts, stages=stages, resident=places,
                               large_bytes=wide * bytes_of_row, sums=small * wide, device=device)  # fmt: skip
                settings.append((work, wide, parts, stages))
            found += sorted(settings)[:_MOST_ALIKE]
    return tuple(
        point(**{**KERNEL, "tile": f"{small}x{wide}" if m < n else f"{wide}x{small}", "cluster": "1x1",
                 "split_k": parts, "stages": stages, "streamed": "none", "sum": "cluster"})
        for _, wide, parts, stages in sorted(found)[:_MOST_SETTINGS]
    )  # fmt: skip


def is_mixed_input(program: Program) -> bool:
    """Whether a factor of 16 bits is made on its way in."""
    return program.product is not None and bool(program.product.prologues) and is_plain(program)


def no_mixed_input(program: Program) -> str | None:
    """Why a factor of 16 bits is better made by a kernel of its own; None if a small-M product's warps make it."""
    product = program.product
    assert product is not None
    if (
        not is_small_m(program)
        or is_dual(program)
        or is_grouped_gemm(program)
        or program.reduced
        or len(program.domain) > 2
    ):
        return "factors of 16 bits that no skinny product makes on their way in"
    _, m, n, k = sizes(program)
    if len(product.prologues) > 1 or product.prologues[0].factor != (product.right if m < n else product.left).operand:
        return "a small factor that is made on its way in"
    if k % _LINE:
        return f"a factor made of eight bits, K being no multiple of {_LINE}"
    return _unmakable(product.prologues[0].program, rows=-1 if m < n else 0)


def _unmakable(program: Program, *, rows: int) -> str | None:
    """`rows`: the dimension that is not K, or group and place of K."""
    rank = len(program.domain)
    along = [d for d in range(rank) if d != rows % rank]  # K, outermost first
    whole = [o for o in program.operands if o.shape == program.domain]
    beside = [o for o in program.operands if o.shape != program.domain]
    if len(whole) != 1 or whole[0].dtype not in EIGHT_BITS or whole[0].order != _rows_first(rows % rank, along):
        return "a factor that is made of other than one matrix of eight bits along K"
    if len(beside) > _MOST_FACTORS or any(o.shape[along[-1]] > 1 or o.dtype not in _FLOATS for o in beside):
        return "a factor made of eight bits and of what changes along K, or is no float"
    if rank > 2 and program.domain[along[-1]] not in _GROUPS and program.domain[along[-1]] % _LINE:
        return f"a factor with groups of K other than {_GROUPS} and multiples of {_LINE}"
    for item in program.body:
        read = isinstance(item, Statement) and whole[0].name in item.args
        if not isinstance(item, Statement) or item.dtype not in _FLOATS or item.op in ("index", "load"):
            return "a factor made of eight bits by other than floats"
        if read and item.op != "to":
            return "a factor made of eight bits that are not turned to floats first"
    return None


def _rows_first(rows: int, along: list[int]) -> tuple[int, ...]:
    """The order of a matrix that lies along K."""
    order = (rows, *along)
    return () if order == tuple(range(len(order))) else order


def in_fp32(prologue: Prologue) -> Program:
    """What makes an unpacked factor, less what rounds for nothing: numbers of eight bits are exact in every float, and
    what is written is rounded by being written."""
    program = prologue.by_itself
    narrow = {o.name for o in program.operands if o.dtype in EIGHT_BITS}
    (output,) = program.outputs
    read = {a for i in program.body if isinstance(i, Statement) for a in i.args}

    def exact(item: Statement) -> Statement:
        last = item.result == output.name and item.result not in read and item.dtype == output.dtype
        whole = item.op == "to" and item.args[0] in narrow
        return replace(item, dtype="f32") if whole or (last and item.op in ("to", "mul", "add", "sub")) else item

    body = tuple(exact(i) if isinstance(i, Statement) else i for i in program.body)
    return replace(program, body=body)


def small_m_space(program: Program, knobs: tuple[Knob, ...], settings: dict[str, str | int], device: Device) -> Space:
    """Of what is unpacked or gated: the knobs, with tiles of their own, and the smallest that holds the small side;
    `settings`: of the others."""
    _, m, n, _ = sizes(program)
    every = {**settings, "cluster": "1x1", "streamed": "none", "sum": "cluster"}
    small = next(s for s in (16, 32, 64) if min(m, n) <= s)
    if is_dual(program):
        tiles = tuple(f"{s}x{2 * rows}" for s in (16, 32, 64) for rows in _ROWS)
        points = tuple(point(**{**every, **own}) for own in _gated(program, small, device))
    else:
        tiles, tile = _TILES, f"{small}x128" if m < n else f"128x{small}"
        parts = parts_of_k(program, max(m, n), wide=128, resident=2, device=device)
        points = tuple(point(**{**every, "tile": tile, "split_k": p}) for p in parts)
    own = tuple(replace(k, values=tiles) if k.name == "tile" else k for k in knobs)
    return Space(knobs=own, points=points)


def _gated(program: Program, small: int, device: Device) -> list[dict[str, str | int]]:
    """Tiles, parts of K, and stages that leave room for two or three CTAs: the likeliest first. A tile has as many rows
    of either matrix, the most where these do not lie along K."""
    _, _, n, k = sizes(program)
    found: list[tuple[float, dict[str, str | int]]] = []
    memory = Rates(device).memory
    for parts in parts_of_k(program, 2 * n, wide=128, resident=3, device=device):
        for rows in _ROWS if is_k_major(program)[1] else _ROWS[:1]:
            for ctas in (2, 3):
                each = ceil(n / rows) * parts / device.processors
                places = ceil(each) if each <= ctas else ctas * ceil(each / ctas)
                drawn = memory * min(_MOST_RATE, each * device.processors * _CTA_RATE)
                rate = drawn / (1.0 + _UNEVEN * (1.0 - each / places))
                work = 4.0 * n * k / rate + (_DUAL_SUM_NS * small + _CLUSTER_SUM_NS * parts**2 if parts > 1 else 0.0)
                stages = (device.cta_shared_bytes // ctas - RESERVED_BYTES) // (128 * (2 * rows + small))
                found.append((work, {"tile": f"{small}x{2 * rows}", "split_k": parts,
                                     "stages": min(stages, _MOST_STAGES)}))  # fmt: skip
    return [own for _, own in sorted(found, key=lambda f: f[0])[:_MOST_POINTS]]


# ---- How long a small-M product takes at a setting: the large matrix's way from memory, and what its clusters add to
# that. Fitted to what 17 bare products took at up to 66 settings each: 1 to 64 rows, 4096 x 4096 to 57344 x 8192, tiles
# of 64 and 128 rows of the large matrix (32, too, beside 64 of the small one), 1 to 8 parts of K, 3 to 8 stages. Of 519
# times it is 6.9% off in the root mean square; of the settings that were measured its first takes 1.011 of the best's
# time in the geometric mean, at most 1.05 (H200, 2026-11-24; `small-M-settings.json` of the results).

RESERVED_BYTES = 2048  # of a CTA
_MOST_CTAS, _MOST_OF_TWO_GROUPS = 4, 2  # to a multiprocessor
_BEGIN_NS = 2860.0
# Of that, where the next kernel's CTAs find room beside all of this one's; and of this, where each multiprocessor has
# one CTA, and takes the next when that ends: some of the case memory, and CTAs lie unevenly.
_EARLIER_NS, _IN_TURN = 1770.0, 0.6
_ROUND_NS = 1192.0  # in which what a CTA's stages asked for has come
_RATE = 3980.0  # bytes/ns, of all CTAs
_SHARPNESS = 2.4  # of the change from one bound to the other
_PART_NS, _SUMS_NS = 208.0, 111.0  # a part of K, and for it 1024 sums of a tile
# Multiprocessors that clusters of so many parts leave idle, where the chip's groups have 16 or 18 of them.
_IDLE = {1: 0, 2: 0, 3: 6, 4: 4, 5: 12, 6: 24, 8: 4}
PARTS = tuple(_IDLE)


def resident(stages: int, stage_bytes: int, *, warpgroups: int, device: Device) -> int:
    """CTAs of so many stages to a multiprocessor."""
    most = device.cta_shared_bytes // (stages * stage_bytes + RESERVED_BYTES)
    return min(most, _MOST_CTAS if warpgroups == 1 else _MOST_OF_TWO_GROUPS)


def work_ns(
    tiles: int, steps: int, *, parts: int, stages: int, resident: int, large_bytes: float, sums: int, device: Device,
) -> float:  # fmt: skip
    """Of so many `tiles`, each of so many `steps` of K in `parts`; `large_bytes`: of the large matrix in one step,
    `sums`: of a tile."""
    places, ctas, each = (device.processors - _IDLE[parts]) * resident, tiles * parts, ceil(steps / parts)
    whole, rest = divmod(ctas, places)

    def wave(ctas: int) -> float:
        waits = each / min(stages, each) * _ROUND_NS
        moves = ctas * each * large_bytes / (_RATE * Rates(device).memory)
        return float((waits**_SHARPNESS + moves**_SHARPNESS) ** (1.0 / _SHARPNESS))

    in_turn = resident == 1 and ctas <= places
    earlier = _IN_TURN if in_turn else min((places - (rest or places)) / ctas, 1.0)
    summing = parts * (_PART_NS + _SUMS_NS * sums / 1024) if parts > 1 else 0.0
    return _BEGIN_NS - earlier * _EARLIER_NS + whole * wave(places) + (wave(rest) if rest else 0.0) + summing
