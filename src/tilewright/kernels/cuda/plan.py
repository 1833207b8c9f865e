"""How one Spec runs for operands of given strides and alignments: threads, groups, unrolling, residence, splitting."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .spec import Spec, reads
from .tiling import Tile, make_tile
from .views import ITEM_BYTES, POSITION, Space, make_space

Knobs = Mapping[str, int | str | bool]

KNOBS: dict[str, tuple[int | str | bool, ...]] = {
    "threads": (128, 256, 512, 1024),
    "unroll": (1, 2, 4, 8),
    "residence": ("auto", "registers", "shared", "reread"),
    "spread": ("auto", "none", "cluster", "grid", "split"),
    "tile": ("auto", "none", 32, 64, 128),
}
DEFAULTS: dict[str, int | str | bool] = {
    "threads": 256, "unroll": 4, "residence": "auto", "spread": "auto", "tile": "auto",
}  # fmt: skip

SHARED_BYTES = 220 * 1024  # of the 227 KB that a CTA may have; the rest is for combining
PROCESSOR_SHARED_BYTES = 228 * 1024  # of which each CTA costs 1 KB more than it asks for
HELD_SHARE = 0.43  # of a team's shared memory, at most, that one row takes where it can: 3 blocks of 7 (`Plan.ahead`)
MOST_SLOTS = 32  # groups of copies that a thread may have under way
COLUMN_SHARED_BYTES = 160 * 1024  # boards take more where each lane is a row
REGISTER_WORDS = 64  # 4-byte registers per thread in which a row may stay
SUMMED_WORDS = 72  # registers per thread for a row and the sums of its columns
MOST_WINDOW = 32  # steps of a window that one thread takes together
LIST_PAYS = 64  # elements that a warp looks at for each that it may keep; an estimate, not measured
REGISTERS, MOST_THREADS = 65536, 2048  # of a multiprocessor
OTHER_WORDS = 32  # registers of a thread beside the row's
MAX_CLUSTER = 8  # portable
WARP = 32
WAVE_THREADS = 1024  # threads that a multiprocessor surely holds at once (64 registers each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    processors: int
    arch: str  # e.g. "sm_90a"
    teams: bool = True  # it takes launches that ask for all their CTAs at once (see `launch`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`group_threads` threads share a group, `groups_per_cta` groups a CTA. A block is `group_threads x unroll` steps;
    chunk c of a group (there are `chunks`, a CTA each) owns `blocks_per_chunk` blocks."""

    space: Space
    group_threads: int
    groups_per_cta: int
    unroll: int
    chunks: int
    spread: str  # "none": a CTA reduces whole groups; "cluster", "grid", "split": chunks combine (see `engine`)
    residence: str  # "registers", "shared" or "reread"
    wide: bool  # offsets need 64 bits
    teams: int = 0  # of `chunks` CTAs each, all resident: each takes every teams-th group in turn (see `team`)
    parts: int = 0  # of sums over the rows: a group goes through the rows of a part, one after the other
    slots: int = 0  # blocks that a CTA of a team holds in shared memory
    tile: Tile | None = None  # of a pointwise space: a chunk is a tile (see `tiling`), not blocks
    least_ctas: int = 0  # that a multiprocessor is to hold; 0: the compiler chooses, and delays loads to hold more

    @property
    def threads(self) -> int:
        return self.group_threads * self.groups_per_cta

    @property
    def block_steps(self) -> int:
        return self.group_threads * self.unroll

    @property
    def full_blocks(self) -> int:
        """Blocks of whole vectors only."""
        whole_steps = self.space.steps - (1 if self.space.tail else 0)
        return whole_steps // self.block_steps

    @property
    def blocks(self) -> int:
        return -(-self.space.steps // self.block_steps)

    @property
    def blocks_per_chunk(self) -> int:
        return -(-self.blocks // self.chunks)

    @property
    def ctas_per_chunk(self) -> int:
        return -(-(self.parts or self.space.groups) // self.groups_per_cta)

    @property
    def held(self) -> int:
        """Of a team's row: the blocks of a chunk that are read once; what is beyond them is read by each sweep."""
        return min(self.blocks_per_chunk, self.slots - max(self.slots // 7, 1)) or 1

    @property
    def ahead(self) -> int:
        """Turns between a team's first look at a row and its last: where a ring holds two rows and more, nobody waits
        for what the team told a turn ago."""
        return 2 if self.chunks > 1 and self.slots - 2 * self.held >= max(self.slots // 7, 1) else 1

    @property
    def ctas_per_processor(self) -> int:
        """Of a team, as many as a multiprocessor surely holds."""
        return team_ctas(self.threads)


def used_views(spec: Spec) -> frozenset[str]:
    """The positions that some function or reduction asks for."""
    functions = [spec.head, spec.final, *(f for s in spec.sweeps for f in (s.elements, s.rows))]
    functions += [spec.scan.elements] if spec.scan else []
    functions += [spec.rank.elements] if spec.rank else []
    names = {n for f in functions for n in reads(f) if n.startswith("index_")}
    if spec.rank or spec.sums or any(r.op in ("argmax", "argmin") for s in spec.sweeps for r in s.reductions):
        names.add(POSITION)
    return frozenset(names)


def resident_operands(spec: Spec, space: Space) -> tuple[str, ...]:
    """Element-level operands that two sweeps read, and that are no broadcast along the vector."""
    counts: dict[str, int] = {}
    ranked = spec.rank.elements if spec.rank else None
    for function in (*(s.elements for s in spec.sweeps), ranked, spec.final):
        for name in set(reads(function)):
            counts[name] = counts.get(name, 0) + 1
    full = [o.name for o in spec.element_operands if space.views[o.name].lane_stride != 0]
    return tuple(n for n in full if counts.get(n, 0) > 1)


def shared_operands(spec: Spec, space: Space) -> tuple[str, ...]:
    """Element-level operands that every row reads anew."""
    names = [o.name for o in spec.element_operands]
    return tuple(n for n in names if space.groups > 1 and not any(space.views[n].group_strides))


def team_ctas(threads: int) -> int:
    """CTAs of teams on a multiprocessor: while one waits for its team, the others load and store."""
    return min(4, max(WAVE_THREADS // threads, 1))


def _power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def _waves(ctas: int, wave: int) -> int:
    """Chunks per CTA of rows: one wave in all, or about eight where one would be uneven."""
    chunks = wave // ctas
    return chunks if chunks >= 8 or (chunks and wave % ctas == 0) else -(-8 * wave // ctas)


def _copied(spec: Spec, space: Space, name: str) -> bool:
    """Whether cp.async, which moves 4, 8 or 16 bytes, brings this operand into shared memory."""
    (dtype,) = {o.dtype for o in spec.operands if o.name == name}
    whole = space.vector == 1 or space.views[name].lane_stride == 1
    return dtype != "bool" and whole and space.vector * ITEM_BYTES[dtype] in (4, 8, 16)


def make_plan(
    spec: Spec,
    operand_strides: Sequence[Sequence[int]],
    alignments: Sequence[int],
    knobs: Knobs,
    device: Device,
) -> Plan:
    """A plan that covers every element once; knobs that do not fit these operands give way to what does."""
    used = used_views(spec)
    space = make_space(spec, operand_strides, alignments, used, may_tail=True)
    if space.groups >= 2**31 or space.steps >= 2**31:
        raise ValueError(f"{spec.name}: more than 2**31 vectors along one side of {spec.domain}")
    if not spec.reduced:
        return _tiled_plan(spec, space, alignments, knobs) or _pointwise_plan(space, knobs)
    resident = () if spec.scan else resident_operands(spec, space)
    if (resident or spec.scan or spec.sums) and space.tail:
        space = make_space(spec, operand_strides, alignments, used, may_tail=False)
    items = {o.name: ITEM_BYTES[o.dtype] for o in spec.operands}
    wish = _Wish(
        space=space,
        resident=len(resident),
        step_bytes=space.vector * sum(items[n] for n in resident),
        threads=int(knobs["threads"]),
        unroll=int(knobs["unroll"]),
        residence=str(knobs["residence"]),
        spread=str(knobs["spread"]),
        processors=device.processors,
        teams=device.teams,
        windows=any(o.indexed for o in spec.operands),
        copied=bool(resident) and spec.final is not None and all(_copied(spec, space, n) for n in resident),
        boards=sum(len(s.reductions) for s in spec.sweeps),
    )
    if spec.scan:
        return _scan_plan(wish)
    if spec.sums:
        return _row_in_parts(wish, spec)
    if spec.rank:
        return _rank_in_registers(wish) or _rank_streamed(wish, spec.rank.count)
    ways = _ROW_WAYS if space.front == "row" else _COLUMN_WAYS
    return next(plan for plan in (way(wish) for way in ways) if plan is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What a plan for a reduction has to fit: the space, what stays on chip, and the knobs."""

    space: Space
    resident: int  # operands that stay on chip
    step_bytes: int  # their bytes in one step of a thread
    threads: int
    unroll: int
    residence: str
    spread: str
    processors: int
    teams: bool
    windows: bool  # rows are read through loads
    copied: bool  # what stays on chip can be brought there by cp.async, and is written from there
    boards: int  # reductions, each of which needs shared memory to combine in

    @property
    def words(self) -> int:
        """Registers that one step of a thread takes: its values in fp32."""
        return max(self.resident, 1) * self.space.vector

    @property
    def many_rows(self) -> bool:
        return self.space.groups >= self.processors

    def allows(self, residence: str, chunks: int) -> bool:
        spread = "none" if chunks == 1 else "cluster"
        return self.residence in ("auto", residence) and self.spread in ("auto", spread)

    def plan(
        self,
        group: int,
        per_cta: int,
        unroll: int,
        *,
        chunks: int,
        spread: str,
        residence: str,
        teams: int = 0,
        slots: int = 0,
    ) -> Plan:
        threads, least = group * per_cta, 0
        if residence == "registers" and self.resident and self.space.front == "row":
            words = unroll * self.words + OTHER_WORDS
            least = max(min(REGISTERS // (threads * words), MOST_THREADS // threads), 1)
        return Plan(
            space=self.space, group_threads=group, groups_per_cta=per_cta, unroll=unroll, chunks=chunks,
            spread="none" if chunks == 1 else spread, residence=residence, wide=self.space.span >= 2**31, teams=teams,
            slots=slots, least_ctas=least,
        )  # fmt: skip

    def streamed(self, group: int, per_cta: int, unroll: int, *, few_waves: int) -> Plan:
        """Rows are read anew by each sweep; split where they make fewer than `few_waves` waves of CTAs."""
        blocks = -(-self.space.steps // (group * unroll))
        ctas = -(-self.space.groups // per_cta)
        wave = self.processors * max(WAVE_THREADS // (group * per_cta), 1)
        few = ctas < wave or (blocks >= 64 and ctas < few_waves * wave)
        chunks = 1
        if self.spread == "split" or (self.spread == "auto" and few):
            chunks = max(1, min(blocks // 2, _waves(ctas, wave)))
        return self.plan(group, per_cta, unroll, chunks=chunks, spread="split", residence="reread")


def _pointwise_plan(space: Space, knobs: Knobs) -> Plan:
    threads = int(knobs["threads"])
    unroll = min(int(knobs["unroll"]), max(1, _power_of_two(space.steps // threads)))
    blocks = -(-space.steps // (threads * unroll))
    return Plan(
        space=space, group_threads=threads, groups_per_cta=1, unroll=unroll, chunks=blocks, spread="split",
        residence="reread", wide=space.span >= 2**31,
    )  # fmt: skip


def _tiled_plan(spec: Spec, space: Space, alignments: Sequence[int], knobs: Knobs) -> Plan | None:
    """One tile a CTA, where operands lie across the lanes."""
    threads, unroll, side = int(knobs["threads"]), int(knobs["unroll"]), knobs["tile"]
    tile = make_tile(spec, space, alignments, threads=threads, unroll=unroll, side=side)
    if tile is None:
        return None
    return Plan(
        space=space, group_threads=threads, groups_per_cta=1, unroll=unroll, chunks=tile.count, spread="split",
        residence="reread", wide=space.span >= 2**31, tile=tile,
    )  # fmt: skip


def _row_in_registers(wish: _Wish) -> Plan | None:
    """One block a chunk: the whole row, or its share of a cluster, in registers."""
    space, words = wish.space, wish.words
    for chunks in (1, 2, 4, MAX_CLUSTER):
        part = -(-space.steps // chunks)
        enough = _power_of_two(-(-part // max(REGISTER_WORDS // 2 // words, 1)))
        group = min(max(enough, min(_power_of_two(part), 32)), wish.threads)
        per_thread = -(-part // group)
        room = REGISTER_WORDS * (256 if chunks < MAX_CLUSTER else 512)
        fits = per_thread * words <= REGISTER_WORDS and per_thread * words * group <= room
        useful = wish.resident or per_thread <= 8
        crowded = wish.many_rows or part * space.vector <= 32768
        if wish.allows("registers", chunks) and fits and useful and crowded:
            per_cta = max(1, 128 // group) if chunks == 1 else 1
            return wish.plan(group, per_cta, per_thread, chunks=chunks, spread="cluster", residence="registers")
    return None


def _row_shape(wish: _Wish) -> tuple[int, int, int]:
    """Threads a row, rows a CTA, and unrolling, for rows of several blocks."""
    steps = wish.space.steps
    group = min(wish.threads, max(32, _power_of_two(steps // wish.unroll)))
    return group, max(1, 128 // group), min(wish.unroll, max(1, -(-steps // group)))


def _row_in_parts(wish: _Wish, spec: Spec) -> Plan:
    """Whole rows in the registers of a group, beside as many sums of their columns."""
    space = wish.space
    words = (wish.resident + len(spec.sums)) * space.vector
    enough = max(-(-space.steps // wish.unroll), -(-space.steps * words // SUMMED_WORDS), 1)
    group = max(_power_of_two(enough), min(_power_of_two(space.steps), WARP))
    if space.front != "row" or group > 1024 or spec.parts > space.groups:
        raise ValueError(f"{spec.name}: rows of {space.inner} don't fit registers beside {len(spec.sums)} sums")
    plan = wish.plan(
        group, max(1, 128 // group), -(-space.steps // group), chunks=1, spread="none", residence="registers"
    )
    return replace(plan, parts=spec.parts, least_ctas=0)


def _row_in_shared(wish: _Wish) -> Plan | None:
    """The row, or its share of a cluster, in shared memory: two CTAs to a multiprocessor if possible, else one."""
    group, per_cta, most = _row_shape(wish)
    if not wish.step_bytes or not wish.many_rows or per_cta > 1:
        return None
    for room, chunks in itertools.product((SHARED_BYTES // 2, SHARED_BYTES), (1, 2, 4, MAX_CLUSTER)):
        steps = -(-wish.space.steps // (group * chunks))  # of a thread, in as few blocks as may be, all of one size
        blocks = -(-steps // most)
        unroll = -(-steps // blocks)
        if blocks * unroll * group * wish.step_bytes <= room and wish.allows("shared", chunks):
            return wish.plan(group, 1, unroll, chunks=chunks, spread="cluster", residence="shared")
    return None


def _row_of_teams(wish: _Wish) -> Plan | None:
    """Rows in turn, each by a team of CTAs that stay on the chip; a row that is too long for the whole chip stays there
    in part."""
    group, per_cta, unroll = _row_shape(wish)
    if not wish.copied or per_cta > 1 or wish.residence not in ("auto", "shared") or wish.spread != "grid":
        return None
    if not wish.teams:
        return None
    blocks = -(-wish.space.steps // (group * unroll))
    per_processor = team_ctas(group)
    ctas = wish.processors * per_processor
    room = PROCESSOR_SHARED_BYTES // per_processor - 1024 * (1 + wish.boards)
    slots = min(room // (group * unroll * wish.step_bytes), MOST_SLOTS)
    if slots == 0:
        return None
    teams = min(ctas // -(-blocks // max(int(slots * HELD_SHARE), 1)), wish.space.groups) or 1
    chunks = -(-blocks // -(-blocks // (ctas // teams)))
    teams = min(ctas // chunks, wish.space.groups)
    return wish.plan(group, 1, unroll, chunks=chunks, spread="grid", residence="shared", teams=teams, slots=slots)


def _row_streamed(wish: _Wish) -> Plan:
    return wish.streamed(*_row_shape(wish), few_waves=4)


def _scan_plan(wish: _Wish) -> Plan:
    """Rows pass through in blocks. To spread one over several CTAs takes a second reading of it: only where rows are
    too few to give each multiprocessor one."""
    shape = _row_shape(wish) if wish.space.front == "row" else _column_shape(wish)
    group, per_cta, unroll = shape
    blocks = -(-wish.space.steps // (group * unroll))
    ctas = -(-wish.space.groups // per_cta)
    chunks = 1
    if wish.spread == "split" or (wish.spread == "auto" and ctas < wish.processors):
        wave = wish.processors * max(WAVE_THREADS // (group * per_cta), 1)
        chunks = max(1, min(blocks // 2, _waves(ctas, wave)))
    return wish.plan(group, per_cta, unroll, chunks=chunks, spread="split", residence="reread")


def _rank_in_registers(wish: _Wish) -> Plan | None:
    """One block a row: by one warp where that suffices, by more where another sweep would read the row again."""
    steps, group = wish.space.steps, WARP
    while -(-steps // group) * wish.words > REGISTER_WORDS // 2 and wish.resident and group < wish.threads:
        group *= 2
    unroll = -(-steps // group)
    if unroll * wish.words > REGISTER_WORDS // 2 or not wish.allows("registers", 1):
        return None
    return wish.plan(group, max(1, 128 // group), unroll, chunks=1, spread="none", residence="registers")


def _rank_streamed(wish: _Wish, count: int) -> Plan:
    """As few warps a row as fill the chip: each begins with an empty list, and lists must be merged. None has less to
    look at than pays for its list, unless splitting is asked for."""
    space = wish.space
    crowd = _power_of_two(-(-wish.processors * WAVE_THREADS // space.groups))
    wanted = wish.unroll * max(1, 4 // space.vector)  # to look at few elements costs as much as to look at many
    worth = max(space.steps * space.vector // (LIST_PAYS * max(count, 8)), 1)  # warps of a row
    group = max(WARP, min(wish.threads, crowd, _power_of_two(space.steps // wanted), _power_of_two(worth) * WARP))
    unroll = min(wanted, -(-space.steps // group))
    plan = wish.streamed(group, max(1, 128 // group), unroll, few_waves=4)
    chunks = max(1, worth * WARP // group)
    if wish.spread == "split" or plan.chunks <= chunks:
        return plan
    return wish.plan(group, plan.groups_per_cta, unroll, chunks=chunks, spread="split", residence="reread")


def _column_shape(wish: _Wish) -> tuple[int, int, int]:
    """Threads along the reduced mode, groups a CTA, and unrolling: enough threads to fill the chip, few enough to have
    several steps each."""
    space, limit = wish.space, min(wish.threads, 512)
    per_cta = min(32, _power_of_two(space.groups))
    crowd = _power_of_two(-(-wish.processors * 1024 // space.groups))
    if wish.windows and space.steps <= MOST_WINDOW and crowd == 1:
        return 1, min(wish.threads, 256), space.steps  # all of a window in one thread, its steps written out
    group = min(crowd, _power_of_two(-(-space.steps // wish.unroll)), limit // per_cta)
    group = max(group, min(128 // per_cta, _power_of_two(space.steps)), 1)
    return group, per_cta, min(wish.unroll, max(1, -(-space.steps // group)))


def _column_in_registers(wish: _Wish) -> Plan | None:
    space, limit = wish.space, min(wish.threads, 512)
    per_cta = min(32, _power_of_two(space.groups))
    enough = _power_of_two(-(-space.steps * wish.words // (REGISTER_WORDS // 2)))
    if not wish.resident or not wish.allows("registers", 1) or enough * per_cta > limit:
        return None
    crowd = _power_of_two(-(-wish.processors * 1024 // space.groups))
    group = min(max(enough, min(crowd, _power_of_two(space.steps))), limit // per_cta)
    if space.groups * group < wish.processors * 256 and wish.spread != "none":
        return None
    return wish.plan(group, per_cta, -(-space.steps // group), chunks=1, spread="none", residence="registers")


def _column_in_shared(wish: _Wish) -> Plan | None:
    group, per_cta, unroll = _column_shape(wish)
    blocks = -(-wish.space.steps // (group * unroll))
    row_bytes = blocks * group * per_cta * unroll * wish.step_bytes
    crowded = -(-wish.space.groups // per_cta) >= wish.processors or wish.spread == "none"
    if not wish.step_bytes or not crowded or not wish.allows("shared", 1) or row_bytes > COLUMN_SHARED_BYTES:
        return None
    return wish.plan(group, per_cta, unroll, chunks=1, spread="none", residence="shared")


def _column_streamed(wish: _Wish) -> Plan:
    return wish.streamed(*_column_shape(wish), few_waves=1)


_ROW_WAYS: tuple[Callable[[_Wish], Plan | None], ...] = (
    _row_of_teams,
    _row_in_registers,
    _row_in_shared,
    _row_streamed,
)
_COLUMN_WAYS: tuple[Callable[[_Wish], Plan | None], ...] = (_column_in_registers, _column_in_shared, _column_streamed)
