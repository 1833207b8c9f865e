"""Behind the filter a process sets priorities, schedulers and limits of its own alone, and no processors."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from tilewright.judge.candidate_process import seccomp

TRIED = """
import ctypes, json, os, resource, sys
from tilewright.judge.candidate_process import seccomp

other, found = int(sys.argv[1]), {}
assert ctypes.CDLL(None).prctl(38, ctypes.c_ulong(1), 0, 0, 0) == 0  # no new privileges
seccomp.keep_to_itself()
cores = resource.RLIMIT_CORE

def tried(name, act, *args):
    try:
        act(*args)
        found[name] = 0
    except OSError as error:
        found[name] = error.errno

for whose, pid in (("own", 0), ("own by name", os.getpid()), ("other", other)):
    tried(f"{whose} processors", os.sched_setaffinity, pid, os.sched_getaffinity(0))
    tried(f"{whose} priority", os.setpriority, os.PRIO_PROCESS, pid, 5)
    tried(f"{whose} scheduler", os.sched_setscheduler, pid, os.SCHED_BATCH, os.sched_param(0))
    tried(f"{whose} limits", resource.prlimit, pid, cores, (0, 0))
    tried(f"{whose} limits, asked for", resource.prlimit, pid, cores)
processors = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(processors)})
found["processors kept"] = 0 if os.sched_getaffinity(0) == processors else -1
tried("other group", os.setpriority, os.PRIO_PGRP, 0, 5)
tried("other of the user", os.setpriority, os.PRIO_USER, os.getuid(), 5)
print(json.dumps(found))
"""


def test_a_process_keeps_to_itself() -> None:
    if platform.machine() not in seccomp._NUMBERS:
        pytest.skip(f"no system calls are known of {platform.machine()}")
    with subprocess.Popen(["sleep", "60"]) as other:
        command = [sys.executable, "-c", TRIED, str(other.pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        limits, nice = os.sched_getaffinity(other.pid), os.getpriority(os.PRIO_PROCESS, other.pid)
        other.kill()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    refused = {n for n, code in found.items() if code}
    assert refused == {n for n in found if n.startswith("other") and "asked for" not in n}
    assert {found[n] for n in refused} == {1}
    assert limits == os.sched_getaffinity(0) and nice == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.parametrize("machine", sorted(seccomp._NUMBERS))
def test_no_jump_leaves_the_program(machine: str) -> None:
    steps = seccomp._program(seccomp._NUMBERS[machine], 4711)
    assert steps[-1] == (seccomp._RETURN, 0, 0, seccomp._ALLOW)
    for at, (code, yes, no, _) in enumerate(steps):
        assert code == seccomp._RETURN or at + 1 + max(yes, no) < len(steps)
