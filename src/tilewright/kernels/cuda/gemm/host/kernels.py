"""Which kernels a product needs, and those that are compiled: in memory, and on disk where their source is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from ...common import cache
from ...common.spec import Function
from ..epilogue.batch_map import Layers, Parts
from ..epilogue.column_groups import ColumnGroupEpilogue, ColumnGroups
from ..epilogue.epilogue import EpilogueStore
from ..epilogue.expression import ALL, Diagonals
from ..epilogue.row_blocks import WIDTH, RowBlockEpilogue, states
from ..fp32.split import Split, SplitPlan
from ..mainloop.k_range import NO_ZEROS, Zeros
from ..prologue.fused import PrologueFactor, PrologueSplit
from .compiling import (
    Launch,
    Read,
    compile_ampere,
    compile_combine,
    compile_product,
    compile_prologue,
    compile_split,
    compile_streamed,
)
from .layouts import broadcast, walk_of
from .plan import ARCH, Point

_HERE = Path(__file__).resolve().parents[1]
_TRACING = threading.RLock()  # the DSL traces one kernel at a time (4.8.1: else it fails, or mixes them)
_WHOLE: Parts = (None, None, None)


def is_without_tma(arch: str) -> bool:
    """Whether the GPU is older than Hopper."""
    return arch.startswith("sm_8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """An expression over the product (see `..epilogue.epilogue`). Operands are broadcast to (M, N), or to
    (batch, M, N) if it is `batched`; `dtypes` are theirs. `diagonals`: outside of them it does not depend on the
    product. `reductions`: C is the states of these (see `row_blocks`), of which the expression gives a tuple. `groups`,
    instead of the expression: what is done with groups of columns (see `column_groups`). `further`: dtypes of results
    beside C, of which the expression gives a tuple with C's. `parts`: as an EpilogueStore's."""

    function: Function | None = None
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    batched: bool = False
    diagonals: Diagonals = ALL
    reductions: tuple[str, ...] = ()
    groups: ColumnGroups | None = None
    further: tuple[str, ...] = ()
    parts: tuple[Parts, ...] = ()

    def written(self, batch: int, rows: int, columns: int) -> tuple[int, ...]:
        """The shape of C, or of what is written instead: states, or a number for each group."""
        if self.groups is not None and self.groups.final is None:
            return batch, rows, columns // self.groups.size
        if not self.reductions:
            return batch, rows, columns
        return states(self.reductions), batch, rows, -(-columns // WIDTH)

    def reads(self, seen: Sequence[Tensor]) -> tuple[Read, ...]:
        """What kernels are compiled for that read the operands, which are (rows, columns, layers)."""
        return tuple(zip(self.dtypes, map(walk_of, seen), strict=True))

    def seen(self, operands: Sequence[Tensor], sizes: tuple[int, int, int]) -> list[Tensor]:
        """The operands as (rows, columns, layers); `sizes`: of C, layers first."""
        layers, rows, columns = sizes
        apart = (*self.groups.within, *self.groups.of_groups) if self.groups is not None else ()
        found = []
        for o, name, parts in zip(operands, self.names, self.parts or (_WHOLE,) * len(operands), strict=True):
            mine = ((1,) * (3 - o.ndim) + tuple(o.shape))[-3:]
            own = o.shape[-1] if name in apart else columns
            whole = (mine[0] if parts[2] else layers, mine[1] if parts[0] else rows, mine[2] if parts[1] else own)
            found.append(broadcast(o, whole))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVariant:
    """The product's kernel that a call needs, of a settled `point`. `element` and `majors`: of what it reads; `last`:
    no sum of splits follows; `vector`: an EpilogueStore's; `operands`: the epilogue's."""

    point: Point
    element: str
    majors: tuple[str, str]
    last: bool = True
    vector: int
    operands: tuple[Read, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStore:
    """Compiled kernels: those of this process, `known`, and, where `source` is the file that holds the epilogue, those
    on disk (see `cache`), of which `objects` gains the files that were used."""

    source: Path | None = None
    known: dict[Hashable, Launch] = field(default_factory=dict)
    objects: set[Path] = field(default_factory=set)

    def obtain(self, facts: tuple[Any, ...], epilogue: Epilogue, make: Callable[[], Launch]) -> Launch:
        """What was compiled under these facts and this epilogue: here, by another process, or now."""
        known = (*facts, epilogue)
        if known not in self.known:
            with _TRACING:
                if known not in self.known:
                    source, kept = self.where(facts)
                    self.known[known] = cache.obtain(source, kept, make, self.objects)
        return self.known[known]

    def kept(self, facts: tuple[Any, ...]) -> bytes | None:
        """The object on disk, where there is one."""
        return cache.kept(*self.where(facts))

    def where(self, facts: tuple[Any, ...]) -> tuple[Path | None, tuple[Any, ...]]:
        """Under what the cache knows a kernel: these skeletons count, too; nowhere if they can't be read."""
        skeletons = cache.contents(_HERE)
        return self.source if skeletons else None, (*facts, skeletons)


def _transposed(diagonals: Diagonals) -> Diagonals:
    low, high = diagonals
    return (None if high is None else -high, None if low is None else -low)


