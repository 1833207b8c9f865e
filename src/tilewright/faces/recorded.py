"""What each submodule of a model is called with, in one run of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from ..facts.errors import UserError
from .examples import ExampleCall

_MOST = 4  # ways in which one module is called that are kept


@dataclass(slots=True)
class Calls:
    """Of one module: where it lies in the model, and one example for each way in which it was called."""

    paths: list[str]
    examples: dict[Any, ExampleCall] = field(default_factory=dict)  # by what `signature` says


def form(module: nn.Module) -> Any:
    """Equal for modules that may compute the same, with parameters of their own."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return type(module), module.training, tuple((n, tuple(t.shape), t.dtype) for n, t in tensors.items())


def signature(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The shapes and dtypes of the tensors among the arguments, and what the others are; equal for equal calls."""
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    return str(spec), *(_look(leaf) for leaf in leaves)


def _look(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), str(leaf.dtype)
    return leaf if isinstance(leaf, int | float | str | None) else type(leaf).__qualname__


def recorded(model: nn.Module, example: ExampleCall) -> dict[nn.Module, Calls]:
    """All submodules that a call of the model calls, with their examples; modules of one form share these, so that a
    deep model's tensors are not all kept. Buffers, and torch's random numbers, are as
    before afterwards. Raises UserError where the call fails."""
    found = {module: Calls(paths=[]) for module in model.modules()}
    for path, module in model.named_modules(remove_duplicate=False):
        found[module].paths.append(path)
    with _watched(found), put_back(model), torch.no_grad():
        try:
            model(*example.args, **example.kwargs)
        except Exception as error:  # whatever a model raises
            text = str(error).strip().splitlines()
            said = f"{type(error).__name__}: {text[0] if text else ''}"[:300]
            raise UserError(f"example: {type(model).__name__} does not take it: {said}") from error
    return {module: calls for module, calls in found.items() if calls.examples}


@contextmanager
def _watched(found: dict[nn.Module, Calls]) -> Iterator[None]:
    forms = {module: form(module) for module in found}
    kept: dict[Any, ExampleCall] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        key = signature(args, kwargs)
        examples = found[module].examples
        if key not in examples and len(examples) < _MOST:
            examples[key] = kept.setdefault((forms[module], key), ExampleCall(args=args, kwargs=kwargs))

    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in found]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def put_back(model: nn.Module) -> Iterator[None]:
    """After it, the values of buffers are as before, and so are torch's random numbers."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = {p.device for p in model.parameters() if p.is_cuda}
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in before:
                    buffer.copy_(value)
