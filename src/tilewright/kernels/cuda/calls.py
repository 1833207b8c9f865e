"""The host's way to a launch, written out for so many operands and outputs, since it is run in every call: a third of
the time that loops and starred arguments take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ops import REAL

# What a call needs: the compiled launch, the workspace (None: of each call its own, which the next makes on a device),
# and of each output a tensor that looks like it.
Ready = tuple[Any, ...]
Call = Callable[..., tuple[Tensor, ...]]

_CALL = """
def make(found, first, empty, through_op, compiling, real):
    def key({taken}):
        return {key}

    def call({taken}):
{guard}        launch, scrap, work, {likes} = found({key}) or first({taken})
        {made}
        launch({taken}, {outputs}, work(t0) if scrap is None else scrap)
        return ({outputs},)

    return key, call
"""

_GUARD = """\
        if compiling() or type(t0) not in real:
            return through_op({taken})
"""


def written_out(
    arity: int, outputs: int, *, rows_of: int | None, found: Callable[[Any], Ready | None],
    first: Callable[..., Ready], through_op: Call | None = None,
) -> tuple[Callable[..., Any], Call]:  # fmt: skip
    """Of operands what decides which launch takes them, and the call, which asks `found` with it and then `first`.

    That is the device; where the number of rows is free, the size of operand `rows_of`, which tells it; and the layout:
    strides, and addresses within 16 bytes, of which nothing is told where all are contiguous and aligned. `through_op`:
    what is called instead where torch.compile or another tracer looks on."""
    names = [f"t{i}" for i in range(arity)]
    made = [f"o{i}" for i in range(outputs)]
    likes = [f"like{i}" for i in range(outputs)]
    place = ["t0.get_device()"] + ([] if rows_of is None else [f"t{rows_of}.numel()"])
    addresses = " | ".join(f"{n}.data_ptr()" for n in names)
    plain = " and ".join(f"{n}.is_contiguous()" for n in names) + f" and not ({addresses}) & 15"
    layout = [part for n in names for part in (f"{n}.stride()", f"{n}.data_ptr() & 15")]
    key = f"({', '.join(place)}{',' if len(place) == 1 else ''}) if {plain} else ({', '.join((*place, *layout))})"
    text = _CALL.format(
        taken=", ".join(names), outputs=", ".join(made), likes=", ".join(likes) + ("," if outputs == 1 else ""),
        key=key, made="; ".join(f"{o} = empty({like})" for o, like in zip(made, likes, strict=True)),
        guard="" if through_op is None else _GUARD.format(taken=", ".join(names)),
    )  # fmt: skip
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    made_of = namespace["make"](found, first, torch.empty_like, through_op, torch.compiler.is_compiling, REAL)
    return made_of  # type: ignore[no-any-return]
