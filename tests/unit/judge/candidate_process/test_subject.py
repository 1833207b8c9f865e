"""What a cell says of results before they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.held import facts_of
from tilewright.judge.candidate_process.state import changed_state, write_state
from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.candidate_process.values import kind_of
from tilewright.judge.wire.messages import NO_GRADIENTS, Called, Gradients


def _shared(*tensors: Tensor) -> list[int]:
    return [f.aliases_output for f in facts_of(tensors, tuple(map(kind_of, tensors)), ())]


def test_an_output_that_shares_elements_with_an_earlier_one_is_known() -> None:
    x = torch.ones(4, 6)
    assert _shared(x, torch.ones(4, 6), x) == [-1, -1, 0]
    assert _shared(x[:3], x[2:], x.T) == [-1, 0, 1]


def test_parts_of_one_buffer_are_outputs_of_their_own() -> None:
    x = torch.ones(4, 6)
    assert _shared(x[:2], x[2:]) == [-1, -1]
    assert _shared(x[:, :3], x[:, 3:], x[:, ::2]) == [-1, -1, -1], "not dense: nothing is known of them"
    assert _shared(x[:0], x[:0]) == [-1, -1]


class _Odd(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.act: Callable[[Tensor], object] = id

    def forward(self, x: Tensor) -> Tensor:
        self.act(x)
        return x * self.weight


def _called(act: Callable[[Tensor], object], inputs: Sequence[Tensor], gradients: Gradients = NO_GRADIENTS) -> Called:
    subject = CandidateSubject("cpu")
    subject.construct(_Odd, 1, gradients=gradients)
    assert isinstance(subject.module, _Odd)
    subject.module.act = act
    return subject.call(0, values.encode([inputs[0]], []), inputs, seed=1)


def _turn(x: Tensor) -> None:
    x.t_()
    x.t_()
    x.unsqueeze_(0)


def _elsewhere(x: Tensor) -> None:
    x.data = x.data.clone()


def test_an_input_that_gets_another_shape_or_other_memory_is_seen_and_ours_stays() -> None:
    x = torch.rand(3, 4)
    step = (x, torch.ones(3, 4))
    learned = Gradients(outputs=(0,), inputs=(0,), parameters=("weight",))
    assert _called(id, (x,)).moved_input == _called(id, step, learned).moved_input == -1
    assert _called(_turn, (x,)).moved_input == _called(_elsewhere, (x,)).moved_input == 0
    assert _called(_elsewhere, step, learned).moved_input == 0
    assert x.shape == (3, 4)


def test_every_call_sees_new_tensors_at_the_old_address() -> None:
    seen: list[tuple[int, int]] = []
    x = torch.rand(3, 4)
    for _ in range(2):
        _called(lambda given: seen.append((given.data_ptr(), given._version)), (x,))
        x.add_(1.0)
    assert seen == [(x.data_ptr(), 0)] * 2


def test_state_that_is_not_what_was_written_is_named() -> None:
    subject = CandidateSubject("cpu")
    subject.construct(_Odd, 1)
    written = torch.tensor([1.0, float("nan"), -0.0, 2.0])
    write_state(subject.built, ("weight",), (written,))
    assert changed_state(subject.built, ("weight",), (written,)) == ()
    write_state(subject.built, ("weight",), (written.abs(),))
    assert changed_state(subject.built, ("weight",), (written,)) == ("weight",), "zeros have signs"
