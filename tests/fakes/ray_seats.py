"""Ray's side of a campaign with seats that sleep for the seconds of their order's budget and measure nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fakes.engines import seat
from tilewright.facts.problem import Target
from tilewright.run.campaign import Campaign
from tilewright.run.cluster import ray_nodes
from tilewright.run.cluster.building import built


def sleeps(campaign: Campaign, file: Path, place: Mapping[str, str]) -> dict[str, Any]:
    time.sleep(campaign.budget_s)
    return {"problem": file.stem, "status": "improved", "machine": {"key": "m"}}


class SleepingActor(ray_nodes.SeatActor):
    def __init__(self, name: str, target: Target) -> None:
        super().__init__(name, target)
        self._seat.calibrate, self._seat.work = seat().calibrate, sleeps


def main() -> int:
    ray_nodes.SeatActor = SleepingActor  # type: ignore[misc]
    return ray_nodes.main()


def built_and_said(order: str, device: str) -> bytes:
    made = built(order, device)
    _said().touch()
    return made


def _said() -> Path:
    return Path(os.environ["TILEWRIGHT_CACHE_DIR"], "built")


def looks(campaign: Campaign, file: Path, place: Mapping[str, str]) -> dict[str, Any]:
    """What of this machine's compiled kernels is there when the task begins. One without text is at work until
    something was built, for as long as its budget at most."""
    there = sorted(p.name for p in Path(os.environ["TILEWRIGHT_CACHE_DIR"], "libraries").glob("*"))
    ends_at = time.monotonic() + campaign.budget_s
    while not file.read_text() and not _said().exists() and time.monotonic() < ends_at:
        time.sleep(1.0)
    time.sleep(0.0 if file.read_text() else 5.0)  # what was built is collected meanwhile
    return {"problem": file.stem, "status": "improved", "machine": {"key": "m"}, "kernels": there}


class LookingActor(ray_nodes.SeatActor):
    def __init__(self, name: str, target: Target) -> None:
        super().__init__(name, target)
        self._seat.calibrate, self._seat.work = seat().calibrate, looks


def builds_ahead() -> int:
    ray_nodes.SeatActor = LookingActor  # type: ignore[misc]
    return ray_nodes.main(ahead=True, build=built_and_said)
