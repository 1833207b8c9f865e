"""Gives a computation made of kernels its derivative: for autograd in eager mode, and as a torch.library op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from .ops import NAMESPACE, REAL, free_name, keep

Forward = Callable[..., tuple[Tensor, ...]]
Backward = Callable[..., tuple[Tensor | None, ...]]


def differentiable(
    name: str, forward: Forward, backward: Backward, *, outputs: int, results: int, kept: Sequence[int],
    saved: Sequence[int], graded: Sequence[int],
) -> Forward:  # fmt: skip
    """A callable that gives the first `outputs` of the `results` of `forward`, which takes a tensor for
    each of its parameters, and has `backward` for a derivative.

    `backward(needs, *operands at kept, *results at saved, *gradients of the results at graded)` gives a gradient, or
    None, for each operand; `needs` says which are asked for. What it gives can't be differentiated again: that raises
    RuntimeError. In eager mode without gradients this is `forward` itself; under `torch.compile` it is the op
    `tilewright::<name>_<n>` that this registers."""
    graded_results = frozenset(graded)

    def remember(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        made = output if isinstance(output, tuple | list) else (output,)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[t for i, t in enumerate(made) if i not in graded_results])
        ctx.like = [(made[i].shape, made[i].dtype, made[i].device) for i in graded]
        ctx.save_for_backward(*[inputs[i] for i in kept], *[made[i] for i in saved])

    def gradients(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [_zeros_unless(upstream[i], like) for i, like in zip(graded, ctx.like, strict=True)]
        again = torch.is_grad_enabled()
        with torch.no_grad():
            found = backward(tuple(ctx.needs_input_grad), *ctx.saved_tensors, *given)
        if not again:
            return found
        reasons = [t for t in (*ctx.saved_tensors, *given) if t.requires_grad]
        once: Callable[..., Tensor] = _Once.apply
        return tuple(t if t is None or not reasons else once(name, t, *reasons) for t in found)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *operands: Tensor) -> tuple[Tensor, ...]:
            made = forward(*operands)
            remember(ctx, operands, made)
            return made

        backward = staticmethod(gradients)

    with_gradients: Callable[..., tuple[Tensor, ...]] = Function.apply
    op = _registered(name, forward, results=results, remember=remember, gradients=gradients)

    def call(*operands: Tensor) -> tuple[Tensor, ...]:
        if torch.compiler.is_compiling() or type(operands[0]) not in REAL:
            made = op(*operands)
            return (made,) if results == 1 else tuple(made[:outputs])
        if torch.is_grad_enabled() and any(t.requires_grad for t in operands):
            return with_gradients(*operands)[:outputs]
        return forward(*operands)[:outputs]

    return call


def _registered(
    name: str, forward: Forward, *, results: int, remember: Callable[..., None],
    gradients: Callable[..., Any],
) -> Callable[..., Any]:  # fmt: skip
    unique = free_name(name)
    library = keep(torch.library.Library(NAMESPACE, "FRAGMENT"))
    single = results == 1
    kinds = "Tensor" if single else "(" + ", ".join(["Tensor"] * results) + ")"
    parameters = ", ".join(f"Tensor a{i}" for i in range(len(signature(forward).parameters)))
    library.define(f"{unique}({parameters}) -> {kinds}", tags=(torch.Tag.pt2_compliant_tag,))

    def run(*operands: Tensor) -> Tensor | tuple[Tensor, ...]:
        made = forward(*operands)
        return made[0] if single else made

    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        remember(ctx, inputs, output)

    qualified = f"{NAMESPACE}::{unique}"
    library.impl(unique, run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, run, lib=library)
    torch.library.register_autograd(qualified, gradients, setup_context=setup_context, lib=library)
    op: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), unique).default
    return op


def _zeros_unless(gradient: Tensor | None, like: tuple[torch.Size, torch.dtype, torch.device]) -> Tensor:
    if gradient is not None:
        return gradient
    shape, dtype, device = like
    return torch.zeros(shape, dtype=dtype, device=device)


class _Once(torch.autograd.Function):
    """A gradient that refuses to be differentiated in its turn, where it would otherwise count as a constant."""

    @staticmethod
    def forward(ctx: Any, name: str, gradient: Tensor, *reasons: Tensor) -> Tensor:
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            f"{ctx.name}: its kernels have no second derivative (create_graph=True); run the original module for that"
        )
