"""Products in CUTLASS C++: which are taken, what their kernels say, and that tensors reach them as they expect."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.modules import Applies
from fakes.realisers import H200, cuda
from tilewright.facts.devices import DEVICES
from tilewright.facts.pattern import Recipe
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.realise.written.cutlass import products_by_cutlass

HALF = torch.bfloat16


def found(function: Callable[..., Any], args: tuple[Tensor, ...], *, allow_tf32: bool = False) -> Recipe:
    graph = trace(Applies(function), args, {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space, allow_tf32=allow_tf32)
    return products_by_cutlass(graph, matched.patterns, "/headers", device=H200)


def texts(recipe: Recipe) -> dict[str, str]:
    (choice,) = recipe
    assert choice.written is not None
    return {f.path: f.text for f in choice.written.candidate.files}


def empty(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_tiles_clusters_schedules_and_schedulers_are_swept() -> None:
    made = texts(found(lambda a, b: a @ b, (empty(4096, 4096), empty(4096, 4096))))
    kernels = [text for path, text in made.items() if path.endswith(".cu")]
    tiles = {re.search(r"CtaTile = Shape<(.*?)>", k)[1] for k in kernels}  # type: ignore[index]
    assert len(kernels) == len({k.split("\n", 1)[1] for k in kernels}) == 5 and "_128, _256, _64" in tiles
    assert any("Pingpong>" in k for k in kernels) and any("StreamKScheduler" in k for k in kernels)
    assert all("made[i] = product[i];" in k and "using Source = void;" in k for k in kernels)
    assert all(k.count("cutlass::layout::RowMajor, 8, Element") == 1 for k in kernels), "A lies along K, B across it"


def test_the_epilogue_is_a_tree_over_vectors_and_a_matrix() -> None:
    def layer(x: Tensor, w: Tensor, b: Tensor, z: Tensor) -> Tensor:
        return torch.maximum(F.linear(x, w, b), z) * 0.5

    args = (empty(2048, 1024), empty(1024, 1024), empty(1024), empty(2048, 1024))
    kernel = texts(found(layer, args))["kernel_0.cu"]
    assert "Many const& product, Many const& x2, Many const& x3" in kernel
    assert "float v1 = product[i] + x2[i];" in kernel and "larger(v1, x3[i])" in kernel and "* 0.5f;" in kernel
    leaves = kernel[kernel.index("Sm90AccFetch") :]
    assert leaves.index("Sm90RowBroadcast<0, CtaTile, cutlass::bfloat16_t") < leaves.index("Sm90SrcFetch<Source>")
    assert "{{{}, {static_cast<cutlass::bfloat16_t const*>(t[3]), cutlass::bfloat16_t(0), {}}, {}, {}}," in kernel
    assert "static_cast<Source const*>(t[4])" in kernel and "cutlass::layout::ColumnMajor, 8, float" in kernel


@pytest.mark.parametrize(
    ("function", "args", "allow_tf32"),
    [
        (lambda a, b: a @ b, (empty(4096, 4096, dtype=torch.float32), empty(4096, 4096, dtype=torch.float32)), False),
        (lambda a, b: a @ b, (empty(4096, 4096, dtype=torch.float32), empty(4096, 4096, dtype=torch.float32)), True),
        (lambda a, b: a @ b, (empty(512, 512), empty(512, 512)), False),
        (lambda a, b: torch.lgamma(a @ b), (empty(4092, 4096), empty(4096, 4096)), False),
        (lambda a, b, c, d: (a @ b) * c + d, tuple(empty(2048, 2048) for _ in range(4)), False),
    ],
)
def test_what_is_not_taken(function: Callable[..., Any], args: tuple[Tensor, ...], allow_tf32: bool) -> None:
    """fp32's own accuracy, TF32 across K, small ones, odd rows, and two whole matrices in the epilogue."""
    assert found(function, args, allow_tf32=allow_tf32) == ()


def test_what_may_be_rounded_runs_in_tf32_along_k() -> None:
    args = (empty(4096, 1024, dtype=torch.float32), empty(2048, 1024, dtype=torch.float32))
    kernel = texts(found(lambda x, w: F.linear(x, w), args, allow_tf32=True))["kernel_0.cu"]
    assert "using Element = float;" in kernel and "_256, _32>" in kernel


def called(text: str, compute: Callable[..., Tensor], args: tuple[Tensor, ...]) -> Tensor:
    """The model's forward with a stand-in for its kernels, which looks at how the matrices lie."""

    def call(left: Tensor, right: Tensor, made: Tensor, *others: Tensor) -> int:
        assert left.stride(-1) == 1 and 1 in (right.stride(-1), right.stride(-2))
        made.copy_(compute(left @ right, *others))
        return 0

    fake = types.ModuleType("nvcc")
    fake.NotBuilt, fake.libraries = Exception, lambda *a, **k: []  # type: ignore[attr-defined]
    scope: dict[str, Any] = {"__file__": "/nowhere/model.py", "__name__": "model"}
    before = sys.modules.get("nvcc")
    sys.modules["nvcc"] = fake
    try:
        exec(text, scope)
    finally:
        sys.modules.pop("nvcc") if before is None else sys.modules.update(nvcc=before)
    scope["_loaded"] = list
    model = scope["ModelNew"]()
    model._call = call
    return model(*args)  # type: ignore[no-any-return]


def test_tensors_reach_the_kernels_as_matrices_and_come_back_as_they_were() -> None:
    torch.manual_seed(0)

    def heads(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.linear(x, w, b).relu()

    args = (torch.randn(2, 1024, 1024).to(HALF), torch.randn(1024, 1024).to(HALF), torch.randn(1024).to(HALF))
    graph = trace(Applies(heads), args, {})
    matched = match(graph, unsupported=cuda.unsupported, space=cuda.space)
    assert products_by_cutlass(graph, matched.patterns, "/headers", device=DEVICES["a100"]) == ()
    (choice,) = products_by_cutlass(graph, matched.patterns, "/headers", device=H200)
    assert choice.written is not None
    files = {f.path: f.text for f in choice.written.candidate.files}
    order = [graph.nodes[[n.name for n in graph.nodes].index(i)].path for i in choice.written.regions[0].inputs]
    names = [n.path for n in graph.nodes if n.op == "input"]
    given = tuple(args[names.index(path)] for path in order)
    made = called(files["model.py"], lambda product, bias: (product + bias).relu(), given)
    assert made.shape == (2, 1024, 1024) and made.dtype == HALF
    torch.testing.assert_close(made.float(), heads(*args).float(), rtol=2e-2, atol=0.3)
