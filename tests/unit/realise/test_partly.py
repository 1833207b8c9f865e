"""Masks, tables and whole numbers beside a product, also where they are broadcast over a part of its rows, columns or
batch: one kernel, which compiles for sm_90a without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.partly import PARTLY, arguments
from fakes.program_interpreter import GraphRun
from fakes.realisers import cuda, gpu
from tilewright.facts.pattern import Pattern
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.access import each_of
from tilewright.ir.validation import validate

pytestmark = pytest.mark.one_in(4)


def found(name: str, dtype: torch.dtype) -> Pattern:
    graph = trace(Applies(PARTLY[name][0]), arguments(name, dtype), {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    (pattern,) = [p for p in matched.patterns if p.kind == "product"]
    return pattern


@pytest.mark.few
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PARTLY)
def test_they_are_read_in_the_kernel_of_the_product(name: str, dtype: torch.dtype) -> None:
    pattern = found(name, dtype)
    validate(pattern.program)
    assert [(o.shape, each_of(o.at)) for o in pattern.program.operands[2:]] == PARTLY[name][2]
    function, args = PARTLY[name][0], [a.double() if a.is_floating_point() else a for a in arguments(name)]
    run = GraphRun(
        trace(Applies(function), arguments(name), {}), Applies(function), patterns=[found(name, torch.float32)]
    )
    torch.testing.assert_close(run(*args), function(*args))


@pytest.mark.few(0, 1, 5, 7)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("even rows", torch.bfloat16), ("a mask of keys", torch.float32), ("keys in groups", torch.bfloat16),
     ("places", torch.bfloat16), ("gates of heads", torch.float32), ("bytes", torch.bfloat16),
     ("whole numbers", torch.float32), ("lengths", torch.bfloat16)],
)  # fmt: skip
def test_kernels_compile_for_hopper(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    pattern = found(name, dtype)
    module = load_fused(pattern.program, tmp_path)
    for setting in pattern.space.points[:2]:
        module.configure(**dict(setting))
        module._FUSED.prepare(gpu())
        assert module._FUSED.demand(132)["local_bytes"] == 0, setting


def test_a_file_says_where_they_are_read(tmp_path: Path) -> None:
    pattern = found("keys in groups", torch.bfloat16)
    (file,) = cuda.render(pattern.program, "fused", pattern.space.points[0])
    assert re.search(r'partly=\(\("x2", \(2, 1, 1\)\),\),|partly=\(\(\'x2\', \(2, 1, 1\)\),\),', file.text)
