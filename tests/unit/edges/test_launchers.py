"""Workers by Slurm and ssh, with stand-ins for their programs that run things here."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import slurm
from tilewright.edges.launchers import SlurmJobs, SshHosts
from tilewright.facts.errors import UserError


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", slurm.install(folder))
    return folder


def waited(until: Callable[[], object]) -> None:
    ends_at = time.monotonic() + 20.0
    while not until():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def jobs(programs: Path) -> list[int]:
    return [int(f.read_text()) for f in sorted((programs / "jobs").iterdir(), key=lambda f: int(f.name))]


def test_slurm_starts_so_many_jobs_keeps_them_and_ends_them(programs: Path, tmp_path: Path) -> None:
    started = SlurmJobs(partition="gpu", count=3, target="cuda", command=["sleep", "100"], logs=tmp_path)
    started.start(frozenset({"a"}))  # one lives already
    asked = [json.loads(line) for line in (programs / "sbatch.log").read_text().splitlines()]
    assert len(asked) == 2
    assert {"--parsable", "--partition=gpu", "--gres=gpu:1", "--wrap=exec sleep 100"} <= set(asked[0])
    assert started.queued() == ("1", "2")
    try:
        for restarts in (1, 2):
            os.killpg(jobs(programs)[-1], signal.SIGKILL)
            waited(lambda: not lives(jobs(programs)[-1]))
            started.keep()
            assert len(jobs(programs)) == 2 + restarts
        started.keep()
        assert started.queued() == () and len(jobs(programs)) == 4
        os.killpg(jobs(programs)[-1], signal.SIGKILL)
        waited(lambda: not lives(jobs(programs)[-1]))
        started.keep()
        assert len(jobs(programs)) == 4, "twice is enough"
    finally:
        started.stop()
    waited(lambda: not any(map(lives, jobs(programs))))


def test_on_a_cpu_a_job_has_a_node_alone(programs: Path, tmp_path: Path) -> None:
    started = SlurmJobs(partition="cpu", count=1, target="cpu", command=["true"], logs=tmp_path)
    started.start(frozenset())
    (asked,) = [json.loads(line) for line in (programs / "sbatch.log").read_text().splitlines()]
    assert {"--nodes=1", "--ntasks=1", "--exclusive"} <= set(asked) and "--gres=gpu:1" not in asked
    started.stop()


def test_what_slurm_refuses_is_said(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = SlurmJobs(partition="none", count=1, target="cpu", command=["true"], logs=tmp_path)
    (programs / "refuse").touch()
    with pytest.raises(UserError, match="slurm:none: sbatch refuses: sbatch: error: invalid partition"):
        started.start(frozenset())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no sbatch on PATH"):
        started.start(frozenset())
    with pytest.raises(UserError, match="no ssh on PATH"):
        SshHosts(hosts=["a"], command=["true"], folder=tmp_path, logs=tmp_path).start(frozenset())


def test_ssh_starts_a_worker_on_each_host_that_has_none(programs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    command = ["sh", "-c", "pwd > here; exec sleep 100"]
    hosts = SshHosts(hosts=["user@one", "two", "three"], command=command, folder=folder, logs=tmp_path)
    hosts.start(frozenset({"one"}))
    waited(lambda: (folder / "here").exists() and (folder / "here").read_text())
    assert (folder / "here").read_text().strip() == str(folder)
    waited(lambda: len((programs / "ssh.log").read_text().splitlines()) == 2)
    told = [json.loads(line) for line in (programs / "ssh.log").read_text().splitlines()]
    assert sorted(host for host, _ in told) == ["three", "two"]
    two = dict(told)["two"]
    os.kill(two, signal.SIGKILL)
    waited(lambda: not lives(two))
    hosts.keep()
    waited(lambda: len((programs / "ssh.log").read_text().splitlines()) == 3)
    hosts.grace_s = 0.1
    hosts.stop()
    told = [json.loads(line) for line in (programs / "ssh.log").read_text().splitlines()]
    assert told[2][0] == "two"
    waited(lambda: not any(lives(pid) for _, pid in told))


def test_a_host_that_refuses_is_tried_three_times(programs: Path, tmp_path: Path) -> None:
    hosts = SshHosts(hosts=["dead"], command=["true"], folder=tmp_path, logs=tmp_path)
    hosts.start(frozenset())
    for count in (1, 2, 3, 3):
        waited(lambda count=count: len(_log(tmp_path).splitlines()) >= count)  # type: ignore[misc]
        waited(lambda: hosts.ended())
        hosts.keep()
    assert _log(tmp_path).count("Connection refused") == 3
    hosts.stop()


def _log(folder: Path) -> str:
    place = folder / "ssh-dead.log"
    return place.read_text() if place.exists() else ""
