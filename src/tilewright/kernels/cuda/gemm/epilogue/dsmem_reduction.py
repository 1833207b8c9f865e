"""How a cluster whose CTAs share K sums a tile: each adds up a share of its columns, of which all CTAs send it theirs.

    tile of 64 columns, cluster of 4      CTA 0 | CTA 1 | CTA 2 | CTA 3       16 columns each
    cluster of 2                              CTA 0     |     CTA 1           32
    tile of 16 columns                    CTA 0, of all                       a share is 16 columns at least

Sums go from registers to where the receiver's stages were, by stores that complete on its mbarrier (st.async, see
`..cluster`), once it has told that they are read. Nobody waits for memory as a whole, as a barrier of the cluster does
that also releases what was written (MEMBAR.ALL.GPU on sm_90), and nobody stays for others: a CTA that has heard from
all is sent nothing more.
"""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64, cute

from ...common import math as m
from ...common.control import when
from ..host.plan import Point

FOUR = 4  # sums that a thread has of 8 columns: two rows, two columns


class DsmemReduction:
    """Of one CTA: what others send it, four sums of a thread at a time, and two mbarriers: of all receivers, that they
    may be sent theirs, and of this one, that all has come."""

    def __init__(self, point: Point, shared: Any, board: Any) -> None:
        """`board`: where stages begin."""
        self._senders, self._halves = point.cluster, point.tile_m // point.rows
        self._blocks = point.share // 8  # of 8 columns
        self._receivers = point.tile_n // point.share
        self._bytes, self._warps = point.share_bytes, 4 * point.groups
        layout = cute.make_layout((FOUR, 32 * self._warps, self._blocks, self._halves, self._senders))
        start = cute.make_ptr(Float32, board.toint(), cute.AddressSpace.smem, assumed_align=16)
        self._board = cute.make_tensor(start, layout)
        self._free = shared.allocate_array(Int64, 2)
        self._come = self._free + 1

    def open(self, thread: Any) -> None:
        """Before the cluster's CTAs first wait for one another."""

        def prepare() -> None:
            cute.arch.mbarrier_init(self._free, self._receivers * self._warps)
            cute.arch.mbarrier_init(self._come, 1)
            cute.arch.mbarrier_arrive_and_expect_tx(self._come, self._bytes)

        when(thread == 0, prepare)

    def send(self, totals: list[Any], *, rank: Any, thread: Any) -> None:
        """Every sum to the CTA whose it is to add, its own too; this warp reads no stage any more."""

        def tell() -> None:
            for sender in range(self._senders):
                cute.arch.mbarrier_arrive(self._free, sender)

        when(m.both(rank < self._receivers, thread % 32 == 0), tell)
        cute.arch.mbarrier_wait(self._free, 0)
        for receiver in range(self._receivers):
            for half, total in enumerate(totals):
                for block in range(self._blocks):
                    first = (receiver * self._blocks + block) * FOUR
                    words = tuple(total[first + e].bitcast(Int32) for e in range(FOUR))
                    at = cute.crd2idx((0, thread, block, half, rank), self._board.layout)
                    place = (self._board.iterator + at).align(16)
                    cute.arch.store_async_dsmem(place, words, self._come, receiver)

    def received(self, thread: Any) -> list[Any]:
        """What all have sent, added up in the order of their ranks."""
        cute.arch.mbarrier_wait(self._come, 0)
        layout = cute.make_layout((FOUR, self._blocks))
        shape = ((2, 2, self._blocks), 1, 1)
        sums = [cute.make_rmem_tensor(cute.make_layout(shape), Float32) for _ in range(self._halves)]
        for half, total in enumerate(sums):
            taken = [cute.make_rmem_tensor(layout, Float32) for _ in range(self._senders)]
            for sender, held in enumerate(taken):
                cute.autovec_copy(self._board[(None, thread, None, half, sender)], held)
            for i in range(FOUR * self._blocks):
                total[i] = taken[0][i]
                for held in taken[1:]:
                    total[i] = total[i] + held[i]
        return sums
