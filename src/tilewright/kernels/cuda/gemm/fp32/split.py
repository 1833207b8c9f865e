"""fp32 operands as pairs of fp16 matrices and exponents: x = (hi + lo) / 2^exponent, rounded at 2^-23 of x.

    X is (R, K, batch) with any strides; planes is (R, K, batch x 2) fp16, one mode contiguous; exponents is
    (R, batch x splits) int32

Each row (each chunk of K of it, where K is split) is scaled by a power of two that puts its largest finite element
into [2^14, 2^15), so that scaling is exact, and fp16 reaches to 2^-39 of that element. hi is the fp16 next to the
scaled x, lo the fp16 next to what is left times 2^11, which reaches to 2^-50.

What is not finite travels in lo, and hi is never zero but where x is:

    x = 0               hi = 0            lo = 0
    x = inf or NaN      hi = +-2^-24      lo = x
    scaled x < 2^-25    hi = +-2^-24      lo = scaled x - hi: the pair still sums to x

so hi*lo + lo*hi gives inf times a number, inf times 0 and NaN as fp32 gives them, and lo*lo, which nobody computes, is
never needed. Rows of zeros have exponent 0.

A thread takes elements by four, neighbours in memory, and `per` such quads, which stay in its registers between the
maximum and the split where the chunk is not too long; so X is read once:

    along K ("k")       `group` threads side by side a row
    across K ("r")      a strip of 32 rows a CTA, four a thread; a cluster of `cluster` CTAs has the whole chunk
    the same, crossed   planes lie along K: a thread has four rows of four neighbours of K, and writes four quads of
                        them; four threads write 32 bytes of a row

Of three planes, of bf16 (scheme `bf16x6`), the sum is x to the last bit, down to 2^-117 of the row's largest element
and to an absolute 2^-148 of it below. What is not finite travels in the last, its first is +-2^-133.

Of one plane alone (scheme `tf32`) there is hi, as fp16 has it: what is not finite, too, and +-2^-24 where it would
vanish, so that an infinity times it is one.

Longer chunks are read twice. What lies beyond the end is read as the last that is there, which changes no maximum; a
last quad may write into the padding of the planes' lines, which are whole multiples of 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.memory import SmemAllocator

from ...common import math as m
from ...common.control import loop, when
from .pair import LEAST, QUAD, TINY, Scale, SeenMagnitudes, exponent_of, highest, permuted, split_quad

PER = 8  # quads that a thread keeps; MOST_PER where a cluster can't be larger
MOST_PER = 16
LEAST_GROUP, MOST_GROUP = 8, 1024  # threads of a row along K
ALONG, ACROSS = 256, 512  # threads of a CTA
STRIP = 32  # rows of a CTA across K
MOST_CLUSTER = 8
REREAD = 4  # quads that a thread reads at once, where it keeps none


class Chunk:
    """What a CTA works on: a chunk of K of some rows; `x` has the sizes of (rows, K). `ctas`: of so many rows."""

    def __init__(self, x: Any, exponents: Any, length: Any, ctas: Callable[[Any], Any]) -> None:
        self.thread = cute.arch.thread_idx()[0]
        number, split, _ = cute.arch.block_idx()
        self.rows = cute.size(x, mode=[0])
        of_matrix = ctas(self.rows)
        self.batch = number // of_matrix
        self.block = number - self.batch * of_matrix
        self.layer = self.batch * cute.arch.grid_dim()[1] + split
        self.begin = split * length
        self.end = cutlass.min(self.begin + length, cute.size(x, mode=[1]))
        self._exponents = exponents

    def note(self, row: Any, exponent: Any) -> None:
        self._exponents[(row, self.layer)] = exponent


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """Who reads what. `wide`: quads lie at multiples of 16 bytes; `held`: a thread keeps its `per` quads; `group`:
    threads of a row along K; `permuted`: of each 16 of K the planes have the order in which `streamed` multiplies, and
    K is a multiple of 16; `crossed`: X lies across K, and planes lie along it."""

    major: str
    wide: bool
    per: int
    held: bool
    group: int = 0
    cluster: int = 1
    permuted: bool = False
    planes: int = 2
    crossed: bool = False

    @classmethod
    def for_chunk(cls, *, major: str, chunk: int, crossed: bool = False, **more: Any) -> SplitPlan:
        """As few threads to a row as keep it in registers, if they can; across K as few CTAs."""
        quads = -(-chunk // QUAD)
        if major == "k":
            group = LEAST_GROUP
            while group < MOST_GROUP and group * PER < quads:
                group *= 2
            held = group * PER >= quads
            return cls(major=major, group=group, held=held, per=-(-quads // group) if held else REREAD, **more)
        side, cluster = ACROSS * QUAD // STRIP, 1
        while cluster < MOST_CLUSTER and cluster * side * PER < chunk:
            cluster *= 2
        per = -(-chunk // (cluster * side))
        if crossed:
            per = -(-per // QUAD) * QUAD
        held = per <= MOST_PER
        return cls(
            major=major, held=held, per=per if held else REREAD, cluster=cluster if held else 1, crossed=crossed, **more
        )

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return ACROSS if self.major == "r" else max(self.group, ALONG)

    @property
    def least(self) -> float:
        """The smallest number of the planes' type."""
        return LEAST if self.planes == 3 else TINY

    def ctas(self, rows: Any) -> Any:
        """Of a matrix of so many rows, for each split."""
        across = STRIP if self.major == "r" else self.threads // self.group
        return cute.ceil_div(rows, across) * self.cluster


