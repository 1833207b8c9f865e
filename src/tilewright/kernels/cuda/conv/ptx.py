"""Instructions that the kernels of a convolution are made of, several at a time, so that one predicate serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass import Float32, Int32, cute


def read_group(item: int, address: Any, offsets: Sequence[int | None], tests: Sequence[Any]) -> list[Any]:
    """A group of elements at constant `offsets`, in bytes, behind an address: of 4 bytes as fp32 numbers, of 2 in
    pairs, the first in the lower half. 0 where the offset is None, and where the element's test (Int32; None: it has
    none) is 0."""
    args = [address, *dict.fromkeys(t for t in tests if t is not None)]
    numbers = {t: i for i, t in enumerate(args)}
    kind, load = ("f32", "f32") if item == 4 else ("b16", "b16")
    lines = [f".reg .{kind} v<{len(offsets)}>; .reg .pred p<{len(args)}>;"]
    lines += [f"setp.ne.s32 p{i}, {{$r{i}}}, 0;" for i in range(1, len(args))]
    for j, (offset, test) in enumerate(zip(offsets, tests, strict=True)):
        if offset is None or test is not None:
            lines.append(f"mov.{kind} v{j}, {'0f00000000' if item == 4 else '0'};")
        if offset is not None:
            guard = "" if test is None else f"@p{numbers[test]} "
            lines.append(f"{guard}ld.global.nc.{load} v{j}, [{{$r0}}+{offset}];")
    if item == 4:
        lines += [f"mov.f32 {{$w{j}}}, v{j};" for j in range(len(offsets))]
        types: list[Any] = [Float32] * len(offsets)
    else:
        lines += [f"mov.b32 {{$w{j}}}, {{v{2 * j}, v{2 * j + 1}}};" for j in range(len(offsets) // 2)]
        types = [Int32] * (len(offsets) // 2)
    text = "{ " + " ".join(lines) + " }"
    return list(cute.arch.inline_ptx(text, write_only_types=types, read_only_args=args))


def read_wide(item: int, address: Any, offset: int, test: Any) -> list[Any]:
    """A group that lies in one piece, at a multiple of 16 bytes: as `read_group` has it, by loads of 16 bytes. `test`:
    Int32, 0 where all of it is 0, or None."""
    kind, loads = ("f32", 2) if item == 4 else ("b32", 1)
    zero = "0f00000000" if item == 4 else "0"
    lines = [f".reg .{kind} v<{4 * loads}>; .reg .pred p;"]
    if test is not None:
        lines += ["setp.ne.s32 p, {$r1}, 0;", *(f"mov.{kind} v{j}, {zero};" for j in range(4 * loads))]
    for i in range(loads):
        four = ", ".join(f"v{4 * i + j}" for j in range(4))
        guard = "" if test is None else "@p "
        lines.append(f"{guard}ld.global.nc.v4.{kind} {{{four}}}, [{{$r0}}+{offset + 16 * i}];")
    lines += [f"mov.{kind} {{$w{j}}}, v{j};" for j in range(4 * loads)]
    types: list[Any] = [Float32 if item == 4 else Int32] * (4 * loads)
    args = [address] if test is None else [address, test]
    return list(cute.arch.inline_ptx("{ " + " ".join(lines) + " }", write_only_types=types, read_only_args=args))


def rounded_pair(low: Any, high: Any) -> Any:
    """Two fp32 numbers as a pair of fp16 ones."""
    text = "cvt.rn.f16x2.f32 {$w0}, {$r1}, {$r0};"
    return cute.arch.inline_ptx(text, write_only_types=[Int32], read_only_args=[low, high])


def split_pair(low: Any, high: Any) -> tuple[Any, Any]:
    """Two fp32 numbers as a pair of fp16 ones, and the pair of what is left of them. Of an infinite number the largest
    fp16 one, and infinity is left: so neither meets a zero that the number itself does not meet."""
    text = (
        "{ .reg .b16 l, h; .reg .b32 d, e; .reg .f32 x, y; cvt.rn.satfinite.f16x2.f32 d, {$r1}, {$r0}; "
        "mov.b32 {l, h}, d; cvt.f32.f16 x, l; cvt.f32.f16 y, h; sub.rn.f32 x, {$r0}, x; sub.rn.f32 y, {$r1}, y; "
        "cvt.rn.f16x2.f32 e, y, x; mov.b32 {$w0}, d; mov.b32 {$w1}, e; }"
    )
    hi, lo = cute.arch.inline_ptx(text, write_only_types=[Int32, Int32], read_only_args=[low, high])
    return hi, lo


def planes_of(values: Sequence[Any], scale: Any, planes: int) -> list[list[Any]]:
    """A group's words, of each plane: those that were read, or, with a `scale`, fp32 numbers scaled and rounded, or
    split."""
    if scale is None:
        return [list(values)]
    scaled = [value * scale for value in values]
    pairs = list(zip(scaled[::2], scaled[1::2], strict=True))
    if planes == 1:
        return [[rounded_pair(*pair) for pair in pairs]]
    split = [split_pair(*pair) for pair in pairs]
    return [[hi for hi, _ in split], [lo for _, lo in split]]


def write_chunk(address: Any, words: Sequence[Any]) -> None:
    """16 bytes to shared memory."""
    text = "st.shared.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};"
    cute.arch.inline_ptx(text, read_only_args=[address, *words])


def store_pair(address: Any, values: Sequence[Any], both: Any) -> None:
    """Two neighbours of 4 bytes to memory, at once where their address allows; the first alone where `both` is 0."""
    text = (
        "{ .reg .pred p, q; .reg .b64 t; and.b64 t, {$r0}, 7; setp.eq.u64 p, t, 0; setp.ne.s32 q, {$r3}, 0; "
        "and.pred p, p, q; @p st.global.v2.b32 [{$r0}], {{$r1}, {$r2}}; @!p st.global.b32 [{$r0}], {$r1}; "
        "not.pred p, p; and.pred q, q, p; @q st.global.b32 [{$r0}+4], {$r2}; }"
    )
    cute.arch.inline_ptx(text, read_only_args=[address, *values, both])


def copy_bulk(target: Any, source: Any, size: int, barrier: Any) -> None:
    """`size` bytes from memory to shared memory, of which the barrier is told."""
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{$r0}], [{$r1}], {$r2}, [{$r3}];"
    cute.arch.inline_ptx(text, read_only_args=[target, source, Int32(size), barrier])


def highest_of_all(address: Any, bits: Any) -> None:
    """The number at the address becomes the larger of both."""
    cute.arch.inline_ptx("red.global.max.s32 [{$r0}], {$r1};", read_only_args=[address, bits])


def copy_chunk(target: Any, source: Any, size: Any) -> None:
    """16 bytes to shared memory past the registers, of which `size`, 16 or 0, are read, and the others are zeros."""
    text = "cp.async.cg.shared.global.L2::128B [{$r0}], [{$r1}], 16, {$r2};"
    cute.arch.inline_ptx(text, read_only_args=[target, source, size])
