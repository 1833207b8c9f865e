"""`--cluster` from the command line: what is refused before any work, and campaigns over workers that are started by
stand-ins for ssh and sbatch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import slurm
from fakes.command import in_process
from fakes.engines import NODE, seat
from tilewright.faces import clusters
from tilewright.faces.clusters import HERE, ClusterChoice, nodes_object, progress_table
from tilewright.facts.errors import UserError
from tilewright.run.campaign import Campaign
from tilewright.run.cluster.dispatch import NodeShare, Progress
from tilewright.run.cluster.shared import SharedFolderEngine

BROKEN = "import torch\n\n\ndef get_inputs():\n    return []\n"  # no Model: the task's process says so within a second
SLEEPS = """
import time

import torch

time.sleep(3)
raise ValueError("awake")


class Model(torch.nn.Module):
    def forward(self, x):
        return x.cos()


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
"""


def problems(folder: Path, **texts: str) -> Path:
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.mark.parametrize("name", ["slurm", "slurm:", "ssh:", "ray://", "ray:x", "k8s", "rays"])
def test_an_engine_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="unknown; write ray://HOST"):
        ClusterChoice.of(name, "")
    for known in ("", "ray", "ray://head", "ray://head:10001", "local", "slurm:gpu", "slurm:gpu:8", "ssh:a,b"):
        assert ClusterChoice.of(known, "").engine == known


def test_what_does_not_go_with_a_cluster_is_said_before_any_work(tmp_path: Path) -> None:
    problems(tmp_path / "p", a=BROKEN)
    for flags, said in (
        (("--cluster", "local", "--evaluator", "bundle:b"), "leave --evaluator out"),
        (("--cluster", "local", "--model", "mailbox:m"), "a mailbox is a folder of this machine"),
        (("--cluster", "ray", "--devices", "0,1"), "leave --devices out"),
        (("--cluster", "slurm:gpu:many"), "'many' is no number of jobs"),
        (("--cluster", "local", "--device-price", "much"), "no price; write 2.5"),
    ):
        code, _, err = in_process("bench", "p", "--target", "cpu", "--out", "o", *flags, cwd=tmp_path)
        assert code == 2 and said in err, err


def test_without_ray_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    problems(tmp_path / "p", a=BROKEN)
    code, _, err = in_process("bench", "p", "--target", "cpu", "--out", "o", "--cluster", "ray", cwd=tmp_path)
    assert (code, err) == (2, "tilewright: --cluster: Ray is not installed; pip install tilewright[cluster]\n")


def test_money_is_what_the_occupied_device_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    share = NodeShare(node=replace(NODE, device="NVIDIA H100 80GB"), tasks=4, busy_s=1800.0, device_s=60.0)
    assert HERE.usd(share) is None
    assert ClusterChoice.of("local", "3").usd(share) == 1.5
    assert ClusterChoice.of("local", "H200=9,h100=4").usd(share) == 2.0
    assert ClusterChoice.of("local", "H200=9").usd(share) is None
    monkeypatch.setenv("TILEWRIGHT_DEVICE_PRICE", "2")
    priced = ClusterChoice.of("local", "")
    assert priced.usd(share) == 1.0
    progress = Progress(done=4, wanted=9, lost=1, shares=(share,))
    (node,) = nodes_object(progress, priced)
    assert {k: node[k] for k in ("name", "tasks", "busy_s", "device_s", "usd", "driver", "toolchain")} == {
        "name": "a:gpu0", "tasks": 4, "busy_s": 1800.0, "device_s": 60.0, "usd": 1.0, "driver": "1",
        "toolchain": "torch 1",
    }  # fmt: skip
    assert [c.header for c in progress_table(progress, priced).columns][-1] == "USD"
    assert [c.header for c in progress_table(progress, HERE).columns][-1] == "measuring"


def test_each_gpu_that_is_visible_has_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "look", lambda: type("Sight", (), {"problem": "", "devices": (1, 2)}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert clusters.visible_gpus() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7")
    assert clusters.visible_gpus() == ("4", "7")
    monkeypatch.setattr(clusters, "look", lambda: type("Sight", (), {"problem": "no driver", "devices": ()}))
    with pytest.raises(UserError, match="no GPU here: no driver"):
        clusters.visible_gpus()


def test_a_folder_without_a_queue_has_no_campaign(tmp_path: Path) -> None:
    code, _, err = in_process("worker", tmp_path, "--campaign", "cpu")
    assert code == 2 and "no campaign's queue" in err


@pytest.mark.slow
@pytest.mark.thorough
def test_a_bench_over_ssh_books_what_its_workers_say(tmp_path: Path) -> None:
    """And the same command has nothing left to do."""
    problems(tmp_path / "p", a=BROKEN, b=BROKEN)
    flags = ("--target", "cpu", "--out", "o", "--cluster", "ssh:one", "--json", "o.json", "--device-price", "2")
    done, environment = start("bench", "p", *flags, cwd=tmp_path)
    _, err = done.communicate(timeout=120)
    assert done.returncode == 2, err
    assert "2 of 2 failed: a (problem), b (problem)" in err
    told = json.loads((tmp_path / "o.json").read_text())
    assert [t["verdict"]["reason"] for t in told["tasks"]] == ["crashed", "crashed"]
    assert all("no `Model`" in t["verdict"]["summary"] and t["node"]["device"] for t in told["tasks"])
    (node,) = told["nodes"]
    assert node["tasks"] == 2 and node["usd"] > 0 and 0.2 < node["aa"] < 5
    again, _ = start("bench", "p", *flags, cwd=tmp_path, environment=environment)
    again.communicate(timeout=120)
    assert again.returncode == 2 and json.loads((tmp_path / "o.json").read_text())["tasks"] == told["tasks"]
    assert len(lines(tmp_path)) == 2


@pytest.mark.thorough
def test_jobs_of_slurm_that_are_killed_are_started_again_and_their_task_is_done_once_more(tmp_path: Path) -> None:
    problems(tmp_path / "p", a=SLEEPS, b=BROKEN)
    flags = ("--target", "cpu", "--out", "o", "--cluster", "slurm:cpu:1", "--json", "o.json")
    done, environment = start("bench", "p", *flags, cwd=tmp_path)
    claims = tmp_path / "o" / ".cluster" / "claims"
    ends_at = time.monotonic() + 60
    while not list(claims.glob("a-*")):
        assert time.monotonic() < ends_at and done.poll() is None
        time.sleep(0.05)
    os.killpg(int((tmp_path / "programs" / "jobs" / "1").read_text()), signal.SIGKILL)
    _, err = done.communicate(timeout=120)
    assert "its worker was started anew; once more elsewhere" in err, err
    told = {t["problem"]: t for t in json.loads((tmp_path / "o.json").read_text())["tasks"]}
    assert (told["a"]["attempt"], told["b"]["attempt"]) == (1, 0)
    assert "awake" in told["a"]["verdict"]["summary"] and "no `Model`" in told["b"]["verdict"]["summary"]
    assert len(lines(tmp_path)) == 2 and environment


@pytest.mark.thorough
def test_a_driver_that_is_killed_loses_nothing_and_its_worker_goes_on(tmp_path: Path) -> None:
    """The worker, on the other machine, ends its task; the same command takes the result and the worker over."""
    problems(tmp_path / "p", a=SLEEPS)
    flags = ("--target", "cpu", "--out", "o", "--cluster", "ssh:one", "--json", "o.json")
    first, environment = start("bench", "p", *flags, cwd=tmp_path)
    queue = tmp_path / "o" / ".cluster"
    ends_at = time.monotonic() + 60
    while not list((queue / "claims").glob("a-*")):
        assert time.monotonic() < ends_at and first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.communicate()
    second, _ = start("bench", "p", *flags, cwd=tmp_path, environment=environment)
    _, err = second.communicate(timeout=120)
    assert second.returncode == 2, err
    (task,) = json.loads((tmp_path / "o.json").read_text())["tasks"]
    assert task["attempt"] == 0 and "awake" in task["verdict"]["summary"], err
    assert len((tmp_path / "programs" / "ssh.log").read_text().splitlines()) == 1, "the worker was taken over"


def start(
    *args: str, cwd: Path, environment: dict[str, str] | None = None
) -> tuple[subprocess.Popen[str], dict[str, str]]:  # fmt: skip
    """The command in a process of its own, with stand-ins on its PATH; and its environment."""
    (cwd / "programs").mkdir(exist_ok=True)
    found = os.environ | {"PATH": slurm.install(cwd / "programs"), "TILEWRIGHT_LEASES": str(cwd / "leases")}
    found |= environment or {}
    command = [sys.executable, "-m", "tilewright", *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, env=found, stdout=pipe, stderr=pipe, text=True), found


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "o" / "results.jsonl").read_text().splitlines()]


def test_the_engines_that_are_named_are_those_that_come(tmp_path: Path) -> None:
    campaign = Campaign(
        files=(tmp_path / "a.py",), out=tmp_path, target="cpu", budget_s=1.0, settings=(), jobs=3, devices=(), stamp=""
    )  # fmt: skip
    found = clusters.engine_of("ssh:a,b@c", campaign, tmp_path)
    assert isinstance(found, SharedFolderEngine)
    assert found.launcher.hosts == ["a", "b@c"]  # type: ignore[attr-defined]
    command = found.launcher.command  # type: ignore[attr-defined]
    assert command[1:] == [
        "-m", "tilewright", "worker", str(tmp_path / ".cluster"), "--campaign", "cpu", "--jobs", "3"
    ]  # fmt: skip
    slurm_engine = clusters.engine_of("slurm:gpu:8", campaign, tmp_path)
    assert slurm_engine.launcher.count == 1, "no more jobs than tasks"  # type: ignore[attr-defined]


def test_compare_runs_all_strategies_over_one_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = seat()
    monkeypatch.setattr(clusters, "seats", lambda campaign: [one])
    begins: list[str] = []
    monkeypatch.setattr(one, "begin", lambda begin=one.begin: begins.append("") or begin())
    problems(tmp_path / "p", a=BROKEN, b=BROKEN)
    flags = ("--strategies", "catalog,fact", "--target", "cpu", "--out", "o", "--cluster", "local")
    code, _, err = in_process("compare", "p", *flags, cwd=tmp_path)
    assert (begins, code) == ([""], 2), err  # the fake seat's journals can't be read, which ends the command afterwards
    found = lines(tmp_path)
    assert sorted((line["out"], line["file"]) for line in found) == [
        (f"o/{strategy}/1", f"{name}.py") for strategy in ("catalog", "fact") for name in "ab"
    ]  # fmt: skip
    for line in found:
        flags = tuple(line["flags"])
        assert flags[flags.index("--strategy") + 1] == line["out"].split("/")[1] and flags[-2:] == ("--seed", "0")


def test_audit_takes_a_folder_over_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(campaign: Campaign, file: Path, place: object) -> dict[str, Any]:
        assert campaign.verb == "audit"
        verdict = {"accepted": False, "stage": "run", "reason": "crashed", "summary": "no `Model`"}
        return {"problem": file.stem, "status": "failed", "whose": "problem", "verdict": verdict}

    monkeypatch.setattr(clusters, "seats", lambda campaign: [seat(work=work)])
    problems(tmp_path / "p", a=BROKEN, b=BROKEN)
    flags = ("--target", "cpu", "--out", "o", "--cluster", "local", "--json")
    code, out, err = in_process("audit", "p", *flags, cwd=tmp_path)
    told = json.loads(out)
    assert code == 0 and told["summary"]["failed"] == 2, err
    assert [t["node"]["device"] for t in told["tasks"]] == ["one GPU", "one GPU"]
    assert [(n["name"], n["tasks"]) for n in told["nodes"]] == [("a:gpu0", 2)]
