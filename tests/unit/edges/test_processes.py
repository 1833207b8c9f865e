"""Process trees as /proc tells them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tilewright.edges.sandbox import processes
from waiting import wait_until

BUSY = """
import os, time
os.fork()
while time.process_time() < 0.3: pass
os.write(1, b"x")
time.sleep(600)
"""


@pytest.mark.parametrize("listed", [True, False])
def test_processor_time_of_grandchildren_counts(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not listed:
        monkeypatch.setattr(processes, "_listed", lambda pid: [])
    command = ["sh", "-c", '"$0" -c "$1" & wait', sys.executable, BUSY]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as shell:
        try:
            assert shell.stdout is not None
            assert shell.stdout.read(1) + shell.stdout.read(1) == b"xx"
            assert len(processes.descendants(shell.pid)) >= 3
            assert 0.5 <= processes.tree_cpu_s(shell.pid) < 2.0
        finally:
            processes.kill_tree(shell.pid)
    assert processes.descendants(shell.pid) == [shell.pid]


BURNING = "import time\nwhile time.process_time() < 0.3: pass"
ENDED = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {BURNING!r}])
sys.stdout.write("x")
sys.stdout.flush()
sys.stdin.read(1)
"""


def test_processor_time_of_children_that_ended_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.read(1)
        assert processes.tree_cpu_s(shell.pid) >= 0.25
        processes.kill_tree(shell.pid)


def test_several_trees_end_together_with_all_that_descends_from_them() -> None:
    command = ["sh", "-c", "sleep 600 & setsid sleep 600 & echo x; wait"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as one,
        subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as other,
    ):
        assert one.stdout is not None and other.stdout is not None
        assert one.stdout.read(1) + other.stdout.read(1) == b"xx"
        below = [pid for pid in processes.descendants(one.pid, other.pid) if pid not in (one.pid, other.pid)]
        processes.kill_tree(one.pid, other.pid)
    assert len(below) == 4 and one.returncode == other.returncode == -9
    wait_until(lambda: not any(pid in processes.descendants(1) for pid in below))


SHARING = """
import mmap, os, sys
held = mmap.mmap(-1, 96 << 20)
held.write(bytes(96 << 20))
fd = os.memfd_create("x")
os.write(fd, bytes(16 << 20))
mapped = mmap.mmap(fd, 16 << 20)
mapped[:] = bytes(16 << 20)
os.fork()
os.write(1, b"x%d" % os.fstat(fd).st_ino)
os.read(0, 1)
"""


def test_memory_that_is_no_processs_own_counts_once() -> None:
    with subprocess.Popen([sys.executable, "-c", SHARING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None and shell.stdin is not None
        said = b""
        while said.count(b"x") < 2:
            said += shell.stdout.read(1)
        inode = int(said.split(b"x")[1])
        pids = processes.descendants(shell.pid)
        found, known = (processes.shared_bytes(pids, known=k) for k in ({}, {inode: 16 << 20}))
        shell.stdin.write(b"xx")
        shell.stdin.close()
    assert len(pids) == 2
    assert 112 <= found >> 20 <= 113 and 96 <= known >> 20 <= 97
