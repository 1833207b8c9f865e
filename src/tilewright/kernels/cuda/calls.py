"""The host's way to a launch, written out for so many operands and outputs, since it is run in every call: a third of
the time that loops and starred arguments take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# What a call needs: the compiled launch, the workspace (None: of each call its own, which the next makes on a device),
# and of each output a tensor that looks like it.
Ready = tuple[Any, ...]
Call = Callable[..., tuple[Tensor, ...]]

_CALL = """
def make(found, first, empty):
    def key({taken}):
        return {key}

    def call({taken}):
        launch, scrap, work, {likes} = found({key}) or first({taken})
        {made}
        launch({taken}, {outputs}, work(t0) if scrap is None else scrap)
        return ({outputs},)

    return key, call
"""


def written_out(
    arity: int, outputs: int, *, rows_of: int | None, found: Callable[[Any], Ready | None],
    first: Callable[..., Ready],
) -> tuple[Callable[..., Any], Call]:  # fmt: skip
    """Of operands what decides which launch takes them, and the call, which asks `found` with it and then `first`.

    That is the device; the number of rows, which operand `rows_of` has, where it is free; and the layout: strides, and
    addresses within 16 bytes, of which nothing is told where all are contiguous and aligned."""
    names = [f"t{i}" for i in range(arity)]
    made = [f"o{i}" for i in range(outputs)]
    likes = [f"like{i}" for i in range(outputs)]
    place = ["t0.get_device()"] + ([] if rows_of is None else [f"t{rows_of}.shape[0]"])
    addresses = " | ".join(f"{n}.data_ptr()" for n in names)
    plain = " and ".join(f"{n}.is_contiguous()" for n in names) + f" and not ({addresses}) & 15"
    layout = [part for n in names for part in (f"{n}.stride()", f"{n}.data_ptr() & 15")]
    key = f"({', '.join(place)}{',' if len(place) == 1 else ''}) if {plain} else ({', '.join((*place, *layout))})"
    text = _CALL.format(
        taken=", ".join(names), outputs=", ".join(made), likes=", ".join(likes) + ("," if outputs == 1 else ""),
        key=key, made="; ".join(f"{o} = empty({like})" for o, like in zip(made, likes, strict=True)),
    )  # fmt: skip
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    return namespace["make"](found, first, torch.empty_like)  # type: ignore[no-any-return]
