"""`tilewright serve` as a process with the real judge on the CPU: verdicts, a kill in the middle, and what its flags
refuse."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.command import in_process
from fakes.server_process import COSINES, RIGHT, WRONG, server_process
from tilewright.client import JudgeClient, Submitted
from tilewright.faces.serving.keys import KeyLimits
from tilewright.faces.serving.pool import PoolTerms
from tilewright.faces.serving.server import ServeTerms, judging_processes
from tilewright.facts.run import Timing
from tilewright.facts.ticket import JudgingTerms
from waiting import wait_until

PROBLEM = COSINES.format(shape="64, 512")


@contextmanager
def serving(folder: Path, *flags: str, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    told = ("--root", "problems", "--target", "cpu", "--timing", "0.2s", "--no-compile")
    with server_process(folder, "serve", "--port", str(port), *told, *flags) as started:
        yield started


@pytest.fixture
def house(tmp_path: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems" / "cosines.py").write_text(PROBLEM)
    return tmp_path


@pytest.mark.slow
def test_a_ticket_survives_the_kill_of_the_server_that_judges_it(house: Path) -> None:
    with serving(house) as (url, server):
        client = JudgeClient(url, patience_s=10.0)
        assert client.problems() == ["cosines"]
        ticket = client.submit(Submitted(problem="cosines", files={"model.py": WRONG}))
        wait_until(lambda: client.ticket(ticket.id).state == "judging")
        server.send_signal(signal.SIGKILL)
        server.wait(timeout=60)
    with serving(house, port=int(url.rpartition(":")[2])) as (again, _):
        assert again == url
        found = client.wait(ticket.id, timeout_s=300)
        assert (found.state, found.accepted, found.reward, found.told["attempts"]) == ("judged", False, 0.0, 2)
        assert found.told["verdict"]["reason"] == "wrong_values" and "the truth is" in found.told["verdict"]["summary"]
        assert client.submit(Submitted(problem="cosines", files={"model.py": WRONG})).id == ticket.id
        status, _, err = in_process("serve", "--port", 0, "--root", "problems", "--target", "cpu", cwd=house)
        assert status == 2 and "another server works there" in err
    assert [*(house / "runs" / "serve" / "judging").iterdir()] == [], "nothing is left of what was killed"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.measured
def test_verdicts_rewards_and_progress_come_from_the_real_judge(house: Path) -> None:
    kills = RIGHT + "\nimport os\nos.kill(os.getpid(), 9)\n"
    reads = RIGHT + f"\nopen({str(house / 'runs' / 'serve' / 'queue.db')!r}, 'rb').read()\n"
    with serving(house, "--posted-problems") as (url, _):
        client = JudgeClient(url)
        named = client.submit(Submitted(problem="cosines", files={"model.py": RIGHT}))
        posted = client.submit(Submitted(problem="mine", source=PROBLEM, files={"model.py": WRONG}))
        raises = PROBLEM.replace("return sum", "raise ValueError('no such luck')\n        return sum")
        fault = client.submit(Submitted(problem="mine", source=raises, files={"model.py": RIGHT}))
        killed, read = (client.submit(Submitted(problem="cosines", files={"model.py": t})) for t in (kills, reads))
        events = list(client.stream(named.id))
        assert any("right on all inputs" in e[1].get("text", "") for e in events)
        found = client.wait(named.id)
        assert found.accepted and found.reward is not None and found.reward > 0.5
        assert found.told["ratio"]["eager"]["low"] > 1.5 and 0 <= found.told["error_used"] <= 1
        assert client.wait(posted.id, timeout_s=300).told["verdict"]["reason"] == "wrong_values"
        ended = client.wait(fault.id, timeout_s=300)
        assert ended.told["fault"]["whose"] == "problem" and "no such luck" in ended.told["fault"]["text"]
        assert client.wait(killed.id, timeout_s=300).told["verdict"]["reason"] == "crashed"
        refused = client.wait(read.id, timeout_s=300)
        assert refused.accepted is False, "where the disk is hidden, nobody reads the queue"


def test_an_address_that_others_reach_needs_keys_and_a_name(tmp_path: Path) -> None:
    for flags, said in (
        (("--host", "0.0.0.0", "--posted-problems"), "--new-key NAME"),
        (("--root", "none"), "--root none: no such folder"),
        (("--keys", "none", "--posted-problems"), "--keys none"),
        ((), "name a folder of them with --root"),
        (("--problems-from-roots-only",), "name a folder of them with --root"),
        (("--new-key", "ann"), "--keys FILE"),
        (("--limit", "soon"), "--limit"),
        (("--posted-problems", "--queue", "postgresql://nobody@127.0.0.1:1/none"), "the queue can't be used"),
    ):
        code, _, err = in_process("serve", "--target", "cpu", "--port", 0, *flags, cwd=tmp_path)
        assert code in (2, 3) and said in err, err
    code, token, _ = in_process("serve", "--keys", "keys", "--new-key", "ann", cwd=tmp_path)
    assert code == 0 and re.fullmatch(r"tw_[\w-]{43}\n", token)
    code, _, err = in_process(
        "serve", "--target", "cpu", "--host", "0.0.0.0", "--posted-problems", "--keys", "keys", cwd=tmp_path
    )
    assert code == 2 and "--name" in err and os.listdir(tmp_path / "runs") != []


def test_without_the_extra_the_remedy_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("tilewright.faces.serving.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = in_process("serve", "--target", "cpu", "--posted-problems", "--port", 0, cwd=tmp_path)
    assert (code, err) == (2, "tilewright: `tilewright serve` needs uvicorn: pip install 'tilewright[serve]'\n")


def test_each_device_has_its_judging_processes_in_a_folder_without_leftovers(tmp_path: Path) -> None:
    terms = ServeTerms(
        host="127.0.0.1", port=0, names=(), roots=(tmp_path,), state=tmp_path, queue="", keys=None,
        limits=KeyLimits(rate=1, queued=1), most_bytes=1, posted_problems=False, jobs=2, devices=("0", "3"),
        pool=PoolTerms(limit_s=1.0, kept_s=1.0),
        judging=JudgingTerms(target="cuda", timing=Timing(), seed=0, cache=""),
    )  # fmt: skip
    (tmp_path / "judging" / "tilewright-serve-old").mkdir(parents=True)
    made = judging_processes(terms, tmp_path / "judging")
    seen = [process.environment["CUDA_VISIBLE_DEVICES"] for process in made]
    assert seen == ["0", "0", "3", "3"] and list((tmp_path / "judging").iterdir()) == []
    assert {process.terms.folder for process in made} == {str(tmp_path / "judging")}