@dataclass(kw_only=True)
class GemmKernels:
    """`swap_ab`: the Point is one of C's transpose, B's columns being its rows: so B may be streamed. `zeros`: of A and
    of B the first and the last diagonal (column - row) with elements that are not zero; what the others meet may come
    to nothing, infinite or not. `layers`: of A and of B, which of its matrices makes one of C."""

    point: Point
    dtype: str
    epilogue: Epilogue
    swap_ab: bool = False
    arch: str = ARCH
    zeros: Zeros = NO_ZEROS
    layers: Layers = (None, None)
    store: KernelStore = field(default_factory=KernelStore)
    kind: ClassVar[str] = "product"  # by which the cache knows the product's kernel

    def __post_init__(self) -> None:
        if self.point.scales and self.point.split_k > 1 and any(self.layers):
            raise ValueError("parts of K have exponents of their own, which are a batch's: with split_k=1")
        sides = (self.zeros[0], _transposed(self.zeros[1]))
        self.zeros = sides[::-1] if self.swap_ab else sides  # as a KRange has them
        self.layers = self.layers[::-1] if self.swap_ab else self.layers  # as an EpilogueStore has them

    # ---- the product

    def product(self, variant: KernelVariant) -> Launch:
        """The compiled product. Splits of K need no kernels of their own."""
        return self.store.obtain(self._facts(variant), self.epilogue, lambda: self.compile(variant))

    def kept_product(self, variant: KernelVariant) -> bytes | None:
        """The object in which the same is kept, where it is."""
        return self.store.kept(self._facts(variant))

    def _facts(self, variant: KernelVariant) -> tuple[Any, ...]:
        found, groups = self.finish(last=variant.last, vector=variant.vector), self.epilogue.groups
        point = variant.point if variant.point.small_m else replace(variant.point, split_k=1)
        return (self.kind, self.arch, replace(variant, point=point), found.dtype, found.names,
                found.vector, found.diagonals, found.swap_ab, found.reductions, groups and groups.size,
                self.zeros, found.further, found.layers, *found.parts.items())  # fmt: skip

    def compile(self, variant: KernelVariant, options: str = "") -> Launch:
        """The product, compiled now."""
        rest: dict[str, Any] = self._rest(variant, options)
        if is_without_tma(self.arch):
            return compile_ampere(variant.point, element=variant.element, **rest)
        if variant.point.streamed:
            return compile_streamed(variant.point, major=variant.majors[1], zeros=self.zeros, **rest)
        return compile_product(
            variant.point, element=variant.element, majors=variant.majors, zeros=self.zeros, **rest
        )  # fmt: skip

    def _rest(self, variant: KernelVariant, options: str) -> dict[str, Any]:
        """What every kernel of a product is compiled with."""
        finish = self.finish(last=variant.last, vector=variant.vector)
        return {"finish": finish, "operands": variant.operands, "arch": self.arch, "options": options}

    def finish(self, *, last: bool, vector: int, summed: bool = False) -> EpilogueStore:
        """What is done with a sum in registers; `last`: no sum of splits follows; `summed`: this is that one."""
        found, swap_ab = self.epilogue, self.swap_ab and not summed
        own: dict[str, Any] = {"vector": vector, "swap_ab": swap_ab, "layers": self.layers}
        own["diagonals"] = ALL if swap_ab else found.diagonals
        if not last:
            return EpilogueStore("f32", **own)
        kept: dict[str, Any] = {"names": found.names, "batched": found.batched}
        if found.groups is not None:
            return ColumnGroupEpilogue(found.groups, self.dtype, vector=vector, layers=self.layers, **kept)
        if found.reductions:
            return RowBlockEpilogue(found.reductions, function=found.function, layers=self.layers, **kept)
        return EpilogueStore(
            self.dtype, function=found.function, further=found.further, parts=found.parts, **own, **kept
        )  # fmt: skip

    # ---- what goes before and after it

    def split(self, **how: Any) -> Launch:
        """The compiled split of an operand; `how`: see SplitPlan."""
        plan = self._split_plan(**how)
        make = partial(compile_split, Split(plan), arch=self.arch)
        return self.store.obtain(("split", self.arch, plan), self.epilogue, make)

    def prologue(self, x: PrologueFactor, *, chunk: int) -> Launch:
        """The compiled split of what a prologue makes of (rows, K, batch)."""
        split = PrologueSplit(self._split_plan(major=x.major, wide=x.wide, chunk=chunk), x.prologue, x.walks())
        facts = ("entering", self.arch, x.prologue.side, split.plan, *split.walks.values())
        return self.store.obtain(facts, self.epilogue, partial(compile_prologue, split, arch=self.arch))

    def _split_plan(self, **how: Any) -> SplitPlan:
        return SplitPlan.for_chunk(permuted=self.point.streamed, planes=self.point.planes, **how)

    def combine(self, operands: tuple[Read, ...]) -> Launch:
        """The compiled sum of splits."""
        finish = self.finish(last=True, vector=1, summed=True)
        facts = ("combine", self.arch, self.dtype, finish.names, operands, finish.further, *finish.parts.items())
        return self.store.obtain(
            facts, self.epilogue, partial(compile_combine, finish, operands=operands, arch=self.arch)
        )  # fmt: skip
