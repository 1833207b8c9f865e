"""A Subject: one module under test in a cell. It constructs, takes state, is called, and keeps what it returned."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..memory.arena import contiguous, dtype_name, overlaps, spec_of
from ..wire.messages import NO_GRADIENTS, Called, Gradients, NamedSpec, OutputFacts
from . import values
from .bits import words
from .load import CodeRaised, blaming
from .moving import hidden_tensors, tensor_at
from .step import Call, Step
from .timing import Parts, Seen

_M_PERTURB = -6
_FILL_ONES = 0x100  # glibc fills with the complement of the low byte
_POISON = 0xFF  # all ones: NaN in every floating type, -1 in every signed one


def seed_all(seed: int) -> None:
    """Seed every generator a module may draw from."""
    # a torch without CUDA writes a stack trace down for each device that it does not have: a hundred times as long
    (torch if torch.backends.cuda.is_built() else torch.default_generator).manual_seed(seed)
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


def named_state(module: torch.nn.Module) -> dict[str, Tensor]:
    """The tensors of state_dict, in place (not detached copies), by name."""
    return {k: v for k, v in module.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}


def build_on(device: str, construct: Callable[[], Any], seed: int) -> Any:
    """Construct under the device's context, or, where that is not possible, on the CPU."""
    seed_all(seed)
    if device == "cpu":
        return construct()
    try:
        with torch.device(device):
            return construct()
    except Exception:  # some constructors mix CPU tensors in: only the second refusal counts
        seed_all(seed)
        return construct()


