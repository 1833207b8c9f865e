"""Finds the plan of a Spec for operands of given strides and alignments, at given knobs: the first way that fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd

from ..common.operands import copied, overlap, passing_operands, resident_operands, shared_operands, used_views
from ..common.spec import Spec
from ..common.views import ITEM_BYTES, IndexSpace, fewer_lanes, make_space
from .plan import (
    BOARD_BYTES,
    COLUMN_BOARD_BYTES,
    FINE_SHARE,
    FINE_SLOTS,
    HELD_SHARE,
    KEPT_BYTES,
    LARGEST_CLUSTER,
    LIST_PAYS,
    MAX_CLUSTER,
    MOST_SLOTS,
    MOST_STATES,
    MOST_TOGETHER,
    MOST_WINDOW,
    OTHER_WORDS,
    PASSING_WORDS,
    REGISTER_WORDS,
    REGISTERS,
    SCAN_WORDS,
    SUMMED_WORDS,
    WARP,
    WAVE_THREADS,
    Gpu,
    Knobs,
    Plan,
    PlanRequest,
    keeping_ctas,
    power_of_two,
    team_ctas,
    waves,
)
from .sliding import make_slide, slid
from .tiling import make_tile


def make_plan(
    spec: Spec,
    operand_strides: Sequence[Sequence[int]],
    alignments: Sequence[int],
    knobs: Knobs,
    gpu: Gpu,
) -> Plan:
    """A plan that covers every element once; knobs that do not fit these operands give way to what does."""
    used = used_views(spec)
    space = make_space(spec, operand_strides, alignments, used, may_tail=True)
    if space.groups >= 2**31 or space.steps >= 2**31:
        raise ValueError(f"{spec.name}: more than 2**31 vectors along one side of {spec.domain}")
    if not spec.reduced:
        return _tiled_plan(spec, space, alignments, knobs) or _pointwise_plan(space, knobs, gpu)
    resident = () if spec.scan else resident_operands(spec, space)
    if (resident or spec.scan or spec.sums or spec.stretch) and space.tail:
        space = make_space(spec, operand_strides, alignments, used, may_tail=False)
    items = {o.name: ITEM_BYTES[o.dtype] for o in spec.operands}
    wish = PlanRequest(
        space=space,
        resident=len(resident),
        step_bytes=space.vector * sum(items[n] for n in resident),
        threads=int(knobs["threads"]),
        unroll=int(knobs["unroll"]),
        row_storage=str(knobs["row_storage"]),
        cta_split=str(knobs["cta_split"]),
        gpu=gpu,
        windows=any(o.indexed for o in spec.operands),
        copied=bool(resident) and spec.final is not None and all(copied(spec, space, n) for n in resident),
        boards=sum(len(s.reductions) for s in spec.sweeps),
        lasting=tuple((n, space.vector * items[n]) for n in shared_operands(spec, space) if space.views[n].lane_stride),
    )
    if spec.scan:
        most = MOST_STATES // SCAN_WORDS.get(spec.scan.op, 1)
        lanes = gcd(space.vector, most) if space.front == "column" else space.vector
        return _scan_plan(replace(wish, space=fewer_lanes(space, lanes)) if lanes < space.vector else wish)
    if spec.sums:
        return _row_in_parts(wish, spec)
    if spec.stretch:
        return _stretches(wish, spec.stretch.usual)
    if spec.rank:
        return _rank_in_registers(wish) or _rank_streamed(wish, spec.rank.count)
    for over_windows in (_slide_over_windows(spec, operand_strides, alignments, wish),
                         _windows_in_shared(spec, operand_strides, wish)):  # fmt: skip
        if over_windows is not None:
            return over_windows
    ways = _ROW_WAYS if space.front == "row" else _COLUMN_WAYS
    return next(plan for plan in (way(wish) for way in ways) if plan is not None)


def _pointwise_plan(space: IndexSpace, knobs: Knobs, gpu: Gpu) -> Plan:
    """A block a CTA; or, cta_split over the "grid", as many CTAs as stay on the chip, which take the blocks in turn."""
    threads = int(knobs["threads"])
    unroll = min(int(knobs["unroll"]), max(1, power_of_two(space.steps // threads)))
    blocks = -(-space.steps // (threads * unroll))
    chunks = min(blocks, gpu.processors * max(WAVE_THREADS // threads, 1)) if knobs["cta_split"] == "grid" else blocks
    return Plan(
        space=space, group_threads=threads, groups_per_cta=1, unroll=unroll, chunks=chunks, cta_split="split",
        row_storage="reread", wide=space.span >= 2**31,
    )  # fmt: skip


def _tiled_plan(spec: Spec, space: IndexSpace, alignments: Sequence[int], knobs: Knobs) -> Plan | None:
    """One tile a CTA, where operands lie across the lanes."""
    threads, unroll, side = int(knobs["threads"]), int(knobs["unroll"]), knobs["tile"]
    tile = make_tile(spec, space, alignments, threads=threads, unroll=unroll, side=side)
    if tile is None:
        return None
    return Plan(
        space=space, group_threads=threads, groups_per_cta=1, unroll=unroll, chunks=tile.count, cta_split="split",
        row_storage="reread", wide=space.span >= 2**31, tile=tile,
    )  # fmt: skip


def _row_in_registers(wish: PlanRequest) -> Plan | None:
    """One block a chunk: the whole row, or its share of a cluster, in registers."""
    space, words = wish.space, wish.words
    for chunks in (1, 2, 4, MAX_CLUSTER):
        part = -(-space.steps // chunks)
        enough = power_of_two(-(-part // max(REGISTER_WORDS // 2 // words, 1)))
        group = min(max(enough, min(power_of_two(part), 32)), wish.threads)
        per_thread = -(-part // group)
        memory = REGISTER_WORDS * (256 if chunks < MAX_CLUSTER else 512)
        fits = per_thread * words <= REGISTER_WORDS and per_thread * words * group <= memory
        useful = wish.resident or per_thread <= 8
        crowded = wish.many_rows or part * space.vector <= 32768
        if wish.allows("registers", chunks) and fits and useful and crowded:
            per_cta = max(1, 128 // group) if chunks == 1 else 1
            return wish.plan(group, per_cta, per_thread, chunks=chunks, cta_split="cluster", row_storage="registers")
    return None


def _row_shape(wish: PlanRequest) -> tuple[int, int, int]:
    """Threads a row, rows a CTA, and unrolling, for rows of several blocks."""
    steps = wish.space.steps
    group = min(wish.threads, max(32, power_of_two(steps // wish.unroll)))
    return group, max(1, 128 // group), min(wish.unroll, max(1, -(-steps // group)))


def _row_in_parts(wish: PlanRequest, spec: Spec) -> Plan:
    """The sums of whole rows' columns in the registers of a group. The rows pass through shared memory, the next ones
    on their way while one is done; or, where cp.async can't bring them, through registers."""
    space = wish.space
    if space.front != "row" or spec.parts > space.groups:
        raise ValueError(f"{spec.name}: sums of {spec.parts} parts of {space.groups} rows")
    ways = [_parts_through_a_ring, _parts_in_registers]
    found = (way(wish, spec) for way in (ways[::-1] if wish.row_storage == "registers" else ways))
    plan = next((plan for plan in found if plan is not None), None)
    if plan is None:
        raise ValueError(f"{spec.name}: rows of {space.inner} don't fit registers beside {len(spec.sums)} sums")
    return plan


