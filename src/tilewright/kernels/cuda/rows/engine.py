"""One engine that realises every Spec under every Plan.

    groups (rows, or vectors of rows) x steps (vectors along a row) x lanes (elements of a vector)

    CTA = groups_per_cta x group_threads threads             chunk = the part of a row that a CTA owns
    "row"    front: thread = group x group_threads + member   a vector lies along the row
    "column" front: thread = member x groups_per_cta + group  a vector lies across neighbouring rows

A sweep goes over a chunk in blocks of `unroll` vectors per thread; a block's loads are all issued before its first use.
Rows that two sweeps read stay in registers or in shared memory (each thread re-reads only what it wrote) or are read
again. How chunks of one row combine is the plan's `cta_split`:

    none     there is one                                    cluster  through distributed shared memory
    split    through a workspace, one launch per sweep       grid     through a workspace, in teams of resident CTAs

Teams (see `team`) take long rows in turn, and read the next ones while they combine. Of a pointwise Spec every block
is a CTA's; or, cta_split over the grid, resident CTAs take the blocks in turn. Where operands of a pointwise Spec lie
across the lanes, a chunk is a tile (see `tiles`). Overlapping windows along the lanes are read from shared memory (see
`windows`); over windows that overlap along several axes threads slide (see `slides`).

Sums over the rows beside them (see `sums`) take a group through many rows, and a second Spec to add them up.

Of rows of which only a stretch counts (see `ragged`) nothing else is looked at.

Where rows are free (see `free`), one kernel takes any number of them: it reads it from its tensors' shapes.

A scan (see `scan`) goes over its rows once; where it is split, the first launch merges each chunk; cta_split over the
grid, CTAs tell one another what they have (see `relay`). The first of a row in order (see `rank`) take one more sweep
after all others.

Nothing here depends on the order in which CTAs run, so results repeat to the last bit.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from ..common.spec import Spec
from .combine import Mailboxes, Workspace
from .cta import ALL, Cta
from .plan import Plan
from .ragged import RaggedCta
from .rank import Lists, RankCta
from .reducers import Reducer
from .relay import RelayCta
from .scan import ScanCta
from .scanners import make_scanner
from .slides import SlideCta
from .sums import SumsCta
from .team import TeamCta
from .tiles import TileCta
from .windows import WindowCta

SCRAP_BYTES = 16  # of a workspace that nothing uses


class EngineKernel:
    """A Spec under a Plan, ready to be traced inside a `@cute.jit` entry point."""

    def __init__(self, spec: Spec, plan: Plan) -> None:
        self.spec = spec
        self.plan = plan
        wide = spec.inner_size >= 2**31
        self.reducers: list[list[Any]] = [  # one list a sweep; a scan has one Scanner
            [Reducer(op=r.op, source=r.source, dtype=r.dtype, wide=wide) for r in sweep.reductions]
            for sweep in spec.sweeps
        ]
        if spec.scan is not None:
            self.reducers = [[make_scanner(spec.scan.op, dtype=spec.scan.dtype, wide=wide)]]
        rows = plan.space.groups * plan.space.row_lanes
        self.workspaces: list[list[Workspace]] = []
        self.mailboxes: list[list[Mailboxes]] = []
        self.work_bytes = SCRAP_BYTES
        self.lists: Lists | None = None
        if plan.cta_split == "split" and self._launches > 1:
            self._lay_out_workspace(rows)
        if self.zeroed:
            self._lay_out_mailboxes()

    @property
    def _launches(self) -> int:
        """Of rows that are split: one for each sweep, and one that writes."""
        return len(self.reducers) + (self.spec.rank is not None) + 1

    @property
    def zeroed(self) -> bool:
        """Whether the workspace must be zero at launch."""
        return self.plan.cta_split == "grid"

    def _lay_out_workspace(self, rows: int) -> None:
        end = 0
        for reducers in self.reducers:
            spaces = []
            for reducer in reducers:
                spaces.append(Workspace(reducer, rows=rows, chunks=self.plan.chunks, offset=end))
                end = spaces[-1].end
            self.workspaces.append(spaces)
        if self.spec.rank is not None:
            self.lists = Lists(count=self.spec.rank.count, rows=rows, chunks=self.plan.chunks, offset=end)
            end = self.lists.end
        self.work_bytes = end + SCRAP_BYTES

    def _lay_out_mailboxes(self) -> None:
        end = 0
        for reducers in self.reducers:
            boxes = []
            for reducer in reducers:
                boxes.append(Mailboxes(reducer, teams=self.plan.teams, chunks=self.plan.chunks, offset=end))
                end = boxes[-1].end
            self.mailboxes.append(boxes)
        self.work_bytes = end + SCRAP_BYTES

    def __call__(self, tensors: tuple[Any, ...], work: Any, stream: Any) -> None:
        """Emit the launches; `tensors` are the operands, then the outputs."""
        plan = self.plan
        stages = range(self._launches) if plan.cta_split == "split" else (ALL,)
        for stage in stages:
            last = stage == self._launches - 1 and self.spec.final is None
            chunks = 1 if last else plan.chunks
            extra: dict[str, Any] = {"cluster": [chunks, 1, 1]} if plan.cta_split == "cluster" else {}
            if plan.least_ctas and not plan.teams:
                chosen_by_driver = -1
                extra |= {"min_blocks_per_mp": plan.least_ctas, "preferred_smem_carveout": chosen_by_driver}
            if plan.teams:
                extra = {"min_blocks_per_mp": plan.least_ctas, "preferred_smem_carveout": 100}
                extra["cooperative"] = plan.cta_split == "grid"  # all on the chip at once, or an error
            self._kernel(list(tensors), work, stage, chunks).launch(
                grid=[self._ctas(tensors) * chunks, 1, 1],
                block=[plan.threads, 1, 1],
                stream=stream,
                **extra,
            )

    def _ctas(self, tensors: tuple[Any, ...]) -> Any:
        """Of a chunk."""
        plan = self.plan
        if plan.rows == "fixed":
            return plan.teams or plan.ctas_per_chunk
        rows, reduced = tensors[self.spec.rows_of].shape[0], bool(self.spec.reduced)
        of_row, of_cta = (plan.space.groups, plan.groups_per_cta) if reduced else (plan.space.steps, plan.block_steps)
        if plan.slide is not None:
            of_row, of_cta = plan.slide.count, plan.slide.lines
        return Int32((Int64(rows) * of_row + (of_cta - 1)) // of_cta)

    def _cta(self, stage: int) -> type[Cta]:
        if self.plan.tile is not None:
            return TileCta
        if self.plan.slide is not None:
            return SlideCta
        if self.plan.windows:
            return WindowCta
        if self.plan.teams:
            return TeamCta if self.spec.scan is None else RelayCta
        if self.spec.rank is not None:
            return RankCta
        if self.spec.sums:
            return SumsCta
        if self.spec.stretch is not None:
            return RaggedCta
        return Cta if self.spec.scan is None else ScanCta

    @cute.kernel  # type: ignore[untyped-decorator]
    def _kernel(self, tensors: list, work: cute.Tensor, stage: cutlass.Constexpr, chunks: cutlass.Constexpr) -> None:
        self._cta(stage)(self, tensors, work, stage=stage, chunks=chunks).run()
