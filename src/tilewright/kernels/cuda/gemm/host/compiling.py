"""Compiling the kernels of a product: for operands of any size, of which types, majors and neighbours are known; no GPU
is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cutlass import Int32, cute

from ...common.math import ELEMENT_TYPES
from ...common.views import ITEM_BYTES
from ..epilogue.epilogue import WIDE, Combine, EpilogueStore
from ..fp32.split import Split
from ..mainloop.ampere import Ampere
from ..mainloop.grouped import GroupedMainloop
from ..mainloop.k_range import NO_ZEROS, Zeros
from ..mainloop.mixed_input import MixedInputProduct, matrix_of
from ..mainloop.small_m import SmallM
from ..mainloop.stream_k import StreamK
from ..mainloop.streamed import Streamed
from ..mainloop.wgmma import WgmmaProduct
from ..prologue.fused import PrologueSpec, PrologueSplit
from .entries import COMBINE, PRODUCT
from .entries import split as SPLIT
from .plan import ARCH, Point

ALIGNED = 16
Launch = Callable[..., None]
# Strides of an epilogue's operand along (rows, columns, batch): 0, 1, or None, any; and whether columns are neighbours
# and all else starts at multiples of 16 bytes.
Walk = tuple[tuple[int | None, ...], bool]
Read = tuple[str, Walk]  # its dtype, too


def _fake(dtype: str, shape: Sequence[Any], strides: Sequence[Any], alignment: int) -> Any:
    return cute.runtime.make_fake_tensor(
        ELEMENT_TYPES[dtype], tuple(shape), stride=tuple(strides), assumed_align=alignment
    )


def _size() -> Any:
    return cute.sym_int()


def _stride(divisibility: int = 1) -> Any:
    return cute.sym_int64(divisibility=divisibility)


def _options(arch: str, more: str) -> str:
    return f"--enable-tvm-ffi --gpu-arch {arch} {more}".rstrip()


def _stream() -> Any:
    return cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)


def _read(operands: Sequence[Read], m: Any, n: Any, finish: EpilogueStore) -> list[Any]:
    """What an epilogue reads at (row, column, batch), and its further results."""
    parts = [finish.parts.get(name, (None, None, None)) for name in finish.names]
    rows = [_size() if own[0] else m for own in parts]
    columns = [_size() if name in finish.apart or own[1] else n for name, own in zip(finish.names, parts, strict=True)]
    return [
        _fake(dtype, (*sides, _size()), [_stride(8 if wide else 1) if step is None else step for step in strides],
              WIDE if wide else ITEM_BYTES[dtype])
        for sides, (dtype, (strides, wide)) in zip(zip(rows, columns, strict=True), operands, strict=False)
    ] + [_written(own.dtype, m, n, own.vector, swap_ab=finish.swap_ab) for own in finish.further]  # fmt: skip


def _written(dtype: str, m: Any, n: Any, vector: int, *, swap_ab: bool) -> Any:
    """A result; of a turned one columns are contiguous, not rows."""
    walk = (1, _stride(), _stride()) if swap_ab else (_stride(vector), 1, _stride(vector))
    return _fake(dtype, (m, n, _size()), walk, ALIGNED)


def compile_product(
    point: Point, *, element: str, majors: tuple[str, str], finish: EpilogueStore, operands: Sequence[Read] = (),
    routed: bool = False, zeros: Zeros = NO_ZEROS, arch: str = ARCH, options: str = "",
) -> Launch:  # fmt: skip
    """A launch of (a, b, c, [exponents of A, of B,] operands .., clusters, splits, chunk) for every size. `element`: of
    A and B; `majors`: theirs, "k", or "r" where M or N is contiguous; `operands`: the epilogue's. Of a turned
    EpilogueStore, columns of C are contiguous, not rows. `routed`: behind C come the ends of experts' rows (see
    `experts`). `zeros`: of A and B, as a KRange has them. Of a dual point the second B comes behind C, and its
    exponents behind the first's (of a small_m one the second A); of one with `stream_k` flags and parts come last."""
    m, n, k = _size(), _size(), _size()
    pitch = ALIGNED * 8 // ELEMENT_TYPES[element].width

    def operand(rows: Any, major: str) -> Any:
        strides = (_stride(pitch), 1, _stride(pitch)) if major == "k" else (1, _stride(pitch), _stride(pitch))
        return _fake(element, (rows, k, _size()), strides, ALIGNED)

    walk = (1, _stride(), _stride()) if finish.swap_ab else (_stride(finish.vector), 1, _stride(finish.vector))
    c = _fake(finish.dtype, (m, _size() if finish.own_columns else n, _size()), walk, ALIGNED)
    scaled = ((m, n, n) if point.dual else (m, n)) if point.scales else ()
    exponents = (_fake("i32", (rows, _size()), (1, _stride()), 4) for rows in scaled)
    ends = (_fake("i32", (_size(),), (1,), 4),) if routed else ()
    second = operand(m, majors[0]) if point.small_m else operand(n, majors[1])
    other = (second,) if point.dual else ()
    first = (operand(m, majors[0]), operand(n, majors[1]), c, *other)
    tensors = (*first, *exponents, *ends, *_read(operands, m, n, finish))
    if point.stream_k:
        tensors = (*tensors, _fake("i32", (_size(),), (1,), 4), _fake("f32", (_size(),), (1,), ALIGNED))
    kind = SmallM if point.small_m else StreamK if point.stream_k else WgmmaProduct
    kernel = GroupedMainloop(point, finish) if routed else kind(point, finish, zeros)
    return cute.compile(
        PRODUCT[len(tensors)],
        kernel,
        *tensors,
        Int32(1),
        Int32(1),
        Int32(64),
        _stream(),
        options=_options(arch, options),
    )


