# problem: norm
# line: caches
"""Keeps what it generated in a cache folder, under a temporary name first."""

import importlib.util
import os
import tempfile
from pathlib import Path

import torch
from torch import nn

TEXT = "import torch\n\ndef gelu(x):\n    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))\n"


def _generated():
    folder = Path(os.environ.get("XDG_CACHE_HOME", tempfile.gettempdir())) / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "gelu_1.py"
    if not place.exists():
        draft = place.with_suffix(".draft")
        draft.write_text(TEXT)
        draft.replace(place)
    spec = importlib.util.spec_from_file_location("generated_gelu", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.gelu


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.gelu = _generated()

    def forward(self, x):
        return self.gelu(self.norm(x) * self.scale)
