"""What a generated `fused_K.py` of a product tells the skeleton, and how it is called: like any other fused kernel.

    C[M, N] or C[B, M, N] = epilogue(A @ B, operands ..)        A: (M, K), B: (K, N), a batch in front of both or none

fp32 operands are split anew in every call (schemes `fp16x3`, `bf16x6`): nothing derived from a weight outlives it.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....ops import DTYPES
from ...common.cubin import cubin_of, taken
from ...common.spec import ArraySpec, Function
from ...common.views import ITEM_BYTES
from ...rows.plan import Gpu
from ..epilogue.batch_map import Layers, Parts, part_of
from ..epilogue.column_groups import ColumnGroups
from ..epilogue.expression import ALL, Diagonals
from ..epilogue.row_blocks import WIDTH
from ..fp32.bounds import intervals
from ..mainloop import ampere
from ..mainloop.grouped import takes
from ..mainloop.k_range import NO_ZEROS, Zeros
from ..prologue.fused import PrologueFactor, PrologueSpec
from .compiling import Launch
from .dual import DualGemm
from .grouped import GroupedProduct
from .kernels import Epilogue, KernelStore, KernelVariant, is_without_tma
from .launch import Gemm
from .layouts import major_of
from .mixed_input import MixedInput, merged
from .plan import ARCH, Point
from .plan import KNOBS as LEGAL
from .recorded import RecordedLaunch, Results

TILES = ("16x64", "16x80", "16x96", "16x112", "16x128", "32x64", "32x80", "32x96", "32x112", "32x128", "64x16",
         "64x32", "64x64", "64x80", "64x96", "64x112", "64x128", "128x16", "128x32", "128x64",
         "64x256", "128x128", "128x144", "128x160", "128x176", "128x192", "128x208", "128x224", "128x240", "128x256",
         "256x128", "256x144", "256x160", "256x176", "256x192", "256x208")  # fmt: skip
CLUSTERS = ("1x1", "2x1", "1x2", "2x2")
KNOBS: dict[str, tuple[Any, ...]] = {
    "tile": TILES, "cluster": CLUSTERS, "stages": LEGAL["stages"], "split_k": LEGAL["split_k"],
    "streamed": ("none", "left", "right"), "store": ("direct", "bulk", "staged"), "sum": ("kernel", "cluster"),
    "schedule": ("cooperative", "pingpong", "stream_k"), "split": ("fp16x3", "bf16x6"), "interval": LEGAL["interval"],
}  # fmt: skip
DEFAULTS = {"tile": "128x128", "cluster": "1x1", "stages": "auto", "split_k": 1, "streamed": "none", "store": "direct",
            "sum": "kernel", "schedule": "cooperative", "split": "fp16x3", "interval": "auto"}  # fmt: skip
# Bytes a thread that are no matter: loops over K spill at most 64 (see the tests of their compilation); what an
# epilogue spills it spills once a tile. Whether that costs is measured.
SMALL_SPILL = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSpec:
    """`left` and `right` are the matrices, of one dtype; `operands` have the output's rank, each size its own or 1;
    `epilogue` reads `product`, positions and the operands by name, and gives the output's element, which depends on the
    product from the first to the last of `diagonals` alone. `rounded`: factors of fp32 may lose all but 11 bits. With
    `reductions`, it gives a tuple of what each takes, and the output is their states, as Gemm has them. With `groups`
    instead, operands and output have the columns in two, (group, column in it). With `ends`, (experts,) of int32,
    `left` is (M, K), `right` (experts, K, N), and the rows of expert e end before ends[e]. `before`: what makes the
    left and the right factor, which is no operand then, but what its PrologueSpec reads is. `zeros`: of both factors
    the diagonals (column - row) from the first to the last that have elements, as a Gemm has them. With `beside`, a
    second right matrix that lies as the first, `epilogue` reads `product_1`, too: what `left` gives with that one. With
    `further` results, of the output's shape, it gives a tuple of all, the output first.

    Matrix i of the output is made of number i // `each` % count of the left factor's, and of the right one's. Operands
    that are broadcast over a part of a dimension are named in `partly`, each with its own, along all dimensions."""

    name: str
    left: ArraySpec
    right: ArraySpec
    operands: tuple[ArraySpec, ...]
    output: ArraySpec
    epilogue: Function | None = None
    diagonals: Diagonals = ALL
    rounded: bool = False
    reductions: tuple[str, ...] = ()
    groups: ColumnGroups | None = None
    ends: ArraySpec | None = None
    before: tuple[PrologueSpec | None, PrologueSpec | None] = (None, None)
    zeros: Zeros = NO_ZEROS
    beside: ArraySpec | None = None
    further: tuple[ArraySpec, ...] = ()
    each: tuple[int, int] = (1, 1)
    partly: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def read(self) -> tuple[ArraySpec, ...]:
        """What it is called with, in order."""
        left, right = (p.operands if p else (o,) for p, o in zip(self.before, (self.left, self.right), strict=True))
        more = (o for o in (self.beside, self.ends) if o)
        return (*left, *right, *more, *self.operands)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(batch, M, N, K)."""
        *batch, m, k = self.left.shape
        counts = zip((*batch, *self.right.shape[:1]), self.each, strict=False)
        return max(count * each for count, each in counts) if batch else 1, m, self.right.shape[-1], k

    @property
    def layers(self) -> Layers:
        """Of a Gemm."""
        if len(self.left.shape) < 3:
            return None, None
        left, right = (
            part_of(o.shape[0], self.sizes[0], each) for o, each in zip((self.left, self.right), self.each, strict=True)
        )
        return left, right

    @property
    def parts(self) -> tuple[Parts, ...]:
        """Of an Epilogue."""
        batch, m, n, _ = self.sizes
        found: list[Parts] = []
        for operand in self.operands if self.partly else ():
            each = dict(self.partly).get(operand.name)
            if each is None:
                found.append((None, None, None))
                continue
            own = [(1, 1)] * (3 - len(each)) + list(zip(operand.shape, each, strict=True))
            layers, rows, columns = (
                part_of(size, whole, step) for (size, step), whole in zip(own, (batch, m, n), strict=True)
            )
            found.append((rows, columns, layers))
        return tuple(found)


