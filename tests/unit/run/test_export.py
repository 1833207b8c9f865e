"""An exported package stands alone: neither Tilewright, nor the DSL, nor a compiler is there, and it is the module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

from fakes.composed import all_of, case
from fakes.realisers import CPU, cpu
from tilewright.edges.wheel import write_wheel
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import UserError
from tilewright.fusion import match_all
from tilewright.realise.compose import compose
from tilewright.run.export import Exported, export

pytestmark = pytest.mark.usefixtures("haste")

SOURCE = '''import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(n), nn.Parameter(torch.rand(n))

    def forward(self, x):
        return torch.nn.functional.gelu(self.norm(x) * self.scale)


class Model(nn.Module):
    def __init__(self, n, factor=2.0):
        super().__init__()
        self.gate, self.factor = Gate(n), factor

    def forward(self, x):
        return self.gate(x) * self.factor + x


def get_inputs():
    return [torch.randn(24, 96)]


def get_init_inputs():
    return [96]
'''

# Run where the wheel is installed: argument 1 is a folder to write in, 2 whether gradients are the candidate's.
ALONE = """
import copy, importlib.util, os, shutil, sys
assert not [name for name in ("tilewright", "cutlass") if importlib.util.find_spec(name)]
assert shutil.which("g++") is None and shutil.which("gcc") is None and shutil.which("c++") is None
import torch
import gated
from gated import original
folder, training = sys.argv[1], sys.argv[2] == "training"

def near(found, truth):
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)

reference = original.Model(96).train(training)
with torch.no_grad():
    for p in reference.parameters():
        p.add_(torch.randn_like(p) / 8)
x = torch.randn(24, 96)
truth = reference(x).detach()
module = gated.Model(96).train(training)
assert module.state_dict().keys() == reference.state_dict().keys()
module.load_state_dict(reference.state_dict())
shared = gated.load(reference)
assert isinstance(shared, original.Model) and shared.gate.scale is reference.gate.scale
with torch.set_grad_enabled(training):
    for each in (module, shared, copy.deepcopy(module), copy.copy(module)):
        near(each(x), truth)
    torch.save(module, folder + "/module.pt")
    near(torch.load(folder + "/module.pt", weights_only=False)(x), truth)
    near(torch.compile(module, fullgraph=True, backend="aot_eager")(x), truth)
    assert gated.fallbacks() == {}, gated.fallbacks()
if training:
    wanted = torch.autograd.grad(reference(x).square().sum(), reference.gate.scale)
    (found,) = torch.autograd.grad(shared(x).square().sum(), shared.gate.scale)
    torch.testing.assert_close(found, wanted[0], rtol=1e-4, atol=1e-4)
else:
    for strict in (False, True):
        with torch.no_grad():
            program = torch.export.export(module, (x,), strict=strict)
        ops = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
        assert [op for op in ops if op.startswith("gated.")], ops
        near(program.module()(x), truth)
    torch.export.save(program, folder + "/program.pt2")
    near(torch.export.load(folder + "/program.pt2").module()(x), truth)
    torch.library.opcheck(next(n.target for n in program.graph.nodes if str(n.target).startswith("gated.")),
                          tuple(torch.randn(m.meta["val"].shape) for n in program.graph.nodes
                                if str(n.target).startswith("gated.") for m in n.args))
    assert gated.fallbacks() == {}, gated.fallbacks()
    near(module(x[:, :].double().float()[:1]), reference(x[:1]))
    assert sum(gated.fallbacks().values()) == 1
try:
    gated.load(original.Model(96, factor=3.0).train(training))
except ValueError as error:
    assert "factor is another" in str(error), error
else:
    raise AssertionError("another module was taken")
"""


def candidate(*, training: bool) -> Candidate:
    x = torch.randn(24, 96)
    facts = case(SOURCE.replace("Model(nn.Module):\n    def __init__(self, n, factor=2.0)", "Model(nn.Module):\n    def __init__(self, n=96, factor=2.0)"), (x,), training=training)
    found = match_all([facts.graph], unsupported=cpu.unsupported, space=cpu.space, tiny_bytes=0)
    return compose(SOURCE, [facts], found, all_of(found), device=CPU)


def installed(made: Exported, tmp_path: Path) -> Path:
    """The wheel among what it requires, and nothing else of this environment."""
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(made.wheel)], check=True, capture_output=True)
    for folder in Path(sysconfig.get_path("purelib")).iterdir():
        if "cutlass" not in folder.name and "tilewright" not in folder.name and folder.suffix != ".pth":
            if not (target / folder.name).exists():
                (target / folder.name).symlink_to(folder)
    return target


def alone(site: Path, code: str, *args: str, cwd: Path) -> None:
    """Run where no compiler is found."""
    environment = {"PATH": str(cwd / "empty"), "HOME": str(cwd), "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys._base_executable, "-S", "-c", code, *args]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_the_wheel_of_a_result_runs_with_torch_and_tvm_ffi_alone(tmp_path: Path, training: bool) -> None:
    made = export(candidate(training=training), tmp_path / "out", name="gated")
    alone(installed(made, tmp_path), ALONE, str(tmp_path), "training" if training else "inference", cwd=tmp_path)
    assert made.requires[:2] == ("torch", "numpy") and made.requires[2].startswith("apache-tvm-ffi>=")
    assert not [p for p in made.package.rglob("*") if p.suffix in (".cpp", ".h")]
