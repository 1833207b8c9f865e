"""What one CTA does with its part of its rows: sweeps, combination, elements; traced inside a kernel (see `engine`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import cutlass
from cutlass import Boolean, Int32, Uint32, cute
from cutlass.memory import SmemAllocator

from ..common import math as m
from ..common.addresses import Addresses, Source
from ..common.control import loop, when
from ..common.operands import resident_operands
from ..common.spec import Function, Spec, reads
from ..common.views import POSITION
from .cluster import Exchange
from .combine import Board, Held, Mailboxes, Workspace, combine_columns, combine_rows
from .exponentials import KeptExponentials
from .plan import Plan
from .reducers import Reducer
from .resident import Resident

ALL = -1  # the stage of a launch that does all sweeps
BATCH = 16  # elements that a thread reduces as one tree: more cost registers, fewer cost merges


class CtaWork(Protocol):
    """What a CTA is told."""

    spec: Spec
    plan: Plan
    reducers: list[list[Any]]
    workspaces: list[list[Workspace]]
    mailboxes: list[list[Mailboxes]]
    lists: Any  # `rank.Lists`, where ranked rows are split


class Block:
    """The steps that a thread takes at once. `valid[u]` is None (all lanes), or one Boolean per lane. `held`, `own`,
    `asked`: see `team`."""

    held: int | None = None
    own: int | None = None
    asked = False

    def __init__(self, steps: list[Any], valid: list[list[Any] | None], slots: list[Any], by_element: bool) -> None:
        self.steps = steps
        self.valid = valid
        self.slots = slots
        self.by_element = by_element  # lanes are clamped one by one: the row's tail is in here


class Cta:
    """What one CTA does, while it is traced: `stage` of the sweeps (or `ALL`), on one of `chunks` parts of its rows."""

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

    # ---- rows ------------------------------------------------------------------------------------------------------

    def _call(self, function: Function, values: dict[str, Any]) -> Any:
        return function(*(values[n] for n in reads(function)))

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
                row.update(self._call(function, row))

    def _finish(self, sweep: int, helds: list[Held]) -> None:
        """Results of a sweep's reductions, and the row statements that follow from them."""
        for held, reduction in zip(helds, self.spec.sweeps[sweep].reductions, strict=True):
            for lane, row in enumerate(self.rows):
                row.update(zip(reduction.results, held.reducer.results(held[lane]), strict=True))
        self._compute_rows(self.spec.sweeps[sweep].rows)

    # ---- elements --------------------------------------------------------------------------------------------------

    def _make_block(self, index: Any, first: Any, masked: bool) -> Block:
        plan, space = self.plan, self.space
        steps: list[Any] = []
        slots: list[Any] = []
        valid: list[list[Any] | None] = []
        tail = masked and space.tail > 0
        for u in range(plan.unroll):
            step = index * plan.block_steps + (u * plan.group_threads) + self.member
            slots.append((index - first) * plan.unroll + u)
            if not masked:
                valid.append(None)
            elif tail:
                valid.append(self.at.inside(step))
            else:
                valid.append([step < self.steps] * space.vector)
                step = cutlass.min(step, Int32(self.steps - 1))
            steps.append(step)
        return Block(steps, valid, slots, tail)

    def _fetch(self, block: Block, name: str) -> list[Any]:
        """One fragment a step, from wherever the operand is nearest."""
        found = self.resident.get(name, block.slots)
        if found is not None:
            return found
        if block.by_element and self.at.lane_stride(name):
            lanes = range(self.space.vector)
            return [self.at.load_lanes(name, [self.at.at_lane(name, s, j) for j in lanes]) for s in block.steps]
        loaded = [self.at.load(name, self.at.at_step(name, step)) for step in block.steps]
        self.resident.put(name, block.slots, loaded)
        return loaded

    def _position(self, name: str, block: Block, u: int, lane: int) -> Any:
        """The value of an `index_<d>` or `POSITION` view."""
        if block.by_element:
            return self.at.at_lane(name, block.steps[u], lane)
        return self.at.at_step(name, block.steps[u]) + lane * self.at.lane_stride(name)

    def _fetch_all(self, block: Block, function: Function) -> dict[str, list[Any]]:
        """Fragments [step] of every element-level operand that the function reads: all loads are issued here."""
        return {n: self._fetch(block, n) for n in reads(function) if n in self.dtypes and n not in self.rows[0]}

    def _step(self, block: Block, function: Function, fragments: dict[str, list[Any]], u: int) -> list[Any]:
        """function's results for each lane of step u."""
        names = reads(function)
        per_lane = []
        for lane in range(self.space.vector):
            row = self.rows[lane % len(self.rows)]
            values = {n: row[n] for n in names if n in row}
            for name, parts in fragments.items():
                part = parts[u]
                values[name] = m.lane_of(part, min(lane, cute.size(part) - 1), self.dtypes[name])
            for name in names:
                if self.shares is not None and name == self.shares.name:
                    values[name] = self.shares.get(u, lane)
                elif name not in values:
                    values[name] = self._position(name, block, u, lane)
            per_lane.append(self._call(function, values))
        return per_lane

    def _walk(self, sweep: int, body: Callable[[Block], None]) -> None:
        """body(block) for the blocks of this CTA's chunk, whole ones first."""
        plan = self.plan
        if not self.spec.reduced and (plan.rows != "fixed" or plan.chunks < plan.blocks):
            (self._walk_in_turn if plan.rows == "fixed" else self._walk_free)(body)
            return
        full, per_chunk = plan.full_blocks, plan.blocks_per_chunk
        rest = plan.blocks > full
        if plan.row_storage == "registers":
            whole = plan.chunks * plan.block_steps == self.space.steps and not self.space.tail
            body(self._make_block(self.chunk, self.chunk, masked=not whole))
            return
        lo = self.chunk * per_chunk
        hi = cutlass.min(lo + per_chunk, Int32(full))
        if sweep == 0 and self.resident.segments:
            for number in range(self.resident.segments):
                cute.arch.cp_async_wait_group(self.resident.segments - 1 - number)
                begin, end = self.resident.segment(number, lo, hi)
                loop(begin, end, lambda b: body(self._make_block(b, lo, masked=False)))
        elif per_chunk == 1:
            if full:
                when(self.chunk < full, lambda: body(self._make_block(self.chunk, lo, masked=False)))
        elif plan.row_storage == "reread" and sweep % 2 == 1:  # back to front: the end of the row is still in L2
            loop(lo, hi, lambda b: body(self._make_block(lo + hi - 1 - b, lo, masked=False)))
        else:
            loop(lo, hi, lambda b: body(self._make_block(b, lo, masked=False)))
        if rest and plan.chunks == 1:
            body(self._make_block(Int32(full), lo, masked=True))
        elif rest:
            when(self.chunk == full // per_chunk, lambda: body(self._make_block(Int32(full), lo, masked=True)))

    def _walk_free(self, body: Callable[[Block], None]) -> None:
        """body(block) for the one block of a CTA, of as many as all rows make."""
        if self.plan.rows == "full":
            body(self._make_block(self.chunk, self.chunk, masked=False))
            return
        full = Int32(Uint32(self.steps) // Uint32(self.plan.block_steps))
        when(self.chunk < full, lambda: body(self._make_block(self.chunk, self.chunk, masked=False)))
        when(self.chunk == full, lambda: body(self._make_block(full, full, masked=True)))

    def _walk_in_turn(self, body: Callable[[Block], None]) -> None:
        """body(block) for every `chunks`-th block of a pointwise space: all CTAs walk through memory side by side."""
        plan, full, chunks = self.plan, self.plan.full_blocks, self.plan.chunks

        def one(turn: Any) -> None:
            index = self.chunk + turn * chunks
            body(self._make_block(index, index, masked=False))

        loop(Int32(0), (Int32(full + chunks - 1) - self.chunk) // chunks, one)
        if plan.blocks > full:
            when(self.chunk == full % chunks, lambda: body(self._make_block(Int32(full), Int32(full), masked=True)))

    def _reduce(self, sweep: int) -> list[Held]:
        """Sweep over this CTA's chunk; afterwards all its threads hold the states of their groups' chunks."""
        spec, lanes = self.spec.sweeps[sweep], len(self.rows)
        helds = [Held(r, lanes) for r in self.kernel.reducers[sweep]]
        self._walk(sweep, self._reducing(sweep, helds))
        self.resident.swept(reads(spec.elements))
        self._combine(sweep, helds)
        return helds

    def _reducing(self, sweep: int, helds: list[Held]) -> Callable[[Block], None]:
        """What a sweep does with a block: merge it into `helds`."""
        spec = self.spec.sweeps[sweep]

        def body(block: Block) -> None:
            lanes = len(self.rows)
            fragments = self._fetch_all(block, spec.elements)
            batch = max(BATCH // self.space.vector, 1)
            for start in range(0, len(block.steps), batch):
                turns = range(start, min(start + batch, len(block.steps)))
                results = {u: self._step(block, spec.elements, fragments, u) for u in turns}
                for number, held in enumerate(helds):
                    for row in range(lanes):
                        cells = [(u, j) for u in turns for j in range(row, self.space.vector, lanes)]
                        values = [held.reducer.prepare(results[u][j][number]) for u, j in cells]
                        valid, places = self._where(block, held.reducer, cells)
                        if self.shares is not None and self.shares.of(sweep, number):
                            held.merge(row, self.shares.keep(held.reducer, values, valid, cells))
                        else:
                            held.merge(row, held.reducer.block(values, valid, places))

        return body

    def _where(
        self, block: Block, reducer: Reducer, cells: list[tuple[int, int]]
    ) -> tuple[list[Any] | None, list[Any]]:
        """Which cells (step, lane) are valid, and their positions where the reduction asks for them."""
        masks = [block.valid[u] for u, _ in cells]
        valid = None if masks[0] is None else [mask[j] for mask, (_, j) in zip(masks, cells, strict=True) if mask]
        places = [self._position(POSITION, block, u, j) for u, j in cells] if reducer.needs_positions else []
        return valid, places

    def _combine(self, sweep: int, helds: list[Held]) -> None:
        plan, boards = self.plan, self.boards[sweep]
        where = {"group": self.group, "member": self.member, "group_threads": plan.group_threads}
        if self.space.front == "row":
            combine_rows(helds, boards, **where)
        else:
            combine_columns(helds, boards, groups=plan.groups_per_cta, **where)

    def _write_elements(self) -> None:
        self._walk(len(self.spec.sweeps), self._writing())

    def _writing(self) -> Callable[[Block], None]:
        """What the last sweep does with a block."""
        spec, final = self.spec, self.spec.final
        assert final is not None
        if self.shares is not None:
            final = self.shares.close(self.rows[0])
        dtypes = {o.name: o.dtype for o in spec.outputs}

        def body(block: Block) -> None:
            fragments = self._fetch_all(block, final)
            for u, step in enumerate(block.steps):
                results = self._step(block, final, fragments, u)
                for number, name in enumerate(spec.element_outputs):
                    values = [m.stored(lane[number], dtypes[name]) for lane in results]
                    self._write_step(f"out_{name}", block, u, step, values)

        return body

    def _write_step(self, name: str, block: Block, u: int, step: Any, values: list[Any]) -> None:
        valid = block.valid[u]
        if not block.by_element:
            offset = self.at.at_step(name, step)
            self._guarded(None if valid is None else valid[0], partial(self.at.store, name, offset, values))
            return
        assert valid is not None
        for lane, value in enumerate(values):
            self._guarded(valid[lane], partial(self.at.store, name, self.at.at_lane(name, step, lane), [value]))

    def _guarded(self, condition: Any, body: Callable[[], None]) -> None:
        """body() where the condition holds and the group exists."""
        if self.alive is not None:
            condition = self.alive if condition is None else m.both(self.alive, condition)
        if condition is None:
            body()
        else:
            when(Boolean(condition), body)

    def _write_rows(self) -> None:
        """Row-level outputs, by the first member of the first chunk."""
        outputs = [o for o in self.spec.aligned_outputs if o.name not in self.spec.element_outputs]
        if not outputs:
            return

        def body() -> None:
            for output in outputs:
                values = [m.stored(row[output.name], output.dtype) for row in self.rows]
                self.at.store(f"out_{output.name}", self.at.base[f"out_{output.name}"], values)

        first = self.member == 0
        self._guarded(first if self.chunks == 1 else m.both(first, self.chunk == 0), body)

    # ---- stages ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._load_rows()
        self._compute_rows(self.spec.head)
        if self.stage == ALL:
            self._run_all()
            return
        for sweep in range(self.stage):
            self._finish(sweep, self._gather(sweep))
        if self.stage == len(self.spec.sweeps):
            self._end()
        else:
            self._scatter(self.stage, self._reduce(self.stage))

    def _run_all(self) -> None:
        """All sweeps in one launch: a CTA, or a cluster, has whole rows."""
        if self.exchange is not None:
            self.exchange.open(self.member)
        self.resident.prefetch(self.chunk, self.member)
        for sweep in range(len(self.spec.sweeps)):
            helds = self._reduce(sweep)
            if self.exchange is not None:
                if sweep == 0:
                    self.exchange.ready()
                self.exchange.combine(sweep, helds, rank=self.chunk, thread=self.member)
            self._finish(sweep, helds)
        self._end()

    def _end(self) -> None:
        if self.spec.final is not None:
            self._write_elements()
        self._write_rows()

    def _row_index(self) -> Any:
        return self.group_index * len(self.rows)

    def _scatter(self, sweep: int, helds: list[Held]) -> None:
        """This chunk's states to the workspace."""

        def body() -> None:
            for held, space in zip(helds, self.kernel.workspaces[sweep], strict=True):
                for lane in range(held.lanes):
                    space.put(self.work, self.chunk, self._row_index() + lane, held[lane])

        self._guarded(self.member == 0, body)

    def _gather(self, sweep: int) -> list[Held]:
        """The states of whole rows, from the workspace."""
        helds = [Held(r, len(self.rows)) for r in self.kernel.reducers[sweep]]
        for held, space in zip(helds, self.kernel.workspaces[sweep], strict=True):
            space.gather(
                self.work, held, row=self._row_index(), member=self.member, group_threads=self.plan.group_threads
            )  # fmt: skip
        self._combine(sweep, helds)
        return helds
