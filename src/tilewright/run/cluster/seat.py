"""One place that measures, on the machine that has it: calibrated at its start, quarantined when it is sick."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Protocol

from ...edges.gpu.lease import only_worker
from ...edges.sandbox.offspring import offspring
from ...facts.errors import HarnessError, Lack, TooBusy
from ...facts.problem import Target
from ...facts.version import VERSION
from ..campaign import Campaign, Task, run_task
from .task import ClusterNode, TaskOrder, TaskResult

_CALIBRATION_LIMIT_S = 600.0  # a machine that is met for the first time has its rates measured
_CHECKS = 2  # calibrations that fail in a row until the device is under quarantine
_PAUSE_S = 5.0  # between two of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a machine says of itself at its start; `aa` and `aa_spread` as in ClusterNode."""

    device: str
    driver: str
    toolchain: str
    machine: str
    aa: float
    aa_spread: float


class Calibrate(Protocol):
    def __call__(self, target: Target, place: Mapping[str, str]) -> Calibration:
        """Raises HarnessError where the device can't be measured on."""


def calibrated(target: Target, place: Mapping[str, str]) -> Calibration:
    """In a process of its own: rates where they are not known yet, and one piece of work timed twice."""
    command = [sys.executable, "-m", "tilewright.faces.calibration", target]
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        with offspring(command, polite=True, env=os.environ | place, **given) as process:
            stdout, stderr = process.communicate(timeout=_CALIBRATION_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise HarnessError(f"calibration took more than {_CALIBRATION_LIMIT_S:.0f} s") from None
    try:
        return Calibration(**json.loads(stdout))
    except (ValueError, TypeError):
        lines = [line for line in stderr.splitlines() if line.strip()]
        said = lines[-1][-300:] if lines else f"exit {process.returncode}"
        raise HarnessError(f"calibration failed: {said}") from None


class RunTask(Protocol):
    def __call__(self, campaign: Campaign, file: Path, place: Mapping[str, str]) -> Task: ...


@dataclass(kw_only=True)
class Seat:
    """A device with the environment `place` of tasks on it. Tasks may run side by side in several threads: they trace
    and compile at the same time and take the device's lease to measure."""

    node: ClusterNode
    target: Target
    place: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False  # whether no other worker may be on this CPU; on a GPU none ever may
    calibrate: Calibrate = calibrated
    work: RunTask = run_task
    sleep: Callable[[float], None] = time.sleep
    _lock: Lock = field(default_factory=Lock)
    _worker: int | None = None  # what makes it the only one on its GPU

    def begin(self) -> ClusterNode:
        """Calibrate; afterwards the node is ready, or under quarantine, as is the second of two on one GPU."""
        why = self._taken() or self._sick()
        if why:
            self.node = replace(self.node, state="quarantined", why=why)
        return self.node

    def run(self, order: TaskOrder) -> TaskResult:
        """Do the order whole; a result comes back whatever becomes of it. The node's fault is found by a calibration
        behind a task that failed for no fault of its problem's or candidate's."""
        started = time.monotonic()
        fault = "" if order.version == VERSION else f"runs Tilewright {VERSION}, and the driver {order.version}"
        fault = fault or (self.node.why if self.node.state != "ready" else "")
        if order.begun is not None and order.begun.machine != self.node.machine:
            fault = fault or "its run began on another kind of machine: times could not be compared"
        task: Task = {}
        folder, archive = "", b""
        if not fault:
            with tempfile.TemporaryDirectory(prefix="tilewright-task-") as temporary:
                campaign = order.campaign(Path(temporary))
                file = campaign.files[0]
                file.write_text(order.source, encoding="utf-8")
                made = campaign.out / file.stem
                if order.begun is not None:
                    unpacked(order.begun.archive, made)
                try:
                    task = self.work(campaign, file, self.place)
                except Lack as lack:
                    fault = str(lack)
                    self._quarantine(fault)
                folder, archive = str(made), archived(made)
            if task.get("status") == "failed" and task.get("whose") in ("machine", "project"):
                said = str(task["verdict"]["summary"])
                fault = said if TooBusy.SAID in said else self._sick()
        return TaskResult(
            key=order.key, attempt=order.attempt, node=self.node, task=task, wall_s=time.monotonic() - started,
            fault=fault, folder=folder, archive=archive,
        )  # fmt: skip

    def _taken(self) -> str:
        if self.target == "cpu" and not self.alone:
            return ""
        device = "cpu" if self.target == "cpu" else "cuda:0"
        self._worker = only_worker(device, visible=self.place.get("CUDA_VISIBLE_DEVICES"))
        return "" if self._worker is not None else "another worker of a campaign has this device"

    def close(self) -> None:
        """Another process may be the GPU's worker."""
        if self._worker is not None:
            os.close(self._worker)
            self._worker = None

    def _sick(self) -> str:
        """Why the device could not be calibrated just now, "" where it could; the second failure in a row puts it under
        quarantine."""
        with self._lock:
            first = ""
            for number in range(_CHECKS):
                if number:
                    self.sleep(_PAUSE_S)
                try:
                    found = self.calibrate(self.target, self.place)
                except HarnessError as error:
                    first = first or str(error)
                    continue
                if self.node.machine not in ("", found.machine):
                    first = f"is another machine than at the node's start: {found.device}, {found.driver}"
                    break
                if self.node.state == "starting":
                    self.node = replace(self.node, state="ready", **asdict(found))
                return first
            self._quarantine(first)
            return first

    def _quarantine(self, why: str) -> None:
        self.node = replace(self.node, state="quarantined", why=why)


def archived(folder: Path) -> bytes:
    """The folder's files as a gzipped tar; empty where there is no folder."""
    if not folder.is_dir():
        return b""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                tar.add(path, arcname=str(path.relative_to(folder)))
    return packed.getvalue()


def unpacked(archive: bytes, folder: Path) -> None:
    """Write the archive's files into the folder; regular files only, and none outside it. Raises HarnessError for
    bytes that are no archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise HarnessError(f"{folder}: what a node sent of its run can't be unpacked ({error})") from None


def here(place: str, *, host: str = "") -> ClusterNode:
    """A node of this process: the host's name (its own where none is given), and what tells its places apart."""
    host = host or socket.gethostname()
    return ClusterNode(name=f"{host}:{place}", host=host, pid=os.getpid())
