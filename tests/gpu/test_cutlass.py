"""Products in CUTLASS C++ against float64: every kernel that is swept, with vectors, a matrix and none beside them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fakes.modules import Applies
from fakes.realisers import H200, cuda
from tilewright.edges.toolchain.languages import cutlass_headers
from tilewright.faces.config import cache_dir
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.kernels.nvcc import toolchain
from tilewright.realise.written.cutlass import products_by_cutlass

pytestmark = [
    pytest.mark.gpu, pytest.mark.slow,
    pytest.mark.skipif(not cutlass_headers(), reason="CUTLASS's headers are not here"),
]  # fmt: skip


def layer(x, w, b, z):
    return F.gelu(F.linear(x, w, b)) + z


CASES = {
    "bare": (lambda a, b: a @ b, [(1032, 1024), (1024, 1040)], torch.float16, False),
    "batch": (lambda a, b: a @ b, [(3, 520, 1024), (3, 1024, 1032)], torch.bfloat16, False),
    "layer": (layer, [(2, 520, 1024), (1032, 1024), (1032,), (2, 520, 1032)], torch.bfloat16, False),
    "tf32": (lambda x, w, b: F.linear(x, w, b), [(1032, 1024), (1032, 1024), (1032,)], torch.float32, True),
}
FLOOR = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-10}


@pytest.mark.parametrize("name", list(CASES))
def test_every_kernel_is_right(name, tmp_path: Path, monkeypatch):
    function, shapes, dtype, allow_tf32 = CASES[name]
    torch.manual_seed(0)
    args = tuple(torch.randn(s, device="cuda").to(dtype) for s in shapes)
    graph = trace(Applies(function), args, {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space, allow_tf32=allow_tf32)
    (choice,) = products_by_cutlass(graph, matched.patterns, cutlass_headers(), device=H200)
    kept = cache_dir() / "libraries" / f"nvcc-{toolchain(cutlass_headers())}"
    kept.mkdir(parents=True, exist_ok=True)
    (tmp_path / "build").symlink_to(kept, target_is_directory=True)  # nvcc takes a minute for each
    for file in choice.written.candidate.files:
        (tmp_path / file.path).write_text(file.text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("model", "nvcc"):
        sys.modules.pop(module, None)
    model = importlib.import_module("model")
    made = model.ModelNew()
    assert len(made._libraries) == 5, "all of them were built"
    paths = [n.path for n in graph.nodes if n.op == "input"]
    named = {n.name: n.path for n in graph.nodes}
    given = [args[paths.index(named[i])] for i in choice.written.regions[0].inputs]
    truth = function(*(a.double() for a in args))
    allowed = max(2 * float((function(*args).double() - truth).norm() / truth.norm()), FLOOR[dtype])
    launched = 0
    for library in made._libraries:
        for swizzle in model._SWIZZLES:
            made._call = model._Call(library, swizzle, args[0].device)
            found = made(*given)
            assert found.shape == truth.shape and found.dtype == dtype
            error = float((found.double() - truth).norm() / truth.norm())
            assert error <= allowed, f"{error:.3g}, allowed {allowed:.3g}"
            assert torch.equal(found, made(*given)), "the same bits again"
            launched += 1
    made._call = None
    torch.testing.assert_close(made(*given).double(), truth, rtol=0.05, atol=0.5)
    assert launched == 10 and made._call is not None
