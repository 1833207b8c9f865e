"""Matrix products on torch tensors: compiled once for a layout and a Point, for any sizes; no GPU needed to compile.

    gemm = Gemm(Point(scheme="shared", ...), "f32")
    c = gemm(a, b)                      fp32: split A, split B, product (, sum of the splits of K)
                                        fp32, streamed: split B, product (, sum)
                                        fp16, bf16, float8: product (, sum)
                                        fp32, rounded: round A, round B, product (, sum)

A and B may be transposed or strided; what TMA can't read (rows that don't start at multiples of 16 bytes) is copied to
padded rows first, which for fp32 the split does anyway. Nothing is kept between calls but compiled kernels, and what a
call of a layout does (see `noted`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....ops import DTYPES
from ...common import cache
from ...common.spec import Function
from ..epilogue.batch_map import Layers, Parts
from ..epilogue.column_groups import ColumnGroupEpilogue, ColumnGroups
from ..epilogue.epilogue import ALL, Diagonals, EpilogueStore
from ..epilogue.row_blocks import WIDTH, RowBlockEpilogue, states
from ..fp32.split import Split
from ..mainloop.k_range import NO_ZEROS, Zeros
from ..mainloop.streamed import SLAB
from ..prologue.fused import Factor, PrologueFactor, PrologueSplit
from .compiling import (
    Launch,
    Read,
    Walk,
    compile_ampere,
    compile_combine,
    compile_product,
    compile_prologue,
    compile_split,
    compile_streamed,
)
from .layouts import along_k, broadcast, empty_planes, lines, major_of, tidied, up, vector_of, walk_of
from .plan import ARCH, RESIDUAL_SHIFT, Grid, Point, make_grid
from .recorded import RecordedLaunch, Results, device_of, run_on

_HERE = Path(__file__).resolve().parents[1]
_TRACING = threading.RLock()  # the DSL traces one kernel at a time (4.8.1: else it fails, or mixes them)

NAMES = {dtype: name for name, dtype in DTYPES.items()}
# From so many rows of A on planes of a B that lies across K lie along it: the split takes 5 to 17% longer, the product
# 2 to 8% less (with 512 rows 0.274 ms instead of 0.263, with 2048 0.683 instead of 0.721; H200, 2026-11-23).
CROSSED_ROWS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """An expression over the product (see `finish`). Operands are broadcast to (M, N), or to (batch, M, N) if it is
    `batched`; `dtypes` are theirs. `diagonals`: outside of them it does not depend on the product.
    `reductions`: C is the states of these (see `blocks`), of which the expression gives a tuple. `groups`, instead of
    the expression: what is done with groups of columns (see `groups`). `further`: dtypes of results beside C, of which
    the expression gives a tuple with C's. `parts`: as a EpilogueStore's."""

    function: Function | None = None
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    batched: bool = False
    diagonals: Diagonals = ALL
    reductions: tuple[str, ...] = ()
    groups: ColumnGroups | None = None
    further: tuple[str, ...] = ()
    parts: tuple[Parts, ...] = ()


def _one(a: Factor) -> Factor:
    """One matrix as a batch of one."""
    return a.batched() if isinstance(a, PrologueFactor) else a[None]


def _flipped(diagonals: Diagonals) -> Diagonals:
    """Of the transpose."""
    low, high = diagonals
    return (None if high is None else -high, None if low is None else -low)


def processors_of(x: Factor) -> int:
    """1 of meta tensors, for which nothing is launched."""
    device = device_of(x)
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


class Gemm:
    """C[M, N] = epilogue(A[M, K] @ B[K, N]) under a Point; `dtype`: of C. Calling it launches on torch's stream."""

    def __init__(
        self, point: Point, dtype: str, epilogue: Epilogue | None = None, *, swap_ab: bool = False, arch: str = ARCH,
        compiled: dict[Hashable, Launch] | None = None, source: Path | None = None, zeros: Zeros = NO_ZEROS,
        layers: Layers = (None, None),
    ) -> None:  # fmt: skip
        """`turned`: the Point is one of C's transpose, B's columns being its rows: so B may be streamed.
        `zeros`: of A and of B the first and the last diagonal (column - row) with elements that are not zero; what the
        others meet may come to nothing, infinite or not. `layers`: of A and of B, which of its matrices makes one of C.
        `compiled`: what others have compiled, to share; it grows. Splits of K need no kernels of their own.
        `source`: the file that holds the epilogue; with it, compiled kernels are kept on disk (see `cache`)."""
        self.point = point
        self.dtype = dtype
        self.epilogue = epilogue
        self.swap_ab = swap_ab
        self.arch = arch
        self.source = source
        sides = (zeros[0], _flipped(zeros[1]))
        self.zeros: Zeros = sides[::-1] if swap_ab else sides  # as a KRange has them
        self.layers = layers[::-1] if swap_ab else layers  # as a EpilogueStore has them
        if point.scales and point.split_k > 1 and any(layers):
            raise ValueError("parts of K have exponents of their own, which are a batch's: with split_k=1")
        self.objects: set[Path] = set()  # in which compiled kernels are kept
        self._compiled: dict[Hashable, Launch] = {} if compiled is None else compiled
        self._noted: dict[int, RecordedLaunch] = {}

    def __call__(self, a: Tensor, b: Tensor, *operands: Tensor) -> Any:
        """A and B may both have one dimension more, the batch, in front; either may have one matrix for all of it. On
        meta tensors it compiles what tensors of these shapes and strides need (aligned ones), and launches nothing. Of
        `reductions` it gives the states, (state, batch, M, block of columns); with `further` results a tuple of all.
        Raises ValueError where shapes or types don't fit the Point's scheme."""
        noted = self._noted.get(len(operands))
        if noted is None:
            noted = self._noted[len(operands)] = RecordedLaunch(self.steps, 2 + len(operands))
        return noted.call(a, b, *operands)

    def steps(self, a: Factor, b: Factor, *operands: Tensor) -> Results:
        """The same with nothing known of earlier calls; factors of fp32 may be made on their way in."""
        self._check(a, b, operands)
        if a.ndim == 2:
            made = self._batched(_one(a), _one(b), operands)
            return self._results([c if self.reductions else c[0] for c in made])
        return self._results(self._batched(a, b, operands))

    def _results(self, made: Sequence[Tensor]) -> Results:
        return tuple(made) if self.further else made[0]

    def _batched(self, a: Factor, b: Factor, operands: Sequence[Tensor]) -> list[Tensor]:
        """C and the further results."""
        batch, rows, k = max(self._served(a, b)), *a.shape[1:]
        columns = b.shape[2]
        given: tuple[Factor, Factor] = (a.permute(1, 2, 0), b.permute(2, 1, 0))
        if self.swap_ab:
            given = given[::-1]
        grid = self.grid(batch, given[0].shape[0], given[1].shape[0], k, processors=processors_of(a))
        point = self.point.settled(k=k, results=batch * rows * columns)
        x, y, exponents = self._operands(*given, grid)
        c = torch.empty(self._written(batch, rows, columns), dtype=DTYPES[self.dtype], device=a.device)
        seen = self.seen(operands, (batch, rows, columns))
        last = grid.splits == 1
        target = c[0] if self.reductions else c
        if not last:
            target = torch.empty((batch * grid.splits, rows, columns), device=a.device)
        read = [self._as_turned(o) for o in seen]
        launch = self.product(
            point, NAMES[y.dtype], (major_of(x), major_of(y)), last=last, vector=self.vector(columns),
            walks=tuple(map(walk_of, read)),
        )  # fmt: skip
        further = self.beside(c)
        behind = [*read, *(self._as_turned(f.permute(1, 2, 0)) for f in further)] if last else []
        tensors = (
            x, y, self._as_turned(target.permute(1, 2, 0)), *exponents, *behind, *self._parts(grid, a)
        )  # fmt: skip
        run_on(launch, *tensors, grid.clusters, grid.splits, grid.chunk)
        if not last:
            first, written, *rest = (t.permute(1, 2, 0) for t in (target, c, *further))
            run_on(self.combine(tuple(map(walk_of, seen))), first, written, *seen, *rest)
        return [c, *further]

    def beside(self, c: Tensor) -> list[Tensor]:
        """Results beside C, freshly allocated."""
        return [torch.empty(c.shape, dtype=DTYPES[dtype], device=c.device) for dtype in self.further]

    def _parts(self, grid: Grid, like: Factor) -> tuple[Tensor, ...]:
        """Flags and parts of tiles of each CTA, where clusters share tiles."""
        if not self.point.stream_k:
            return ()
        ctas = grid.clusters * self.point.cluster
        flags = torch.empty(ctas, dtype=torch.int32, device=like.device).zero_()
        return flags, torch.empty(ctas * self.point.tile_m * self.point.tile_n, device=like.device)

    def grid(self, batch: int, m: int, n: int, k: int, *, processors: int) -> Grid:
        """The launch for so many matrices, M and N as the Point has them."""
        return make_grid(self.point, m, n, k, batch=batch, processors=processors)

    @property
    def without_tma(self) -> bool:
        """Whether the GPU is older than Hopper."""
        return self.arch.startswith("sm_8")

    @property
    def reductions(self) -> tuple[str, ...]:
        return self.epilogue.reductions if self.epilogue else ()

    @property
    def further(self) -> tuple[str, ...]:
        return self.epilogue.further if self.epilogue else ()

    @property
    def groups(self) -> ColumnGroups | None:
        return self.epilogue.groups if self.epilogue else None

    def columns_of(self, operands: Sequence[Tensor], columns: int) -> list[int]:
        """Of the epilogue's operands."""
        if self.epilogue is None or self.groups is None:
            return [columns] * len(operands)
        apart = (*self.groups.within, *self.groups.of_groups)
        return [
            o.shape[-1] if name in apart else columns for name, o in zip(self.epilogue.names, operands, strict=True)
        ]

    def _written(self, batch: int, rows: int, columns: int) -> tuple[int, ...]:
        """The shape of C, or of what is written instead: states, or a number for each group."""
        if self.groups is not None and self.groups.final is None:
            return batch, rows, columns // self.groups.size
        if not self.reductions:
            return batch, rows, columns
        return states(self.reductions), batch, rows, -(-columns // WIDTH)

    def vector(self, columns: int) -> int:
        """Of the EpilogueStore."""
        return 1 if self.swap_ab or self.reductions else vector_of(columns)

    def _as_turned(self, c: Tensor) -> Tensor:
        """(rows, columns, layers) as the Point has them."""
        return c.transpose(0, 1) if self.swap_ab else c

    def _operands(self, x: Factor, y: Factor, grid: Grid) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """What the product reads, and the exponents."""
        if self.point.streamed and isinstance(x, Tensor):
            planes, of_y = self._split(y, grid.splits, grid.chunk)
            fits = major_of(x) == "k" and lines(x, 4)
            return tidied(x if fits else along_k(x), 4), planes, (of_y,)
        if not self.point.scales and isinstance(x, Tensor) and isinstance(y, Tensor):
            return self._loadable(x), self._loadable(y), ()
        planes_x, of_x = self._split(x, grid.splits, grid.chunk)
        planes_y, of_y = self._split(y, grid.splits, grid.chunk, along=x.shape[0] >= CROSSED_ROWS)
        return planes_x, planes_y, (of_x, of_y)

    def split_operand(self, x: Tensor, grid: Grid, *, along: bool = False) -> tuple[Tensor, Tensor]:
        """Planes and exponents of (rows, K, batch), as this product has them of A, or, `along`, of B."""
        return self._split(x, grid.splits, grid.chunk, along=along)

    def _served(self, a: Factor, b: Factor) -> list[int]:
        """How many of C's layers each factor's matrices make, before the first makes another."""
        own = self.layers[::-1] if self.swap_ab else self.layers
        return [x.shape[0] * (part[0] if part else 1) for x, part in zip((a, b), own, strict=True)]

    def seen(self, operands: Sequence[Tensor], sizes: tuple[int, int, int]) -> list[Tensor]:
        """The epilogue's operands as (rows, columns, layers); `sizes`: of C, layers first."""
        layers, rows, columns = sizes
        found = []
        for i, (o, own) in enumerate(zip(operands, self.columns_of(operands, columns), strict=True)):
            parts = self.epilogue.parts[i] if self.epilogue and self.epilogue.parts else (None, None, None)
            mine = ((1,) * (3 - o.ndim) + tuple(o.shape))[-3:]
            whole = (mine[0] if parts[2] else layers, mine[1] if parts[0] else rows, mine[2] if parts[1] else own)
            found.append(broadcast(o, whole))
        return found

    def _check(self, a: Factor, b: Factor, operands: Sequence[Tensor]) -> None:
        wanted = "f32" if self.point.scales else "float8_e4m3fn" if self.point.scheme == "fp8" else "f16 or bf16"
        if a.dtype != b.dtype or NAMES.get(a.dtype, "?") not in wanted.split(" or "):
            raise ValueError(f"a product of scheme {self.point.scheme!r} takes {wanted}, not {a.dtype} and {b.dtype}")
        fit = a.ndim == b.ndim and a.ndim in (2, 3) and a.shape[-1] == b.shape[-2]
        served = self._served(a, b) if fit and a.ndim == 3 else [1]
        fit = fit and all(max(served) % count == 0 for count in served)
        fit = fit and (any(self.layers) or a.ndim == 2 or 1 in served or a.shape[0] == b.shape[0])
        if not fit or 0 in (*a.shape, *b.shape):
            raise ValueError(f"no product of {tuple(a.shape)} and {tuple(b.shape)}")
        if self.point.streamed and a.shape[-1] % SLAB:
            raise ValueError(f"what is streamed has a K that is a multiple of {SLAB}, not {a.shape[-1]}")
        made = self.point.scales or self.point.scheme == "mixed_input"
        if not made and (isinstance(a, PrologueFactor) or isinstance(b, PrologueFactor)):
            raise ValueError("factors are made while fp32 is split, which this Point does not do")
        if self.point.streamed and isinstance(b if self.swap_ab else a, PrologueFactor):
            raise ValueError("what is streamed is not made on its way in")
        dtypes = self.epilogue.dtypes if self.epilogue else ()
        if tuple(NAMES[o.dtype] for o in operands) != dtypes:
            raise ValueError(f"the epilogue takes {dtypes}, not {[o.dtype for o in operands]}")

    def product(
        self, point: Point, element: str, majors: tuple[str, str], *, last: bool, vector: int,
        walks: tuple[Walk, ...] = (),
    ) -> Launch:  # fmt: skip
        """The compiled product of a settled point; `last`: no sum of splits follows. `walks`: of the epilogue's
        operands."""
        facts, found, operands = self._product_facts(point, element, majors, last=last, vector=vector, walks=walks)
        return self._made(facts, lambda: self.compiled(point, element, majors, found, operands))

    def kept_product(
        self, point: Point, element: str, majors: tuple[str, str], *, last: bool, vector: int,
        walks: tuple[Walk, ...] = (),
    ) -> bytes | None:  # fmt: skip
        """The object in which the same is kept, where it is."""
        facts, _, _ = self._product_facts(point, element, majors, last=last, vector=vector, walks=walks)
        return cache.kept(*self._where_kept(facts))

    def _product_facts(
        self, point: Point, element: str, majors: tuple[str, str], *, last: bool, vector: int, walks: tuple[Walk, ...]
    ) -> tuple[tuple[Any, ...], EpilogueStore, tuple[Read, ...]]:  # fmt: skip
        whole = point if point.small_m else replace(point, split_k=1)
        found = self.finish(last=last, vector=vector)
        operands = self._reads(walks) if last else ()
        facts = ("product", self.arch, whole, found.dtype, found.names, operands, element, majors, last, found.vector,
                 found.diagonals, found.swap_ab, found.reductions, self.groups and self.groups.size,
                 self.zeros, found.further, found.layers, *found.parts.items())  # fmt: skip
        return facts, found, operands

    def compiled(
        self, point: Point, element: str, majors: tuple[str, str], finish: EpilogueStore, operands: Sequence[Read],
        options: str = "",
    ) -> Launch:  # fmt: skip
        """The product, compiled now; `element` and `majors` of what it reads."""
        rest: dict[str, Any] = {"finish": finish, "operands": operands, "arch": self.arch, "options": options}
        if self.without_tma:
            return compile_ampere(point, element=element, **rest)
        if point.streamed:
            return compile_streamed(point, major=majors[1], zeros=self.zeros, **rest)
        return compile_product(point, element=element, majors=majors, zeros=self.zeros, **rest)

    def _made(self, facts: tuple[Any, ...], make: Callable[[], Launch]) -> Launch:
        """What was compiled under these facts and this epilogue: here, by another process, or now."""
        known = (*facts, self.epilogue)
        if known not in self._compiled:
            with _TRACING:
                if known not in self._compiled:
                    source, kept = self._where_kept(facts)
                    self._compiled[known] = cache.obtain(source, kept, make, self.objects)
        return self._compiled[known]

    def _where_kept(self, facts: tuple[Any, ...]) -> tuple[Path | None, tuple[Any, ...]]:
        """Under what the cache knows a kernel: these skeletons count, too; nowhere if they can't be read."""
        skeletons = cache.contents(_HERE)
        return self.source if skeletons else None, (*facts, skeletons)

    @property
    def _shift(self) -> int:
        return RESIDUAL_SHIFT if self.point.scheme == "fp16x3" else 0

    def splitter(self, major: str, *, wide: bool, chunk: int, crossed: bool) -> Launch:
        """The compiled split of an operand."""
        split = Split.for_chunk(
            major=major, wide=wide, chunk=chunk, shift=self._shift, permuted=self.point.streamed,
            planes=self.point.planes, crossed=crossed,
        )  # fmt: skip
        return self._made(("split", self.arch, *split.facts), lambda: compile_split(split, arch=self.arch))

    def combine(self, walks: tuple[Walk, ...] = ()) -> Launch:
        """The compiled sum of splits."""
        operands = self._reads(walks)
        finish = self.finish(last=True, vector=1, summed=True)
        facts = ("combine", self.arch, self.dtype, finish.names, operands, finish.further, *finish.parts.items())
        return self._made(facts, lambda: compile_combine(finish, operands=operands, arch=self.arch))

    def _reads(self, walks: tuple[Walk, ...]) -> tuple[Read, ...]:
        return tuple(zip(self.epilogue.dtypes, walks, strict=True)) if self.epilogue else ()

    def finish(self, *, last: bool, vector: int, summed: bool = False) -> EpilogueStore:
        """What is done with a sum in registers; `last`: no sum of splits follows; `summed`: this is that one."""
        found = self.epilogue
        swap_ab = self.swap_ab and not summed
        diagonals = found.diagonals if found and not swap_ab else ALL
        if found is None or not last:
            return EpilogueStore(self.dtype if last else "f32", vector=vector, swap_ab=swap_ab, diagonals=diagonals,
                          layers=self.layers)  # fmt: skip
        kept: dict[str, Any] = {"names": found.names, "batched": found.batched, "layers": self.layers}
        if found.groups is not None:
            return ColumnGroupEpilogue(found.groups, self.dtype, vector=vector, **kept)
        if found.reductions:
            return RowBlockEpilogue(found.reductions, function=found.function, **kept)
        return EpilogueStore(
            self.dtype, function=found.function, vector=vector, swap_ab=swap_ab, diagonals=diagonals,
            further=found.further, parts=found.parts, **kept,
        )  # fmt: skip

    def entering(self, x: PrologueFactor, *, chunk: int) -> Launch:
        """The compiled split of what a prologue makes of (rows, K, batch)."""
        split = PrologueSplit.for_chunk(
            major=x.major, wide=x.wide, chunk=chunk, shift=self._shift, permuted=self.point.streamed,
            planes=self.point.planes, prologue=x.prologue, walks=x.walks(),
        )  # fmt: skip
        facts = ("entering", self.arch, x.prologue.side, *split.facts, *split.walks.values())
        return self._made(facts, lambda: compile_prologue(split, arch=self.arch))

    def _split(
        self, x: Tensor | PrologueFactor, splits: int, chunk: int, *, along: bool = False
    ) -> tuple[Tensor, Tensor]:
        """`along`: planes lie along K even where a tensor does not."""
        rows, k, batch = x.shape
        along = along and isinstance(x, Tensor)
        planes = empty_planes(x, self.point.planes, DTYPES[self.point.halves], along=along)
        exponents = torch.empty((batch * splits, rows), dtype=torch.int32, device=x.device).t()
        if isinstance(x, PrologueFactor):
            run_on(self.entering(x, chunk=min(chunk, k)), planes, exponents, *x.tensors, 1, splits, chunk)
            return planes, exponents
        major = major_of(x)
        wide = lines(x, 4) and x.shape[1 if major == "k" else 0] % 4 == 0
        launch = self.splitter(major, wide=wide, chunk=min(chunk, k), crossed=major_of(planes) != major)
        run_on(launch, tidied(x, 4) if wide else x, planes, exponents, chunk)
        return planes, exponents

    def _loadable(self, x: Tensor) -> Tensor:
        """(rows, k, batch) as TMA can read it, along K alone of float8, and without TMA: as it is, or copied to padded
        lines."""
        narrow = self.point.scheme == "fp8"
        multiple = 16 if narrow else 8
        along_k = narrow or self.without_tma
        if lines(x, multiple) and not (along_k and major_of(x) == "r"):
            return tidied(x, multiple)
        if along_k:
            wide = up(x.shape[1], multiple)
            made = torch.empty_strided(x.shape, (wide, 1, x.shape[0] * wide), dtype=x.dtype, device=x.device)
        else:
            made = empty_planes(x, 1, x.dtype)
        made.copy_(x)
        return made
