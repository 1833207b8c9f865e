"""Workers share the GPU: a test marked `alone`, which takes most of its memory, waits until the others have left it."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def share_of_the_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every test holds the case memory, those marked `alone` for themselves; all come in by one door, so that who
    waits for an empty room is not passed by. What a worker has cached of the memory it gives back before it leaves."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with open(folder / "gpu-room", "w") as memory:
        with open(folder / "gpu-door", "w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(memory, fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH)
        yield
        gc.collect()
        torch.cuda.empty_cache()
