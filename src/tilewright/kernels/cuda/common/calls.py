"""The host's way to a launch, written out for so many operands and outputs, since it is run in every call: a third of
the time that loops and starred arguments take."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...ops import REAL
from .views import contiguous

# What a call needs: the compiled launch, the workspace (None: of each call its own, which the next makes on a device),
# and of each output what makes it (see `fresh`).
Ready = tuple[Any, ...]
T = TypeVar("T")
Call = Callable[..., tuple[Tensor, ...]]

_CALL = """
def make(found, first, through_op, compiling, real):
    def key({taken}):
        return {key}

    def call({taken}):
{guard}        launch, scrap, work, {makers} = found({key}) or first({taken})
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
    makers = [f"make{i}" for i in range(outputs)]
    place = ["t0.get_device()"] + ([] if rows_of is None else [f"t{rows_of}.numel()"])
    addresses = " | ".join(f"{n}.data_ptr()" for n in names)
    plain = " and ".join(f"{n}.is_contiguous()" for n in names) + f" and not ({addresses}) & 15"
    layout = [part for n in names for part in (f"{n}.stride()", f"{n}.data_ptr() & 15")]
    key = f"({', '.join(place)}{',' if len(place) == 1 else ''}) if {plain} else ({', '.join((*place, *layout))})"
    text = _CALL.format(
        taken=", ".join(names), outputs=", ".join(made), makers=", ".join(makers) + ("," if outputs == 1 else ""),
        key=key, made="; ".join(f"{o} = {maker}()" for o, maker in zip(made, makers, strict=True)),
        guard="" if through_op is None else _GUARD.format(taken=", ".join(names)),
    )  # fmt: skip
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    made_of = namespace["make"](found, first, through_op, torch.compiler.is_dynamo_compiling, REAL)
    return made_of  # type: ignore[no-any-return]


def fresh(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, strides: tuple[int, ...] | None = None
) -> Callable[[], Tensor]:
    """Makes tensors there, contiguous if no strides are given. Where there is one GPU, as what torch.compile writes
    makes them: without asking the dispatcher, on whichever device is current. Else like a tensor of one element,
    expanded."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    bare = getattr(guards, "_empty_strided_cuda", None)
    if bare is not None and device.type == "cuda" and torch.cuda.device_count() == 1:
        return partial(bare, shape, strides or contiguous(shape), dtype)
    if strides is not None:
        return partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
    return partial(torch.empty_like, torch.empty(1, dtype=dtype, device=device).expand(shape))


def lasting(make: Callable[[], T]) -> T:
    """What `make` gives, from memory that outlives the CUDA graphs of torch.compile: what a first call keeps must not
    lie in their pool, which takes what their own thread allocates."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return make()
    with ThreadPoolExecutor(max_workers=1) as beside:
        return beside.submit(make).result()
