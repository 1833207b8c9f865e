"""A function as a module, for what takes modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Applies(nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)
