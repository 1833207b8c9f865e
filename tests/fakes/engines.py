"""An engine in this process, which loses what a test tells it to lose; and seats whose devices are a test's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tilewright.facts.errors import HarnessError
from tilewright.facts.problem import Target
from tilewright.run.campaign import Campaign
from tilewright.run.cluster.engine import Reported
from tilewright.run.cluster.seat import Calibration, Seat
from tilewright.run.cluster.task import ClusterNode, LostTask, TaskOrder, TaskResult

CALIBRATION = Calibration(device="one GPU", driver="1", toolchain="torch 1", machine="m", aa=1.0, aa_spread=0.01)
NODE = ClusterNode(
    name="a:gpu0", host="a", state="ready", device="one GPU", driver="1", toolchain="torch 1", machine="m"
)

Work = Callable[[Campaign, Path, Mapping[str, str]], dict[str, Any]]


def improved(campaign: Campaign, file: Path, place: Mapping[str, str]) -> dict[str, Any]:
    """A task that leaves a run's folder."""
    out = campaign.out / file.stem
    out.mkdir(parents=True, exist_ok=True)
    (out / "run.db").write_text("journal")
    return {
        "problem": file.stem, "status": "improved", "verdict": {"accepted": True}, "candidate": str(out / "candidate"),
        "machine": {"key": "m", "device": "one GPU"}, "device_seconds": {"all": 0.25}, "ratio": {"eager": {"mid": 2.0}},
        "place": dict(place), "notes": [f"{file}: read"],
    }  # fmt: skip


def seat(name: str = "a:gpu0", *, work: Work = improved, failing: Sequence[bool] = ()) -> Seat:
    """A seat that calibrates at once; `failing`: whether each calibration fails, all further ones succeed."""
    left = list(failing)

    def calibrate(target: Target, place: Mapping[str, str]) -> Calibration:
        if left and left.pop(0):
            raise HarnessError("calibration failed: an Xid")
        return CALIBRATION

    node = ClusterNode(name=name, host=name.partition(":")[0])
    return Seat(node=node, target="cpu", calibrate=calibrate, work=work, sleep=lambda s: None)


class FakeEngine:
    """Does an order when its report is asked for, in the order of submission. `lose(order)`: whether the node is lost
    with it; `twice`: every result is reported a second time."""

    def __init__(
        self, *, lose: Callable[[TaskOrder], bool] = lambda order: False, twice: bool = False,
        change: Callable[[TaskResult], TaskResult] = lambda result: result, nodes: Sequence[ClusterNode] = (NODE,),
    ) -> None:  # fmt: skip
        self.submitted: list[TaskOrder] = []
        self._waiting: list[TaskOrder] = []
        self._lose, self._twice, self._change, self._nodes = lose, twice, change, tuple(nodes)
        self._seat = seat()
        self._seat.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, /, *_: object) -> None: ...

    def submit(self, order: TaskOrder) -> None:
        if order.name not in {o.name for o in self.submitted}:
            self.submitted.append(order)
            self._waiting.append(order)

    def cancel(self, key: str) -> None:
        self._waiting = [order for order in self._waiting if order.key != key]

    def reports(self, timeout_s: float) -> Sequence[Reported]:
        if not self._waiting or not any(node.state == "ready" for node in self._nodes):
            return []
        order = self._waiting.pop(0)
        if self._lose(order):
            return [LostTask(key=order.key, attempt=order.attempt, node="a:gpu0", why="killed")]
        result = self._change(replace(self._seat.run(order), node=NODE))
        return [result, result] if self._twice else [result]

    def nodes(self) -> tuple[ClusterNode, ...]:
        return self._nodes
