"""An exported package on a GPU, where neither Tilewright nor the DSL can be imported: the values are the original's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fakes.composed import all_of, case
from fakes.realisers import H200, cuda
from tilewright.fusion import match_all
from tilewright.realise.compose import compose
from tilewright.run.export import export

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SOURCE = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n=256):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(n, dtype=torch.bfloat16), nn.Linear(n, 4 * n, dtype=torch.bfloat16)
        self.scale = nn.Parameter(torch.rand(n, dtype=torch.bfloat16))

    def forward(self, x):
        y = torch.nn.functional.gelu(self.linear(self.norm(x * self.scale)))
        return y, torch.softmax(y.float(), -1)


def get_init_inputs():
    return []
"""
ALONE = """
import copy, sys
class Never:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tilewright", "cutlass"):
            raise ImportError(name)
sys.meta_path.insert(0, Never())
import torch
import fast
from fast import original
torch.manual_seed(0)
reference = original.Model().cuda().eval()
module = fast.load(reference)
x = torch.randn(512, 256, dtype=torch.bfloat16, device="cuda")

def near(found, given):
    for one, other in zip(found, reference(given), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)

with torch.no_grad():
    for each in (module, copy.deepcopy(module), torch.compile(module, fullgraph=True, backend="aot_eager")):
        near(each(x), x)
    slanted = torch.randn(256, 512, dtype=torch.bfloat16, device="cuda").t()
    near(module(slanted), slanted)
    shifted = torch.randn(512 * 256 + 1, dtype=torch.bfloat16, device="cuda")[1:].view(512, 256)
    near(module(shifted), shifted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = module(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    near(made, x)
    program = torch.export.export(module, (x,))
    assert any(str(n.target).startswith("fast.") for n in program.graph.nodes)
    near(program.module()(x), x)
    assert fast.fallbacks() == {}, fast.fallbacks()
    few = x[:3]
    near(module(few), few)  # by the kernels where they take so few rows, else counted
print(torch.cuda.get_device_name(), len(sys.modules))
"""


def test_a_package_runs_without_the_dsl(tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the package is compiled for sm_90a")
    facts = case(SOURCE, (torch.randn(512, 256, dtype=torch.bfloat16),), training=False)
    found = match_all([facts.graph], unsupported=cuda.unsupported, space=cuda.space, tiny_bytes=0)
    taken: set[str] = set()
    recipe = []
    patterns = {p.id: p for m in found for p in m.patterns}
    for choice in sorted(all_of(found), key=lambda c: -len(patterns[c.pattern].nodes)):
        if not taken & set(patterns[choice.pattern].nodes):
            recipe.append(choice)
            taken |= set(patterns[choice.pattern].nodes)
    made = export(compose(SOURCE, [facts], found, tuple(recipe), device=H200), tmp_path, name="fast")
    environment = os.environ | {"PYTHONPATH": str(made.package.parent)}
    done = subprocess.run([sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
