"""A CandidateSubject: one module under test in a cell. It constructs, takes state, is called, and keeps what it
returned."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...facts.gradients import NO_GRADIENTS, Gradients
from ..wire.calls import Called
from . import values
from .held import HeldModule
from .load import CodeRaised, blaming
from .step import Call, TrainingStep
from .timing import Seen

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


class CandidateSubject:
    """See the module's docstring. Every method that runs code under test raises CodeRaised for its faults."""

    __slots__ = ("device", "forward", "gradients", "held", "module")  # no method can be hidden in an instance

    def __init__(self, device: str) -> None:
        self.device = device
        self.module: torch.nn.Module | None = None
        self.forward: Callable[..., Any] | None = None
        self.gradients = NO_GRADIENTS  # in training: every call is then a step
        self.held = HeldModule()

    def construct(self, make: Callable[[], Any], seed: int, *, gradients: Gradients = NO_GRADIENTS) -> None:
        """Build the module; what was there before goes."""
        self.module = self.forward = None
        self.drop()
        self.gradients = gradients
        with blaming("raised", "the constructor raised"):
            module = build_on(self.device, make, seed)
        if not isinstance(module, torch.nn.Module):
            raise CodeRaised("no_entry", f"the model is a {type(module).__name__}, not an nn.Module")
        with blaming("raised", "moving the module to its device raised"):
            self.module = self.forward = module.to(self.device)

    @property
    def built(self) -> torch.nn.Module:
        if self.module is None:
            raise RuntimeError("no module was constructed")
        return self.module

    def bound(self, args_text: str, inputs: Sequence[Tensor], phase: str = "whole") -> Callable[[], Call]:
        """The module on these very tensors: each call of what is returned gives one that has nothing left to prepare,
        to be made where `grad_mode` holds."""
        if self.forward is None:
            raise RuntimeError("no module was constructed")
        if self.gradients.outputs:
            return partial(TrainingStep(self.built, self.forward, args_text, inputs, self.gradients).readied, phase)
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
            TrainingStep(self.built, self.forward, args_text, tensors, self.gradients) if tensors else None
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
        with blaming("wrong_type", "looking at what forward returned raised"):
            found = Seen.of(result)
        tree, outputs = self.held.take(tag, found, inputs)
        return Called(outputs_tree=tree, outputs=outputs, moved_input=moved)

    def drop_held(self, *, keep_first: bool = False) -> None:
        """Forget held results, or all but those under tag 0, and gradients."""
        self.held.drop(keep_first=keep_first)
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
