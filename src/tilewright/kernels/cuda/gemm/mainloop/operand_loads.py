"""How a product's clusters are launched, and how A and B come to wgmma: TMA's copies, the stages in shared memory that
they fill, and the fragments that are read of them."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute, pipeline
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator
from cutlass.utils import hopper_helpers

from ..epilogue.tile_end import TileEnd


class OperandLoads(TileEnd):
    """Of a product, which says of what type its operands are, and where B's contiguous mode is."""

    early: bool  # whether it is launched while the kernel before it runs
    element: Any
    major_b: Any

    def _launch(self, kernel: Any, clusters: Any, stream: Any) -> None:
        p = self.point
        kernel.launch(
            grid=[clusters * p.cluster, 1, 1],
            block=[p.threads, 1, 1],
            cluster=[p.cluster, 1, 1],
            min_blocks_per_mp=p.resident,
            preferred_smem_carveout=100,
            use_pdl=self.early,
            stream=stream,
        )

    def _start(self) -> None:
        """Before memory is touched, an `early` launch waits until the one before has ended, and lets the next be
        launched as early (programmatic dependent launch, CUDA Programming Guide)."""
        if self.early:
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()

    def _in_cluster(self) -> tuple[Any, Any, Any]:
        """Where a CTA stands in its cluster, and who gets what it loads of A, and of B."""
        p = self.point
        layout_mn = cute.make_layout((p.cluster_m, p.cluster_n, 1))
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        at = layout_mn.get_flat_coord(rank)
        mask_a = cute.make_layout_image_mask(layout_mn, at, mode=1) if p.cluster_n > 1 else 0
        mask_b = cute.make_layout_image_mask(layout_mn, at, mode=0) if p.cluster_m > 1 else 0
        return at, mask_a, mask_b

    def _fragments(self, mma: Any, s_a: Any, s_b: Any, member: Any) -> tuple[Any, Any, tuple[Any, Any], Any]:
        """What a warpgroup multiplies of a stage, of A and of B as (atom, parts of M or N, blocks of K, slots); the
        numbers of parts; and the layout of the sums of one of each."""
        by_group = mma.get_slice(cute.make_layout(self.point.groups, stride=128)(member))
        r_a = mma.make_fragment_A(by_group.partition_A(s_a))
        r_b = mma.make_fragment_B(by_group.partition_B(s_b))
        fragment = cute.make_layout(((2, 2, self.point.atom_n // 8), 1, 1))
        return r_a, r_b, (cute.size(r_a, mode=[1]), cute.size(r_b, mode=[1])), fragment

    @staticmethod
    def _tma(tensor: Any, staged: Any, tile: tuple[int, int], multicast: int) -> tuple[Any, Any]:
        op = cpasync.CopyBulkTensorTileG2SOp() if multicast == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        layout = cute.slice_(staged, (None, None, 0))
        made: tuple[Any, Any] = cpasync.make_tiled_tma_atom(op, tensor, layout, tile, num_multicast=multicast)
        return made

    @staticmethod
    def _sides(
        tma: Any, tensor: Any, staged: Any, tile: tuple[int, int], *, at: Any = 0, together: int = 1
    ) -> tuple[Any, Any]:
        """(bytes of a stage, slot) of shared memory, and (the same bytes, tile, step of K, plane) of the tensor: what
        this CTA, number `at` of those that load a tile `together`, copies."""
        made: tuple[Any, Any] = cpasync.tma_partition(
            tma, at, cute.make_layout(together), cute.group_modes(staged, 0, 2),
            cute.group_modes(cute.local_tile(tensor, tile, (None, None, None)), 0, 2),
        )  # fmt: skip
        return made

    def _halves(self) -> Any:
        """The memory of B's stages as TMA sees it: as many tiles as it has sources."""
        p = self.point
        slots = p.depth_stages * p.planes * (p.tile_n // p.columns)
        return hopper_helpers.make_smem_layout_b(self.major_b, (p.tile_m, p.columns, p.depth), self.element, slots)

    def _sources(self, given: tuple[tuple[Any, Any], ...], s_b: Any, at: Any) -> tuple[Any, list[tuple[Any, Any]]]:
        """The halves of B's stages as TMA fills them, and the copy and the tiles of each source: one, if not dual."""
        p = self.point
        halves = cute.make_tensor(s_b.iterator, self._halves().outer)
        sides = [
            self._sides(tma, tensor, halves, (p.columns, p.depth), at=at, together=p.cluster_m)
            for tma, tensor in given[: p.tile_n // p.columns]
        ]
        return sides[0][0], [(tma, tiles) for (tma, _), (_, tiles) in zip(given, sides, strict=False)]

    def _stage_memory(self, layouts: list[Any]) -> tuple[Any, Any, Any, Any]:
        """The allocator of shared memory, and in it the pipeline of loads and the stages of A and of B; `layouts`: of
        these."""
        p = self.point
        shared = SmemAllocator()
        readers = (p.cluster_m + p.cluster_n - 1) * p.groups * 4
        stages = self._stages(shared, readers=readers, cluster=(p.cluster_m, p.cluster_n))
        s_a, s_b = (
            shared.allocate_tensor(self.element, layout.outer, byte_alignment=1024, swizzle=layout.inner)
            for layout in layouts
        )
        return shared, stages, s_a, s_b

    def _stages(
        self, shared: Any, *, readers: int, cluster: tuple[int, int], count: int = 0, size: int = 0, **more: Any
    ) -> Any:
        """The pipeline of loads, `count` stages of `size` bytes, the Point's if not said; `readers`: warps, of all
        CTAs, that free a stage."""
        count = count or self.point.depth_stages
        return pipeline.PipelineTmaAsync.create(
            barrier_storage=shared.allocate_array(cutlass.Int64, count * 2),
            num_stages=count,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, readers),
            tx_count=size or self.point.stage_bytes,
            cta_layout_vmnk=cute.make_layout((1, *cluster, 1)),
            defer_sync=True,
            **more,
        )
