"""The kernel: one engine that realises every Spec under every Plan.

    groups (rows, or vectors of rows) x steps (vectors along a row) x lanes (elements of a vector)

    CTA = groups_per_cta x group_threads threads             chunk = the part of a row that a CTA owns
    "row"    front: thread = group x group_threads + member   a vector lies along the row
    "column" front: thread = member x groups_per_cta + group  a vector lies across neighbouring rows

A sweep goes over a chunk in blocks of `unroll` vectors per thread: all loads of a block are issued before its first use.
Rows that two sweeps read stay in registers or in shared memory (each thread re-reads only what it wrote) or are read
again. Chunks of one row combine through the cluster, or through a workspace with one launch per sweep. Nothing here
depends on the order in which CTAs run, so results repeat to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Boolean, Int32, Int64, Uint32, cute
from cutlass.cute.nvgpu.cpasync import CopyG2SOp
from cutlass.memory import SmemAllocator

from . import math as m
from .combine import Board, Held, Workspace, combine_cluster, combine_columns, combine_rows
from .control import loop, when
from .plan import Plan, resident_operands
from .reducers import Reducer
from .spec import Function, Spec, reads
from .views import POSITION

ALL = -1  # the stage of a launch that does all sweeps
ELEMENT_BITS = {"f32": 32, "f16": 16, "bf16": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "u8": 8}
BATCH = 16  # elements that a thread reduces as one tree: more cost registers, fewer cost merges


class Kernel:
    """A Spec under a Plan, ready to be traced inside a `@cute.jit` entry point."""

    def __init__(self, spec: Spec, plan: Plan) -> None:
        self.spec = spec
        self.plan = plan
        wide = spec.inner_size >= 2**31
        self.reducers = [
            [Reducer(op=r.op, source=r.source, dtype=r.dtype, wide=wide) for r in sweep.reductions] for sweep in spec.sweeps
        ]
        rows = plan.space.groups * plan.space.row_lanes
        self.workspaces: list[list[Workspace]] = []
        self.work_bytes = 16
        if plan.spread == "split" and spec.sweeps:
            end = 0
            for reducers in self.reducers:
                spaces = []
                for reducer in reducers:
                    spaces.append(Workspace(reducer, rows=rows, chunks=plan.chunks, offset=end))
                    end = spaces[-1].end
                self.workspaces.append(spaces)
            self.work_bytes = max(end, 16)

    def __call__(self, tensors: tuple[Any, ...], work: Any, stream: Any) -> None:
        """Emit the launches; `tensors` are the operands, then the outputs."""
        plan, sweeps = self.plan, len(self.spec.sweeps)
        stages = range(sweeps + 1) if plan.spread == "split" else (ALL,)
        for stage in stages:
            last = stage == sweeps and self.spec.final is None
            chunks = 1 if last else plan.chunks
            extra = {"cluster": [chunks, 1, 1]} if plan.spread == "cluster" else {}
            self._kernel(list(tensors), work, stage, chunks).launch(
                grid=[plan.ctas_per_chunk * chunks, 1, 1], block=[plan.threads, 1, 1], stream=stream, **extra
            )

    @cute.kernel  # type: ignore[untyped-decorator]
    def _kernel(self, tensors: list, work: cute.Tensor, stage: cutlass.Constexpr, chunks: cutlass.Constexpr) -> None:
        _Cta(self, tensors, work, stage, chunks).run()


class _Block:
    """The steps that a thread takes at once. `valid[u]` is None (all lanes), or one Boolean per lane."""

    def __init__(self, steps: list[Any], valid: list[list[Any] | None], slots: list[Any], by_element: bool) -> None:
        self.steps = steps
        self.valid = valid
        self.slots = slots
        self.by_element = by_element  # lanes are clamped one by one: the row's tail is in here


class _Cta:
    """What one CTA does, while it is traced."""

    def __init__(self, kernel: Kernel, tensors: list[Any], work: Any, stage: int, chunks: int) -> None:
        self.kernel, self.spec, self.plan, self.space = kernel, kernel.spec, kernel.plan, kernel.plan.space
        self.work, self.stage, self.chunks = work, stage, chunks
        self.offset_type = Int64 if self.plan.wide else Int32
        names = [o.name for o in self.spec.operands] + [f"out_{o.name}" for o in self.spec.outputs]
        self.tensors = dict(zip(names, tensors, strict=True))
        self.dtypes = {o.name: o.dtype for o in self.spec.operands}
        self._place()
        coordinates = self._coordinates(self.group_index, self.space.group_sizes)
        self.base = {
            n: self._dot(coordinates, v.group_strides) + self.offset_type(0) for n, v in self.space.views.items()
        }
        self._allocate()
        self.rows: list[dict[str, Any]] = [{} for _ in range(self.space.row_lanes)]
        self.kept: dict[str, list[Any]] = {}  # fragments of resident operands, in registers
        self.filled: set[str] = set()  # resident operands already in shared memory, or on the way
        self.arriving = 0  # commit groups of copies under way

    def _place(self) -> None:
        """Which group and chunk this thread works for."""
        plan = self.plan
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        if self.stage != ALL and self.stage % 2 == 1:  # begin with what the last launch left in L2
            block = Int32(plan.ctas_per_chunk * self.chunks - 1) - block
        if plan.ctas_per_chunk == 1:
            self.chunk, cta = block, Int32(0)
        elif self.chunks == 1:
            self.chunk, cta = Int32(0), block
        else:
            self.chunk, cta = block % self.chunks, block // self.chunks
        if self.space.front == "row":
            self.member, self.group = thread % plan.group_threads, thread // plan.group_threads
        else:
            self.member, self.group = thread // plan.groups_per_cta, thread % plan.groups_per_cta
        index = cta * plan.groups_per_cta + self.group
        self.alive = None
        if self.space.groups % plan.groups_per_cta:
            self.alive = index < self.space.groups
            index = cutlass.min(index, Int32(self.space.groups - 1))
        self.group_index = index

    def _allocate(self) -> None:
        """Shared memory: boards to combine on, and the resident row."""
        plan, space = self.plan, self.space
        allocator = SmemAllocator()
        if space.front == "column":
            cells = plan.threads * space.row_lanes if plan.group_threads > 1 else 0
        else:
            cells = plan.threads // 32 if plan.group_threads > 32 else 0
        if plan.spread == "cluster":
            cells += 1
        self.boards = [
            [Board(allocator, r, cells) if cells else None for r in reducers] for reducers in self.kernel.reducers
        ]
        self.cells = cells
        self.resident = resident_operands(self.spec, space) if plan.residence != "reread" else ()
        self.shared: dict[str, Any] = {}
        if plan.residence == "shared":
            unit = [n for n in self.resident if space.views[n].lane_stride == 1 or space.vector == 1]
            self.resident = tuple(n for n in unit if self.dtypes[n] != "bool")
            count = plan.blocks_per_chunk * plan.unroll * plan.threads * space.vector
            for name in self.resident:
                kind = m.ELEMENT_TYPES[self.dtypes[name]]
                self.shared[name] = allocator.allocate_tensor(kind, cute.make_layout((count,)), byte_alignment=16)

    # ---- addresses -------------------------------------------------------------------------------------------------

    def _coordinates(self, index: Any, sizes: tuple[int, ...]) -> list[Any]:
        """The mixed-radix digits of an index, outermost first."""
        if len(sizes) == 1:
            return [index]
        rest = Uint32(index)
        digits = []
        for size in reversed(sizes[1:]):
            digits.append(Int32(rest % Uint32(size)))
            rest = rest // Uint32(size)
        digits.append(Int32(rest))
        return digits[::-1]

    def _dot(self, coordinates: list[Any], strides: tuple[int, ...]) -> Any:
        total = self.offset_type(0)
        for coordinate, stride in zip(coordinates, strides, strict=True):
            if stride:
                total = total + self.offset_type(coordinate) * self.offset_type(stride)
        return total

    def _load(self, name: str, offset: Any) -> Any:
        """A fragment of the vector at `offset`: one element where the view is broadcast along it."""
        tensor, stride = self.tensors[name], self.space.views[name].lane_stride
        lanes = 1 if stride == 0 else self.space.vector
        fragment = cute.make_rmem_tensor((lanes,), tensor.element_type)
        if lanes == 1 or stride == 1:
            source = tensor.iterator + (cute.assume(offset, divby=lanes) if lanes > 1 else offset)
            cute.autovec_copy(cute.make_tensor(source, cute.make_layout((lanes,))), fragment)
        else:
            for lane in range(lanes):
                self._load_lane(name, offset + lane * stride, fragment, lane)
        return fragment

    def _load_lane(self, name: str, offset: Any, fragment: Any, lane: int) -> None:
        single = cute.make_rmem_tensor((1,), fragment.element_type)
        cute.autovec_copy(cute.make_tensor(self.tensors[name].iterator + offset, cute.make_layout((1,))), single)
        fragment[lane] = single[0]

    def _store(self, name: str, offset: Any, values: list[Any]) -> None:
        """Store a vector of element-typed values."""
        tensor, stride = self.tensors[name], self.space.views[name].lane_stride
        whole = stride == 1 and len(values) > 1
        for lane, value in enumerate(values[:1] if stride == 0 else values):
            if not whole:
                single = cute.make_rmem_tensor((1,), tensor.element_type)
                single[0] = value
                target = cute.make_tensor(tensor.iterator + (offset + lane * stride), cute.make_layout((1,)))
                cute.autovec_copy(single, target)
        if whole:
            fragment = cute.make_rmem_tensor((len(values),), tensor.element_type)
            for lane, value in enumerate(values):
                fragment[lane] = value
            source = tensor.iterator + cute.assume(offset, divby=len(values))
            cute.autovec_copy(fragment, cute.make_tensor(source, cute.make_layout((len(values),))))

    # ---- rows ------------------------------------------------------------------------------------------------------

    def _call(self, function: Function, values: dict[str, Any]) -> Any:
        return function(*(values[n] for n in reads(function)))

    def _load_rows(self) -> None:
        """Row-level operands and positions along kept dimensions."""
        space = self.space
        for operand in self.spec.operands:
            if self.spec.at_row_level(operand.shape):
                fragment = self._load(operand.name, self.base[operand.name])
                for lane, row in enumerate(self.rows):
                    row[operand.name] = m.cast(fragment[min(lane, cute.size(fragment) - 1)], operand.dtype)
        for name, view in space.views.items():
            if name.startswith("index_") and not any(view.step_strides):
                for lane, row in enumerate(self.rows):
                    row[name] = self.base[name] + lane * (view.lane_stride if space.front == "column" else 0)

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

    def _make_block(self, index: Any, first: Any, masked: bool) -> _Block:
        plan, space = self.plan, self.space
        steps, valid, slots = [], [], []
        tail = masked and space.tail > 0
        for u in range(plan.unroll):
            step = index * plan.block_steps + (u * plan.group_threads) + self.member
            slots.append((index - first) * plan.unroll + u)
            if not masked:
                valid.append(None)
            elif tail:
                element = self.offset_type(step) * space.vector
                valid.append([element + lane < space.inner for lane in range(space.vector)])
            else:
                valid.append([step < space.steps] * space.vector)
                step = cutlass.min(step, Int32(space.steps - 1))
            steps.append(step)
        return _Block(steps, valid, slots, tail)

    def _lane_offset(self, name: str, step: Any, lane: int) -> Any:
        """Offset of one element of the tail's block, clamped into the row (which is a single mode)."""
        element = self.offset_type(step) * self.space.vector + lane
        nearest = cutlass.min(element, self.offset_type(self.space.inner - 1))
        return self.base[name] + nearest * self.space.views[name].lane_stride

    def _fetch(self, block: _Block, name: str) -> list[Any]:
        """One fragment a step, from wherever the operand is nearest."""
        if name in self.kept:
            return self.kept[name]
        fragments = []
        for step, slot in zip(block.steps, block.slots, strict=True):
            if name in self.filled:
                fragments.append(self._from_shared(name, slot))
            elif block.by_element and self.space.views[name].lane_stride:
                fragment = cute.make_rmem_tensor((self.space.vector,), self.tensors[name].element_type)
                for lane in range(self.space.vector):
                    self._load_lane(name, self._lane_offset(name, step, lane), fragment, lane)
                fragments.append(fragment)
            else:
                strides = self.space.views[name].step_strides
                offset = self.base[name] + self._dot(self._coordinates(step, self.space.step_sizes), strides)
                fragments.append(self._load(name, offset))
        if name in self.resident and self.plan.residence == "registers":
            self.kept[name] = fragments
        if name in self.shared and name not in self.filled:
            for fragment, slot in zip(fragments, block.slots, strict=True):
                cute.autovec_copy(fragment, self._slot(name, slot))
        return fragments

    def _segment(self, segment: int, lo: Any, hi: Any) -> tuple[Any, Any]:
        """The blocks of one commit group of `_prefetch`, below hi."""
        per_chunk = self.plan.blocks_per_chunk
        begin, end = (per_chunk * (segment + more) // self.arriving for more in (0, 1))
        return cutlass.min(lo + begin, hi), cutlass.min(lo + end, hi)

    def _prefetch(self) -> None:
        """Start copying the whole chunk of every resident operand into shared memory, in up to four commit groups.

        Each thread copies exactly the vectors that it will read, so waiting for its own copies is enough."""
        widths = {n: ELEMENT_BITS[self.dtypes[n]] * self.space.vector for n in self.shared}
        if not widths or min(widths.values()) < 32:  # cp.async moves 4, 8 or 16 bytes
            return
        plan = self.plan
        self.arriving = min(4, plan.blocks_per_chunk)
        self.filled |= set(self.shared)
        lo = self.chunk * plan.blocks_per_chunk
        hi = cutlass.min(lo + plan.blocks_per_chunk, Int32(plan.blocks))

        def issue(index: Any) -> None:
            for u in range(plan.unroll):
                step = index * plan.block_steps + (u * plan.group_threads) + self.member
                coordinates = self._coordinates(cutlass.min(step, Int32(self.space.steps - 1)), self.space.step_sizes)
                for name, bits in widths.items():
                    offset = self.base[name] + self._dot(coordinates, self.space.views[name].step_strides)
                    atom = cute.make_copy_atom(CopyG2SOp(), self.tensors[name].element_type, num_bits_per_copy=bits)
                    cute.copy(atom, self._vector(name, offset), self._slot(name, (index - lo) * plan.unroll + u))

        for segment in range(self.arriving):
            loop(*self._segment(segment, lo, hi), issue)
            cute.arch.cp_async_commit_group()

    def _vector(self, name: str, offset: Any) -> Any:
        """The vector of a unit-stride view at `offset`, in global memory."""
        vector = self.space.vector
        source = self.tensors[name].iterator + (cute.assume(offset, divby=vector) if vector > 1 else offset)
        return cute.make_tensor(source, cute.make_layout((vector,)))

    def _slot(self, name: str, slot: Any) -> Any:
        vector = self.space.vector
        thread = self.member + self.group * self.plan.group_threads
        place = (slot * self.plan.threads + thread) * vector
        pointer = self.shared[name].iterator + (cute.assume(place, divby=vector) if vector > 1 else place)
        return cute.make_tensor(pointer, cute.make_layout((vector,)))

    def _from_shared(self, name: str, slot: Any) -> Any:
        fragment = cute.make_rmem_tensor((self.space.vector,), self.tensors[name].element_type)
        cute.autovec_copy(self._slot(name, slot), fragment)
        return fragment

    def _position(self, name: str, block: _Block, u: int, lane: int) -> Any:
        view = self.space.views[name]
        if block.by_element:
            return self._lane_offset(name, block.steps[u], lane)
        coordinates = self._coordinates(block.steps[u], self.space.step_sizes)
        return self.base[name] + self._dot(coordinates, view.step_strides) + lane * view.lane_stride

    def _fetch_all(self, block: _Block, function: Function) -> dict[str, list[Any]]:
        """Fragments [step] of every element-level operand that the function reads: all loads are issued here."""
        return {n: self._fetch(block, n) for n in reads(function) if n in self.dtypes and n not in self.rows[0]}

    def _step(self, block: _Block, function: Function, fragments: dict[str, list[Any]], u: int) -> list[Any]:
        """function's results for each lane of step u."""
        names = reads(function)
        per_lane = []
        for lane in range(self.space.vector):
            row = self.rows[lane % len(self.rows)]
            values = {n: row[n] for n in names if n in row}
            for name, parts in fragments.items():
                part = parts[u]
                values[name] = m.cast(part[min(lane, cute.size(part) - 1)], self.dtypes[name])
            for name in names:
                if name not in values:
                    values[name] = self._position(name, block, u, lane)
            per_lane.append(self._call(function, values))
        return per_lane

    def _walk(self, sweep: int, body: Callable[[_Block], None]) -> None:
        """body(block) for the blocks of this CTA's chunk, whole ones first."""
        plan = self.plan
        full, per_chunk = plan.full_blocks, plan.blocks_per_chunk
        rest = plan.blocks > full
        if plan.residence == "registers":
            whole = plan.chunks * plan.block_steps == self.space.steps and not self.space.tail
            body(self._make_block(self.chunk, self.chunk, masked=not whole))
            return
        lo = self.chunk * per_chunk
        hi = cutlass.min(lo + per_chunk, Int32(full))
        if sweep == 0 and self.arriving:
            for segment in range(self.arriving):
                cute.arch.cp_async_wait_group(self.arriving - 1 - segment)
                begin, end = self._segment(segment, lo, hi)
                loop(begin, end, lambda b: body(self._make_block(b, lo, masked=False)))
        elif per_chunk == 1:
            if full:
                when(self.chunk < full, lambda: body(self._make_block(self.chunk, lo, masked=False)))
        elif plan.residence == "reread" and sweep % 2 == 1:  # back to front: the end of the row is still in L2
            loop(lo, hi, lambda b: body(self._make_block(lo + hi - 1 - b, lo, masked=False)))
        else:
            loop(lo, hi, lambda b: body(self._make_block(b, lo, masked=False)))
        if rest and plan.chunks == 1:
            body(self._make_block(Int32(full), lo, masked=True))
        elif rest:
            when(self.chunk == full // per_chunk, lambda: body(self._make_block(Int32(full), lo, masked=True)))

    def _reduce(self, sweep: int) -> list[Held]:
        """Sweep over this CTA's chunk; afterwards all its threads hold the states of their groups' chunks."""
        spec, lanes = self.spec.sweeps[sweep], len(self.rows)
        helds = [Held(r, lanes) for r in self.kernel.reducers[sweep]]

        def body(block: _Block) -> None:
            fragments = self._fetch_all(block, spec.elements)
            batch = max(BATCH // self.space.vector, 1)
            for start in range(0, self.plan.unroll, batch):
                turns = range(start, min(start + batch, self.plan.unroll))
                results = {u: self._step(block, spec.elements, fragments, u) for u in turns}
                for number, held in enumerate(helds):
                    for row in range(lanes):
                        cells = [(u, j) for u in turns for j in range(row, self.space.vector, lanes)]
                        values = [held.reducer.prepare(results[u][j][number]) for u, j in cells]
                        held.merge(row, held.reducer.block(values, *self._where(block, held.reducer, cells)))

        self._walk(sweep, body)
        self.filled |= {n for n in self.shared if n in reads(spec.elements)}
        self._combine(sweep, helds)
        return helds

    def _where(self, block: _Block, reducer: Reducer, cells: list[tuple[int, int]]) -> tuple[list[Any] | None, list[Any]]:
        """Which cells (step, lane) are valid, and their positions where the reduction asks for them."""
        masks = [block.valid[u] for u, _ in cells]
        valid = None if masks[0] is None else [mask[j] for mask, (_, j) in zip(masks, cells, strict=True) if mask]
        places = [self._position(POSITION, block, u, j) for u, j in cells] if reducer.needs_positions else []
        return valid, places

    def _combine(self, sweep: int, helds: list[Held]) -> None:
        plan = self.plan
        for held, board in zip(helds, self.boards[sweep], strict=True):
            where = {"group": self.group, "member": self.member, "group_threads": plan.group_threads}
            if self.space.front == "row":
                combine_rows(held, board, **where)
            else:
                combine_columns(held, board, groups=plan.groups_per_cta, **where)

    def _write_elements(self) -> None:
        spec = self.spec
        assert spec.final is not None
        dtypes = {o.name: o.dtype for o in spec.outputs}

        def body(block: _Block) -> None:
            fragments = self._fetch_all(block, spec.final)
            for u, step in enumerate(block.steps):
                results = self._step(block, spec.final, fragments, u)
                for number, name in enumerate(spec.element_outputs):
                    values = [m.stored(lane[number], dtypes[name]) for lane in results]
                    self._write_step(f"out_{name}", block, u, step, values)

        self._walk(len(spec.sweeps), body)

    def _write_step(self, name: str, block: _Block, u: int, step: Any, values: list[Any]) -> None:
        valid = block.valid[u]
        if block.by_element:
            assert valid is not None
            for lane, value in enumerate(values):
                offset = self._lane_offset(name, step, lane)
                self._guarded(valid[lane], lambda value=value, offset=offset: self._store(name, offset, [value]))
            return
        strides = self.space.views[name].step_strides
        offset = self.base[name] + self._dot(self._coordinates(step, self.space.step_sizes), strides)
        self._guarded(None if valid is None else valid[0], lambda: self._store(name, offset, values))

    def _guarded(self, condition: Any, body: Callable[[], None]) -> None:
        """body() where the condition holds and the group exists."""
        if self.alive is not None:
            condition = self.alive if condition is None else m._both(self.alive, condition)
        if condition is None:
            body()
        else:
            when(Boolean(condition), body)

    def _write_rows(self) -> None:
        """Row-level outputs, by the first member of the first chunk."""
        outputs = [o for o in self.spec.outputs if o.name not in self.spec.element_outputs]
        if not outputs:
            return

        def body() -> None:
            for output in outputs:
                values = [m.stored(row[output.name], output.dtype) for row in self.rows]
                self._store(f"out_{output.name}", self.base[f"out_{output.name}"], values)

        first = self.member == 0
        self._guarded(first if self.chunks == 1 else m._both(first, self.chunk == 0), body)

    # ---- stages ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._load_rows()
        self._compute_rows(self.spec.head)
        sweeps = len(self.spec.sweeps)
        if self.stage == ALL:
            self._prefetch()
            for sweep in range(sweeps):
                helds = self._reduce(sweep)
                if self.plan.spread == "cluster":
                    for held, board in zip(helds, self.boards[sweep], strict=True):
                        combine_cluster(held, board, cell=self.cells - 1, chunks=self.chunks, member=self.member)
                self._finish(sweep, helds)
            self._end()
            if self.plan.spread == "cluster":  # nobody leaves while another still reads its board
                cute.arch.cluster_arrive()
                cute.arch.cluster_wait()
            return
        for sweep in range(self.stage):
            self._finish(sweep, self._gather(sweep))
        if self.stage == sweeps:
            self._end()
        else:
            self._scatter(self.stage, self._reduce(self.stage))

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
