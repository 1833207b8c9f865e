"""Shared by all tests: GPU tests are skipped, visibly, where there is no GPU; hypothesis draws the same examples;
judges of two workers need not wait for one another."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Each worker has a share of the processors: OpenMP's threads spin while they wait, and two teams on the same processors
# slow each other down several times over. And each has leases of its own, and takes the others' load for its own: in
# tests it is verdicts that count, not times.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))
    tempfile.tempdir = os.environ["TMPDIR"] = str(Path(tempfile.gettempdir()) / f"tilewright-tests-{worker}")
    Path(tempfile.tempdir).mkdir(exist_ok=True)
    os.environ.setdefault("TILEWRIGHT_LEASES", tempfile.tempdir)
    os.environ.setdefault("TILEWRIGHT_TOGETHER", str(os.getppid()))

# Else Inductor compiles and runs a program for each instruction set that it might use: 16 s of a processor.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

os.environ["TILEWRIGHT_CONFIG"] = os.devnull  # no test asks a model of the user's own

import pytest
from hypothesis import settings
from starved import BUSY, excuse

from thinning import thin_out

gc.set_threshold(100_000)  # most of what tests import and make stays: looking for the rest took a tenth of the time
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

GPU_TESTS = Path(__file__).parent / "gpu"
RERUNS = 2  # of what rests on times


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch  # not for the process that starts the workers

    thin_out(items)
    slow = {item.path for item in items if item.get_closest_marker("slow") and not item.get_closest_marker("thorough")}
    items.sort(key=lambda item: item.path not in slow)  # of a long file that came last one worker would have all
    if (
        "tilewright.judge.candidate_process.session" in sys.modules
    ):  # imported by a test, it would be walked at each of a cell's requests
        import torch._dynamo

    absent = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.path.is_relative_to(GPU_TESTS):
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("measured"):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS, rerun_except=BUSY))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(absent)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A test is skipped, with the reason, where the judge was too busy for it, which has tried several times itself; so
    is what a starved machine made fail each time it was tried. Tests of that verdict know it by name, and fail."""
    report = yield
    if report.failed and call.excinfo and not hasattr(getattr(item, "module", None), "TooBusy"):
        told, tried = str(call.excinfo.value), getattr(item, "execution_count", 1)
        measured = item.get_closest_marker("measured") is not None and tried > RERUNS
        why = excuse(f"{told}\n{report.capstderr}", measured=measured)
        if why:
            report.outcome = "skipped"
            failed = told.partition("\n")[0][:300]
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {why}; it failed: {failed}")
    return report


@pytest.fixture(autouse=True, scope="module")
def candidates_stay_apart() -> Iterator[None]:
    """Candidates bring modules of the same names: what one test file imported must not serve the next. And what was
    imported so far is nothing to collect: in-process cells collect garbage at each request, 0.2 s a time otherwise."""
    gc.freeze()
    path = list(sys.path)
    yield
    sys.path[:] = path
    brought = ("tilewright_kernels", "fused_", "segment_")
    for name in [n for n in sys.modules if n.partition(".")[0].startswith(brought)]:
        del sys.modules[name]
