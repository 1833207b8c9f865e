"""The module of a reference in float64: the truth, and how far gradients move with the last bits of inputs."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor

from ..candidate_process import values
from ..candidate_process.load import blaming
from ..candidate_process.moving import hidden_tensors
from ..candidate_process.state import named_state
from ..candidate_process.step import TrainingStep, tensors_of
from ..candidate_process.subject import CandidateSubject, seed_all
from . import jitter
from .widened import Widened


class Double:
    """A copy of the module that `subject` holds, made when it is needed. `moves`: whether calls of it move state."""

    def __init__(self, subject: CandidateSubject, moves: Callable[[], bool]) -> None:
        self._subject, self._moves = subject, moves
        self._module: torch.nn.Module | None = None

    def truth(
        self, args_text: str, inputs: Sequence[Tensor], seed: int, *, moved_by: jitter.Jitter | None = None,
        buffers: Sequence[str] = (), under: Sequence[AbstractContextManager[Any]] = (), again: bool = False,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Outputs of the module in float64 on the same inputs and state, or on moved ones, and then the buffers
        named, as they are afterwards; `under` these contexts, the last of which is the innermost. Raises
        CodeRaised("no_truth") where an operation has no float64, and for lack of memory. `again`: one of many runs,
        before which no garbage is looked for."""
        if not (again or under):
            self._subject.drop()
        seed_all(seed)
        wide = [t.double() if t.is_floating_point() else t.to(torch.complex128) if t.is_complex() else t.clone()
                for t in inputs]  # fmt: skip
        before = torch.get_default_dtype()
        try:
            with blaming("raised", "in float64 the module raised"), self._subject.grad_mode():
                torch.set_default_dtype(torch.float64)
                module = self._module = self._module or copy.deepcopy(self._subject.built).double()
                if moved_by:
                    wide = self._jittered(module, wide, moved_by, seed + moved_by.draw)
                with ExitStack() as stack:
                    for context in under:
                        stack.enter_context(context)
                    result = self._called(module, args_text, wide)
                del wide
        finally:
            torch.set_default_dtype(before)
            if self._subject.built.training or moved_by or self._moves():
                self._module = None  # it may have moved its buffers
        state = hidden_tensors(module) | named_state(module) if buffers else {}
        return tuple(t.detach() for t in (*tensors_of(result), *(state[name] for name in buffers)))

    def run_copy(self, args_text: str, inputs: Sequence[Tensor], seed: int) -> None:
        """Run a copy of the module in its own types, whose state nobody else sees."""
        self._subject.drop()
        seed_all(seed)
        with blaming("raised", "forward raised"), self._subject.grad_mode():
            self._called(copy.deepcopy(self._subject.built), args_text, inputs)

    def floats(self) -> tuple[torch.dtype, ...]:
        """The types of the floating parameters."""
        return tuple(p.dtype for p in self._subject.built.parameters() if p.is_floating_point())

    def _called(self, module: torch.nn.Module, args_text: str, wide: Sequence[Tensor]) -> Any:
        gradients = self._subject.gradients
        with Widened():
            if gradients.outputs:
                return TrainingStep(module, module, args_text, wide, gradients).readied("whole")()
            return values.bound(module, values.decode(args_text, wide))()

    def _jittered(self, module: torch.nn.Module, wide: Sequence[Tensor], by: jitter.Jitter, seed: int) -> list[Tensor]:
        """The inputs, moved; the module's parameters are moved where they are."""
        source = torch.Generator(device=self._subject.device).manual_seed(seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(jitter.moved(parameter, by, source))
            return [jitter.moved(t, by, source) for t in wide]

    def slack(
        self, args_text: str, inputs: Sequence[Tensor], own: Sequence[Tensor], truth: Sequence[Tensor], seed: int
    ) -> tuple[Tensor, ...]:
        """How far each gradient of a step moves with the last bits of inputs, upstream gradients and parameters: the
        larger of two draws that move them to opposite sides."""
        first = len(truth) - len(self._subject.gradients.names)
        amount = jitter.share(own[:first], truth[:first])
        found = [torch.zeros_like(t) for t in truth[first:]]
        for sign in (1.0, -1.0):
            moved = self.truth(args_text, inputs, seed, moved_by=jitter.Jitter(amount=sign * amount))[first:]
            for most, there, here in zip(found, moved, truth[first:], strict=True):
                if here.is_complex():
                    continue  # held to the contract as it is
                torch.maximum(most, torch.nan_to_num((there - here).abs()), out=most)
        return tuple(found)

    def is_whole(self) -> bool:
        """Whether rows depend on one another by what is asked for: statistics of a batch, gradients of parameters."""
        return self._moves() or bool(self._subject.gradients.outputs)

    def release(self) -> None:
        """Give its memory back, at once."""
        self.forget()
        gc.collect()

    def forget(self) -> None:
        """The module in float64 is no longer what the module is."""
        self._module = None
