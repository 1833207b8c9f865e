"""A second process runs a kernel from disk: the right values, and nothing is compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakes import kernel_programs as kp
from fakes.realisers import cuda

pytestmark = pytest.mark.gpu

RUN = """
import time
import torch, cutlass.cute as cute
compiled = []
real = cute.compile
cute.compile = lambda *a, **k: compiled.append(1) or real(*a, **k)
torch.zeros(1, device="cuda")
start = time.perf_counter()
import fused_0
x = torch.randn(640, {width}, device="cuda")
for _ in range(2):
    (y,) = fused_0.run(x)
torch.cuda.synchronize()
took = time.perf_counter() - start
torch.testing.assert_close(y, torch.softmax(x.double(), -1).float())
print(len(compiled), took)
"""


@pytest.mark.parametrize("width", [4096, 65536])  # one CTA a row, and a cluster
def test_a_second_process_compiles_nothing_and_is_right(tmp_path: Path, width: int) -> None:
    program = kp.softmax((640, width))
    for file in (*cuda.skeleton_files([program]), *cuda.render(program, "fused_0", cuda.space(program).points[0])):
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_text(file.text)
    found = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", RUN.format(width=width)], capture_output=True, text=True,
                              check=False, cwd=tmp_path)  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        count, seconds = done.stdout.split()[-2:]
        found.append((int(count), float(seconds)))
    assert [count for count, _ in found] == [1, 0]
    assert found[1][1] < 1.0, found
