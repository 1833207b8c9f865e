"""Process trees as /proc tells them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tilewright.edges.sandbox import processes

BUSY = """
import os, time
os.fork()
while time.process_time() < 0.3: pass
os.write(1, b"x")
time.sleep(60)
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
