"""Containers of classes that a module takes and gives, and tensors among its arguments that forward writes in place.

Processes that judge exchange tensors in tuples, lists and dicts alone, and run no code of such a class. So a module
with other containers is judged in a form that takes and gives the tensors in them, `adapted`; what a user gets takes
and gives the containers again. A cache that forward writes to is a buffer of the form that is judged: it is given and
compared as all state is. What a user gets has the caller's own tensors in the place of these buffers.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from ..facts.errors import UserError
from ..judge.candidate_process.load import last_line
from ..kernels.survey import WRITTEN
from .examples import ExampleCall
from .recorded import put_back
from .structures import ArgumentTree, KnownObjects, Layout, is_object, layout, spec_of, taken_apart

_SCALARS = (int, float, bool, str, type(None))
_TENSOR, _WRITTEN, _ARGUMENT = "tensor", "written", "argument"  # in `Trees.leaves`
Key = int | str  # an argument's position or name


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor among the leaves of the arguments that forward writes to, and the buffer that stands for it. Buffers of
    the same number, type, shape and strides are one."""

    leaf: int
    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(leaf: int, number: int, tensor: torch.Tensor) -> WrittenTensor:
        shape, stride, dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
        look = "_".join(map(str, (*shape, "by", *stride)))
        name = f"{WRITTEN}{number}_{str(dtype).removeprefix('torch.')}_{look}"
        return WrittenTensor(leaf, name, shape, stride, dtype)

    def fits(self, leaf: Any) -> bool:
        alike = isinstance(leaf, torch.Tensor) and leaf.shape == self.shape and leaf.dtype is self.dtype
        return alike and leaf.stride() == self.stride


@dataclass(frozen=True, slots=True)
class CallTree:
    """The structure of (args, kwargs) of some calls, and what these write to."""

    structure: ArgumentTree
    written: tuple[WrittenTensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """One call: the arguments of the adapted forward, the tensors that it writes to, by the buffers' names, and the
    arguments as they came."""

    leaves: tuple[Any, ...]
    written: Mapping[str, torch.Tensor]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """`given`: what examples' arguments are like, each once; (): arguments are plain, and stay as they are. `result`:
    the structure of what forward gives; None: plain. `leaves` are the result's: ("tensor",), ("value", its value),
    ("written", the number of a tensor that forward writes to), or ("argument", position or name of the whole).
    `autocast`: the dtype under which calls run, as they were when the module was given; "": none."""

    given: tuple[CallTree, ...] = ()
    result: pytree.TreeSpec | None = None
    leaves: tuple[tuple[Any, ...], ...] = ()
    autocast: str = ""

    @property
    def plain(self) -> bool:
        return not self.given and self.result is None and not self.autocast

    @property
    def writes(self) -> bool:
        return any(given.written for given in self.given)

    def flat(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], known: KnownObjects | None = None
    ) -> Flat | None:  # fmt: skip
        """None where the arguments have a structure that no example has. `known`: objects of earlier calls."""
        leaves, structure = taken_apart((args, dict(kwargs)), known=known)
        for number, given in enumerate(self.given):
            if given.structure == structure and all(w.fits(leaves[w.leaf]) for w in given.written):
                places = {w.leaf for w in given.written}
                rest = [leaf for i, leaf in enumerate(leaves) if i not in places]
                return Flat(
                    leaves=(number, *rest) if len(self.given) > 1 else tuple(rest),
                    written={w.name: leaves[w.leaf] for w in given.written}, args=args, kwargs=kwargs,
                )  # fmt: skip
        return None

    def whole(self, tensors: Sequence[Any], flat: Flat | None) -> Any:
        """What forward gives on this call, of the tensors that the adapted one does."""
        if self.result is None:
            return tensors
        found = iter(tensors)
        written = list(flat.written.values()) if flat is not None else []
        leaves: list[Any] = []
        for leaf in self.leaves:
            match leaf:
                case (kind,) if kind == _TENSOR:
                    leaves.append(next(found))
                case (kind, number) if kind == _WRITTEN:
                    leaves.append(written[number])
                case (kind, key) if kind == _ARGUMENT:
                    assert flat is not None
                    leaves.append(flat.args[key] if isinstance(key, int) else flat.kwargs[key])
                case _:
                    leaves.append(leaf[1])
        return pytree.tree_unflatten(leaves, self.result)

    def known_objects(self) -> KnownObjects:
        """For the calls of one class of modules."""
        return KnownObjects([found for given in self.given for found in given.structure.objects if found])

    def kinds(self) -> list[type]:
        """The classes of its containers."""
        found = [kind for given in self.given for kind in given.structure.kinds()]
        found += ArgumentTree(self.result, ((),) * self.result.num_leaves).kinds() if self.result is not None else []
        return list(dict.fromkeys(found))

    def layouts(self) -> tuple[tuple[Layout, tuple[tuple[int, str], ...]], ...]:
        """What `adapted` is told of `given`, in plain values."""
        return tuple((g.structure.layout(), tuple((w.leaf, w.name) for w in g.written)) for g in self.given)

    def __reduce__(self) -> tuple[Any, ...]:  # torch's own specs of leaves warn when they are read
        result = None if self.result is None else layout(self.result)
        return _of_layouts, (self.given, result, self.leaves, self.autocast)


