"""Workers on other machines, started by Slurm's commands or by ssh; both find the campaign's folder under one path."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..facts.errors import UserError
from ..facts.problem import Target

_RESTARTS = 2  # of each worker
_LIMIT_S = 60.0  # for a command of Slurm's
_MARK = "TILEWRIGHT_PARENT"  # of what must end with this process: jobs outlive a driver that is killed
_ENDED = ("CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "PREEMPTED")


@dataclass(kw_only=True)
class SlurmJobs:
    """`count` jobs of a partition, a worker each: with one GPU, or alone on a node for the target cpu. Further wishes
    go to sbatch by its own variables, such as SBATCH_ACCOUNT and SBATCH_TIMELIMIT."""

    partition: str
    count: int
    target: Target
    command: Sequence[str]
    logs: Path
    _jobs: dict[str, int] = field(default_factory=dict)  # by number, the restarts that are left
    _states: dict[str, str] = field(default_factory=dict)

    def start(self, busy: frozenset[str]) -> None:
        """UserError where Slurm is not installed here, or refuses."""
        if shutil.which("sbatch") is None:
            raise UserError("--cluster slurm: no sbatch on PATH; start the campaign on a login node of the cluster")
        for _ in range(max(0, self.count - len(busy))):
            self._submit(_RESTARTS)

    def keep(self) -> None:
        if not self._jobs:
            return
        told = _said(["squeue", "--noheader", "--states=all", "--format=%i %T", f"--jobs={','.join(self._jobs)}"])
        if told is None:  # Slurm does not answer now, or has forgotten all of them
            return
        states = dict(line.split()[:2] for line in told.splitlines() if len(line.split()) > 1)
        self._states = {job: states.get(job, "COMPLETED") for job in self._jobs}
        for job, left in list(self._jobs.items()):
            if self._states[job] in _ENDED:
                del self._jobs[job]
                if left:
                    self._submit(left - 1)

    def queued(self) -> tuple[str, ...]:
        """Jobs that wait for a machine, as far as the last `keep` knows."""
        return tuple(job for job in self._jobs if self._states.get(job, "PENDING") == "PENDING")

    def stop(self) -> None:
        if self._jobs:
            _said(["scancel", *self._jobs])
            self._jobs.clear()

    def _submit(self, restarts: int) -> None:
        place = ["--gres=gpu:1"] if self.target == "cuda" else ["--nodes=1", "--ntasks=1", "--exclusive"]
        command = [
            "sbatch", "--parsable", f"--partition={self.partition}", "--job-name=tilewright", *place,
            f"--output={self.logs}/slurm-%j.log", f"--wrap=exec {shlex.join(self.command)}",
        ]  # fmt: skip
        outer = {name: value for name, value in os.environ.items() if name != _MARK}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S, env=outer)
        if done.returncode:
            said = " ".join(done.stderr.split())[-300:]
            raise UserError(f"--cluster slurm:{self.partition}: sbatch refuses: {said}")
        self._jobs[done.stdout.strip().partition(";")[0]] = restarts


@dataclass(kw_only=True)
class SshHosts:
    """A worker on each host, in the folder in which this process runs; the host needs no password to be entered."""

    hosts: Sequence[str]
    command: Sequence[str]
    folder: Path
    logs: Path
    grace_s: float = 20.0  # for a worker to leave
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _left: dict[str, int] = field(default_factory=dict)

    def start(self, busy: frozenset[str]) -> None:
        """UserError where there is no ssh here."""
        if shutil.which("ssh") is None:
            raise UserError("--cluster ssh: no ssh on PATH; install an ssh client")
        for host in self.hosts:
            if host.rpartition("@")[2] not in busy:
                self._left[host] = _RESTARTS
                self._start(host)

    def keep(self) -> None:
        for host in self.ended():
            if self._left[host]:
                self._left[host] -= 1
                self._start(host)

    def ended(self) -> tuple[str, ...]:
        """Hosts whose worker is no more."""
        return tuple(host for host, process in self._running.items() if process.poll() is not None)

    def queued(self) -> tuple[str, ...]:
        """None: a host is there, or it is not."""
        return ()

    def stop(self) -> None:
        """Workers leave where the campaign is over; the connection is closed where that takes long."""
        for process in self._running.values():
            try:
                process.wait(self.grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def _start(self, host: str) -> None:
        name = host.rpartition("@")[2]
        command = ["env", f"TILEWRIGHT_NODE={name}", *self.command]
        remote = f"cd {shlex.quote(str(self.folder))} && exec {shlex.join(command)}"
        with (self.logs / f"ssh-{name}.log").open("ab") as log:
            self._running[host] = subprocess.Popen(
                ["ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "--", host, remote],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip


def _said(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
