"""Shared by all tests: GPU tests are skipped, visibly, where there is no GPU; hypothesis draws the same examples."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.path.is_relative_to(GPU_TESTS):
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(absent)


@pytest.fixture(autouse=True, scope="module")
def candidates_stay_apart() -> Iterator[None]:
    """Candidates bring modules of the same names: what one test file imported must not serve the next."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in [n for n in sys.modules if n.partition(".")[0] == "tilewright_kernels"]:
        del sys.modules[name]