def _of_layouts(
    given: tuple[CallTree, ...], result: Layout | None, leaves: tuple[tuple[Any, ...], ...], autocast: str
) -> Trees:  # fmt: skip
    found = None if result is None else spec_of(result)
    return Trees(given=given, result=found, leaves=leaves, autocast=autocast)


PLAIN = Trees()


def adapted(base: Any, given: Any, opens: bool, autocast: str = "") -> Any:
    """`base` whose forward takes the leaves of one of the layouts `given` (after its number, where there are several;
    without any: what it takes) but for those that it writes to, which are its buffers, and which, if it `opens` them,
    gives a tuple of the other tensors in its results. It runs under `autocast` to this dtype; "": as it is called."""
    import functools

    import torch
    import torch.utils._pytree as pytree

    def made(layout: Any, leaves: Any) -> Any:
        if not layout:
            return next(leaves)
        if layout[0] == "object":
            _, kind, rest, inner = layout
            value = object.__new__(kind)
            value.__dict__.update(rest)
            value.__dict__.update(made(inner, leaves))
            return value
        kind, context, inner = layout
        return pytree.SUPPORTED_NODES[kind].unflatten_fn([made(item, leaves) for item in inner], context)

    class Adapted(base):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            written: list[Any] = []
            if given:
                number, leaves = (args[0], args[1:]) if len(given) > 1 else (0, args)
                layout, places = given[number]
                names, rest = dict(places), iter(leaves)
                written = [self._tilewright_written(name) for _, name in places]
                held, count = dict(zip(names, written, strict=True)), len(leaves) + len(written)
                args, kwargs = made(layout, iter([held[i] if i in held else next(rest) for i in range(count)]))
            if autocast:
                own = (*pytree.tree_leaves((args, kwargs)), *self.parameters())
                device = next(t.device.type for t in own if isinstance(t, torch.Tensor))
                with torch.autocast(device, dtype=getattr(torch, autocast)):
                    result = base.forward(self, *args, **kwargs)
            else:
                result = base.forward(self, *args, **kwargs)
            if not opens:
                return result
            tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
            return tuple(t for t in tensors if not any(t is w for w in written))

        def _tilewright_written(self, name: str) -> Any:
            return self._buffers[name]

    if not given:
        functools.update_wrapper(Adapted.forward, base.forward)
    Adapted.__name__, Adapted.__qualname__ = base.__name__, base.__qualname__
    return Adapted


def trees_of(module: nn.Module, examples: Sequence[ExampleCall]) -> Trees:
    """What of a module's arguments and results is no plain container, and what it writes to. It is called once for each
    example for that.

    Raises UserError for a container that torch can't take apart, for one into which forward puts something, and where
    examples give results of several structures."""
    holds = [not _is_plain((example.args, dict(example.kwargs)), "argument") for example in examples]
    calls = [_Called.of(module, example) for example in examples]
    opened = any(holds) or any(call.given.written for call in calls)
    kinds = [call.given for call in calls] if opened else []
    given = tuple(kind for i, kind in enumerate(kinds) if kind not in kinds[:i])
    results = [call for call in calls if call.leaves is not None]
    autocast = _autocast(module, examples)
    if not any(g.written for g in given) and all(call.plain for call in results):
        return Trees(given=given, autocast=autocast)
    if any((call.spec, call.leaves) != (results[0].spec, results[0].leaves) for call in results):
        raise UserError("example_inputs: results of several structures; call optimize for each of them")
    return Trees(given=given, result=results[0].spec, leaves=results[0].leaves or (), autocast=autocast)