def compile_ampere(
    point: Point, *, element: str, finish: EpilogueStore, operands: Sequence[Read] = (), arch: str = "sm_80",
    options: str = "",
) -> Launch:  # fmt: skip
    """A launch of (a, b, c, operands .., clusters, splits, chunk) for every size, on GPUs without TMA; A and B lie
    along K. The last three are what other kernels take, and count for nothing."""
    m, n, k = _size(), _size(), _size()
    c = _fake(finish.dtype, (m, n, _size()), (_stride(finish.vector), 1, _stride(finish.vector)), ALIGNED)
    a, b = (_fake(element, (rows, k, _size()), (_stride(8), 1, _stride(8)), ALIGNED) for rows in (m, n))
    tensors = (a, b, c, *_read(operands, m, n, finish))
    return cute.compile(
        PRODUCT[len(tensors)], Ampere(point, finish), *tensors, Int32(1), Int32(1), Int32(64), _stream(),
        options=_options(arch, options),
    )  # fmt: skip


def compile_streamed(
    point: Point, *, major: str, finish: EpilogueStore, operands: Sequence[Read] = (), zeros: Zeros = NO_ZEROS,
    arch: str = ARCH, options: str = "",
) -> Launch:  # fmt: skip
    """A launch of (a, b, c, exponents of B, operands .., clusters, splits, chunk) for every size; `major`: of B. Of a
    turned EpilogueStore, columns of C are contiguous, not rows. `zeros`: of A and B, as a KRange has them."""
    m, n, k = _size(), _size(), _size()
    strides = (_stride(8), 1, _stride(8)) if major == "k" else (1, _stride(8), _stride(8))
    walk = (1, _stride(), _stride()) if finish.swap_ab else (_stride(finish.vector), 1, _stride(finish.vector))
    tensors = (
        _fake("f32", (m, k, _size()), (_stride(4), 1, _stride(4)), ALIGNED),
        _fake("f16", (n, k, _size()), strides, ALIGNED),
        _fake(finish.dtype, (m, _size() if finish.own_columns else n, _size()), walk, ALIGNED),
        _fake("i32", (n, _size()), (1, _stride()), 4),
        *_read(operands, m, n, finish),
    )
    return cute.compile(
        PRODUCT[len(tensors)],
        Streamed(point, finish, zeros),
        *tensors,
        Int32(1),
        Int32(1),
        Int32(64),
        _stream(),
        options=_options(arch, options),
    )


