"""What a CTA has: its group of rows, its chunk of them, its shared memory, and what is known of each row."""

from __future__ import annotations

from typing import Any, Protocol

import cutlass
from cutlass import Int32, cute
from cutlass.memory import SmemAllocator

from ..common import math as m
from ..common.addresses import Addresses, Source
from ..common.operands import resident_operands
from ..common.spec import Function, Spec, reads
from .cluster import Exchange
from .combine import Board, Held, Mailboxes, Workspace
from .exponentials import KeptExponentials
from .plan import Plan
from .resident import Resident

ALL = -1  # the stage of a launch that does all sweeps


class CtaWork(Protocol):
    """What a CTA is told."""

    spec: Spec
    plan: Plan
    reducers: list[list[Any]]
    workspaces: list[list[Workspace]]
    mailboxes: list[list[Mailboxes]]
    lists: Any  # `rank.Lists`, where ranked rows are split


def called(function: Function, values: dict[str, Any]) -> Any:
    """`function` of what it names."""
    return function(*(values[n] for n in reads(function)))


class CtaRows:
    """A CTA while it is traced: `stage` of the sweeps (or `ALL`), on one of `chunks` parts of its rows."""

    def __init__(self, kernel: CtaWork, tensors: list[Any], work: Any, *, stage: int, chunks: int) -> None:
        self.kernel, self.spec, self.plan, self.space = kernel, kernel.spec, kernel.plan, kernel.plan.space
        self.work, self.stage, self.chunks = work, stage, chunks
        names = [o.name for o in self.spec.operands] + [f"out_{o.name}" for o in self.spec.outputs]
        self.dtypes = {o.name: o.dtype for o in self.spec.aligned_operands}
        self.tensors = dict(zip(names, tensors, strict=True))
        self.sources = {o.name: Source(self.tensors[o.name], o.dtype, o.shape) for o in self.spec.operands if o.indexed}
        self._count()
        self._place()
        self.at = self._addresses()
        self._allocate()
        self.rows = self._new_rows()
        keeps = self.plan.row_storage == "registers" and self.space.row_lanes == 1 and stage == ALL
        self.shares = KeptExponentials(self.spec, self.spec.shares) if self.spec.shares and keeps else None

    def _addresses(self) -> Addresses:
        return Addresses(self.space, self.tensors, self.group_index, wide=self.plan.wide)

    def _new_rows(self) -> list[dict[str, Any]]:
        """What is known of each row: at first, what may be read anywhere."""
        return [dict(self.sources) for _ in range(self.space.row_lanes)]

    def _count(self) -> None:
        """How many groups there are, and steps of each: known while tracing, but where rows are free."""
        self.groups, self.steps = self.space.groups, self.space.steps
        if self.plan.rows == "fixed":
            return
        rows = Int32(self.tensors[self.spec.operands[self.spec.rows_of].name].shape[0])
        if self.spec.reduced:
            self.groups = rows * self.groups
        else:
            self.steps = rows * self.steps

    def _place(self) -> None:
        """Which group and chunk this thread works for."""
        plan = self.plan
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        if self.stage != ALL and self.stage % 2 == 1:  # begin with what the last launch left in L2
            block = Int32(plan.ctas_per_chunk * self.chunks - 1) - block
        alone = plan.ctas_per_chunk == 1 if plan.rows == "fixed" else not self.spec.reduced
        if alone and not plan.teams:
            self.chunk, cta = block, Int32(0)
        elif self.chunks == 1:
            self.chunk, cta = Int32(0), block
        else:
            self.chunk, cta = block % self.chunks, block // self.chunks
        if self.space.front == "row":
            self.member, self.group = thread % plan.group_threads, thread // plan.group_threads
        else:
            self.member, self.group = thread // plan.groups_per_cta, thread % plan.groups_per_cta
        if plan.group_threads == 1:
            self.member = Int32(0)  # known while tracing
        index = cta * plan.groups_per_cta + self.group
        self.alive = None
        ragged = self.space.groups % plan.groups_per_cta if plan.rows == "fixed" else plan.rows == "ragged"
        if ragged:
            self.alive = index < self.groups
            index = cutlass.min(index, Int32(self.groups - 1))
        self.group_index = index

    def _allocate(self) -> None:
        """Shared memory: boards to combine on, and the resident row."""
        plan, space = self.plan, self.space
        self.allocator = allocator = SmemAllocator()
        if space.front == "column":
            cells = plan.threads * space.row_lanes if plan.group_threads > 1 else 0
        else:
            cells = plan.threads // 32 if plan.group_threads > 32 else 0
        if (
            plan.cta_split == "grid" or plan.parts
        ):  # a CTA's threads combine, and then a team's CTAs; or two rows' in turn
            cells *= 2
        self.boards = [
            [Board(allocator, r, cells) if cells else None for r in reducers] for reducers in self.kernel.reducers
        ]
        self.cells = cells
        clustered = plan.cta_split == "cluster" and bool(self.kernel.reducers)
        in_turn = plan.parts > 0
        self.exchange = Exchange(allocator, self.kernel.reducers, plan.chunks, in_turn=in_turn) if clustered else None
        self.resident = self._row_storage(allocator, self.member + self.group * plan.group_threads)

    def _row_storage(self, allocator: Any, thread: Any) -> Any:
        """Where rows stay between sweeps."""
        names = resident_operands(self.spec, self.space)
        return Resident(self.plan, self.at, names=names, dtypes=self.dtypes, allocator=allocator, thread=thread)

    def _load_rows(self) -> None:
        """Row-level operands and positions along kept dimensions."""
        space = self.space
        for operand in self.spec.aligned_operands:
            if self.spec.at_row_level(operand.shape):
                fragment = self._row_operand(operand.name)
                for lane, row in enumerate(self.rows):
                    row[operand.name] = m.cast(fragment[min(lane, cute.size(fragment) - 1)], operand.dtype)
        for name, view in space.views.items():
            if name.startswith("index_") and not any(view.step_strides):
                for lane, row in enumerate(self.rows):
                    row[name] = self.at.base[name] + lane * (view.lane_stride if space.front == "column" else 0)

    def _row_operand(self, name: str) -> Any:
        return self.at.load(name, self.at.base[name])

    def _compute_rows(self, function: Function | None) -> None:
        if function is not None:
            for row in self.rows:
                row.update(called(function, row))

    def _finish(self, sweep: int, helds: list[Held]) -> None:
        """Results of a sweep's reductions, and the row statements that follow from them."""
        for held, reduction in zip(helds, self.spec.sweeps[sweep].reductions, strict=True):
            for lane, row in enumerate(self.rows):
                row.update(zip(reduction.results, held.reducer.results(held[lane]), strict=True))
        self._compute_rows(self.spec.sweeps[sweep].rows)
