"""Operators that move no data, or make constant data: views, slices, fills and ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ir.access import Position

from . import sinks
from .lower import Builder, Expr, Lowering, NotLowered, Number


def _reshape(b: Builder, x: Expr, **_: Any) -> Expr:
    if b.outs[0].dtype != b.ins[0].dtype:  # view.dtype reinterprets bytes
        raise NotLowered
    return x.reshape(tuple(b.outs[0].shape))


def _transpose(b: Builder, x: Expr, dim0: int, dim1: int) -> Expr:
    order = list(range(len(x.shape)))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return x.permute(order)


def _movedim(b: Builder, x: Expr, source: int | Sequence[int], destination: int | Sequence[int]) -> Expr:
    rank = len(x.shape)
    sources = [d % rank for d in ([source] if isinstance(source, int) else source)]
    targets = [d % rank for d in ([destination] if isinstance(destination, int) else destination)]
    rest = iter(d for d in range(rank) if d not in sources)
    placed = dict(zip(targets, sources, strict=True))
    return x.permute([placed[d] if d in placed else next(rest) for d in range(rank)])


def _pixel_shuffle(b: Builder, x: Expr, upscale_factor: int) -> Expr:
    """Channels become pixels; the result is laid out anew."""
    *lead, c, h, w = x.shape
    r, n = upscale_factor, len(lead)
    split = x.reshape((*lead, c // r**2, r, r, h, w))
    return copied(b, split.permute((*range(n + 1), n + 3, n + 1, n + 4, n + 2)).reshape(tuple(b.outs[0].shape)))


def _pixel_unshuffle(b: Builder, x: Expr, downscale_factor: int) -> Expr:
    *lead, c, h, w = x.shape
    r, n = downscale_factor, len(lead)
    split = x.reshape((*lead, c, h // r, r, w // r, r))
    return copied(b, split.permute((*range(n + 1), n + 2, n + 4, n + 1, n + 3)).reshape(tuple(b.outs[0].shape)))


def copied(b: Builder, x: Expr) -> Expr:
    """The same values in memory of their own, laid out as torch says."""
    return b.point("to", x, dtype=x.dtype)


def _repeat(b: Builder, x: Expr, repeats: Sequence[int]) -> Expr:
    shape = (1,) * (len(repeats) - len(x.shape)) + x.shape
    split = tuple(v for size in shape for v in (1, size))
    wide = tuple(v for size, times in zip(shape, repeats, strict=True) for v in (times, size))
    return x.reshape(split).expand(wide).reshape(tuple(b.outs[0].shape))


def _repeat_interleave(b: Builder, x: Expr, repeats: int | Expr, dim: int | None = None, **_: Any) -> Expr:
    if not isinstance(repeats, int) or dim is None or repeats < 1:
        raise NotLowered
    dim %= len(x.shape)
    front, back = x.shape[: dim + 1], x.shape[dim + 1 :]
    wide = x.reshape((*front, 1, *back)).expand((*front, repeats, *back))
    return copied(b, wide.reshape(tuple(b.outs[0].shape)))


def _slice(b: Builder, x: Expr, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Expr:
    dim %= len(x.shape)
    first, last, _ = slice(start, end).indices(x.shape[dim])
    if step == 1:
        return _part(x, dim, first, max(last - first, 0))
    if dim + 1 < len(x.shape):  # a view, which vectors can read along the innermost dimension
        raise NotLowered
    shape = tuple(b.outs[0].shape)
    at = [
        Position(start=first, steps=((d, step),)) if d == dim else Position(steps=((d, 1),)) for d in range(len(shape))
    ]
    return b.load(x, shape, at)


def _part(x: Expr, dim: int, start: int, length: int) -> Expr:
    whole = length == x.shape[dim]
    return x if whole else sinks.cut(x, (dim, start, length)) or x.slice(dim, start, length)


def _narrow(b: Builder, x: Expr, dim: int, start: int | Expr, length: int) -> Expr:
    if isinstance(start, Expr):
        raise NotLowered
    dim %= len(x.shape)
    return _part(x, dim, start % x.shape[dim] if start < 0 else start, length)


def _select(b: Builder, x: Expr, dim: int, index: int) -> Expr:
    dim %= len(x.shape)
    return _part(x, dim, index % x.shape[dim], 1).reshape(tuple(b.outs[0].shape))


def _split(b: Builder, x: Expr, dim: int = 0, **_: Any) -> tuple[Expr, ...]:
    """chunk, split and split_with_sizes: their results' sizes say where to cut."""
    dim %= len(x.shape)
    parts, start = [], 0
    for out in b.outs:
        parts.append(_part(x, dim, start, out.shape[dim]))
        start += out.shape[dim]
    return tuple(parts)


def _arange(b: Builder, end: Number, start: Number = 0, step: Number = 1, **_: Any) -> Expr:
    size = b.outs[0].shape[0]
    if size < 2 or not all(isinstance(v, int) for v in (start, end, step)):
        raise NotLowered
    position = b.index(size)
    position = position if step == 1 else position * step
    return (position if start == 0 else position + start).to(b.out_dtype)


VIEW_LOWERINGS: Mapping[str, Lowering] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as",
                     "reshape_as"), _reshape),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), lambda b, x, **_: x.expand(tuple(b.outs[0].shape))),
    "broadcast_tensors": lambda b, tensors: tuple(t.expand(o.shape) for t, o in zip(tensors, b.outs, strict=True)),
    "permute": lambda b, x, dims: x.permute([d % len(x.shape) for d in dims]), "transpose": _transpose,
    "swapaxes": lambda b, x, axis0, axis1: _transpose(b, x, axis0, axis1), "swapdims": _transpose,
    "t": lambda b, x: x if len(x.shape) < 2 else _transpose(b, x, 0, 1), "mT": lambda b, x: _transpose(b, x, -2, -1),
    "numpy_T": lambda b, x: x.permute(range(len(x.shape))[::-1]), "movedim": _movedim, "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "pixel_shuffle": _pixel_shuffle, "pixel_unshuffle": _pixel_unshuffle,
    "slice": _slice, "narrow": _narrow, "select": _select, "chunk": _split, "split": _split,
    "split_with_sizes": _split, "unsafe_chunk": _split, "unsafe_split": _split,
    "unbind": lambda b, x, dim=0: tuple(_select(b, x, dim, i) for i in range(len(b.outs))), "arange": _arange,
}  # fmt: skip


# Operators whose result has the same number everywhere: that number, to be written into those who read it.
FILL_LOWERINGS: Mapping[str, Lowering] = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), lambda b, **_: 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), lambda b, **_: 1),
    **dict.fromkeys(("full", "full_like", "new_full"), lambda b, fill_value, **_: fill_value),
    "scalar_tensor": lambda b, s, **_: s,
}  # fmt: skip
