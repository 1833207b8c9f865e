"""What calls move of a module is found without running its code, and put back in the same way before each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tilewright.judge.candidate_process.load import CodeRaised
from tilewright.judge.candidate_process.moving import (
    Moving,
    hidden_tensors,
    read_attributes,
    tensor_at,
    write_attributes,
)
from tilewright.judge.reference_process.before import plain_attributes
from tilewright.judge.wire.parts import Attribute


class _Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.last = torch.ones(1)
        self.calls, self.sizes, self.made = 0, (1, [2, None]), object()


class _Outer(nn.Module):
    """Shows what it likes of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _Inner()
        self.same = self.inner
        self.shown = 0

    def state_dict(self, *args: Any, **named: Any) -> dict[str, Any]:
        self.shown += 1
        return {}


def test_tensors_and_plain_values_are_found_in_the_tree() -> None:
    module = _Outer()
    assert set(hidden_tensors(module)) == {"inner.mean", "inner.cache", "inner.last"}
    assert tensor_at(module, "inner.mean") is module.inner.mean
    assert tensor_at(module, "same.last") is module.inner.last
    assert tensor_at(module, "inner.none") is None and tensor_at(module, "a.b.c") is None
    found = plain_attributes(module)
    assert found["inner.calls"] == "0" and "inner.sizes" in found and "inner.made" not in found
    assert "training" not in found and module.shown == 0


def test_plain_values_are_put_back_with_their_types() -> None:
    module = _Outer()
    names = ("inner.calls", "inner.sizes", "inner.none")
    before = read_attributes(module, names)
    module.inner.calls, module.inner.sizes = 7, (2, [])
    write_attributes(module, before)
    assert (module.inner.calls, module.inner.sizes) == (0, (1, [2, None]))
    assert before[2] == Attribute(name="inner.none", text="") and not hasattr(module.inner, "none")


def test_each_call_finds_the_same_state_and_the_same_versions() -> None:
    module, kept = _Outer(), torch.full((3,), 5.0)
    moving = Moving(module, ("inner.mean",), (kept,))
    moving.attributes = read_attributes(module, ("inner.calls",))
    found = []
    for _ in range(4):
        before = module.inner.mean._version
        moving.put_back()
        found.append((module.inner.mean._version - before, module.inner.calls, module.inner.mean.tolist()))
        module.inner.mean += 1
        module.inner.calls += 1
        left = moving.left()
        assert left.attributes == (Attribute(name="inner.calls", text="1"),)
    assert len({str(f) for f in found}) == 1 and module.shown == 0


def test_what_a_call_left_is_kept_as_it_was_then() -> None:
    module = _Outer()
    moving = Moving(module, ("inner.mean",), (torch.zeros(3),))
    left = moving.left()
    module.inner.mean += 1
    (copy,) = left.seen.copies
    assert isinstance(copy, Tensor) and copy.tolist() == [0.0] * 3
    moving.require_whole(left)


@pytest.mark.parametrize("mean", [torch.zeros(4), None])
def test_a_buffer_of_another_shape_is_refused(mean: Tensor | None) -> None:
    module = _Outer()
    moving = Moving(module, ("inner.mean",), (torch.zeros(3),))
    module.inner.mean = mean  # type: ignore[assignment]
    with pytest.raises(CodeRaised, match=r"inner\.mean"):
        moving.require_whole(moving.left())
    with pytest.raises(CodeRaised, match=r"inner\.mean"):
        moving.put_back()
