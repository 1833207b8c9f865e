"""Makes a kernel launch callable by `torch.compile`: a torch.library op beside the direct call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
    "float8_e4m3fn": torch.float8_e4m3fn,
}

Launch = Callable[..., tuple[Tensor, ...]]

NAMESPACE = "tilewright"
REAL = (Tensor, torch.nn.Parameter)  # what tracers hand in has other types
_libraries: list[torch.library.Library] = []  # an op lives as long as the Library that defined it


def free_name(name: str) -> str:
    """`name_<n>` that no op of this process has: candidates bring copies of this file, each with its own state."""
    taken = getattr(torch.ops, NAMESPACE)
    n = 0
    while hasattr(taken, f"{name}_{n}"):
        n += 1
    return f"{name}_{n}"


def keep(library: torch.library.Library) -> torch.library.Library:
    """The same, alive until the process ends."""
    _libraries.append(library)
    return library


def torch_op(
    name: str, launch: Launch, outputs: Sequence[tuple[tuple[int, ...], str]], arity: int, *, rows: int | None = None
) -> Launch:
    """A callable over `arity` tensors of one device that calls `launch` directly in eager mode, and under
    `torch.compile` the op that `registered` has made of it. Raises ValueError when there is no operand or no output."""
    through_op = registered(name, launch, outputs, arity, rows=rows)
    namespace: dict[str, Any] = {}
    exec(_CALL.format(taken=", ".join(f"a{i}" for i in range(arity))), namespace)
    return namespace["make"](launch, through_op, torch.compiler.is_dynamo_compiling, REAL)  # type: ignore[no-any-return]


# Run in every call, so it is written out for the operands: starred arguments take longer than what it decides.
_CALL = """
def make(launch, through_op, compiling, real):
    def call({taken}):
        if not compiling() and type(a0) in real:
            return launch({taken})
        return through_op({taken})

    return call
"""


def registered(
    name: str, launch: Launch, outputs: Sequence[tuple[tuple[int, ...], str]], arity: int, *, rows: int | None = None
) -> Launch:
    """A callable over `arity` tensors of one device that calls the op `tilewright::<name>_<n>`, which this registers
    and which calls `launch`.

    `outputs` gives shape and dtype (as in `DTYPES`) of each result; results are contiguous, on the operands' device and
    alias nothing. `rows`: the operand that says how many rows there are, where results may have any number.
    Raises ValueError when there is no operand or no output.
    """
    if arity < 1 or not outputs:
        raise ValueError(f"{name}: an op needs an operand and an output, not {arity} and {len(outputs)}")
    specs = tuple((tuple(shape), DTYPES[dtype]) for shape, dtype in outputs)
    unique = free_name(name)
    library = keep(torch.library.Library(NAMESPACE, "FRAGMENT"))
    # A one-element tuple is no schema type: a single result travels bare.
    single = len(specs) == 1
    results = "Tensor" if single else "(" + ", ".join(["Tensor"] * len(specs)) + ")"
    parameters = ", ".join(f"Tensor a{i}" for i in range(arity))
    library.define(f"{unique}({parameters}) -> {results}", tags=(torch.Tag.pt2_compliant_tag,))

    def real(*operands: Tensor) -> Tensor | tuple[Tensor, ...]:
        made = launch(*operands)
        return made[0] if single else made

    def fake(*operands: Tensor) -> Tensor | tuple[Tensor, ...]:
        first = () if rows is None else (operands[rows].shape[0],)
        shapes = ((*first, *shape[len(first) :]) for shape, _ in specs)
        made = tuple(
            torch.empty(shape, dtype=dtype, device=operands[0].device)
            for shape, (_, dtype) in zip(shapes, specs, strict=True)
        )
        return made[0] if single else made

    library.impl(unique, real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{unique}", fake, lib=library)
    op = getattr(getattr(torch.ops, NAMESPACE), unique).default

    def through_op(*operands: Tensor) -> tuple[Tensor, ...]:
        made = op(*operands)
        return (made,) if single else tuple(made)

    return through_op
