"""State under other names: marks tell first contents, and both sides are moved by the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tilewright.judge.check.counterparts import moved
from tilewright.judge.reference_process.movable import Counterparts
from tilewright.judge.wire.messages import Mark


class _Named(nn.Module):
    def __init__(self, names: tuple[str, str, str]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.register_parameter(names[0], nn.Parameter(torch.randn(4, 5)))
        self.register_parameter(names[1], nn.Parameter(torch.ones(5)))
        self.register_buffer(names[2], torch.zeros(5))


def _state(module: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in module.state_dict().values()]


def test_equal_first_contents_move_alike_whatever_they_are_called() -> None:
    mine, theirs = _Named(("weight", "gain", "mean")), _Named(("kernel", "scale", "centre"))
    before = _state(mine)
    sides = Counterparts(mine), Counterparts(theirs)
    keys = moved(sides[0].marks, sides[1].marks)
    assert len(keys) == 3
    for seed in (7, 8):
        for side in sides:
            side.redraw(seed, keys)
    after, others = _state(mine), _state(theirs)
    assert all(torch.equal(a, b) for a, b in zip(after, others, strict=True))
    assert not torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])


def test_contents_and_not_only_their_sum_make_a_mark() -> None:
    class _Turned(nn.Module):
        def __init__(self, values: Tensor) -> None:
            super().__init__()
            self.w = nn.Parameter(values)

    values = torch.randn(4, 4)
    keys = {Counterparts(_Turned(v.clone())).marks[0].key for v in (values, values.T.contiguous(), values.flip(0))}
    assert len(keys) == 3


def _mark(key: str, value: float | None, elements: int, *, is_parameter: bool = True) -> Mark:
    return Mark(
        name=key, key=key, is_parameter=is_parameter, constant=value is not None, value=value or 0.0, elements=elements
    )  # fmt: skip


def test_ones_that_the_candidate_does_not_have_are_moved_all_the_same() -> None:
    reference = [_mark("gain", 1.0, 8), _mark("shift", 0.0, 8), _mark("kernel", None, 64)]
    assert moved(reference, [_mark("kernel", None, 64)]) == ("gain", "shift", "kernel")


def test_what_the_candidate_keeps_in_another_form_stays() -> None:
    reference = [_mark("gain", 1.0, 8), _mark("scale", 1.0, 8), _mark("kernel", None, 64)]
    assert moved(reference, [_mark("both", 1.0, 16), _mark("turned", None, 64)]) == ()


def test_buffers_that_are_missing_stay() -> None:
    assert moved([_mark("mean", 0.0, 8, is_parameter=False)], []) == ()
