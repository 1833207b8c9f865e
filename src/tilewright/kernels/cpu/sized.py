"""The torch.library op of a kernel whose results have sizes that only a call tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..ops import _CALL, DTYPES, NAMESPACE, REAL, Launch, free_name, keep


def resized(shape: Sequence[int], sizes: Mapping[int, int], operands: Sequence[Tensor]) -> list[Any]:
    """The shape of a result whose dimensions in `sizes` have those of the operands of these numbers; where the result
    is broadcast along one, that stays 1."""
    found: list[Any] = list(shape)
    for dimension, number in sizes.items():
        if found[dimension] > 1:
            found[dimension] = operands[number].shape[dimension]
    return found


def sized_op(
    name: str, launch: Launch, outputs: Sequence[tuple[tuple[int, ...], str]], arity: int, *, sizes: Mapping[int, int]
) -> Launch:
    """As `ops.torch_op`, for results that are `resized`."""
    unique = free_name(name)
    library = keep(torch.library.Library(NAMESPACE, "FRAGMENT"))
    parameters = ", ".join(f"Tensor a{i}" for i in range(arity))
    library.define(f"{unique}({parameters}) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))

    def fake(*operands: Tensor) -> list[Tensor]:
        shapes = (resized(shape, sizes, operands) for shape, _ in outputs)
        return [operands[0].new_empty(s, dtype=DTYPES[dtype]) for s, (_, dtype) in zip(shapes, outputs, strict=True)]

    library.impl(unique, lambda *operands: list(launch(*operands)), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{unique}", fake, lib=library)
    op = getattr(getattr(torch.ops, NAMESPACE), unique).default

    def through_op(*operands: Tensor) -> tuple[Tensor, ...]:
        return tuple(op(*operands))

    namespace: dict[str, Any] = {}
    exec(_CALL.format(taken=", ".join(f"a{i}" for i in range(arity))), namespace)
    return namespace["make"](launch, through_op, torch.compiler.is_dynamo_compiling, REAL)  # type: ignore[no-any-return]
