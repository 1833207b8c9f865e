"""The state of a module: parameters, buffers and tensor attributes, by name, where they lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..memory.mapped import dtype_name, spec_of
from ..wire import calls as wire
from ..wire.parts import Mark, NamedSpec
from .arenas import MappedArenas
from .bits import fingerprint, words
from .load import CodeRaised, blaming
from .moving import hidden_tensors, read_attributes, tensor_at, write_attributes
from .subject import CandidateSubject


def named_state(module: torch.nn.Module) -> dict[str, Tensor]:
    """The tensors of state_dict, in place (not detached copies), by name."""
    return {k: v for k, v in module.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}


def state_specs(module: torch.nn.Module) -> tuple[NamedSpec, ...]:
    with blaming("raised", "state_dict() raised"):
        return tuple(NamedSpec(name=k, spec=spec_of(v)) for k, v in named_state(module).items())


def hidden_specs(module: torch.nn.Module) -> tuple[NamedSpec, ...]:
    """Of buffers and tensor attributes that the state does not hold."""
    with blaming("raised", "state_dict() raised"):
        state = named_state(module)
    hidden = hidden_tensors(module)
    return tuple(NamedSpec(name=k, spec=spec_of(v), hidden=True) for k, v in hidden.items() if k not in state)


def _places(module: torch.nn.Module, names: Sequence[str]) -> list[Tensor]:
    """The state of these names, where it lies."""
    state = named_state(module)
    found = [state[n] if n in state else tensor_at(module, n) for n in names]
    if any(t is None for t in found):
        raise CodeRaised("wrong_state", f"it has no {names[[t is None for t in found].index(True)][:80]} any more")
    return [t for t in found if t is not None]


def read_state(module: torch.nn.Module, names: Sequence[str]) -> tuple[Tensor, ...]:
    return tuple(t.detach() for t in _places(module, names))


def write_state(module: torch.nn.Module, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Copy into the parameters and buffers where they are; nothing is constructed again."""
    with blaming("raised", "loading the state raised"), torch.no_grad():
        for place, tensor in zip(_places(module, names), tensors, strict=True):
            place.copy_(tensor)


def changed_state(module: torch.nn.Module, names: Sequence[str], tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """The names of what is not, bit by bit, what was written to it."""
    with blaming("raised", "state_dict() raised"):
        return tuple(
            name
            for name, mine, theirs in zip(names, read_state(module, names), tensors, strict=True)
            if mine.shape != theirs.shape or not torch.equal(words(mine.to(theirs.dtype)), words(theirs))
        )


def marks_of(module: torch.nn.Module) -> tuple[Mark, ...]:
    """What each tensor of the state is now. Two modules constructed under one seed begin with the same values: a tensor
    of the one finds its counterpart in the other by its mark."""
    parameters = {n for n, _ in module.named_parameters(remove_duplicate=False)}
    return tuple(_mark(n, t.detach(), is_parameter=n in parameters) for n, t in named_state(module).items())


def _mark(name: str, tensor: Tensor, *, is_parameter: bool) -> Mark:
    kind = "parameter" if is_parameter else "buffer"
    key = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}:{kind}:{fingerprint(tensor)}"
    flat = tensor.reshape(-1)
    constant = tensor.is_floating_point() and flat.numel() > 1 and bool((flat == flat[0]).all())
    value = float(flat[0]) if constant else 0.0
    return Mark(
        name=name, key=key, is_parameter=is_parameter, constant=constant, value=value, elements=tensor.numel()
    )  # fmt: skip


class MovingState:
    """Answers the requests about the state of one subject."""

    __slots__ = ("_arenas", "_subject")  # no method can be hidden in an instance

    def __init__(self, subject: CandidateSubject, arenas: MappedArenas) -> None:
        self._subject = subject
        self._arenas = arenas

    def store(self, request: wire.StoreState) -> None:
        self._arenas.write(request.refs, read_state(self._subject.built, request.names))

    def load(self, request: wire.LoadState) -> None:
        write_state(self._subject.built, request.names, self._arenas.read(request.refs))
        write_attributes(self._subject.built, request.attributes)

    def compare(self, request: wire.CompareState) -> wire.ComparedState:
        found = changed_state(self._subject.built, request.names, self._arenas.read(request.refs))
        return wire.ComparedState(changed=found)

    def read_attributes(self, request: wire.ReadAttributes) -> wire.Attributes:
        return wire.Attributes(values=read_attributes(self._subject.built, request.names))

    def mark(self, request: wire.MarkState) -> wire.Marked:
        with blaming("raised", "state_dict() raised"):
            return wire.Marked(marks=marks_of(self._subject.built))
