"""What a caller gives `optimize` as a module and as examples, brought into one form or refused in one line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import torch
from torch import nn

from ..facts.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleCall:
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def named(self, module: nn.Module) -> Mapping[str, Any]:
        """All arguments by name, in the order of forward's parameters. Raises UserError where one has no name, or where
        forward doesn't take them so."""
        signature = inspect.signature(module.forward)
        try:
            bound = signature.bind(*self.args, **self.kwargs)
        except TypeError as error:
            raise UserError(f"{type(module).__name__}.forward does not take the example: {error}") from error
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is Parameter.VAR_KEYWORD:
                found.update(value)
            elif kind in (Parameter.VAR_POSITIONAL, Parameter.POSITIONAL_ONLY):
                raise UserError(
                    f"{type(module).__name__}.forward takes {name!r} by position alone; give all arguments by position"
                )
            else:
                found[name] = value
        return found


def module_of(given: object) -> nn.Module:
    """The module, without the wrapper of torch.compile. Raises UserError for what is none, or has no values."""
    if type(given).__module__.startswith("torch._dynamo"):  # which is not imported to ask
        given = getattr(given, "_orig_mod", given)
    if isinstance(given, torch.jit.ScriptModule):
        raise UserError("module: TorchScript, which has no Python code; give the module that it was made from")
    if not isinstance(given, nn.Module):
        made = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise UserError(f"module: {made}, not an nn.Module; give an instance, and put a function into one's forward")
    tensors = {**dict(given.named_parameters()), **dict(given.named_buffers())}
    for name, tensor in tensors.items():
        if torch.nn.parameter.is_lazy(tensor):
            raise UserError(f"module: {name} has no shape before the first call (a lazy module); call the module once")
        if tensor.is_meta:
            raise UserError(
                f"module: {name} lies on the meta device and has no values; load the module's weights first"
            )
    return given


def examples_of(example_inputs: Any, kwargs: Mapping[str, Any] | None = None) -> list[ExampleCall]:
    """The calls that `example_inputs` stand for: a tensor is the one argument, a dict holds arguments by name, a tuple
    or a list those of one call; a list of lists, tuples and dicts is a call for each, the main one first. `kwargs` go
    with each. Raises UserError for anything else."""
    if isinstance(example_inputs, list) and example_inputs and all(isinstance(e, ExampleCall) for e in example_inputs):
        return example_inputs
    by_name: Any = kwargs or {}
    if not isinstance(by_name, Mapping) or not all(isinstance(name, str) for name in by_name):
        raise UserError(f"kwargs: a {type(kwargs).__name__}; give a dict of forward's arguments by name")
    several = isinstance(example_inputs, list) and bool(example_inputs)
    several = several and all(isinstance(example, list | tuple | dict) for example in example_inputs)
    given = example_inputs if several else [example_inputs]
    return [_example(one, by_name) for one in given]


def _example(given: Any, kwargs: Mapping[str, Any]) -> ExampleCall:
    if isinstance(given, torch.Tensor):
        return ExampleCall(args=(given,), kwargs=kwargs)
    if isinstance(given, dict) and all(isinstance(name, str) for name in given):
        if twice := given.keys() & kwargs.keys():
            raise UserError(f"kwargs: {min(twice)} stands in example_inputs, too")
        return ExampleCall(args=(), kwargs={**given, **kwargs})
    if isinstance(given, list | tuple):
        return ExampleCall(args=tuple(given), kwargs=kwargs)
    kind = type(given).__name__
    raise UserError(
        f"example_inputs: a {kind}; give a tensor, a tuple of forward's arguments, or a dict of them by name"
    )
