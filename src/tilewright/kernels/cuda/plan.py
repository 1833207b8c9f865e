"""How one Spec runs for operands of given strides and alignments: threads, groups, unrolling, residence, splitting."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .spec import Spec, reads
from .views import ITEM_BYTES, POSITION, Space, make_space

KNOBS: dict[str, tuple[int | str | bool, ...]] = {
    "threads": (128, 256, 512, 1024),
    "unroll": (1, 2, 4, 8),
    "residence": ("auto", "registers", "shared", "reread"),
    "spread": ("auto", "none", "cluster", "split"),
}
DEFAULTS: dict[str, int | str | bool] = {"threads": 256, "unroll": 4, "residence": "auto", "spread": "auto"}

SHARED_BYTES = 220 * 1024  # of the 227 KB that a CTA may have; the rest is for combining
REGISTER_WORDS = 64  # 4-byte registers per thread in which a row may stay
MAX_CLUSTER = 8  # portable
WAVE_THREADS = 1024  # threads that a multiprocessor surely holds at once (64 registers each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    processors: int
    arch: str  # e.g. "sm_90a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`group_threads` threads share a group, `groups_per_cta` groups a CTA. A block is `group_threads x unroll` steps;
    chunk c of a group (there are `chunks`, a CTA each) owns `blocks_per_chunk` blocks."""

    space: Space
    group_threads: int
    groups_per_cta: int
    unroll: int
    chunks: int
    spread: str  # "none": a CTA reduces whole groups; "cluster" or "split": chunks combine in shared or global memory
    residence: str  # "registers", "shared" or "reread"
    wide: bool  # offsets need 64 bits

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
        return -(-self.space.groups // self.groups_per_cta)


def used_views(spec: Spec) -> frozenset[str]:
    """The positions that some function or reduction asks for."""
    functions = [spec.head, spec.final, *(f for s in spec.sweeps for f in (s.elements, s.rows))]
    names = {n for f in functions for n in reads(f) if n.startswith("index_")}
    if any(r.op in ("argmax", "argmin") for s in spec.sweeps for r in s.reductions):
        names.add(POSITION)
    return frozenset(names)


def resident_operands(spec: Spec, space: Space) -> tuple[str, ...]:
    """Element-level operands that two sweeps read, and that are no broadcast along the vector."""
    counts: dict[str, int] = {}
    for function in (*(s.elements for s in spec.sweeps), spec.final):
        for name in set(reads(function)):
            counts[name] = counts.get(name, 0) + 1
    full = [o.name for o in spec.element_operands if space.views[o.name].lane_stride != 0]
    return tuple(n for n in full if counts.get(n, 0) > 1)


def _power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def _waves(ctas: int, wave: int) -> int:
    """Chunks per CTA of rows: one wave in all, or about eight where one would be uneven."""
    chunks = wave // ctas
    return chunks if chunks >= 8 or (chunks and wave % ctas == 0) else -(-8 * wave // ctas)


def make_plan(
    spec: Spec, operand_strides: Sequence[Sequence[int]], alignments: Sequence[int], knobs: Mapping[str, int | str | bool],
    device: Device,
) -> Plan:  # fmt: skip
    """A plan that covers every element once; knobs that do not fit these operands give way to what does."""
    used = used_views(spec)
    space = make_space(spec, operand_strides, alignments, used, may_tail=True)
    if space.groups >= 2**31 or space.steps >= 2**31:
        raise ValueError(f"{spec.name}: more than 2**31 vectors along one side of {spec.domain}")
    if not spec.reduced:
        return _pointwise_plan(space, knobs)
    resident = resident_operands(spec, space)
    if resident and space.tail:
        space = make_space(spec, operand_strides, alignments, used, may_tail=False)
    items = {o.name: ITEM_BYTES[o.dtype] for o in spec.operands}
    step_bytes = space.vector * sum(items[n] for n in resident)
    chooser = _row_plan if space.front == "row" else _column_plan
    return chooser(space, step_bytes=step_bytes, resident=len(resident), knobs=knobs, device=device)


def _pointwise_plan(space: Space, knobs: Mapping[str, int | str | bool]) -> Plan:
    threads = int(knobs["threads"])
    unroll = min(int(knobs["unroll"]), max(1, _power_of_two(space.steps // threads)))
    blocks = -(-space.steps // (threads * unroll))
    return Plan(
        space=space, group_threads=threads, groups_per_cta=1, unroll=unroll, chunks=blocks, spread="split",
        residence="reread", wide=space.span >= 2**31,
    )  # fmt: skip


def _row_plan(
    space: Space, *, step_bytes: int, resident: int, knobs: Mapping[str, int | str | bool], device: Device
) -> Plan:
    limit = int(knobs["threads"])
    unroll = int(knobs["unroll"])
    wide = space.span >= 2**31
    steps = space.steps
    words = max(resident, 1) * space.vector  # registers that one resident step takes, in fp32
    spread, residence = str(knobs["spread"]), str(knobs["residence"])
    many_rows = space.groups >= device.processors
    held = spread in ("auto", "none", "cluster") and residence in ("auto", "registers")
    for chunks in (1, 2, 4, MAX_CLUSTER) if held else ():
        allowed = ("auto", "none") if chunks == 1 else ("auto", "cluster")
        part = -(-steps // chunks)
        want = max(_power_of_two(-(-part // max(REGISTER_WORDS // 2 // words, 1))), min(_power_of_two(part), 32))
        group = min(want, limit)
        per_thread = -(-part // group)
        most = REGISTER_WORDS * 256 if chunks < MAX_CLUSTER else REGISTER_WORDS * 512
        fits = per_thread * words <= REGISTER_WORDS and per_thread * words * group <= most
        if spread in allowed and fits and (resident or per_thread <= 8) and (many_rows or part * space.vector <= 32768):
            return Plan(
                space=space, group_threads=group, groups_per_cta=max(1, 128 // group) if chunks == 1 else 1,
                unroll=per_thread, chunks=chunks, spread="none" if chunks == 1 else "cluster", residence="registers",
                wide=wide,
            )  # fmt: skip
    group = min(limit, max(32, _power_of_two(steps // unroll)))
    unroll = min(unroll, max(1, -(-steps // group)))
    per_cta = max(1, 128 // group)
    blocks = -(-steps // (group * unroll))
    slot_bytes = group * unroll * step_bytes
    if step_bytes and many_rows and per_cta == 1 and residence in ("auto", "shared"):
        # Two CTAs to a multiprocessor, so that one loads while the other stores; else one.
        for room, chunks in itertools.product((SHARED_BYTES // 2, SHARED_BYTES), (1, 2, 4, MAX_CLUSTER)):
            allowed = ("auto", "none") if chunks == 1 else ("auto", "cluster")
            if -(-blocks // chunks) * slot_bytes <= room and spread in allowed:
                return Plan(
                    space=space, group_threads=group, groups_per_cta=1, unroll=unroll, chunks=chunks,
                    spread="none" if chunks == 1 else "cluster", residence="shared", wide=wide,
                )  # fmt: skip
    chunks = 1
    ctas = -(-space.groups // per_cta)
    wave = device.processors * max(WAVE_THREADS // (group * per_cta), 1)
    if spread == "split" or (spread == "auto" and (ctas < wave or (blocks >= 64 and ctas < 4 * wave))):
        chunks = max(1, min(blocks // 2, _waves(ctas, wave)))
    return Plan(
        space=space, group_threads=group, groups_per_cta=per_cta, unroll=unroll, chunks=chunks,
        spread="none" if chunks == 1 else "split", residence="reread", wide=wide,
    )  # fmt: skip


def _column_plan(
    space: Space, *, step_bytes: int, resident: int, knobs: Mapping[str, int | str | bool], device: Device
) -> Plan:
    limit = min(int(knobs["threads"]), 512)
    unroll = int(knobs["unroll"])
    wide = space.span >= 2**31
    steps = space.steps
    words = max(resident, 1) * space.vector
    spread, residence = str(knobs["spread"]), str(knobs["residence"])
    groups = min(32, _power_of_two(space.groups))
    # Threads along the reduced mode: enough to fill the chip, few enough to have several steps each.
    crowd = -(-device.processors * 1024 // max(space.groups, 1))
    resident_group = _power_of_two(-(-steps * words // (REGISTER_WORDS // 2)))
    if step_bytes and residence in ("auto", "registers") and resident_group * groups <= limit and spread in ("auto", "none"):
        group = min(max(resident_group, min(_power_of_two(crowd), _power_of_two(steps))), limit // groups)
        if space.groups * group >= device.processors * 256 or spread == "none":
            return Plan(
                space=space, group_threads=group, groups_per_cta=groups, unroll=-(-steps // group), chunks=1,
                spread="none", residence="registers", wide=wide,
            )  # fmt: skip
    group = min(_power_of_two(crowd), _power_of_two(-(-steps // unroll)), limit // groups)
    group = max(group, min(128 // groups, _power_of_two(steps)), 1)
    unroll = min(unroll, max(1, -(-steps // group)))
    blocks = -(-steps // (group * unroll))
    ctas = -(-space.groups // groups)
    slot_bytes = group * groups * unroll * step_bytes
    if step_bytes and residence in ("auto", "shared") and blocks * slot_bytes <= SHARED_BYTES and spread in ("auto", "none"):
        if ctas >= device.processors or spread == "none":
            return Plan(
                space=space, group_threads=group, groups_per_cta=groups, unroll=unroll, chunks=1,
                spread="none", residence="shared", wide=wide,
            )  # fmt: skip
    chunks = 1
    wave = device.processors * max(WAVE_THREADS // (group * groups), 1)
    if spread == "split" or (spread == "auto" and ctas < wave):
        chunks = max(1, min(blocks // 2, _waves(ctas, wave)))
    return Plan(
        space=space, group_threads=group, groups_per_cta=groups, unroll=unroll, chunks=chunks,
        spread="none" if chunks == 1 else "split", residence="reread", wide=wide,
    )  # fmt: skip
