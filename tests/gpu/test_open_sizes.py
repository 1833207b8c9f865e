"""On a GPU, too, one case takes every size of its ranges: kernels for rows by their number, the rest by torch."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fakes.open_sizes import BLOCK, PERCEPTRON, composed

pytestmark = pytest.mark.filterwarnings("ignore:tilewright")


@pytest.fixture
def alone() -> Iterator[None]:
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.startswith(("fused_", "tilewright_kernels", "model_", "original_")):
            del sys.modules[name]


@torch.no_grad()
@pytest.mark.parametrize(
    ("source", "sizes"),
    [(PERCEPTRON, [(96,), (2,), (97,), (512,)]), (BLOCK, [(4, 48), (1, 2), (3, 47), (16, 128)])],
    ids=["perceptron", "block"],
)
def test_one_case_takes_every_size(
    source: str, sizes: list[tuple[int, ...]], tmp_path: Path, alone: None
) -> None:  # fmt: skip
    model, titles = composed(source, tmp_path, target="cuda")
    assert titles and len(model._JUDGED) == 1
    ours = model.ModelNew().cuda()
    exact = copy.deepcopy(model.Model()).double().cuda()
    exact.load_state_dict(ours.state_dict())
    for now in sizes:
        inputs = [t.cuda() for t in model._original().get_inputs(*now)]
        torch.testing.assert_close(ours(*inputs).double(), exact(*(t.double() for t in inputs)), rtol=1e-3, atol=1e-4)
    assert model.FALLBACKS == {}
