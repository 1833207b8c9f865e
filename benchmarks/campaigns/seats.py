"""Seats that sleep for the seconds of their order's budget: honest for the engine's own overhead alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.facts.problem import Target
from tilewright.run.campaign import Campaign
from tilewright.run.cluster import ray_nodes
from tilewright.run.cluster.seat import Calibration


def sleeps(campaign: Campaign, file: Path, place: Mapping[str, str]) -> dict[str, Any]:
    time.sleep(campaign.budget_s)
    return {"problem": file.stem, "status": "improved"}


def known(target: Target, place: Mapping[str, str]) -> Calibration:
    return Calibration(device="none", driver="none", toolchain="none", machine="none", aa=1.0, aa_spread=0.0)


class SleepingActor(ray_nodes.SeatActor):
    def __init__(self, name: str, target: Target) -> None:
        super().__init__(name, target)
        self._seat.calibrate, self._seat.work = known, sleeps


def ray_main() -> int:
    ray_nodes.SeatActor = SleepingActor  # type: ignore[misc]
    return ray_nodes.main()