def _parts_shape(wish: PlanRequest, words: int, *, chunks: int = 1) -> tuple[int, int, int]:
    """Threads a row, rows a CTA, and unrolling, where a thread keeps so many words of a step."""
    steps = -(-wish.space.steps // chunks)
    enough = max(-(-steps // wish.unroll), -(-steps * words // SUMMED_WORDS), 1)
    group = min(max(power_of_two(enough), min(power_of_two(steps), WARP)), 1024)
    return group, max(1, 128 // group), -(-steps // group)


def _parts_through_a_ring(wish: PlanRequest, spec: Spec) -> Plan | None:
    """By one CTA a row, or by as small a cluster as has the case memory; where clusters are asked for, by one of which
    a multiprocessor holds two CTAs: while one waits for its cluster, the other goes on."""
    names = passing_operands(spec, wish.space)
    if not names or not all(copied(spec, wish.space, n) for n in names):
        return None
    clusters = (n for n in (1, 2, 4, MAX_CLUSTER, LARGEST_CLUSTER) if n <= wish.gpu.largest_cluster)
    shapes = itertools.product(clusters, dict.fromkeys((wish.unroll, 8)))
    found = [_parts_in_chunks(replace(wish, unroll=unroll), spec, names, chunks) for chunks, unroll in shapes]
    plans = [plan for plan in found if plan is not None]
    if wish.cta_split == "cluster":
        plans.sort(key=lambda plan: (plan.chunks == 1 or plan.least_ctas == 1, plan.unroll > wish.unroll))
    return plans[0] if plans else None


def _parts_in_chunks(wish: PlanRequest, spec: Spec, names: tuple[str, ...], chunks: int) -> Plan | None:
    space = wish.space
    items = {o.name: ITEM_BYTES[o.dtype] for o in spec.operands}
    lasting = [n for n in shared_operands(spec, space) if space.views[n].lane_stride]
    words = len(spec.sums) * space.vector + sum(-(-space.vector * items[n] // 4) for n in lasting)
    group, per_cta, unroll = _parts_shape(wish, words, chunks=chunks)
    threads = group * per_cta
    registers = -(-(unroll * words + PASSING_WORDS) // 8) * 8
    if threads * registers > REGISTERS * 9 // 8 or (chunks > 1 and group <= WARP):  # a few may spill
        return None
    most = max(1, min(REGISTERS // (threads * registers), wish.gpu.threads // threads, 8))
    per_processor = -(-spec.parts * chunks // (per_cta * wish.processors))
    for wanted in range(most, 0, -1):
        ctas = -(-per_processor // -(-per_processor // wanted))  # waves of the same size
        memory = wish.gpu.shared_bytes // ctas - 1024 * (1 + wish.boards)
        slots = min(memory // (threads * space.vector * sum(items[n] for n in names)), 3 * unroll, MOST_SLOTS)
        if slots >= min(2 * unroll, unroll + 2) or (ctas == 1 and slots >= unroll):
            plan = wish.plan(
                group, per_cta, unroll, chunks=chunks, cta_split="cluster", row_storage="shared", slots=slots
            )
            return replace(plan, parts=spec.parts, least_ctas=ctas)
    return None


def _parts_in_registers(wish: PlanRequest, spec: Spec) -> Plan | None:
    words = (wish.resident + len(spec.sums)) * wish.space.vector
    group, per_cta, unroll = _parts_shape(wish, words)
    if unroll * words > 2 * SUMMED_WORDS:
        return None
    plan = wish.plan(group, per_cta, unroll, chunks=1, cta_split="none", row_storage="registers")
    return replace(plan, parts=spec.parts, least_ctas=0)


def _row_in_shared(wish: PlanRequest) -> Plan | None:
    """The row, or its share of a cluster, in shared memory: two CTAs to a multiprocessor if possible, else one; at the
    last by a cluster as large as there are."""
    group, per_cta, most = _row_shape(wish)
    if not wish.step_bytes or not wish.many_rows or per_cta > 1:
        return None
    whole = wish.gpu.cta_shared_bytes - BOARD_BYTES
    memories = itertools.product((whole // 2, whole), (1, 2, 4, MAX_CLUSTER))
    for memory, chunks in (*memories, (whole, LARGEST_CLUSTER)):
        steps = -(-wish.space.steps // (group * chunks))  # of a thread, in as few blocks as may be, all of one size
        blocks = -(-steps // most)
        unroll = -(-steps // blocks)
        if blocks * unroll * group * wish.step_bytes <= memory and wish.allows("shared", chunks):
            return wish.plan(group, 1, unroll, chunks=chunks, cta_split="cluster", row_storage="shared")
    return None


def _row_of_teams(wish: PlanRequest) -> Plan | None:
    """Rows in turn, each by a team of CTAs that stay on the chip; a row that is too long for the whole chip stays there
    in part."""
    group, per_cta, _ = _row_shape(wish)
    if not wish.copied or per_cta > 1 or wish.row_storage not in ("auto", "shared") or wish.cta_split != "grid":
        return None
    if not wish.gpu.teams:
        return None
    plan, keeping = _teams_of(wish, team_ctas(group)), _teams_of(wish, keeping_ctas(group))
    if keeping is not None and sum(count for _, count in wish.lasting) * wish.space.steps >= KEPT_BYTES:
        kept = _kept(wish, keeping)
        if kept:
            return replace(keeping, kept=kept)
    if plan is not None and keeping is not None and plan.held < plan.blocks_per_chunk:
        memory = _spare_bytes(keeping) - 8 * 4  # that rows' own results may need: a batch norm has three
        own = min(memory // (wish.step_bytes * keeping.unroll), keeping.blocks_per_chunk - keeping.held)
        if own > 0:
            return replace(keeping, own=own)
    return plan


def _teams_of(wish: PlanRequest, per_processor: int) -> Plan | None:
    """By so many CTAs a multiprocessor."""
    group, _, unroll = _row_shape(wish)
    blocks = -(-wish.space.steps // (group * unroll))
    ctas = wish.processors * per_processor
    memory = wish.gpu.shared_bytes // per_processor - 1024 * (1 + wish.boards)
    slots = min(memory // (group * unroll * wish.step_bytes), MOST_SLOTS)
    if slots == 0:
        return None
    share = FINE_SHARE if slots >= FINE_SLOTS else HELD_SHARE
    teams = min(ctas // -(-blocks // max(int(slots * share), 1)), wish.space.groups) or 1
    chunks = -(-blocks // -(-blocks // (ctas // teams)))
    teams = min(ctas // chunks, wish.space.groups)
    plan = wish.plan(group, 1, unroll, chunks=chunks, cta_split="grid", row_storage="shared", teams=teams, slots=slots)
    return replace(plan, least_ctas=per_processor)


def _spare_bytes(plan: Plan) -> int:
    """Of a thread's registers, beside what a team needs anyway."""
    return (REGISTERS // (plan.least_ctas * plan.threads) - OTHER_WORDS * 2) * 4


def _kept(wish: PlanRequest, plan: Plan) -> tuple[str, ...]:
    """As many of the operands that all rows share as fit registers beside what a thread needs anyway."""
    memory, found = _spare_bytes(plan), []
    for name, count in wish.lasting:
        memory -= count * plan.unroll * plan.blocks_per_chunk
        if memory >= 0:
            found.append(name)
    return tuple(found) if plan.held == plan.blocks_per_chunk else ()


def _row_streamed(wish: PlanRequest) -> Plan:
    return wish.streamed(*_row_shape(wish), few_waves=4)


def _scan_plan(wish: PlanRequest) -> Plan:
    """Rows pass through in blocks. To cta_split one over several CTAs takes a second reading of it: only where rows are
    too few to give each multiprocessor one."""
    shape = _row_shape(wish) if wish.space.front == "row" else _column_shape(wish)
    group, per_cta, unroll = shape
    relayed = _scan_relayed(wish, group, per_cta, unroll)
    if relayed is not None:
        return relayed
    blocks = -(-wish.space.steps // (group * unroll))
    ctas = -(-wish.space.groups // per_cta)
    chunks = 1
    if wish.cta_split == "split" or (wish.cta_split == "auto" and ctas < wish.processors):
        wave = wish.processors * max(WAVE_THREADS // (group * per_cta), 1)
        chunks = max(1, min(blocks // 2, waves(ctas, wave)))
    return wish.plan(group, per_cta, unroll, chunks=chunks, cta_split="split", row_storage="reread")


def _scan_relayed(wish: PlanRequest, group: int, per_cta: int, unroll: int) -> Plan | None:
    """Each row by a team of CTAs, which take its blocks in turn."""
    if wish.cta_split != "grid" or not wish.gpu.teams or wish.space.front != "row" or per_cta > 1 or group < WARP:
        return None
    blocks = -(-wish.space.steps // (group * unroll))
    teams = wish.space.groups
    chunks = min(wish.processors * team_ctas(group) // teams, blocks, group)
    if chunks < 2:
        return None
    plan = wish.plan(group, 1, unroll, chunks=chunks, cta_split="grid", row_storage="reread", teams=teams)
    return replace(plan, least_ctas=team_ctas(group))


def _rank_in_registers(wish: PlanRequest) -> Plan | None:
    """One block a row: by one warp where that suffices, by more where another sweep would read the row again."""
    steps, group = wish.space.steps, WARP
    while -(-steps // group) * wish.words > REGISTER_WORDS // 2 and wish.resident and group < wish.threads:
        group *= 2
    unroll = -(-steps // group)
    if unroll * wish.words > REGISTER_WORDS // 2 or not wish.allows("registers", 1):
        return None
    return wish.plan(group, max(1, 128 // group), unroll, chunks=1, cta_split="none", row_storage="registers")


def _rank_streamed(wish: PlanRequest, count: int) -> Plan:
    """As few warps a row as fill the chip: each begins with an empty list, and lists must be merged. None has less to
    look at than pays for its list, unless splitting is asked for."""
    space = wish.space
    crowd = power_of_two(-(-wish.processors * WAVE_THREADS // space.groups))
    wanted = wish.unroll * max(1, 4 // space.vector)  # to look at few elements costs as much as to look at many
    worth = max(space.steps * space.vector // (LIST_PAYS * max(count, 8)), 1)  # warps of a row
    group = max(WARP, min(wish.threads, crowd, power_of_two(space.steps // wanted), power_of_two(worth) * WARP))
    unroll = min(wanted, -(-space.steps // group))
    plan = wish.streamed(group, max(1, 128 // group), unroll, few_waves=4)
    chunks = max(1, worth * WARP // group)
    if wish.cta_split == "split" or plan.chunks <= chunks:
        return plan
    return wish.plan(group, plan.groups_per_cta, unroll, chunks=chunks, cta_split="split", row_storage="reread")


def _slide_over_windows(
    spec: Spec, operand_strides: Sequence[Sequence[int]], alignments: Sequence[int], wish: PlanRequest
) -> Plan | None:
    """Windows that overlap along several axes; walks of 4 rows for each vector of `unroll`."""
    found = slid(spec)
    if found is None or wish.space.front != "column" or wish.row_storage not in ("auto", "registers"):
        return None
    number = [o.name for o in spec.operands].index(found[0].name)
    space = fewer_lanes(wish.space, 1)
    slide = make_slide(
        spec, space, operand_strides[number], alignments[number], threads=wish.threads, rows=4 * wish.unroll,
        processors=wish.processors,
    )  # fmt: skip
    if slide is None or wish.cta_split == "split":
        return None
    space = fewer_lanes(wish.space, gcd(wish.space.vector, MOST_TOGETHER, slide.outs))
    under_way = slide.vector * slide.loads * slide.ahead
    return Plan(
        space=space, group_threads=1, groups_per_cta=slide.threads, unroll=under_way, chunks=1, cta_split="none",
        row_storage="reread", wide=space.span >= 2**31, slide=slide,
    )  # fmt: skip


def _windows_in_shared(spec: Spec, operand_strides: Sequence[Sequence[int]], wish: PlanRequest) -> Plan | None:
    """Many short windows along the lanes, each element of which several of them read."""
    operand, threads = overlap(spec), min(wish.threads, 256)
    if operand is None or wish.space.front != "column" or spec.inner_size > MOST_WINDOW or wish.cta_split == "split":
        return None
    strides = operand_strides[[o.name for o in spec.operands].index(operand.name)]
    space = fewer_lanes(wish.space, 1)
    if strides[-1] != 1 or space.group_sizes[-1] < 2 * threads or space.groups >= 2**31:
        return None
    if space.groups < wish.processors * 2048 or wish.row_storage not in ("auto", "shared"):
        return None
    return Plan(
        space=space, group_threads=1, groups_per_cta=threads, unroll=space.steps, chunks=1, cta_split="none",
        row_storage="reread", wide=space.span >= 2**31, windows=threads * 2 * min(wish.unroll, 8),
    )  # fmt: skip


def _column_shape(wish: PlanRequest, *, wide: bool = False) -> tuple[int, int, int]:
    """Threads along the reduced mode, groups a CTA, and unrolling: enough threads to fill the chip, few enough to have
    several steps each. `wide`: where groups abound, neighbours of 512 bytes side by side."""
    space, limit = wish.space, min(wish.threads, 512)
    crowd = power_of_two(-(-wish.processors * 1024 // space.groups))
    lanes = max(128 // space.vector, 32) if wide and crowd == 1 else 32
    per_cta = min(lanes, power_of_two(space.groups))
    if wish.windows and space.steps <= MOST_WINDOW and crowd == 1:
        return 1, min(wish.threads, 256), space.steps  # all of a window in one thread, its steps written out
    group = min(crowd, power_of_two(-(-space.steps // wish.unroll)), limit // per_cta)
    group = max(group, min(4 * lanes // per_cta, power_of_two(space.steps)), 1)
    return group, per_cta, min(wish.unroll, max(1, -(-space.steps // group)))


def _stretches(wish: PlanRequest, usual: int) -> Plan:
    """Of columns: a thread each where that fills the chip, else as many as a usual stretch has work for."""
    groups = wish.space.groups
    crowd = power_of_two(-(-wish.processors * WAVE_THREADS // groups))
    group = min(crowd, power_of_two(max(usual // wish.unroll, 1)), wish.threads // WARP)
    per_cta = min(wish.threads // group, power_of_two(groups))
    unroll = min(wish.unroll, -(-usual // group))
    return wish.plan(group, per_cta, unroll, chunks=1, cta_split="none", row_storage="reread")


def _column_in_registers(wish: PlanRequest) -> Plan | None:
    space, limit = wish.space, min(wish.threads, 512)
    per_cta = min(32, power_of_two(space.groups))
    enough = power_of_two(-(-space.steps * wish.words // (REGISTER_WORDS // 2)))
    if not wish.resident or not wish.allows("registers", 1) or enough * per_cta > limit:
        return None
    crowd = power_of_two(-(-wish.processors * 1024 // space.groups))
    group = min(max(enough, min(crowd, power_of_two(space.steps))), limit // per_cta)
    if space.groups * group < wish.processors * 256 and wish.cta_split != "none":
        return None
    return wish.plan(group, per_cta, -(-space.steps // group), chunks=1, cta_split="none", row_storage="registers")


def _column_in_shared(wish: PlanRequest) -> Plan | None:
    group, per_cta, unroll = _column_shape(wish)
    blocks = -(-wish.space.steps // (group * unroll))
    row_bytes = blocks * group * per_cta * unroll * wish.step_bytes
    crowded = -(-wish.space.groups // per_cta) >= wish.processors or wish.cta_split == "none"
    memory = wish.gpu.cta_shared_bytes - COLUMN_BOARD_BYTES
    if not wish.step_bytes or not crowded or not wish.allows("shared", 1) or row_bytes > memory:
        return None
    return wish.plan(group, per_cta, unroll, chunks=1, cta_split="none", row_storage="shared")


def _column_streamed(wish: PlanRequest) -> Plan:
    return wish.streamed(*_column_shape(wish, wide=True), few_waves=1)


_ROW_WAYS: tuple[Callable[[PlanRequest], Plan | None], ...] = (
    _row_of_teams,
    _row_in_registers,
    _row_in_shared,
    _row_streamed,
)
_COLUMN_WAYS: tuple[Callable[[PlanRequest], Plan | None], ...] = (
    _column_in_registers,
    _column_in_shared,
    _column_streamed,
)
