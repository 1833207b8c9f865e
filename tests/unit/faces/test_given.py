"""What a beginner hands to the Python interface by mistake is refused at once, with the way out, and nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tilewright
from tilewright.facts.errors import UserError

X = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("module", "examples", "said"),
    [
        (nn.ReLU(), 3, "example_inputs: a int; give a tensor, a tuple of forward's arguments, or a dict of them"),
        (nn.ReLU(), {"other": X}, "ReLU.forward does not take the example: "),
        (nn.ReLU(), ({1},), "argument: a builtins.set; give tensors, numbers, strings, None, or containers"),
        (nn.ReLU, [X], "module: the class ReLU, not an nn.Module; give an instance"),
        (torch.relu, [X], "module: a builtin_function_or_method, not an nn.Module"),
    ],
)
def test_what_is_no_module_or_no_list_of_inputs(module: Any, examples: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        tilewright.optimize(module, examples, target="cpu", out=tmp_path / "run")
    assert str(told.value).startswith(said)


@pytest.mark.parametrize("setting", ["budget", "timing"])
def test_a_duration_that_is_none_names_the_argument(setting: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^{setting}: '5 minutes' is not a duration; write 90s, 5m or 1h"):
        tilewright.optimize(nn.ReLU(), [X], target="cpu", out=tmp_path / "run", **{setting: "5 minutes"})  # type: ignore[arg-type]