def _autocast(module: nn.Module, examples: Sequence[ExampleCall]) -> str:
    """The dtype of the autocast that is on for the module's device; "": none is."""
    own = (*pytree.tree_leaves((examples[0].args, dict(examples[0].kwargs))), *module.parameters())
    device = next((t.device.type for t in own if isinstance(t, torch.Tensor)), "cpu")
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return ""
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Called:
    """One example: its arguments, and what forward gives (`leaves` as in Trees), None where it can't be called so."""

    given: CallTree
    spec: pytree.TreeSpec | None = None
    leaves: tuple[tuple[Any, ...], ...] | None = None
    plain: bool = True

    @staticmethod
    def of(module: nn.Module, example: ExampleCall) -> _Called:
        leaves, structure = taken_apart((example.args, dict(example.kwargs)))
        mine = [_copied(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = structure.whole(mine)
        before = [leaf._version if isinstance(leaf, torch.Tensor) else 0 for leaf in mine]
        result = _result(module, args, kwargs)
        if isinstance(result, _Failed):
            if structure.objects != ((),) * len(leaves):  # a cache that is full, perhaps
                told = f"{type(module).__name__}.forward does not take the example: {result.why}"
                raise UserError(f"example_inputs: {told}")
            return _Called(given=CallTree(structure))
        after, now = taken_apart((args, kwargs))
        if now != structure or any(a is not b for a, b in zip(mine, after, strict=True)):
            raise UserError(
                f"{type(module).__name__}.forward puts new tensors into an argument; return them in its result, or "
                "give a cache that has its memory before the call"
            )
        moved = [i for i, leaf in enumerate(mine) if isinstance(leaf, torch.Tensor) and leaf._version != before[i]]
        given = CallTree(structure, tuple(WrittenTensor.of(i, n, leaves[i]) for n, i in enumerate(moved)))
        plain = _is_plain(result, "result", scalars=False, known=(args, kwargs))
        spec, found = _opened(result, args, kwargs, [mine[i] for i in moved])
        return _Called(given=given, spec=spec, leaves=found, plain=plain)


@dataclass(frozen=True, slots=True)
class _Failed:
    why: str


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory of their own, laid out alike."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _result(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What forward gives; _Failed where it can't be called so (the judge then says more). A copy of the module over the
    same tensors is called, so that what it notes in attributes stays out of the user's."""
    tensors = (*module.parameters(), *module.buffers())
    try:
        twin = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
        with torch.no_grad(), put_back(module):
            return twin.forward(*args, **kwargs)
    except Exception as error:  # of as many kinds as code and operators have
        return _Failed(f"{type(error).__name__}: {last_line(error)}"[:300])


def _opened(
    result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], written: Sequence[torch.Tensor]
) -> tuple[pytree.TreeSpec, tuple[tuple[Any, ...], ...]]:
    """The structure of a result, and its leaves. An object that came as an argument is one leaf."""
    named: list[tuple[Key, Any]] = [*enumerate(args), *kwargs.items()]
    keys = {id(value): key for key, value in named if is_object(value)}
    leaves, spec = pytree.tree_flatten(result, is_leaf=lambda value: id(value) in keys)
    numbers = {id(tensor): number for number, tensor in enumerate(written)}
    found: list[tuple[Any, ...]] = []
    for leaf in leaves:
        if id(leaf) in keys:
            found.append((_ARGUMENT, keys[id(leaf)]))
        elif id(leaf) in numbers:
            found.append((_WRITTEN, numbers[id(leaf)]))
        else:
            found.append((_TENSOR,) if isinstance(leaf, torch.Tensor) else ("value", leaf))
    return spec, tuple(found)


def _is_plain(value: Any, what: str, *, scalars: bool = True, known: Any = None) -> bool:
    """Whether it is made of tensors, None and plain containers, and where `scalars`, of numbers and strings. Raises
    UserError for what torch does not take apart, but for objects that hold tensors: `known` (args, kwargs) where only
    those are taken that stand there."""
    if isinstance(value, torch.Tensor) or value is None:
        return True
    if isinstance(value, _SCALARS):
        return scalars
    if type(value) not in pytree.SUPPORTED_NODES and not pytree.is_namedtuple_instance(value):
        if isinstance(value, torch.dtype | torch.device | slice):
            return False
        taken = known is None or any(value is argument for argument in (*known[0], *known[1].values()))
        if taken and is_object(value):
            return False
        raise UserError(f"{what}: {_told(type(value))}")
    children = pytree.tree_flatten(value, is_leaf=lambda inner: inner is not value)[0]
    plain = all([_is_plain(child, what, scalars=scalars, known=known) for child in children])  # noqa: C419  each may be refused
    if type(value) is dict:
        return plain and all(type(key) is str for key in value)
    return plain and (type(value) in (tuple, list) or type(value).__module__ == "torch.return_types")


def _told(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if dataclasses.is_dataclass(kind):
        return f"a {name}, which torch can't take apart; call torch.export.register_dataclass({kind.__name__}) once"
    return f"a {name}; give tensors, numbers, strings, None, or containers that torch.utils._pytree knows"