class Split:
    """Splits (R, K) into planes."""

    def __init__(self, plan: SplitPlan) -> None:
        self.plan = plan

    def __call__(self, x: Any, planes: Any, exponents: Any, chunk: Any, stream: Any) -> None:
        """Emit the launch; `chunk` is K of a split."""
        kernel = (self._across if self.plan.major == "r" else self._along)(x, planes, exponents, chunk)
        self.launch(kernel, rows=cute.size(x, mode=[0]), batches=cute.size(x, mode=[2]),
                    layers=cute.size(exponents, mode=[1]), stream=stream)  # fmt: skip

    def launch(self, kernel: Any, *, rows: Any, batches: Any, layers: Any, stream: Any) -> None:
        """Emit it; `layers`: splits of all the batch. Matrices follow one another along x, which alone goes beyond
        65535."""
        extra: dict[str, Any] = {"cluster": [self.plan.cluster, 1, 1]} if self.plan.cluster > 1 else {}
        if self.plan.major == "r" and self.plan.per <= PER:
            extra |= {"min_blocks_per_mp": 2, "preferred_smem_carveout": 10}
        kernel.launch(
            grid=[self.plan.ctas(rows) * batches, layers // batches, 1], block=[self.plan.threads, 1, 1],
            stream=stream, **extra,
        )  # fmt: skip

    @cute.kernel
    def _along(self, x: cute.Tensor, planes: cute.Tensor, exponents: cute.Tensor, chunk: Int32) -> None:
        self.rows_along(Chunk(x, exponents, chunk, self.plan.ctas), x, planes)

    @cute.kernel
    def _across(self, x: cute.Tensor, planes: cute.Tensor, exponents: cute.Tensor, chunk: Int32) -> None:
        self.rows_across(Chunk(x, exponents, chunk, self.plan.ctas), x, planes)

    def read_quads(self, chunk: Chunk, x: Any, row: Any, steps: Sequence[Any]) -> list[Any]:
        """The quads that begin at (row, step) for each step."""
        return [self._read(chunk, x, row, step) for step in steps]

    def _read(self, chunk: Chunk, x: Any, row: Any, step: Any) -> Any:
        """The quad that begins at (row, step), or the last there is."""
        held = cute.make_rmem_tensor((QUAD,), Float32)
        across = self.plan.major == "r"
        if self.plan.wide:
            row = cutlass.min(row, chunk.rows - (QUAD if across else 1))
            step = cutlass.min(step, chunk.end - (1 if across else QUAD))
            start = x.iterator + cute.crd2idx((row, step, chunk.batch), x.layout)
            cute.autovec_copy(cute.make_tensor(start.align(4 * QUAD), cute.make_layout((QUAD,))), held)
            return held
        for e in range(QUAD):
            r = cutlass.min(row + e if across else row, chunk.rows - 1)
            k = cutlass.min(step if across else step + e, chunk.end - 1)
            held[e] = x[(r, k, chunk.batch)]
        return held

    def _write(self, planes: Any, at: tuple[Any, Any, Any], quad: Any, scales: list[Scale], odd: Any) -> None:
        """A quad's halves to their planes."""
        row, step, batch = at
        for plane, words in enumerate(split_quad(quad, scales, odd, planes=self.plan.planes)):
            layer = batch * self.plan.planes + plane
            if self.plan.permuted and self.plan.major == "k":
                at_16, inside = step // 16 * 16, step % 16
                for pair in range(2):
                    start = planes.iterator + cute.crd2idx((row, at_16 + inside // 2 + 8 * pair, layer), planes.layout)
                    target = cute.make_tensor(cute.recast_ptr(start.align(4), dtype=Int32), cute.make_layout((1,)))
                    target[0] = words[pair]
                continue
            place = permuted(step) if self.plan.permuted else step
            start = planes.iterator + cute.crd2idx((row, place, layer), planes.layout)
            target = cute.make_tensor(
                cute.recast_ptr(start.align(2 * QUAD), dtype=Int32), cute.make_layout((2,))
            )  # fmt: skip
            cute.autovec_copy(words, target)

    def _cross(
        self, planes: Any, at: tuple[Any, Any, Chunk], quads: list[Any], scales: list[Scale], seen: SeenMagnitudes
    ) -> None:
        """Four quads of neighbouring steps, each of four rows, row by row."""
        row, step, chunk = at
        for e, scale in enumerate(scales):
            along = cute.make_rmem_tensor((QUAD,), Float32)
            for i, quad in enumerate(quads):
                along[i] = quad[e]
            place = (row + e, step, chunk.batch)
            when(row + e < chunk.rows, partial(self._write, planes, place, along, [scale] * QUAD, seen.odd[0]))

    def rows_along(self, chunk: Chunk, x: Any, planes: Any) -> None:
        """A CTA takes threads / group rows, and of each one chunk of K."""
        row = chunk.block * (self.plan.threads // self.plan.group) + chunk.thread // self.plan.group
        member = chunk.thread % self.plan.group
        there, safe = row < chunk.rows, cutlass.min(row, chunk.rows - 1)
        stride = self.plan.group * QUAD
        blocks = cute.ceil_div(chunk.end - chunk.begin, stride * self.plan.per)
        seen = SeenMagnitudes(1)

        def steps(number: Any) -> list[Any]:
            first = chunk.begin + number * (stride * self.plan.per) + member * QUAD
            return [first + i * stride for i in range(self.plan.per)]

        def read(number: Any) -> list[Any]:
            return self.read_quads(chunk, x, safe, steps(number))

        kept = read(Int32(0)) if self.plan.held else []
        if self.plan.held:
            seen.look(kept)
        else:
            loop(Int32(0), blocks, lambda number: seen.look(read(number)))
        exponent = exponent_of(_highest_of_row(self.plan, seen.most[0], chunk.thread))
        when(m.both(there, member == 0), lambda: chunk.note(row, exponent))
        scales = [Scale(exponent, least=self.plan.least)] * QUAD

        def write(number: Any) -> None:
            for quad, step in zip(kept or read(number), steps(number), strict=True):
                at = (safe, step, chunk.batch)
                when(m.both(there, step < chunk.end), partial(self._write, planes, at, quad, scales, seen.odd[0]))

        if self.plan.held:
            write(Int32(0))
        else:
            loop(Int32(0), blocks, write)

    def rows_across(self, chunk: Chunk, x: Any, planes: Any) -> None:
        """A cluster takes a strip of rows, which lie side by side, and one chunk of K: each CTA of it every cluster-th
        slab of `per` quads a thread."""
        lanes = STRIP // QUAD
        lane, side = chunk.thread % lanes, chunk.thread // lanes
        tall = self.plan.threads // lanes
        strip, rank = chunk.block // self.plan.cluster, chunk.block % self.plan.cluster
        row = strip * STRIP + lane * QUAD
        there = row < chunk.rows
        blocks = cute.ceil_div(chunk.end - chunk.begin, tall * self.plan.per)
        seen = SeenMagnitudes(QUAD)
        shared = SmemAllocator()
        others = _Others(shared, self.plan.cluster, chunk.thread) if self.plan.cluster > 1 else None

        def steps(number: Any) -> list[Any]:
            if self.plan.crossed:
                return [chunk.begin + ((number * self.plan.per + i - i % QUAD) * tall + side * QUAD + i % QUAD)
                        for i in range(self.plan.per)]  # fmt: skip
            return [chunk.begin + (number * self.plan.per + i) * tall + side for i in range(self.plan.per)]

        def read(number: Any) -> list[Any]:
            return self.read_quads(chunk, x, row, steps(number))

        kept = read(rank) if self.plan.held else []
        if self.plan.held:
            seen.look(kept)
        else:
            loop(Int32(0), blocks, lambda number: seen.look(read(number)))
        highest = self._highest_of_strip(shared, chunk.thread, seen.most, rank, others)
        exponents = [exponent_of(highest[e]) for e in range(QUAD)]
        for e, exponent in enumerate(exponents):
            first = m.both(m.both(side == 0, rank == 0), row + e < chunk.rows)
            when(first, lambda e=e, exponent=exponent: chunk.note(row + e, exponent))
        scales = [Scale(exponent, least=self.plan.least) for exponent in exponents]

        def write(number: Any) -> None:
            quads, at = kept or read(number), steps(number)
            if self.plan.crossed:
                emits = [(at[i], partial(self._cross, planes, (row, at[i], chunk), quads[i : i + QUAD], scales, seen))
                         for i in range(0, self.plan.per, QUAD)]  # fmt: skip
            else:
                emits = [(step, partial(self._write, planes, (row, step, chunk.batch), quad, scales, seen.odd[0]))
                         for step, quad in zip(at, quads, strict=True)]  # fmt: skip
            for step, emit in emits:
                when(m.both(there, step < chunk.end), emit)

        if self.plan.held:
            write(rank)
        else:
            loop(Int32(0), blocks, write)

    def _highest_of_strip(
        self, shared: Any, thread: Any, most: Any, rank: Any, others: _Others | None
    ) -> list[Any]:  # fmt: skip
        """The most of each of a thread's four rows, over the CTA, and the `others` of its cluster."""
        lanes, warps = STRIP // QUAD, self.plan.threads // 32
        board = shared.allocate_tensor(Int32, cute.make_layout((STRIP, warps)), byte_alignment=16)
        mine = shared.allocate_tensor(Int32, cute.make_layout((STRIP, 1)), byte_alignment=16)
        for e in range(QUAD):  # lanes that hold the same rows lie `lanes` apart
            board[(thread % lanes * QUAD + e, thread // 32)] = highest(most[e], 32, lanes)
        cute.arch.sync_threads()

        def join() -> None:
            bits = board[(thread, 0)]
            for warp in range(1, warps):
                bits = cutlass.max(bits, board[(thread, warp)])
            if others is None:
                mine[(thread, 0)] = bits
            else:
                others.tell(bits, row=thread, rank=rank)

        if others is not None:
            cute.arch.cluster_wait()  # they have opened
        when(thread < STRIP, join)
        if others is None:
            cute.arch.sync_threads()
            return _joined(mine, thread % lanes)
        return _joined(others.heard(), thread % lanes)


def _highest_of_row(plan: SplitPlan, bits: Any, thread: Any) -> Any:
    """The most over the threads of a row."""
    bits = highest(bits, min(plan.group, 32))
    warps = plan.group // 32
    if warps <= 1:
        return bits
    board = SmemAllocator().allocate_tensor(Int32, cute.make_layout((plan.threads // 32,)))
    when(cute.arch.lane_idx() == 0, lambda: board.__setitem__(thread // 32, bits))
    cute.arch.sync_threads()
    return highest(board[thread // plan.group * warps + cute.arch.lane_idx() % warps], warps)


class _Others:
    """The most of each row of a strip from each CTA of a cluster, told by stores that complete on the receiver's
    mbarrier: a barrier of the cluster would wait for all of memory, twice (see `..cluster`)."""

    def __init__(self, shared: Any, cluster: int, thread: Any) -> None:
        self._cluster = cluster
        self._boxes = shared.allocate_tensor(Int32, cute.make_layout((STRIP, cluster)), byte_alignment=16)
        self._barrier = shared.allocate_array(Int64, 1)

        def prepare() -> None:
            cute.arch.mbarrier_init(self._barrier, 1)
            cute.arch.mbarrier_arrive_and_expect_tx(self._barrier, STRIP * cluster * 4)

        when(thread == 0, prepare)
        cute.arch.mbarrier_init_fence()
        cute.arch.cluster_arrive_relaxed()

    def tell(self, bits: Any, *, row: Any, rank: Any) -> None:
        for receiver in range(self._cluster):
            cute.arch.store_async_dsmem(self._boxes.iterator + rank * STRIP + row, bits, self._barrier, receiver)

    def heard(self) -> Any:
        """(row, CTA), once all have told: then nothing is on its way to this one, and it may leave."""
        cute.arch.mbarrier_wait(self._barrier, 0)
        return self._boxes


def _joined(told: Any, lane: Any) -> list[Any]:
    """The most of each of a lane's four rows over what all have told, (row, who)."""
    held = [cute.make_rmem_tensor((QUAD,), Int32) for _ in range(cute.size(told, mode=[1]))]
    quads = cute.logical_divide(told, (QUAD, None))
    for who, each in enumerate(held):
        cute.autovec_copy(quads[((None, lane), who)], each)
    most = [held[0][e] for e in range(QUAD)]
    for each in held[1:]:
        most = [cutlass.max(bits, each[e]) for e, bits in enumerate(most)]
    return most
