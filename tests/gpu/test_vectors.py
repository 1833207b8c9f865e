"""Products that memory bounds, as sums of rows and columns or as what is pointwise, through a whole judge on a GPU."""

from __future__ import annotations

import pytest

from fakes.judges import judged_at_first_points
from tilewright.facts.outcome import Timed

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PROBLEM = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def forward(self, NAMES):
        return RESULTS

def get_inputs():
    return [torch.randn(shape, dtype=torch.DTYPE) for shape in SHAPES]

def get_init_inputs():
    return []
"""

# What is returned, the shapes of a, b, ..., and the kinds of the kernels that make all of it.
FORMS: dict[str, tuple[str, list[tuple[int, ...]], list[str]]] = {
    "a matrix and a vector": ("a @ b", [(5001, 999), (999,)], ["row_reduce"]),
    "a vector and a matrix": ("b @ a", [(5001, 999), (5001,)], ["column_reduce"]),
    "addmv": ("F.gelu(torch.addmv(c, a, b, beta=0.5))", [(4096, 1024), (1024,), (4096,)], ["row_reduce"]),
    "dot": ("torch.dot(a, b)", [(3_000_001,), (3_000_001,)], ["whole_reduce"]),
    "outer": ("torch.relu(torch.outer(a, b) + c)", [(4097,), (1023,), (1023,)], ["pointwise"]),
    "bi,bi->b": ('torch.einsum("bi,bi->b", a, b)', [(4096, 1024), (4096, 1024)], ["row_reduce"]),
    "bij,bj->bi": ('torch.einsum("bij,bj->bi", a, b)', [(64, 512, 100), (64, 100)], ["row_reduce"]),
    "ij,jk->i": ('torch.einsum("ij,jk->i", a, b)', [(4096, 1024), (1024, 256)], ["row_reduce", "row_reduce"]),
    "bmm of columns": ("torch.bmm(a, b)", [(64, 1000, 128), (64, 128, 1)], ["row_reduce"]),
    "bmm of rows": ("torch.bmm(b, a)", [(16, 512, 500), (16, 1, 512)], ["column_reduce"]),
    "linear of a row": ("F.gelu(F.linear(a, b, c))", [(1, 4096), (4097, 4096), (4097,)], ["row_reduce"]),
    "a row and a matrix": ("a @ b + c", [(1, 4096), (4096, 8192), (8192,)], ["column_reduce"]),
    "linear of 4 rows": ("F.gelu(F.linear(a, b, c))", [(4, 4096), (4100, 4096), (4100,)], ["row_reduce", "pointwise"]),
    "3 rows in a batch": ("a @ b", [(3, 3, 1000), (3, 1000, 5604)], ["column_reduce", "pointwise"]),
    "8 rows and a matrix": ("a @ b + c", [(8, 4096), (4096, 8192), (8192,)], ["column_reduce", "pointwise"]),
    "linear of 2 features": ("F.linear(a, b, c)", [(20000, 1000), (2, 1000), (2,)], ["row_reduce", "pointwise"]),
    "K of 4": ("F.gelu(a @ b)", [(65536, 4), (4, 512)], ["pointwise"]),
    "linear of 7": ("F.linear(a, b, c)", [(65537, 7), (260, 7), (260,)], ["pointwise"]),
    "bmm of K of 3": ("a @ b", [(16, 1500, 3), (16, 3, 700)], ["pointwise"]),
}  # fmt: skip
IN_16_BITS = ("a matrix and a vector", "a vector and a matrix", "bij,bj->bi", "bmm of columns", "K of 4", "outer")


def judged(form: str, dtype: str, folder) -> None:
    results, shapes, kinds = FORMS[form]
    names = ", ".join("abc"[: len(shapes)])
    source = PROBLEM.replace("NAMES", names).replace("RESULTS", results).replace("SHAPES", repr(shapes))
    patterns, timed = judged_at_first_points(source.replace("DTYPE", dtype), folder)
    assert isinstance(timed, Timed), timed
    assert [p.kind for p in patterns] == kinds, [p.title for p in patterns]
    assert timed.checked.own_share is not None and timed.checked.own_share > 0.95
    print(form, dtype, timed.ratio("eager"))


@pytest.mark.parametrize("form", FORMS)
def test_the_judge_takes_it(tmp_path, form):
    """Over all families, with nothing left to torch; at fp32's accuracy."""
    judged(form, "float32", tmp_path)


@pytest.mark.parametrize("form", IN_16_BITS)
def test_the_judge_takes_it_in_16_bits(tmp_path, form):
    judged(form, "bfloat16", tmp_path)


CHAIN = """
import torch
from torch import nn

class Model(nn.Module):
    \"\"\"Mamba 2, within a chunk.\"\"\"
    def forward(self, c, b, decay, x):
        return torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, decay, x)

def get_inputs():
    c, b, x = (torch.randn(4, 16, 64, 8, 64) * 0.1 for _ in range(3))
    return [c, b, torch.rand(4, 8, 16, 64, 64), x]

def get_init_inputs():
    return []
"""


def test_the_judge_takes_an_einsum_of_four_tensors(tmp_path):
    """Products, and what lies between them, are kernels."""
    patterns, timed = judged_at_first_points(CHAIN, tmp_path)
    assert isinstance(timed, Timed), timed
    assert "product" in {p.kind for p in patterns}
    assert timed.checked.own_share is not None and timed.checked.own_share > 0.95
    print(timed.ratio("eager"))
