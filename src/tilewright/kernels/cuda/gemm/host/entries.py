"""Entry points of one flat argument list for every number of tensors: what torch passes on is then the stream, too."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, cute


@cute.jit
def product_3(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, clusters: Int32,
              splits: Int32, chunk: Int32, stream: Any) -> None:  # fmt: skip
    kernel((a, b, c), clusters, splits, chunk, stream)


@cute.jit
def product_4(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              clusters: Int32, splits: Int32, chunk: Int32, stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d), clusters, splits, chunk, stream)


@cute.jit
def product_5(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              e: cute.Tensor, clusters: Int32, splits: Int32, chunk: Int32, stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e), clusters, splits, chunk, stream)


@cute.jit
def product_6(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              e: cute.Tensor, f: cute.Tensor, clusters: Int32, splits: Int32, chunk: Int32,
              stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f), clusters, splits, chunk, stream)


@cute.jit
def product_7(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              e: cute.Tensor, f: cute.Tensor, g: cute.Tensor, clusters: Int32, splits: Int32, chunk: Int32,
              stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f, g), clusters, splits, chunk, stream)


@cute.jit
def product_8(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              e: cute.Tensor, f: cute.Tensor, g: cute.Tensor, h: cute.Tensor, clusters: Int32, splits: Int32,
              chunk: Int32, stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f, g, h), clusters, splits, chunk, stream)


@cute.jit
def product_9(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              e: cute.Tensor, f: cute.Tensor, g: cute.Tensor, h: cute.Tensor, i: cute.Tensor, clusters: Int32,
              splits: Int32, chunk: Int32, stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f, g, h, i), clusters, splits, chunk, stream)


@cute.jit
def product_10(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
               e: cute.Tensor, f: cute.Tensor, g: cute.Tensor, h: cute.Tensor, i: cute.Tensor, j: cute.Tensor,
               clusters: Int32, splits: Int32, chunk: Int32, stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f, g, h, i, j), clusters, splits, chunk, stream)


@cute.jit
def product_11(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
               e: cute.Tensor, f: cute.Tensor, g: cute.Tensor, h: cute.Tensor, i: cute.Tensor, j: cute.Tensor,
               k: cute.Tensor, clusters: Int32, splits: Int32, chunk: Int32,
               stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f, g, h, i, j, k), clusters, splits, chunk, stream)


@cute.jit
def product_12(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
               e: cute.Tensor, f: cute.Tensor, g: cute.Tensor, h: cute.Tensor, i: cute.Tensor, j: cute.Tensor,
               k: cute.Tensor, ll: cute.Tensor, clusters: Int32, splits: Int32, chunk: Int32,
               stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f, g, h, i, j, k, ll), clusters, splits, chunk, stream)


@cute.jit
def product_13(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
               e: cute.Tensor, f: cute.Tensor, g: cute.Tensor, h: cute.Tensor, i: cute.Tensor, j: cute.Tensor,
               k: cute.Tensor, ll: cute.Tensor, m: cute.Tensor, clusters: Int32, splits: Int32, chunk: Int32,
               stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f, g, h, i, j, k, ll, m), clusters, splits, chunk, stream)


@cute.jit
def combine_2(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, stream: Any) -> None:
    kernel((a, b), stream)


@cute.jit
def combine_3(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor,
              stream: Any) -> None:  # fmt: skip
    kernel((a, b, c), stream)


@cute.jit
def combine_4(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d), stream)


@cute.jit
def combine_5(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              e: cute.Tensor, stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e), stream)


@cute.jit
def combine_6(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              e: cute.Tensor, f: cute.Tensor, stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f), stream)


@cute.jit
def combine_7(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              e: cute.Tensor, f: cute.Tensor, g: cute.Tensor, stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f, g), stream)


@cute.jit
def combine_8(kernel: cutlass.Constexpr, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, d: cute.Tensor,
              e: cute.Tensor, f: cute.Tensor, g: cute.Tensor, h: cute.Tensor,
              stream: Any) -> None:  # fmt: skip
    kernel((a, b, c, d, e, f, g, h), stream)


@cute.jit
def split(kernel: cutlass.Constexpr, x: cute.Tensor, planes: cute.Tensor, exponents: cute.Tensor, chunk: Int32,
          stream: Any) -> None:  # fmt: skip
    kernel(x, planes, exponents, chunk, stream)


PRODUCT = {
    3: product_3, 4: product_4, 5: product_5, 6: product_6, 7: product_7, 8: product_8, 9: product_9, 10: product_10,
    11: product_11, 12: product_12, 13: product_13,
}  # fmt: skip
COMBINE = {2: combine_2, 3: combine_3, 4: combine_4, 5: combine_5, 6: combine_6, 7: combine_7, 8: combine_8}
MOST_OPERANDS = 6  # of an epilogue