def handed(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Other tensors on the same memory, for the code under test: what it does to a tensor beside its values does not
    reach ours. Their version counters start anew, as those of a user's new tensors at an old address do."""
    return tuple(t.data for t in tensors)


def first_moved(given: Sequence[Tensor], inputs: Sequence[Tensor]) -> int:
    """The first of the tensors given that does not lie where it should any more, in shape or memory; -1: none."""
    pairs = enumerate(zip(given, inputs, strict=True))
    return next((i for i, (mine, ours) in pairs if _place_of(mine) != _place_of(ours)), -1)


def _place_of(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class Subject:
    """See the module's docstring. Every method that runs code under test raises CodeRaised for its faults."""

    __slots__ = (
        "_held",
        "_samples",
        "device",
        "forward",
        "gradients",
        "module",
    )  # no method can be hidden in an instance

    def __init__(self, device: str) -> None:
        self.device = device
        self.module: torch.nn.Module | None = None
        self.forward: Callable[..., Any] | None = None
        self.gradients = NO_GRADIENTS  # in training: every call is then a step
        self._held: dict[int, tuple[Tensor, ...]] = {}
        self._samples: dict[int, tuple[Parts | None, ...]] = {}

    # ---- construction and state

    def construct(
        self, make: Callable[[], Any], seed: int, *, gradients: Gradients = NO_GRADIENTS, compiled: bool = False
    ) -> None:
        self.release()
        self.gradients = gradients
        with blaming("raised", "the constructor raised"):
            module = build_on(self.device, make, seed)
        if not isinstance(module, torch.nn.Module):
            raise CodeRaised("no_entry", f"the model is a {type(module).__name__}, not an nn.Module")
        with blaming("raised", "moving the module to its device raised"):
            self.module = module.to(self.device)
        module = self.module
        self.forward = torch.compile(module) if compiled else module

    @property
    def built(self) -> torch.nn.Module:
        if self.module is None:
            raise RuntimeError("no module was constructed")
        return self.module

    def state_specs(self) -> tuple[NamedSpec, ...]:
        with blaming("raised", "state_dict() raised"):
            return tuple(NamedSpec(name=k, spec=spec_of(v)) for k, v in named_state(self.built).items())

    def hidden_specs(self) -> tuple[NamedSpec, ...]:
        """Of buffers and tensor attributes that the state does not hold."""
        with blaming("raised", "state_dict() raised"):
            state = named_state(self.built)
        hidden = hidden_tensors(self.built)
        return tuple(NamedSpec(name=k, spec=spec_of(v), hidden=True) for k, v in hidden.items() if k not in state)

    def _places(self, names: Sequence[str]) -> list[Tensor]:
        """The state of these names, where it lies."""
        state = named_state(self.built)
        found = [state[n] if n in state else tensor_at(self.built, n) for n in names]
        if any(t is None for t in found):
            raise CodeRaised("wrong_state", f"it has no {names[[t is None for t in found].index(True)][:80]} any more")
        return [t for t in found if t is not None]

    def read_state(self, names: Sequence[str]) -> tuple[Tensor, ...]:
        return tuple(t.detach() for t in self._places(names))

    def write_state(self, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        """Copy into the parameters and buffers where they are; nothing is constructed again."""
        with blaming("raised", "loading the state raised"), torch.no_grad():
            for place, tensor in zip(self._places(names), tensors, strict=True):
                place.copy_(tensor)

    def changed_state(self, names: Sequence[str], tensors: Sequence[Tensor]) -> tuple[str, ...]:
        """The names of what is not, bit by bit, what was written to it."""
        found = []
        for name, mine, theirs in zip(names, self.read_state(names), tensors, strict=True):
            if mine.shape != theirs.shape or not torch.equal(words(mine.to(theirs.dtype)), words(theirs)):
                found.append(name)
        return tuple(found)

    # ---- calling

    def bound(self, args_text: str, inputs: Sequence[Tensor], phase: str = "whole") -> Callable[[], Call]:
        """The module on these very tensors: each call of what is returned gives one that has nothing left to prepare,
        to be made where `grad_mode` holds."""
        if self.forward is None:
            raise RuntimeError("no module was constructed")
        if self.gradients.outputs:
            return partial(Step(self.built, self.forward, args_text, inputs, self.gradients).readied, phase)
        call = values.bound(self.forward, values.decode(args_text, inputs))
        return lambda: call

    def grad_mode(self) -> contextlib.AbstractContextManager[Any]:
        return torch.enable_grad() if self.gradients.outputs else torch.no_grad()

    def run(self, args_text: str, inputs: Sequence[Tensor]) -> Any:
        """One call: without gradients, or a step."""
        with self.grad_mode():
            return self.bound(args_text, inputs)()()

    def _run_on(
        self, args_text: str, given: Sequence[Tensor], between: Sequence[Tensor], *, unlike: bool
    ) -> tuple[Any, Sequence[Tensor]]:
        """One call, a step as `wire.Call` says where it is `unlike`; and the tensors that forward was called on."""
        if not self.gradients.outputs or self.forward is None:
            return self.run(args_text, given), given
        step, other = (
            Step(self.built, self.forward, args_text, tensors, self.gradients) if tensors else None
            for tensors in (given, between)
        )
        assert step is not None
        if unlike:
            step.disturb(other.forward if other is not None else None)
        step.clear()
        with self.grad_mode():
            return step(), step.leaves

    def call(
        self, tag: int, args_text: str, inputs: Sequence[Tensor], *, seed: int, between: Sequence[Tensor] = (),
        unlike: bool = False,
    ) -> Called:  # fmt: skip
        """Call once and hold the result under `tag`."""
        seed_all(seed)
        given = handed(inputs)
        with blaming("raised", "forward raised"):
            result, seen = self._run_on(args_text, given, handed(between), unlike=unlike)
            if self.device == "cuda":
                torch.cuda.synchronize()
        moved = first_moved(seen, inputs[: len(seen)])
        tree, outputs = self.hold(tag, result, inputs)
        return Called(outputs_tree=tree, outputs=outputs, moved_input=moved)

    def hold(self, tag: int, result: Any, inputs: Sequence[Tensor]) -> tuple[str, tuple[OutputFacts, ...]]:
        with blaming("wrong_type", "looking at what forward returned raised"):
            seen = Seen.of(result)
        return self.hold_seen(tag, seen, inputs)

    def hold_seen(self, tag: int, seen: Seen, inputs: Sequence[Tensor]) -> tuple[str, tuple[OutputFacts, ...]]:
        """Hold what was seen of a result, by its copies where there are any."""
        if seen.lack:
            raise CodeRaised("wrong_type", f"forward returned {seen.lack}")
        tree = values.text_of(seen.tree)
        if other := values.misfit(tree):
            raise CodeRaised("wrong_type", f"forward returned {other}, which is not a tensor")
        with blaming("wrong_type", "looking at an output raised"):
            facts = facts_of(seen.tensors, seen.kinds, inputs)
        pairs = list(zip(seen.tensors, seen.copies or (None,) * len(seen.tensors), strict=True))
        self._held[tag] = tuple(copy if isinstance(copy, Tensor) else mine for mine, copy in pairs)
        self._samples[tag] = tuple(copy if isinstance(copy, Parts) else None for _, copy in pairs)
        return tree, facts

    def samples(self, tag: int) -> tuple[Parts | None, ...]:
        """What stands for parts of what is held under the tag."""
        return self._samples.get(tag, (None,) * len(self._held[tag]))

    def held(self, tag: int) -> tuple[Tensor, ...]:
        return tuple(t.detach() for t in self._held[tag])

    def drop_held(self, *, keep_first: bool = False) -> None:
        self._held = {0: self._held[0]} if keep_first and 0 in self._held else {}
        self._samples = {}
        if self.module is not None and self.gradients.outputs:
            for parameter in self.module.parameters():
                parameter.grad = None

    def drop(self) -> None:
        """Forget held results and give cached device memory back."""
        self.drop_held()
        self.give_memory_back()

    def give_memory_back(self) -> None:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def release(self) -> None:
        self.module = None
        self.forward = None
        self.gradients = NO_GRADIENTS
        self.drop()


def facts_of(tensors: Sequence[Tensor], kinds: Sequence[str], inputs: Sequence[Tensor]) -> tuple[OutputFacts, ...]:
    """What the judge must know of results, read without touching their data; `kinds`: what they were when seen."""
    facts = [_output_facts(t, k, inputs) for t, k in zip(tensors, kinds, strict=True)]
    dense = [f.type_name == values.PLAIN and _is_dense(t) for f, t in zip(facts, tensors, strict=True)]
    for i, later in enumerate(tensors):
        for k in range(i):
            if dense[i] and dense[k] and _overlap(tensors[k], later):
                facts[i] = replace(facts[i], aliases_output=k)
    return tuple(facts)


def _is_dense(tensor: Tensor) -> bool:
    """Whether every byte that it spans is its own: where two such overlap, they share elements. Of others (columns of
    one buffer, say) it is not known."""
    first, last = _reach(tensor)
    return tensor.numel() > 0 and last + 1 - first == tensor.numel() * tensor.element_size()


def _output_facts(tensor: Tensor, kind: str, inputs: Sequence[Tensor]) -> OutputFacts:
    aliases = -1
    if kind == values.PLAIN:
        aliases = next((i for i, t in enumerate(inputs) if _overlap(tensor, t)), -1)
        return OutputFacts(
            spec=spec_of(tensor), type_name=kind, device=tensor.device.type, aliases_input=aliases,
            overlaps=overlaps(tensor),
        )  # fmt: skip
    spec = contiguous(tuple(tensor.shape), dtype_name(tensor.dtype))
    return OutputFacts(spec=spec, type_name=kind, device=tensor.device.type, aliases_input=aliases)


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether the memory that two tensors reach overlaps (arena inputs share one storage, so storages tell nothing)."""
    if a.numel() == 0 or b.numel() == 0 or a.device != b.device:
        return False
    first, last = _reach(a)
    low, high = _reach(b)
    return first <= high and low <= last


def _reach(t: Tensor) -> tuple[int, int]:
    start = t.data_ptr()
    elements = sum((e - 1) * s for e, s in zip(t.shape, t.stride(), strict=True))
    return start, start + elements * t.element_size() + t.element_size() - 1


@contextlib.contextmanager
def poisoned(device: str, sizes: Sequence[int]) -> Iterator[None]:
    """Make memory that is allocated in the block, and not written, read as NaN: freed blocks of the given sizes are
    filled on a GPU; on the CPU glibc fills every block it hands out."""
    if device == "cuda":
        blocks = [torch.empty(s, dtype=torch.uint8, device=device).fill_(_POISON) for s in sizes if s]
        del blocks
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_PERTURB, _FILL_ONES)
    try:
        yield
    finally:
        libc.mallopt(_M_PERTURB, 0)


def require_tensors(result: Any) -> None:
    """Raise CodeRaised("bad_module") where what a module returned is not tensors, and what may hold them, alone."""
    wanted = "and only those can be judged; return tensors or None, or tuples, lists or dicts of them"
    tensors: list[Tensor] = []
    try:
        tree = values.encode(result, tensors, sort_keys=True)
    except values.CannotTravel as error:
        raise CodeRaised("bad_module", f"forward returns {error}, {wanted}") from error
    if other := values.misfit(tree):
        raise CodeRaised("bad_module", f"forward returns {other}, which is not a tensor, {wanted}")
    if not tensors:
        raise CodeRaised("bad_module", "forward returns no tensor")
