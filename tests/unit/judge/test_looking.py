"""Tools between two submissions, by a real judge on a CPU: right or wrong on the smallest case, what is returned, what
the compiler said, and that a call of a tool tells no more of the truth than a refusal does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from fakes.judges import context_judge
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import TooBusy
from tilewright.facts.outcome import Checked, Failure
from tilewright.judge.looking import CandidateLooks, in_words
from tilewright.judge.objects import CodeSeen, _ends, _left_in, told_of

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.cos(x)


CASES = None


def get_inputs():
    return [torch.randn(8, 64)]


def get_init_inputs():
    return []
"""
KERNEL = """
import ctypes, pathlib, subprocess
import torch
from torch import nn

HERE = pathlib.Path(__file__).parent
BUILD = ["g++", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(HERE / "k.so"), str(HERE / "k.cpp")]
subprocess.run(BUILD, check=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.cos(x)
        ctypes.CDLL(str(HERE / "k.so")).scale(ctypes.c_void_p(y.data_ptr()), ctypes.c_long(y.numel()))
        return y
"""
SOURCE = 'extern "C" void scale(float *y, long n) {\n  for (long i = 0; i < n; ++i) y[i] *= 1.0001f * y[i] + 0.5f;\n}\n'


def written(body: str) -> Candidate:
    text = (
        f"import torch\nfrom torch import nn\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        {body}\n"
    )
    return Candidate(files=(SourceFile(path="model.py", text=text),))


def test_tools_look_at_a_candidate_on_the_smallest_case(tmp_path: Path) -> None:
    with context_judge(PROBLEM, tmp_path) as judge:
        judge.open()
        right = judge.looks.run_small(written("return torch.cos(x)"))
        wrong = judge.looks.run_small(written("return torch.sin(x)"))
        seen = judge.looks.returned(written("y = torch.cos(x); y[3, 5] = float('nan'); return y"), "")
        broken = judge.looks.returned(written("return x.sum()"), "")
    assert isinstance(right, Checked) and right.worst_error is not None and right.worst_error.share <= 1
    assert isinstance(wrong, Failure) and wrong.reason == "wrong_values"
    assert isinstance(seen, str) and "float32[8, 64]; 1 NaN, 0 infinite" in seen and "the first NaN at [3, 5]" in seen
    assert isinstance(broken, Failure) and broken.reason == "wrong_shape"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_the_compilers_remarks_and_the_machine_code_of_a_candidate(tmp_path: Path) -> None:
    candidate = Candidate(files=(SourceFile(path="model.py", text=KERNEL), SourceFile(path="k.cpp", text=SOURCE)))
    broken = Candidate(files=(SourceFile(path="model.py", text=KERNEL), SourceFile(path="k.cpp", text="int x = y;\n")))
    with context_judge(PROBLEM, tmp_path) as judge:
        judge.open()
        found, failed = judge.looks.compiled(candidate), judge.looks.compiled(broken)
    assert isinstance(found, CodeSeen) and found.finished, found
    assert any("k.cpp:2:" in line and "loop vectorized" in line for line in found.remarks)
    assert not any(str(tmp_path) in line for line in (*found.remarks, *found.code))
    if shutil.which("objdump"):
        assert any(line.startswith("scale: ") and "vectors of" in line for line in found.code)
    assert isinstance(failed, CodeSeen) and not failed.finished and "k.cpp:1:9: error" in failed.said
    assert "(line 8 of model.py)" in failed.said and "NameError" not in failed.said, failed.said


def test_of_a_long_text_both_ends_are_told() -> None:
    assert _ends("short") == "short"
    assert _ends("first " + "x" * 10_000 + " last").startswith("first x")
    assert _ends("first " + "x" * 10_000 + " last").endswith("x last") and len(_ends("y" * 10_000)) < 3020


def test_links_that_a_candidate_leaves_show_no_file_of_others(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1000 <f>:\n")
    seen = tmp_path / "seen"
    seen.mkdir()
    (seen / "1.asm").symlink_to(secret)
    os.link(secret, seen / "2.asm")
    os.mkfifo(seen / "3.asm")
    (seen / "4.asm").write_text("mine")
    assert _left_in(seen) == [("4.asm", "mine")]
    seen.rename(tmp_path / "moved")
    seen.symlink_to(tmp_path)
    assert _left_in(seen) == [] == _left_in(tmp_path / "none")


def test_a_machine_that_is_too_busy_or_too_small_leaves_it_open_who_is_faster() -> None:
    class Opened:
        def harness_fault(self) -> None:
            raise TooBusy("others have the processors")

    found = CandidateLooks(Opened()).interleave((written("a"), written("b")))  # type: ignore[arg-type]
    assert [v.ratio for v in found.variants] == [None, None] and "others have" in found.variants[1].failure


def test_elements_of_a_tensor_are_named_as_one_writes_them() -> None:
    outputs = (torch.arange(12.0).view(3, 4), torch.tensor([5, 6]))
    assert in_words(outputs, "0: 1, 2:4") == "shape [2]: 6, 7" == in_words(outputs, "1, 2:4")
    assert in_words(outputs, "1: 0") == "shape []: 5"
    assert in_words(outputs, "2:3, 0") == "shape [1]: 8"
    assert "outputs have shapes [3, 4], [2]" in in_words(outputs, "7: 1") and "names no" in in_words(outputs, "x")
    assert "finite from 0 to 11, mean 5.5" in in_words(outputs, "") and "the first are 5, 6" in in_words(outputs, "")


def test_a_listing_is_told_by_function_and_by_its_longest_loop() -> None:
    lines = ["0000000000001000 <rows>:"]
    body = ["vmovups (%rdi),%ymm0", "vmulps %ymm0,%ymm1,%ymm0", "vmulss %xmm0,%xmm1,%xmm2", "add $0x20,%rdi",
            "cmp %rdi,%rax", "jne    1004 <rows+0x4>", "call 2000 <expf>", "nop", "nop", "ret"]  # fmt: skip
    lines += [f"    {0x1000 + 4 * n:x}:\t{text}" for n, text in enumerate(body)]
    told = list(told_of("\n".join(lines)))
    assert (
        told[0] == "rows: 10 instructions: integers and moves 5, vectors of 32 bytes 2, scalar floating point 1, "
        "branches 1, calls 1"
    )
    assert told[1] == "its longest innermost loop (5 instructions):" and told[-1].strip().startswith("jne")
    assert "objdump is not installed" in next(told_of(""))
