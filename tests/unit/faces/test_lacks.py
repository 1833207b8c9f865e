"""What the machine lacks is told with the remedy, exit code 2, and never booked on a candidate."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tilewright as library
from fakes.command import PROBLEM, in_process
from tilewright.edges.ledger import Ledger
from tilewright.facts.errors import Lack
from tilewright.facts.move import Try

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]

FLAGS = ("--target", "cpu", "--timing", "0.2s", "--no-compile")
REAL = shutil.which("g++")
BROKEN = {
    "absent": "",
    "cc1plus is gone": "#!/bin/sh\necho \"g++: fatal error: cannot execute 'cc1plus': No such file\" >&2; exit 1\n",
    "headers are gone": f'#!/bin/sh\nexec {REAL} -nostdinc -nostdinc++ "$@"\n',
    "makes nothing": "#!/bin/sh\nexit 0\n",
    "no program": "\x7fELF, and nothing more",
}
# Compiles what it needs itself, when it is imported.
KERNEL = """import ctypes, pathlib, subprocess
import torch
from torch import nn

folder = pathlib.Path(__file__).parent
(folder / "one.cpp").write_text('#include <cmath>\\nextern "C" double one() { return std::exp(0.0); }')
subprocess.run(["g++", "-shared", "-fPIC", "-o", folder / "one.so", folder / "one.cpp"], check=True)
ONE = ctypes.CDLL(str(folder / "one.so")).one
ONE.restype = ctypes.c_double


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        z = x * torch.sigmoid(1.5 * x) + y * ONE()
        for _ in range(4):
            z = z - 0.1 * z * z.abs() + 0.05 * y * y
        return z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6) * self.gain
"""


@pytest.fixture(params=list(BROKEN))
def broken(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _break(BROKEN[request.param], tmp_path, monkeypatch)
    yield


@pytest.fixture
def none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _break("", tmp_path, monkeypatch)
    yield


def _break(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH on which nothing compiles: with this for g++ and c++, or without either."""
    (tmp_path / "bin").mkdir()
    for name in ("g++", "c++") if script else ():
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("sh", "nproc", "uname"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    (tmp_path / "problems").mkdir()
    for name in ("one", "two"):
        (tmp_path / "problems" / f"{name}.py").write_text(PROBLEM)
    (tmp_path / "kernel.py").write_text(KERNEL)


def _refused(tmp_path: Path, *command: object, run: str = "") -> None:
    """The command ends with exit code 2 and the remedy in one line; its journal has judged nothing."""
    code, out, err = in_process(*command, cwd=tmp_path)
    last = err.strip().splitlines()[-1]
    assert code == 2 and last.startswith("tilewright: the machine lacks a C++ compiler that works ("), (code, out, err)
    assert "apt-get install g++" in last
    for journal in tmp_path.glob(f"{run}/**/run.db") if run else ():
        with Ledger(journal, readonly=True) as ledger:
            assert not [e for e in ledger.events() if isinstance(e.move, Try)]


@pytest.mark.few(0)
@pytest.mark.usefixtures("broken")
def test_optimize_with_a_compiler_that_does_not_work(tmp_path: Path) -> None:
    _refused(tmp_path, "optimize", "problems/one.py", "--out", "run", "--budget", "60s", *FLAGS, run="run")


@pytest.mark.thorough
@pytest.mark.usefixtures("none")
def test_every_command_that_judges_or_tunes(tmp_path: Path) -> None:
    _refused(tmp_path, "evaluate", "problems/one.py", "kernel.py", "--out", "given", *FLAGS, run="given")
    _refused(tmp_path, "bench", "problems", "--out", "bench", "--budget", "60s", *FLAGS, run="bench")
    assert not list((tmp_path / "bench").glob("*.json"))  # nothing is kept that would not be run again
    _refused(tmp_path, "tune", "problems/one.py", "--target", "cpu", "--budget", "60s")


@pytest.mark.thorough
@pytest.mark.usefixtures("none")
def test_what_needs_no_compiler_is_judged(tmp_path: Path) -> None:
    """Whoever is wrong, or does not load, for a reason of its own is refused, whatever the machine lacks."""
    plain = KERNEL.partition("folder =")[0] + "ONE = lambda: 1.0\n\n\n" + KERNEL[KERNEL.index("class ModelNew") :]
    (tmp_path / "wrong.py").write_text(plain.replace("1.5", "1.6"))
    code, out, err = in_process("evaluate", "problems/one.py", "wrong.py", "--json", *FLAGS, cwd=tmp_path)
    assert code == 1 and "wrong_values" in out, err
    (tmp_path / "raises.py").write_text(plain.replace("ONE = lambda", "raise ValueError('mine')\nONE = lambda"))
    code, out, err = in_process("evaluate", "problems/one.py", "raises.py", "--json", *FLAGS, cwd=tmp_path)
    assert code == 1 and "does_not_load" in out, err


@pytest.mark.thorough
def test_whoever_does_not_compile_where_others_do_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL.replace("std::exp(0.0)", "std::expp(0.0)"))
    code, out, err = in_process("evaluate", "problems/one.py", "kernel.py", "--json", *FLAGS, cwd=tmp_path)
    assert code == 1 and "does_not_load" in out, err


@pytest.mark.thorough
@pytest.mark.usefixtures("none")
def test_a_models_kernel(tmp_path: Path) -> None:
    (tmp_path / "replies").mkdir()
    reply = f"IDEA: in C++\nFILE: model.py\n```python\n{KERNEL}```\nEND OF REPLY\n"
    model = ("--strategy", "oneshot", "--model", "mailbox:box", "--no-wait")
    command = ("optimize", "problems/one.py", "--out", "run", "--budget", "1calls", *FLAGS, *model)
    assert in_process(*command, cwd=tmp_path)[0] == 75
    (prompt,) = (tmp_path / "box").glob("*.prompt.md")
    prompt.with_name(prompt.name.replace(".prompt", ".reply")).write_text(reply)
    _refused(tmp_path, "resume", "run", "--no-wait", run="run")


@pytest.mark.thorough
@pytest.mark.usefixtures("none")
def test_the_python_api(tmp_path: Path) -> None:
    class Long(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = x - 0.1 * x * x.abs() + 0.05
            return x

    with pytest.raises(Lack, match=r"a C\+\+ compiler that works .*apt-get install"):
        library.optimize(Long(), [torch.randn(64, 512)], target="cpu", budget="60s", timing="0.2s", compiled=False)
