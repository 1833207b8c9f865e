"""How one Spec runs for operands of given strides and alignments: threads, groups, unrolling, row_storage, splitting;
and what a plan has to fit. `planning` finds one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..common.views import IndexSpace
from .sliding import Slide
from .tiling import Tile

Knobs = Mapping[str, int | str | bool]

KNOBS: dict[str, tuple[int | str | bool, ...]] = {
    "threads": (128, 256, 512, 1024),
    "unroll": (1, 2, 4, 8),
    "row_storage": ("auto", "registers", "shared", "reread"),
    "cta_split": ("auto", "none", "cluster", "grid", "split"),
    "tile": ("auto", "none", 32, 64, 128),
}
DEFAULTS: dict[str, int | str | bool] = {
    "threads": 256, "unroll": 4, "row_storage": "auto", "cta_split": "auto", "tile": "auto",
}  # fmt: skip

BOARD_BYTES = 7 * 1024  # of a CTA's shared memory, for combining
COLUMN_BOARD_BYTES = 67 * 1024  # the same where each lane is a row
HELD_SHARE = 0.43  # of a team's shared memory, at most, that one row takes where it can: 3 blocks of 7 (`Plan.ahead`)
FINE_SHARE, FINE_SLOTS = 0.6, 14  # the same where a ring has so many slots: teams tell early enough (`Plan.early`)
MOST_SLOTS = 32  # groups of copies that a thread may have under way
KEEPING_THREADS = 512  # of a multiprocessor, where operands that all rows of a team share stay in registers
KEPT_BYTES = 2**24  # of such operands, from which on: less stays in the L2; between 4 and 16 MB nothing was measured
REGISTER_WORDS = 64  # 4-byte registers per thread in which a row may stay
SUMMED_WORDS = 72  # registers per thread for a row and the sums of its columns
MOST_TOGETHER = 4  # neighbouring results of a thread that slides: a store of 16 bytes of fp32
MOST_STATES = 16  # registers per thread for the states of a scan over columns, which it has as many of as lanes
SCAN_WORDS = {"cumprod": 2, "logcumsumexp": 2, "cummax": 2, "cummin": 2, "recurrence": 4}  # of a state
MOST_WINDOW = 32  # steps of a window that one thread takes together
LIST_PAYS = 64  # elements that a warp looks at for each that it may keep; an estimate, not measured
REGISTERS = 65536  # of a multiprocessor, of every GPU from sm_80 on
LARGE_CTA = 512  # threads; of smaller ones the compiler finds by itself how many shall fit (docs/measured.md)
OTHER_WORDS = 32  # registers of a thread beside the row's
PASSING_WORDS = 48  # registers of a thread beside sums of columns, through whose hands rows pass
MAX_CLUSTER = 8  # portable
LARGEST_CLUSTER = 16  # of GPUs of data centres from Hopper on
WARP = 32
WAVE_THREADS = 1024  # threads that a multiprocessor surely holds at once (64 registers each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a plan depends on. Shared memory and resident threads are a multiprocessor's."""

    processors: int
    arch: str  # e.g. "sm_90a"
    shared_bytes: int
    threads: int
    teams: bool = True  # it takes launches that ask for all their CTAs at once (see `launch`)

    @property
    def cta_shared_bytes(self) -> int:
        """That one CTA may ask for: each costs 1 KB more."""
        return self.shared_bytes - 1024

    @property
    def largest_cluster(self) -> int:
        """CTAs; 1 where there are no clusters (CUDA C++ Programming Guide, compute capabilities)."""
        capability = int("".join(c for c in self.arch if c.isdigit()))
        return 1 if capability < 90 else MAX_CLUSTER if capability >= 120 else LARGEST_CLUSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`group_threads` threads share a group, `groups_per_cta` groups a CTA. A block is `group_threads x unroll` steps;
    chunk c of a group (there are `chunks`, a CTA each) owns `blocks_per_chunk` blocks."""

    space: IndexSpace
    group_threads: int
    groups_per_cta: int
    unroll: int
    chunks: int
    cta_split: str  # "none": a CTA reduces whole groups; "cluster", "grid", "split": chunks combine (see `engine`)
    row_storage: str  # "registers", "shared" or "reread"
    wide: bool  # offsets need 64 bits
    teams: int = 0  # of `chunks` CTAs each, all resident: each takes every teams-th group in turn (see `team`)
    parts: int = 0  # of sums over the rows: a group goes through the rows of a part, one after the other
    kept: tuple[str, ...] = ()  # of a team's threads: operands that all rows share, in registers
    own: int = 0  # blocks of a chunk, beyond those that the ring holds, that stay in its threads' registers
    slots: int = 0  # in shared memory: blocks of a team's CTA, or vectors a thread of rows whose columns are summed
    windows: int = 0  # neighbouring windows that a CTA takes, from one stretch in shared memory (see `windows`)
    slide: Slide | None = None  # of windows that overlap along several axes: lines, not groups, are a CTA's
    tile: Tile | None = None  # of a pointwise space: a chunk is a tile (see `tiling`), not blocks
    rows: str = "fixed"  # or free: "full" CTAs each, or the last one "ragged"; sizes are then those of one row (`free`)
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
        if self.slide is not None:
            return self.slide.ctas
        if self.windows:
            return self.space.groups // self.space.group_sizes[-1] * -(-self.space.group_sizes[-1] // self.windows)
        return -(-(self.parts or self.space.groups) // self.groups_per_cta)

    @property
    def ring_steps(self) -> int:
        """Vectors of an operand that a thread has in shared memory, of several rows."""
        return self.slots if self.parts else self.slots * self.unroll

    @property
    def held(self) -> int:
        """Of a team's row: the blocks of a chunk that are read once; what is beyond them is read by each sweep."""
        return min(self.blocks_per_chunk, self._arrived) or 1

    @property
    def _arrived(self) -> int:
        """Blocks of a ring; a seventh is on its way."""
        return self.slots - max(self.slots // 7, 1)

    @property
    def ahead(self) -> int:
        """Turns between a team's first look at a row and its last: where a ring holds two rows and more, nobody waits
        for what the team told a turn ago."""
        return 2 if self.chunks > 1 and self._arrived >= 2 * self.held else 1

    @property
    def early(self) -> int:
        """Blocks of a row that are not yet written when the next is told of: as many of a third are in the ring."""
        return max(self._arrived - self.held, 0) if self.chunks > 1 and self.ahead == 1 else 0

    @property
    def lead(self) -> int:
        """Blocks between the one that is written and the one that is merged beside it."""
        return self.ahead * self.held + self.early


def team_ctas(threads: int) -> int:
    """CTAs of teams on a multiprocessor: while one waits for its team, the others load and store."""
    return min(4, max(WAVE_THREADS // threads, 1))


def keeping_ctas(threads: int) -> int:
    """The same of teams that keep operands in registers."""
    return max(KEEPING_THREADS // threads, 1)


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def waves(ctas: int, wave: int) -> int:
    """Chunks per CTA of rows: one wave in all, or about eight where one would be uneven."""
    chunks = wave // ctas
    return chunks if chunks >= 8 or (chunks and wave % ctas == 0) else -(-8 * wave // ctas)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan for a reduction has to fit: the space, what stays on chip, and the knobs."""

    space: IndexSpace
    resident: int  # operands that stay on chip
    step_bytes: int  # their bytes in one step of a thread
    threads: int
    unroll: int
    row_storage: str
    cta_split: str
    gpu: Gpu
    windows: bool  # rows are read through loads
    copied: bool  # what stays on chip can be brought there by cp.async, and is written from there
    boards: int  # reductions, each of which needs shared memory to combine in
    lasting: tuple[tuple[str, int], ...] = ()  # operands that all rows share, and the bytes of a step of theirs

    @property
    def words(self) -> int:
        """Registers that one step of a thread takes: its values in fp32."""
        return max(self.resident, 1) * self.space.vector

    @property
    def processors(self) -> int:
        return self.gpu.processors

    @property
    def many_rows(self) -> bool:
        return self.space.groups >= self.processors

    def allows(self, row_storage: str, chunks: int) -> bool:
        cta_split = "none" if chunks == 1 else "cluster"
        if chunks > self.gpu.largest_cluster:
            return False
        return self.row_storage in ("auto", row_storage) and self.cta_split in ("auto", cta_split)

    def plan(
        self,
        group: int,
        per_cta: int,
        unroll: int,
        *,
        chunks: int,
        cta_split: str,
        row_storage: str,
        teams: int = 0,
        slots: int = 0,
    ) -> Plan:
        threads, least = group * per_cta, 0
        large = chunks > 1 or threads >= LARGE_CTA
        if row_storage == "registers" and self.resident and self.space.front == "row" and large:
            words = unroll * self.words + OTHER_WORDS
            least = max(min(REGISTERS // (threads * words), self.gpu.threads // threads), 1)
        return Plan(
            space=self.space,
            group_threads=group,
            groups_per_cta=per_cta,
            unroll=unroll,
            chunks=chunks,
            cta_split="none" if chunks == 1 else cta_split,
            row_storage=row_storage,
            wide=self.space.span >= 2**31,
            teams=teams,
            slots=slots,
            least_ctas=least,
        )

    def streamed(self, group: int, per_cta: int, unroll: int, *, few_waves: int) -> Plan:
        """Rows are read anew by each sweep; split where they make fewer than `few_waves` waves of CTAs."""
        blocks = -(-self.space.steps // (group * unroll))
        ctas = -(-self.space.groups // per_cta)
        wave = self.processors * max(WAVE_THREADS // (group * per_cta), 1)
        few = ctas < wave or (blocks >= 64 and ctas < few_waves * wave)
        chunks = 1
        if self.cta_split == "split" or (self.cta_split == "auto" and few):
            chunks = max(1, min(blocks // 2, waves(ctas, wave)))
        return self.plan(group, per_cta, unroll, chunks=chunks, cta_split="split", row_storage="reread")
