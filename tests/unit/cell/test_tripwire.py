"""What was replaced under the cell is found."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tilewright.cell.load import CodeRaised
from tilewright.cell.session import Session
from tilewright.cell.tripwire import Tripwire


@pytest.fixture
def registered() -> Callable[[str, str], torch.library.Library]:
    def register(operator: str, key: str) -> torch.library.Library:
        def other(place: Tensor, *rest: object) -> Tensor:
            return place

        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl(operator, other, key)
        return library

    return register


def test_another_copy_in_torchs_dispatcher_is_found_and_another_gelu_is_nobodys_business(
    registered: Callable[[str, str], torch.library.Library],
) -> None:
    wire = Tripwire(Session("cpu"))
    wire.check()
    kept = registered("gelu", "CPU")
    try:
        wire.check()
    finally:
        kept._destroy()
    for operator in ("copy_", "clone"):
        library = registered(operator, "CPU")
        try:
            with pytest.raises(CodeRaised, match=f"aten::{operator}") as caught:
                wire.check()
        finally:
            library._destroy()
        assert caught.value.reason == "tampering"
    wire.check()