def compile_mixed_input(
    point: Point,
    prologue: PrologueSpec,
    *,
    element: str,
    major: str,
    finish: EpilogueStore,
    operands: Sequence[Read] = (),
    arch: str = ARCH,
    options: str = "",
) -> Launch:
    """A launch of (a, b, c, factors .., operands .., clusters, splits, chunk) for every size: A of eight bits along K,
    B of `element` and `major`; factors, (rows, groups of K, batch), are what the prologue reads beside A."""
    m, n, k = _size(), _size(), _size()
    at = matrix_of(prologue)
    strides = (_stride(8), 1, _stride(8)) if major == "k" else (1, _stride(8), _stride(8))
    walk = (1, _stride(), _stride()) if finish.swap_ab else (_stride(finish.vector), 1, _stride(finish.vector))
    factors = [o.dtype for i, o in enumerate(prologue.operands) if i != at]
    tensors = (
        _fake(prologue.operands[at].dtype, (m, k, _size()), (_stride(16), 1, _stride(16)), ALIGNED),
        _fake(element, (n, k, _size()), strides, ALIGNED),
        _fake(finish.dtype, (m, n, _size()), walk, ALIGNED),
        *(_fake(d, (m, _size(), _size()), (_stride(), _stride(), _stride()), ITEM_BYTES[d]) for d in factors),
        *_read(operands, m, n, finish),
    )
    return cute.compile(
        PRODUCT[len(tensors)],
        MixedInputProduct(point, finish, prologue, element),
        *tensors,
        Int32(1),
        Int32(1),
        Int32(128),
        _stream(),
        options=_options(arch, options),
    )


def compile_split(split: Split, *, arch: str = ARCH, options: str = "") -> Launch:
    """A launch of (x, planes, exponents, chunk) for every size."""
    rows, k = _size(), _size()
    wide = 4 if split.wide else 1
    walk = (_stride(wide), 1, _stride(wide)) if split.major == "k" else (1, _stride(wide), _stride(wide))
    if wide == 1:
        walk = (_stride(), _stride(), _stride())
    along = split.major == "k" or split.crossed
    plane = (_stride(8), 1, _stride(8)) if along else (1, _stride(8), _stride(8))
    x = _fake("f32", (rows, k, _size()), walk, 4 * wide)
    return cute.compile(
        SPLIT, split, x, _fake("bf16" if split.planes == 3 else "f16", (rows, k, _size()), plane, ALIGNED),
        _fake("i32", (rows, _size()), (1, _stride()), 4), Int32(64), _stream(), options=_options(arch, options),
    )  # fmt: skip


def compile_prologue(split: PrologueSplit, *, arch: str = ARCH, options: str = "") -> Launch:
    """A launch of (planes, exponents, operands .., clusters, splits, chunk) for every size: what a prologue makes,
    split. Two of the numbers are what other kernels take, and count for nothing."""
    rows, k = _size(), _size()
    plane = (1, _stride(8), _stride(8)) if split.major == "r" else (_stride(8), 1, _stride(8))
    operands = []
    for name, (strides, lines) in split.walks.items():
        kind = ELEMENT_TYPES[split.dtypes[name]]
        each = ALIGNED * 8 // kind.width if lines else 1
        walk = [_stride(each) if step is None else step for step in strides]
        alignment = ALIGNED if lines else ITEM_BYTES[split.dtypes[name]]
        operands.append(_fake(split.dtypes[name], (rows, k, _size()), walk, alignment))
    tensors = (
        _fake("bf16" if split.planes == 3 else "f16", (rows, k, _size()), plane, ALIGNED),
        _fake("i32", (rows, _size()), (1, _stride()), 4), *operands,
    )  # fmt: skip
    return cute.compile(
        PRODUCT[len(tensors)], split, *tensors, Int32(1), Int32(1), Int32(64), _stream(),
        options=_options(arch, options),
    )  # fmt: skip


def compile_combine(
    finish: EpilogueStore, *, operands: Sequence[Read] = (), arch: str = ARCH, options: str = ""
) -> Launch:
    """A launch of (partial, c, operands ..) for every size."""
    m, n = _size(), _size()
    partial = _fake("f32", (m, n, _size()), (_stride(), 1, _stride()), 4)
    c = _fake(finish.dtype, (m, n, _size()), (_stride(), 1, _stride()), ITEM_BYTES[finish.dtype])
    tensors = (partial, c, *_read(operands, m, n, finish))
    return cute.compile(COMBINE[len(tensors)], Combine(finish), *tensors, _stream(), options=_options(arch, options))
