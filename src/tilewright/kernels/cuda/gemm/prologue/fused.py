"""What is computed of an fp32 factor on its way in: a norm, an activation, numbers of few bits and their scales. The
split, which reads the factor anyway, computes it; so it is never written as fp32.

    for each row (chunk of K) of a split     quads of all operands are read
        sweeps, where K is reduced           states of a thread's quads -> those of the row's threads (see `combine`)
        final                                the factor's quad, which is split as if it had been read

Rows that are reduced stay in registers, and lie along K; K is not cut then. Others are computed again, where a chunk
is so long that it is read twice. What lies behind the end is the last that is there, of all operands alike, and counts
for nothing in a reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from cutlass import Float32, cute
from cutlass.memory import SmemAllocator
from torch import Tensor

from ...common import math as m
from ...common.spec import ArraySpec, Function, Sweep, reads
from ...rows.combine import WARP, Board, Held, combine_rows
from ...rows.reducers import Reducer
from ..epilogue.expression import WIDE
from ..fp32.pair import QUAD
from ..fp32.split import MOST_GROUP, PER, Chunk, Split, SplitPlan
from ..host.recorded import is_aligned

LONGEST_ROW = MOST_GROUP * PER * QUAD  # of K, that a CTA's registers hold
# Strides of an operand along (rows, K, batch): 0, 1, or None, any; and whether lines start at multiples of 16 bytes.
Walk = tuple[tuple[int | None, ...], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrologueSpec:
    """How a factor is made; `side`, "left" or "right", is its name. `operands` have the factor's rank, each size its
    own or 1; `final` gives an element from these, and from what `head` and the `sweeps` along K give of its row."""

    side: str
    operands: tuple[ArraySpec, ...]
    final: Function
    sweeps: tuple[Sweep, ...] = ()
    head: Function | None = None


class PrologueFactor:
    """Matrices that are still to be made, in place of a Tensor: (.., rows, K) or (.., K, columns) of this dtype."""

    def __init__(
        self,
        prologue: PrologueSpec,
        tensors: Sequence[Tensor],
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.prologue = prologue
        self.dtype = dtype
        own = tuple(shape)
        # What is of groups of K stays so.
        self.tensors = [still(t.expand(own) if _fits(t.shape, own) else t) for t in tensors]
        self.shape = torch.Size(shape)
        self.ndim = len(shape)
        self.device = self.tensors[0].device
        self.is_meta = self.tensors[0].is_meta

    def permute(self, *dims: int) -> PrologueFactor:
        shape = [self.shape[d] for d in dims]
        return PrologueFactor(self.prologue, [t.permute(*dims) for t in self.tensors], shape, self.dtype)

    def batched(self) -> PrologueFactor:
        """One matrix as a batch of one."""
        return PrologueFactor(self.prologue, [t[None] for t in self.tensors], (1, *self.shape), self.dtype)

    @property
    def major(self) -> str:
        """Of (rows, K, batch): "k" where a row is taken along K, "r" where what it is made of lies across."""
        whole = [t for t in self.tensors if 0 not in (t.stride(0), t.stride(1))]
        across = whole and all(t.stride(0) == 1 and t.stride(1) != 1 for t in whole)
        return "r" if across and not self.prologue.sweeps else "k"

    def walks(self) -> tuple[Walk, ...]:
        """Of the operands of (rows, K, batch)."""
        line = 0 if self.major == "r" else 1
        return tuple(_walk(t, line) for t in self.tensors)

    @property
    def wide(self) -> bool:
        """Whether quads end where lines do."""
        return self.shape[0 if self.major == "r" else 1] % QUAD == 0


Factor = Tensor | PrologueFactor


def _fits(shape: Sequence[int], whole: Sequence[int]) -> bool:
    return all(a in (1, b) for a, b in zip(shape, whole, strict=True))


def still(x: Tensor) -> Tensor:
    """The same, which moves along no size of 1: so it is what a kernel is compiled for."""
    return x.as_strided(x.shape, [s if n > 1 else 0 for s, n in zip(x.stride(), x.shape, strict=True)])


def _walk(x: Tensor, line: int) -> Walk:
    strides = x.stride()
    apart = [s for d, s in enumerate(strides) if d != line]
    lines = strides[line] == 1 and not any(s * x.element_size() % WIDE for s in apart)
    told = tuple((s if s == 0 or (s == 1 and d == line) else None) for d, s in enumerate(strides))
    return told, lines and is_aligned(x)


class PrologueSplit(Split):
    """A Split of what a PrologueSpec gives; `walks`: of its operands."""

    def __init__(self, plan: SplitPlan, prologue: PrologueSpec, walks: Sequence[Walk]) -> None:
        super().__init__(plan)
        self.prologue = prologue
        self.walks = {o.name: walk for o, walk in zip(prologue.operands, walks, strict=True)}
        self.dtypes = {o.name: o.dtype for o in prologue.operands}
        self.reducers = [
            [Reducer(op=r.op, source=r.source, dtype=r.dtype) for r in s.reductions] for s in prologue.sweeps
        ]
        if prologue.sweeps and not (self.plan.major == "k" and self.plan.held):
            raise ValueError(f"rows of more than {LONGEST_ROW}, or across memory, are not reduced on their way in")

    def __call__(self, tensors: tuple[Any, ...], clusters: Any, splits: Any, chunk: Any, stream: Any) -> None:  # type: ignore[override]
        """Emit the launch. `tensors`: planes, exponents, the prologue's operands as (rows, K, batch); `chunk` is K of a
        split."""
        planes, exponents, *operands = tensors
        kernel = self._prologue(list(operands), planes, exponents, chunk)
        self.launch(kernel, rows=cute.size(planes, mode=[0]), batches=cute.size(planes, mode=[2]) // self.plan.planes,
                    layers=cute.size(exponents, mode=[1]), stream=stream)  # fmt: skip

    @cute.kernel
    def _prologue(self, operands: list, planes: cute.Tensor, exponents: cute.Tensor, chunk: Any) -> None:
        part = Chunk(planes, exponents, chunk, self.plan.ctas)
        (self.rows_across if self.plan.major == "r" else self.rows_along)(part, operands, planes)

    def read_quads(self, chunk: Any, x: Any, row: Any, steps: Sequence[Any]) -> list[Any]:
        """The factor's quads that begin at (row, step) for each step."""
        tensors = {o.name: tensor for o, tensor in zip(self.prologue.operands, x, strict=True)}
        of_row: dict[str, list[Any]] = {}
        cells = [_Cell(self, tensors, of_row, self._begin(chunk, row, step), chunk) for step in steps]
        values = self._of_row(chunk, cells, steps)
        made = []
        for cell in cells:
            quad = cute.make_rmem_tensor((QUAD,), Float32)
            for e in range(QUAD):
                quad[e] = m.cast(cell.call(self.prologue.final, e, values), "f32")
            made.append(quad)
        return made

    def _begin(self, chunk: Any, row: Any, step: Any) -> tuple[Any, Any]:
        """Where a quad begins, or the last there is."""
        if not self.plan.wide:
            return row, step
        across = self.plan.major == "r"
        return m.smaller(row, chunk.rows - (QUAD if across else 1)), m.smaller(
            step, chunk.end - (1 if across else QUAD)
        )

    def _of_row(self, chunk: Any, cells: list[_Cell], steps: Sequence[Any]) -> dict[str, Any]:
        """What the sweeps give of the row of which these are this thread's."""
        values: dict[str, Any] = {}
        if self.prologue.head is not None:
            values |= cells[0].call(self.prologue.head, 0, values)
        if not self.prologue.sweeps:
            return values
        valid = [step + e < chunk.end for step in steps for e in range(QUAD)]
        shared = SmemAllocator()
        group, member = chunk.thread // self.plan.group, chunk.thread % self.plan.group
        for sweep, reducers in zip(self.prologue.sweeps, self.reducers, strict=True):
            given = [cell.call(sweep.elements, e, values) for cell in cells for e in range(QUAD)]
            helds = [Held(reducer, 1) for reducer in reducers]
            for i, (held, reducer) in enumerate(zip(helds, reducers, strict=True)):
                held[0] = reducer.block([reducer.prepare(g[i]) for g in given], valid, [])
            wide = self.plan.group > WARP
            boards = [Board(shared, r, self.plan.threads // WARP) if wide else None for r in reducers]
            combine_rows(helds, boards, group=group, member=member, group_threads=self.plan.group)
            for held, reducer, reduction in zip(helds, reducers, sweep.reductions, strict=True):
                values |= zip(reduction.results, reducer.results(held[0]), strict=True)
            if sweep.rows is not None:
                values |= cells[0].call(sweep.rows, 0, values)
        return values


class _Cell:
    """A quad of every operand, each read when it is first asked for; what is the same along K is read once a row."""

    def __init__(
        self, split: PrologueSplit, tensors: dict[str, Any], of_row: dict[str, list[Any]], at: tuple[Any, Any],
        chunk: Any,
    ) -> None:  # fmt: skip
        self._split, self._tensors, self._of_row, self._at, self._chunk = split, tensors, of_row, at, chunk
        self._mine: dict[str, list[Any]] = {}

    def call(self, function: Function, e: int, values: dict[str, Any]) -> Any:
        """`function` of what it names: an element's, or its row's, or where it stands."""
        known = values | self._positions(e)
        return function(**{name: known[name] if name in known else self._read(name)[e] for name in reads(function)})

    def _positions(self, e: int) -> dict[str, Any]:
        """Of the quad's element, as the factor has its dimensions."""
        chunk, (row, step) = self._chunk, self._at
        across = self._split.plan.major == "r"
        inside = [m.smaller(row + e if across else row, chunk.rows - 1),
                  m.smaller(step if across else step + e, chunk.end - 1)]  # fmt: skip
        sides = inside if self._split.prologue.side == "left" else inside[::-1]
        at = [chunk.batch, *sides][-len(self._split.prologue.operands[0].shape) :]
        return {f"index_{d}": position for d, position in enumerate(at)}

    def _read(self, name: str) -> list[Any]:
        known = self._of_row if self._split.walks[name][0][1] == 0 else self._mine
        if name not in known:
            dtype = self._split.dtypes[name]
            known[name] = [m.cast(x, dtype) for x in self._quad(self._tensors[name], self._split.walks[name])]
        return known[name]

    def _quad(self, tensor: Any, walk: Walk) -> list[Any]:
        strides, lines = walk
        chunk, (row, step) = self._chunk, self._at
        across = self._split.plan.major == "r"
        line = 0 if across else 1
        if strides[line] == 0:
            last = (m.smaller(row, chunk.rows - 1), m.smaller(step, chunk.end - 1), chunk.batch)
            return [tensor[last]] * QUAD
        if lines and self._split.plan.wide:
            held = cute.make_rmem_tensor((QUAD,), tensor.element_type)
            start = tensor.iterator + cute.crd2idx((row, step, chunk.batch), tensor.layout)
            there = start.align(QUAD * tensor.element_type.width // 8)
            cute.autovec_copy(cute.make_tensor(there, cute.make_layout((QUAD,))), held)
            return [held[e] for e in range(QUAD)]
        return [
            tensor[(m.smaller(row + e if across else row, chunk.rows - 1),
                    m.smaller(step if across else step + e, chunk.end - 1), chunk.batch)]
            for e in range(QUAD)
        ]  # fmt: skip
