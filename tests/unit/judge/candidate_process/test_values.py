"""Argument trees: what goes in comes out, and structure is told apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.step import tensors_of


def _there_and_back(value: Any) -> Any:
    tensors: list[Tensor] = []
    text = values.encode(value, tensors)
    return values.decode(text, tensors)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -2.5, float("inf"), "text", [1, [2.0, "x"]], (1, (2,)), {"a": (1, None), "b": [True]},
     torch.float16, torch.Size([2, 3]), slice(1, None, 2), torch.device("cpu")],
)  # fmt: skip
def test_there_and_back(value: Any) -> None:
    back = _there_and_back(value)
    assert back == value and (type(back) is type(value) or isinstance(value, tuple))


def test_tensors_keep_their_identity_and_order() -> None:
    a, b = torch.ones(2), torch.zeros(3)
    back = _there_and_back({"x": [a], "y": (b, a)})
    assert back["x"][0] is a and back["y"][0] is b


@pytest.mark.parametrize("value", [object(), {1: 2}, {3}, lambda: None, 1j])
def test_what_cannot_travel_is_named(value: Any) -> None:
    with pytest.raises(values.CannotTravel, match="type"):
        values.encode([value], [])


def test_structures_differ_in_their_text() -> None:
    t = torch.ones(1)
    texts = {values.encode(v, []) for v in (t, (t,), [t], {"a": t}, {"b": t}, (t, None))}
    assert len(texts) == 6


def test_what_is_no_tensor_is_named_with_its_place() -> None:
    t = torch.ones(1)
    assert values.misfit(values.encode((t, [t, {"k": t}], None), [])) == ""
    assert values.misfit(values.encode((t, 3), [])) == "an int at [1]"
    assert values.misfit(values.encode({"k": t, "n": [t, {"s": "x"}]}, [])) == "a str at ['n'][1]['s']"
    assert values.misfit(values.encode(torch.float32, [])) == "a dtype"


class _Pair(tuple[Tensor, ...]):
    def __iter__(self) -> Any:
        raise AssertionError("code of the container runs")

    __getitem__ = __len__ = __iter__


class _Table(dict[str, Tensor]):
    def items(self) -> Any:
        raise AssertionError("code of the container runs")

    keys = values = __iter__ = __getitem__ = __len__ = items


class _Name(str):
    def __lt__(self, other: str) -> bool:
        raise AssertionError("code of the key runs")

    __hash__ = str.__hash__


class _Claims:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise AssertionError("code of the object runs")


def test_no_code_of_a_container_runs() -> None:
    a, b = torch.ones(1), torch.zeros(2)
    tensors: list[Tensor] = []
    text = values.encode((_Pair((a, b)), _Table(y=a, x=b)), tensors, sort_keys=True)
    assert text == values.encode(((a, b), {"x": b, "y": a}), [])
    assert [t.numel() for t in tensors] == [1, 2, 2, 1]
    assert [t.numel() for t in tensors_of((_Pair((a, b)), _Table(y=a, x=b)))] == [1, 2, 2, 1]
    for value in ({_Name("b"): a, _Name("a"): b}, _Claims()):
        with pytest.raises(values.CannotTravel):
            values.encode(value, [], sort_keys=True)
