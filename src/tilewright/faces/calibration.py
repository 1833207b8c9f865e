"""`python -m tilewright.faces.calibration TARGET`: what this machine is, and how far two timings of the same work lie
apart on it (A/A); one JSON line on stdout."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

from ..edges.gpu.lease import lease
from ..edges.gpu.machine import machine
from ..facts.errors import TilewrightError
from ..facts.problem import Target
from ..run.cluster.seat import Calibration
from . import config

_PAIRS = 60  # of samples, in turns
_SAMPLE_S = 2e-3


def calibration(target: Target) -> Calibration:
    """Measured under the device's lease. Raises UserError where there is no such device, HarnessError where the device
    fails."""
    found = machine(target, cache_dir=config.cache_dir())
    with lease("cpu" if target == "cpu" else "cuda:0"):
        ratios = _paired(_work(target))
    quartiles = statistics.quantiles(ratios, n=4)
    return Calibration(
        device=found.device, driver=found.driver, toolchain=f"torch {found.torch}, {found.dsl}", machine=found.key,
        aa=quartiles[1], aa_spread=quartiles[2] - quartiles[0],
    )  # fmt: skip


def _work(target: Target) -> Callable[[], None]:
    """One product of 256 x 256 on a CPU, 2048 x 2048 on a GPU, in fp32, done when the call returns."""
    import torch

    n = 256 if target == "cpu" else 2048
    left, right = (torch.ones(n, n, device=target) for _ in range(2))
    into = torch.empty_like(left)

    def call() -> None:
        torch.mm(left, right, out=into)
        if target == "cuda":
            torch.cuda.synchronize()

    return call


def _paired(call: Callable[[], None]) -> list[float]:
    """The first sample's time over the second's, of pairs in alternating order."""
    for _ in range(10):
        call()
    calls = max(1, round(_SAMPLE_S / max(_sample_s(call, 5) / 5, 1e-6)))
    ratios = []
    for number in range(_PAIRS):
        first, second = _sample_s(call, calls), _sample_s(call, calls)
        ratios.append(first / second if number % 2 else second / first)
    return ratios


def _sample_s(call: Callable[[], None], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - started


def main() -> int:
    target: Target = "cuda" if sys.argv[1:] == ["cuda"] else "cpu"
    try:
        print(json.dumps(asdict(calibration(target))))
    except (TilewrightError, RuntimeError) as error:  # the latter is torch's, of a device that fails
        print(f"tilewright: {' '.join(str(error).split())[:400]}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
