"""Calls of other packages on a GPU, where they are installed: what is found of a module gives what the module gives,
against float64."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fakes.libraries import scope_of, values_of
from fakes.modules import Applies
from tilewright.edges.gpu.machine import machine as measured_machine
from tilewright.facts.devices import device_of
from tilewright.frontend.trace import trace
from tilewright.realise.library.table import found

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ROWS, WIDE = 512, 1024


class Convolved(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 128, 3, padding=1, **how)
        self.near = nn.Conv2d(64, 128, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x) + self.near(x))


MODULES = {
    "rms_norm": nn.RMSNorm(WIDE, eps=1e-6),
    "layer_norm": nn.LayerNorm(WIDE),
    "softmax": Applies(lambda x: torch.softmax(x, -1)),
    "swiglu": Applies(lambda x: F.silu(x) * (x * 2)),
    "cross_entropy": Applies(lambda x: F.cross_entropy(x, (x[:, 0] * 8).long().remainder(WIDE))),
    "convolution": Convolved(),
}
PACKAGES = {"quack-kernels": "quack-kernels", "liger-kernel": "liger-kernel", "API": "nvidia-cudnn-frontend"}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
OFFERED = [
    *(("quack-kernels", name) for name in ("rms_norm", "layer_norm", "softmax", "cross_entropy")),
    *(("liger-kernel", name) for name in ("rms_norm", "layer_norm", "softmax", "swiglu", "cross_entropy")),
    ("API", "convolution"),
]


@pytest.mark.parametrize(("library", "name"), OFFERED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_call_gives_what_the_module_gives(library: str, name: str, dtype: torch.dtype, tmp_path: Any) -> None:
    package = PACKAGES[library]
    try:
        version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    device = device_of(measured_machine("cuda", cache_dir=tmp_path))
    torch.manual_seed(0)
    module = MODULES[name].cuda().to(dtype).eval()
    shape = (4, 64, 30, 28) if name == "convolution" else (ROWS, WIDE)
    x = torch.randn(shape, device="cuda").to(dtype)
    graph = trace(module, (x,), {})
    choices = [
        c for c in found(graph, device).recipe if c.written is not None and c.written.title.endswith(library)
    ]  # fmt: skip
    if package == "quack-kernels" and name == "layer_norm" and dtype != torch.float32:
        assert choices == []
        return
    (choice,) = choices
    assert choice.written is not None
    scope = scope_of(choice)
    (region,) = choice.written.regions
    with torch.no_grad():
        values = values_of(graph, (x,), target="cuda", module=module)
        given = [values[node] for node in region.inputs]
        wanted = module.double()(x.double()) if name != "cross_entropy" else module(x).double()
        module.to(dtype)
        made = scope["ModelNew"]()(*given)
    loose = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 4e-3 if name == "convolution" else 1e-4}[dtype]
    torch.testing.assert_close(made.double(), wanted, rtol=loose, atol=loose)
    assert made.dtype == dtype
