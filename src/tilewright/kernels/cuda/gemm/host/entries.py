"""Entry points with one flat argument list, written out for each number of tensors: only such a list lets the stream
come from torch's environment.

    product_4(kernel, t0, t1, t2, t3, clusters, splits, chunk, stream)
    combine_3(kernel, t0, t1, t2, stream)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import cutlass
from cutlass import Int32, cute

Entry = Callable[..., None]
_TEXT = """
def {name}_{count}(kernel: cutlass.Constexpr, {tensors}, {numbers}stream: Any) -> None:
    kernel(({names},), {given}stream)
"""


@cache
def _entry(name: str, count: int, numbers: tuple[str, ...]) -> Entry:
    names = [f"t{i}" for i in range(count)]
    text = _TEXT.format(
        name=name, count=count, names=", ".join(names), tensors=", ".join(f"{n}: cute.Tensor" for n in names),
        numbers="".join(f"{n}: Int32, " for n in numbers), given="".join(f"{n}, " for n in numbers),
    )  # fmt: skip
    namespace = {"cutlass": cutlass, "cute": cute, "Int32": Int32, "Any": Any}
    exec(text, namespace)
    # The DSL's preprocessor wants a source file, and a function without control flow needs none.
    made: Entry = cute.jit(preprocess=False)(namespace[f"{name}_{count}"])
    return made


def product(count: int) -> Entry:
    """Calls kernel(tensors, clusters, splits, chunk, stream) with `count` tensors."""
    return _entry("product", count, ("clusters", "splits", "chunk"))


def combine(count: int) -> Entry:
    """Calls kernel(tensors, stream) with `count` tensors."""
    return _entry("combine", count, ())


@cute.jit
def split(kernel: cutlass.Constexpr, x: cute.Tensor, planes: cute.Tensor, exponents: cute.Tensor, chunk: Int32,
          stream: Any) -> None:  # fmt: skip
    kernel(x, planes, exponents, chunk, stream)