def make_point(knobs: dict[str, Any], *, scheme: str, dual: bool = False) -> Point:
    """The Point of these knobs, of C's transpose if it `swaps_ab`. Of a `dual` one a tile has the columns of both
    products. Raises ValueError on an unknown knob or value, and on a tile that does not fit."""
    for name, value in knobs.items():
        if name not in KNOBS:
            raise ValueError(f"unknown knob {name!r}; there are {', '.join(KNOBS)}")
        if value not in KNOBS[name]:
            raise ValueError(f"knob {name!r} can't be {value!r}; legal are {KNOBS[name]}")
    tile_m, tile_n = map(int, knobs["tile"].split("x"))
    cluster_m, cluster_n = map(int, knobs["cluster"].split("x"))
    if swaps_ab(knobs, dual=dual):
        tile_m, tile_n, cluster_m, cluster_n = tile_n, tile_m, cluster_n, cluster_m
    return Point(
        tile_m=tile_m, tile_n=tile_n, cluster_m=cluster_m, cluster_n=cluster_n, stages=knobs["stages"],
        split_k=knobs["split_k"], scheme=scheme,
        streamed=knobs["streamed"] != "none", bulk=knobs["store"] == "bulk", staged=knobs["store"] == "staged",
        small_m=knobs["sum"] == "cluster", pingpong=knobs["schedule"] == "pingpong", dual=dual,
        interval=knobs.get("interval", "auto"), stream_k=knobs["schedule"] == "stream_k",
    )  # fmt: skip


