"""The ways to build a kernel that prompts tell of (search/strategies/prompts/languages.jinja), each on a candidate:
the judge takes them where the language is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.edges.gpu.machine import machine
from tilewright.edges.problems import read_problem
from tilewright.edges.toolchain import languages
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.outcome import Timed
from tilewright.judge.evaluate import Judge, JudgeOptions
from tilewright.judge.timing.measure import Effort

ROOM = Path(__file__).parent / "sanitizer"
HEAD = "import torch\n\n"
KERNEL = """
extern "C" __global__ void sums(const float* x, float* y) {
    float v = 0.f, other;
    for (int i = threadIdx.x; i < 256; i += 32) v += x[blockIdx.x * 256 + i] * x[blockIdx.x * 256 + i];
    for (int step = 16; step; step /= 2) {
        %s
        v += other;
    }
    if (threadIdx.x == 0) y[blockIdx.x] = v;
}
"""
SHUFFLE = "other = __shfl_xor_sync(0xffffffff, v, step);"
PTX = 'asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(other) : "f"(v), "r"(step));'
FORWARD = """

class ModelNew(torch.nn.Module):
    def forward(self, x):
        if x.shape[1] != 256 or not x.is_contiguous():
            raise ValueError("rows of 256 numbers only")
        y = torch.empty(x.shape[0], 1, device=x.device)
        CALL
        return y
"""
NVRTC = "\nkernel = torch.cuda._compile_kernel(SOURCE, 'sums', compute_capability='90a')\n"
LAUNCH = "kernel(grid=(x.shape[0], 1, 1), block=(32, 1, 1), args=[x, y])"
INLINE = """
from torch.utils.cpp_extension import load_inline

HOST = '''
void launch(torch::Tensor x, torch::Tensor y) { sums<<<x.size(0), 32>>>(x.data_ptr<float>(), y.data_ptr<float>()); }
'''
made = load_inline("made", cpp_sources="void launch(torch::Tensor, torch::Tensor);", cuda_sources=SOURCE + HOST,
                   functions=["launch"], extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"])
"""
TRITON = """
import triton
import triton.language as tl


@triton.jit
def sums(x, y, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    values = tl.load(x + row * WIDTH + tl.arange(0, WIDTH))
    tl.store(y + row, tl.sum(values * values, 0))
"""
SOURCES = {
    "cuda": f'{HEAD}SOURCE = """{KERNEL % SHUFFLE}"""{NVRTC}' + FORWARD.replace("CALL", LAUNCH),
    "ptx": f"{HEAD}SOURCE = '''{KERNEL % PTX}'''{NVRTC}" + FORWARD.replace("CALL", LAUNCH),
    "nvcc": f'{HEAD}SOURCE = """{KERNEL % SHUFFLE}"""{INLINE}' + FORWARD.replace("CALL", "made.launch(x, y)"),
    "triton": HEAD + TRITON + FORWARD.replace("CALL", "sums[(x.shape[0],)](x, y, WIDTH=256)"),
}
pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("language", SOURCES)
def test_the_judge_takes_a_kernel_in_each(language: str, tmp_path: Path) -> None:
    if language not in dict(languages("cuda")):
        pytest.skip(f"{language} is not installed")
    problem = read_problem(ROOM / "problem.py", target="cuda")
    effort = Effort(tight=0.2, budget_s=0.3, min_rounds=3, max_rounds=6, verified=2)
    candidate = Candidate(files=(SourceFile(path="model.py", text=SOURCES[language]),))
    with Judge(
        problem, machine=machine("cuda", cache_dir=tmp_path), seed=1, workdir=tmp_path, say=print,
        options=JudgeOptions(effort=effort, compile_baseline=False),
    ) as judge:  # fmt: skip
        judge.open()
        timed = judge.evaluate(candidate)
    assert isinstance(timed, Timed), timed
    assert timed.checked.own_share is not None and timed.checked.own_share > 0.9
