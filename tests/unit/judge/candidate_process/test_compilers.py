"""Compilers are ended with all that they have started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.judge.candidate_process.compilers import end_compilers
from waiting import wait_until

# A pool as inductor's: a process beside the caller's, whose workers are its children.
POOL = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(
    not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(), reason="no such file in /proc"
)
def test_a_pool_ends_with_its_workers() -> None:
    program = f"""
import subprocess, sys
pool = subprocess.Popen([sys.executable, "-c", {POOL!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
worker = int(pool.stdout.readline())
from tilewright.judge.candidate_process.compilers import end_compilers
end_compilers()
print(pool.wait(), worker)
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    code, worker = map(int, said.split())
    assert code == -9
    wait_until(lambda: not _runs(worker))


def test_inductor_starts_another_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    pool = type(sys)("torch._inductor.async_compile")
    pool.after_fork = lambda: asked.append("again")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch._inductor.async_compile", pool)
    monkeypatch.setattr("tilewright.judge.candidate_process.compilers._descendants", lambda pid: [])
    end_compilers()
    assert asked == ["again"]