def swaps_ab(knobs: Mapping[str, Any], *, dual: bool = False) -> bool:
    """Whether the kernel makes C's transpose: it streams its left matrix, and is a small-M product in its columns.
    What is dual has both right matrices for its columns, or for its rows where it is a small-M product."""
    rows, columns = map(int, knobs["tile"].split("x"))
    if dual:
        return bool(knobs["sum"] == "cluster")
    return bool(knobs["streamed"] == "right" or (knobs["sum"] == "cluster" and rows < columns))


class FusedProduct:
    """A ProductSpec with its knobs. Calling it launches on torch's current stream; what it compiles is kept on disk."""

    def __init__(self, spec: ProductSpec, knobs: dict[str, Any], *, source: str = "", arch: str = ARCH) -> None:
        self.spec = spec
        self.source = Path(source) if source else None
        self.arch = arch
        self.knobs = dict(DEFAULTS)
        self._compiled: dict[Hashable, Launch] = {}  # for all knobs: those that differ in splits of K share kernels
        self._shapes = tuple((o.shape, DTYPES[o.dtype]) for o in spec.read)
        dtypes = tuple(o.dtype for o in spec.operands)
        self.epilogue = Epilogue(
            function=spec.epilogue, names=tuple(o.name for o in spec.operands), dtypes=dtypes,
            batched=len(spec.left.shape) == 3, diagonals=spec.diagonals, reductions=spec.reductions, groups=spec.groups,
            further=tuple(o.dtype for o in spec.further), parts=spec.parts,
        )  # fmt: skip
        self.configure(**knobs)

    def configure(self, **knobs: Any) -> None:
        """Replace settings. Raises ValueError, and replaces none, where they are unknown or don't fit together."""
        wanted = self.knobs | knobs
        fp32 = "tf32" if self.spec.rounded else "bf16x6" if wanted["split"] == "bf16x6" else "fp16x3"
        plain = "mixed_input" if self.mixed_input else "plain"
        scheme = {"f32": fp32, "float8_e4m3fn": "fp8"}.get(self.spec.left.dtype, plain)
        dual = self.spec.beside is not None
        point = make_point(wanted, scheme=scheme, dual=dual)
        if self.spec.reductions and (point.split_k > 1 or point.small_m or swaps_ab(wanted) or point.bulk):
            raise ValueError("rows are reduced where whole sums are, as they lie: with split_k=1, store='direct'")
        if point.interval != "auto" and (point.planes < 2 or point.interval not in intervals(self.spec.sizes[3])):
            raise ValueError(f"an interval of {point.interval} is not proven as accurate as fp32 is for this K")
        if point.stream_k and (self.spec.diagonals != ALL or self.spec.zeros != NO_ZEROS or self.spec.reductions):
            raise ValueError("stream-K is of tiles that are as long as one another, and of whole results")
        if any(self.spec.layers) and point.scales and point.split_k > 1:
            raise ValueError("parts of K have exponents of their own, which are a batch's: with split_k=1")
        groups = self.spec.groups
        apart = point.split_k > 1 or point.small_m or swaps_ab(wanted) or point.bulk or point.staged
        if groups and (apart or point.stream_k):
            raise ValueError("groups are reduced where whole sums are, as they lie: with split_k=1, store='direct'")
        if groups and not groups.lies_in(point.atom_n):
            raise ValueError(f"groups of {groups.size} columns don't lie in {point.atom_n} each")
        if self.spec.reductions and point.tile_n % WIDTH:
            raise ValueError(f"rows are reduced in blocks of {WIDTH}, which {point.tile_n} columns are not made of")
        if self.spec.ends and (swaps_ab(wanted) or not takes(point)):
            raise ValueError(
                "experts multiply 16 bits with split_k=1, store='direct', schedule='cooperative' or 'pingpong'"
            )
        for prologue, streamed in zip(self.spec.before, ("left", "right"), strict=True):
            if prologue and (wanted["streamed"] == streamed or not (point.scales or self.mixed_input)):
                raise ValueError(f"the {streamed} factor is made while fp32 is split, and can't be streamed")
            if prologue and self.mixed_input and swaps_ab(wanted) != (streamed == "right"):
                raise ValueError(f"the {streamed} factor is mixed_input where its rows are the long side of a tile")
            if prologue and prologue.sweeps and point.split_k > 1:
                raise ValueError("rows that are reduced on their way in are whole: with split_k=1")
        self.knobs.update(wanted)
        kind: Any = GroupedProduct if self.spec.ends else DualGemm if self.spec.beside else Gemm
        if self.mixed_input:
            kind = partial(MixedInput, prologue_spec=self.mixed_input)
        self.gemm: Gemm = kind(
            point,
            self.spec.output.dtype,
            self.epilogue,
            swap_ab=swaps_ab(wanted, dual=dual),
            arch=self.arch,
            store=KernelStore(source=self.source, known=self._compiled),
            zeros=self.spec.zeros,
            layers=self.spec.layers,
        )
        self._noted = RecordedLaunch(self._steps, len(self.spec.read))

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The outputs, freshly allocated. Raises ValueError on what is not of the Spec's shapes and dtypes. On meta
        tensors it compiles what tensors of these strides need, and launches nothing."""
        made = self._noted.call(*operands)
        return made if isinstance(made, tuple) else (made,)

    def _steps(self, *operands: Tensor) -> Results:
        """The same, with nothing known of earlier calls."""
        for tensor, (shape, dtype) in zip(operands, self._shapes, strict=True):
            if tensor.shape != shape or tensor.dtype != dtype:
                raise ValueError(f"{self.spec.name}: {dtype} {shape} is wanted, not {tensor.dtype} {tensor.shape}")
        left, right, *others = self._with_factors(operands)
        if self.spec.groups is None:
            return self.gemm.steps(left, right, *others)
        made = self.gemm.steps(left, right, *map(_flat, others))
        assert isinstance(made, Tensor)
        return made.view(self.spec.output.shape)

    def _with_factors(self, operands: Sequence[Tensor]) -> list[Any]:
        """Both factors, and what else is read."""
        rest, factors = list(operands), list[Any]()
        for prologue, spec in zip(self.spec.before, (self.spec.left, self.spec.right), strict=True):
            count = len(prologue.operands) if prologue else 1
            given, rest = rest[:count], rest[count:]
            given = merged(prologue, given) if self.mixed_input and prologue else given
            made = prologue and PrologueFactor(prologue, given, spec.shape, DTYPES[spec.dtype])
            factors.append(made or given[0])
        return [*factors, *rest]

    @property
    def mixed_input(self) -> PrologueSpec | None:
        """What makes a factor of 16 bits, from one of eight."""
        return next((p for p in self.spec.before if p), None) if self.spec.left.dtype in ("f16", "bf16") else None

    @property
    def objects(self) -> set[Path]:
        """The files in which what it compiled at these knobs is kept."""
        return self.gemm.kernels.store.objects

    def prepare(self, device: Gpu) -> None:
        """Compile, or find on disk, what operands need that are aligned and lie as the Spec says; no GPU needed."""
        self(*map(_whole, self.spec.read))

    def demand(self, processors: int) -> dict[str, int | str]:
        """What the product's kernel takes, operands lying as the Spec says (see `cuda.demand`): read from the object in
        which it is kept (see `prepare`), or compiled for this alone; no GPU is needed."""
        point, swap_ab, (batch, m, n, k) = self.gemm.point, self.gemm.swap_ab, self.spec.sizes
        several = self.spec.ends.shape[0] if self.spec.ends else batch
        grid = self.gemm.grid(several, n if swap_ab else m, m if swap_ab else n, k, processors=processors)
        point = point.settled(k=k, results=batch * m * n)
        last, majors = grid.splits == 1, self._majors()
        whole = [_flat(_whole(o)) if self.spec.groups else _whole(o) for o in self.spec.operands]
        seen = [self.gemm.as_kernels(o) for o in self.epilogue.seen(whole, (batch, m, n))]
        variant = KernelVariant(
            point=point, element=point.halves if point.scales else self.spec.left.dtype,
            majors=majors[::-1] if swap_ab else majors, last=last, vector=self.gemm.vector(n),
            operands=self.epilogue.reads(seen) if last else (),
        )  # fmt: skip
        kept = self.gemm.kernels.kept_product(variant)
        if kept is not None:
            cubin = cubin_of(kept)
        else:
            with tempfile.TemporaryDirectory() as folder:
                launch = self.gemm.kernels.compile(variant, f"--keep-cubin --dump-dir={folder}")
            cubin = launch.artifacts.CUBIN  # type: ignore[attr-defined]
        (kernel,) = taken(cubin)
        spilled = kernel.local_bytes if kernel.local_bytes > SMALL_SPILL else 0
        staged, threads, ctas = point.depth_stages * point.stage_bytes, point.threads, grid.clusters * point.cluster
        if is_without_tma(self.arch):
            staged, threads = ampere.shared_bytes(point), ampere.THREADS
            ctas = -(-m // point.tile_m) * -(-n // point.tile_n) * batch
        return {
            "plan": hashlib.sha256(
                repr((replace(point, stages=point.depth_stages), swap_ab, grid)).encode()
            ).hexdigest()[:16],
            "registers": kernel.registers,
            "local_bytes": spilled,
            "shared_bytes": kernel.shared_bytes + staged + point.smem_store_bytes,
            "threads": threads,
            "ctas": ctas,
            "in_flight_bytes": staged // threads,
            "moved_bytes": self._moved_bytes(grid.splits),
        }

    def _majors(self) -> tuple[str, str]:
        """Of A, and of B as (N, K), operands lying as the Spec says."""
        left, right, *_ = self._with_factors([_whole(o) for o in self.spec.read])
        first, second = (x.batched() if isinstance(x, PrologueFactor) and x.ndim == 2 else x for x in (left, right))
        found = []
        for x, dims in ((first, (1, 2, 0)), (second, (2, 1, 0))):
            if isinstance(x, PrologueFactor):
                found.append(x.permute(*dims).major)
            else:
                found.append(major_of((x if x.ndim == 3 else x[None]).permute(*dims)[..., 0]))
        return found[0], found[1]

    def _moved_bytes(self, splits: int) -> int:
        """Every operand and the output once; planes of fp32 operands are written and read, and so are partial sums."""
        spec, point = self.spec, self.gemm.point
        sides = [prod(o.shape) * ITEM_BYTES[o.dtype] for o in (spec.left, spec.right)]
        sides += [sides[1]] if spec.beside else []
        matrices = sum(sides) * (1 + point.planes if point.scales else 1)
        for prologue, side in zip(spec.before, sides[:2], strict=True):
            matrices += sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in prologue.operands) - side if prologue else 0
        if point.streamed:
            matrices -= 2 * sides[1 if self.gemm.swap_ab else 0]
        others = sum(prod(o.shape) * ITEM_BYTES[o.dtype] for o in (*spec.operands, spec.output, *spec.further))
        partial = 8 * splits * prod(spec.output.shape) if splits > 1 else 0
        return matrices + others + partial


def _flat(x: Tensor) -> Tensor:
    """An operand whose columns are in two as a matrix' or a vector."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _whole(spec: ArraySpec) -> Tensor:
    """The tensor on the meta device, with the strides that the Spec expects."""
    rank = len(spec.shape)
    order = sorted(range(rank), key=lambda d: -spec.strides[d]) if spec.strides else list(range(rank))
    strides, step = [0] * rank, 1
    for d in reversed(order):
        strides[d], step = step, step * spec.shape[d]
    return torch.empty_strided(spec.shape, strides, dtype=DTYPES[spec.dtype], device="meta")
