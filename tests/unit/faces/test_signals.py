"""A signal ends a command and all that it started, with a line that says how to go on; so does a parent's sudden
end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.edges.sandbox.processes import descendants, started

# A command whose children sleep: one that would clean up by itself, one that ignores every signal, and theirs.
COMMAND = """
import subprocess
import sys
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
from tilewright.edges.sandbox.offspring import offspring
from tilewright.faces.exits import Interruptible, exit_code, obey_signals

def child(script, polite):
    with offspring([sys.executable, "-c", script], polite=polite) as process:
        process.wait()

FORKS = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
DEAF = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; " + FORKS

def run():
    pool = ThreadPoolExecutor(1)
    pool.submit(subprocess.run, ["sleep", "60"])  # as a compiler is run
    with Interruptible(Path("runs/x")), ThreadPoolExecutor(2) as pool:
        list(pool.map(child, (FORKS, DEAF), (True, False)))

obey_signals()
print("up", flush=True)
sys.exit(exit_code(run))
"""

# Becomes the command that follows, with signals as they are by default.
HEEDS = (sys.executable, "-IS", "-c", """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
""")  # fmt: skip


def begun(command: list[str], cwd: Path, *, processes: int) -> tuple[subprocess.Popen[str], dict[int, int | None]]:
    """The process, and what descends from it, once there are so many. It ignores no signal, even where these tests
    were started so that they do."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([*HEEDS, *command], cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    until = time.monotonic() + 60
    while len(tree := descendants(process.pid)) < processes and time.monotonic() < until:
        time.sleep(0.05)
    assert len(tree) >= processes
    return process, {pid: started(pid) for pid in tree[1:]}


def all_ended(tree: dict[int, int | None]) -> bool:
    def lives(pid: int, since: int | None) -> bool:
        return started(pid) == since and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    until = time.monotonic() + 20
    while any(lives(*one) for one in tree.items()):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_children_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    process, tree = begun([sys.executable, "-c", COMMAND], tmp_path, processes=7)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == "tilewright: interrupted; the journal is intact: continue with `tilewright resume runs/x`\n"
    assert all_ended(tree)


def test_a_second_signal_does_not_wait_for_anything(tmp_path: Path) -> None:
    slow = COMMAND.replace(
        "def run():", "def run():\n  try: run_()\n  finally: import time; time.sleep(50)\ndef run_():"
    )
    process, tree = begun([sys.executable, "-c", slow], tmp_path, processes=7)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert err.count("tilewright resume runs/x") == 2 and "without cleaning up" in err.splitlines()[-1]
    assert all_ended(tree)


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    process, tree = begun([sys.executable, "-c", COMMAND], tmp_path, processes=7)
    process.kill()
    process.communicate()
    assert all_ended(tree)


def test_what_the_parent_ignores_stays_ignored(tmp_path: Path) -> None:
    command = ["nohup", sys.executable, "-c", COMMAND]
    process, tree = begun(command, tmp_path, processes=7)
    process.send_signal(signal.SIGHUP)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert all_ended(tree)


@pytest.mark.few(0)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_waits_for_input_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    pytest.importorskip("mcp")
    process, _ = begun([sys.executable, "-m", "tilewright", "mcp", "--target", "cpu"], tmp_path, processes=2)
    with process:
        assert process.stdin is not None and process.stdout is not None
        hello = (
            '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
        )
        process.stdin.write(hello + '"clientInfo":{"name":"a","version":"1"}}}\n')
        process.stdin.flush()
        assert '"id":1' in process.stdout.readline()
        begin = time.monotonic()
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
        assert time.monotonic() - begin < 20


@pytest.mark.few(0)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_bench_ends_with_all_its_tasks(tmp_path: Path, own_cache: Path, number: signal.Signals) -> None:
    source = "from torch import nn\nimport torch, time\ntime.sleep(60)\nclass Model(nn.Module): ...\n"
    source += "def get_inputs(): ...\ndef get_init_inputs(): ...\n"
    (tmp_path / "problems").mkdir()
    for name in ("1_a.py", "2_b.py"):
        (tmp_path / "problems" / name).write_text(source)
    command = [sys.executable, "-m", "tilewright", "bench", "problems", "--target", "cpu", "--jobs", "2"]
    process, tree = begun(command, tmp_path, processes=8)  # two tasks, a fork server and a cell each, and guards
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert all_ended(tree)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert "the same command continues from runs/bench-problems-cpu" in err.splitlines()[-1]
        assert not list((tmp_path / "runs" / "bench-problems-cpu").glob("*.json")), "no task is booked as failed"
    assert os.path.isdir(tmp_path / "runs")
