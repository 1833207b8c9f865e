"""Containers of classes that a module takes and gives: outputs of transformers, caches, registered dataclasses.

Processes that judge exchange tensors in tuples, lists and dicts alone, and run no code of such a class. So a module
with other containers is judged in a form that takes and gives the tensors in them, `adapted`; what a user gets takes
and gives the containers again.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from ..facts.errors import UserError
from .examples import ExampleCall
from .recorded import put_back

_SCALARS = (int, float, bool, str, type(None))
_TENSOR = "tensor"  # in `Trees.leaves`: the place of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """`given`: the structures of (args, kwargs), each once; (): arguments are plain, and stay as they are. `result`:
    the structure of what forward gives; None: plain. `leaves` are the result's: ("tensor",) or ("value", its value)."""

    given: tuple[pytree.TreeSpec, ...] = ()
    result: pytree.TreeSpec | None = None
    leaves: tuple[tuple[Any, ...], ...] = ()

    @property
    def plain(self) -> bool:
        return not self.given and self.result is None

    def flat(self, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, ...] | None:
        """The arguments of the adapted forward; None where they have a structure that no example has."""
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        if spec not in self.given:
            return None
        return (self.given.index(spec), *leaves) if len(self.given) > 1 else tuple(leaves)

    def whole(self, tensors: Sequence[Any]) -> Any:
        """What forward gives, of the tensors that the adapted one does."""
        if self.result is None:
            return tensors
        found = iter(tensors)
        leaves = [next(found) if leaf[0] == _TENSOR else leaf[1] for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.result)

    def kinds(self) -> list[type]:
        """The classes of its containers."""
        specs = [*self.given, *([self.result] if self.result is not None else [])]
        found: dict[type, None] = {}
        while specs:
            spec = specs.pop()
            if not spec.is_leaf():
                found[spec.context if isinstance(spec.context, type) else spec.type] = None
                specs += spec.children()
        return list(found)

    def __reduce__(self) -> tuple[Any, ...]:  # torch's own specs of leaves warn when they are read
        result = None if self.result is None else layout(self.result)
        return _of_layouts, (tuple(map(layout, self.given)), result, self.leaves)


Layout = tuple[Any, ...]  # of a container: its class, what torch says of it, and the layouts in it; (): a leaf


def layout(spec: pytree.TreeSpec) -> Layout:
    """The structure as plain values, which travel."""
    return () if spec.is_leaf() else (spec.type, spec.context, tuple(map(layout, spec.children())))


def _of_layouts(given: Sequence[Layout], result: Layout | None, leaves: tuple[tuple[Any, ...], ...]) -> Trees:
    return Trees(given=tuple(map(_spec, given)), result=None if result is None else _spec(result), leaves=leaves)


def _spec(found: Layout) -> pytree.TreeSpec:
    return pytree.TreeSpec(found[0], found[1], list(map(_spec, found[2]))) if found else pytree.tree_structure(0)


PLAIN = Trees()


def adapted(base: Any, given: Any, opens: bool) -> Any:
    """`base` whose forward takes the leaves of one of the layouts `given` (after its number, where there are several;
    without any: what it takes), and which, if it `opens` them, gives a tuple of the tensors in its results."""
    import functools

    import torch
    import torch.utils._pytree as pytree

    def made(layout: Any, leaves: Any) -> Any:
        if not layout:
            return next(leaves)
        kind, context, inner = layout
        return pytree.SUPPORTED_NODES[kind].unflatten_fn([made(item, leaves) for item in inner], context)

    class Adapted(base):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if given:
                number, leaves = (args[0], args[1:]) if len(given) > 1 else (0, args)
                args, kwargs = made(given[number], iter(leaves))
            result = base.forward(self, *args, **kwargs)
            return tuple(t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)) if opens else result

    if not given:
        functools.update_wrapper(Adapted.forward, base.forward)
    Adapted.__name__, Adapted.__qualname__ = base.__name__, base.__qualname__
    return Adapted


def trees_of(module: nn.Module, examples: Sequence[ExampleCall]) -> Trees:
    """What of a module's arguments and results is no plain container. It is called once for each example for that.

    Raises UserError for a container that torch can't take apart, for one that forward writes to, and where examples
    give results of several structures."""
    holds = [not _is_plain((example.args, dict(example.kwargs)), "argument") for example in examples]
    specs = [pytree.tree_structure((example.args, dict(example.kwargs))) for example in examples]
    results = [found for example in examples if (found := _called(module, example)) is not None]
    given = tuple(dict.fromkeys(specs)) if any(holds) else ()
    if all(_is_plain(result, "result", scalars=False) for result in results):
        return Trees(given=given)
    shapes = [_taken_apart(result) for result in results]
    if any(shape != shapes[0] for shape in shapes):
        raise UserError("example_inputs: results of several structures; call optimize for each of them")
    return Trees(given=given, result=shapes[0][0], leaves=shapes[0][1])


def _taken_apart(result: Any) -> tuple[pytree.TreeSpec, tuple[tuple[Any, ...], ...]]:
    leaves, spec = pytree.tree_flatten(result)
    return spec, tuple((_TENSOR,) if isinstance(leaf, torch.Tensor) else ("value", leaf) for leaf in leaves)


def _called(module: nn.Module, example: ExampleCall) -> Any:
    """What forward gives; None where it can't be called so (the judge then says more). A copy of the module over the
    same tensors is called, so that what it notes in attributes stays out of the user's."""
    tensors = (*module.parameters(), *module.buffers())
    try:
        twin = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (example.args, dict(example.kwargs)))
        before = pytree.tree_flatten((args, kwargs))
        with torch.no_grad(), put_back(module):
            result = twin.forward(*args, **kwargs)
    except Exception:  # of as many kinds as code and operators have
        return None
    after = pytree.tree_flatten((args, kwargs))
    same = before[1] == after[1] and all(a is b for a, b in zip(before[0], after[0], strict=True))
    if not same:
        raise UserError(f"{type(module).__name__}.forward puts new tensors into an argument; return them in its result")
    return result


def _is_plain(value: Any, what: str, *, scalars: bool = True) -> bool:
    """Whether it is made of tensors, None and plain containers, and where `scalars`, of numbers and strings. Raises
    UserError for what torch does not take apart."""
    if isinstance(value, torch.Tensor) or value is None:
        return True
    if isinstance(value, _SCALARS):
        return scalars
    if type(value) not in pytree.SUPPORTED_NODES and not pytree.is_namedtuple_instance(value):
        if isinstance(value, torch.dtype | torch.device | slice):
            return False
        raise UserError(f"{what}: {_told(type(value))}")
    children = pytree.tree_flatten(value, is_leaf=lambda inner: inner is not value)[0]
    plain = all([_is_plain(child, what, scalars=scalars) for child in children])  # noqa: C419  each may be refused
    if type(value) is dict:
        return plain and all(type(key) is str for key in value)
    return plain and (type(value) in (tuple, list) or type(value).__module__ == "torch.return_types")


def _told(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if dataclasses.is_dataclass(kind):
        return f"a {name}, which torch can't take apart; call torch.export.register_dataclass({kind.__name__}) once"
    return f"a {name}; give tensors, numbers, strings, None, or containers that torch.utils._pytree knows"
