"""Stand-ins for sbatch, squeue, scancel and ssh: programs that run what they are given on this machine, and note it.

A job is a process; its state lies in a folder. What a user of the real ones sees of them is all that they imitate."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

_SBATCH = """
import json, os, subprocess, sys
from pathlib import Path
place = Path(__file__).parent / "jobs"
place.mkdir(exist_ok=True)
(place.parent / "sbatch.log").open("a").write(json.dumps(sys.argv[1:]) + "\\n")
if (place.parent / "refuse").exists():
    sys.exit("sbatch: error: invalid partition specified")
wrap = next(a for a in sys.argv if a.startswith("--wrap=")).removeprefix("--wrap=")
output = next(a for a in sys.argv if a.startswith("--output=")).removeprefix("--output=")
number = str(len(list(place.iterdir())) + 1)
with open(output.replace("%j", number), "ab") as log:
    job = subprocess.Popen(["sh", "-c", wrap], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                           start_new_session=True)
(place / number).write_text(str(job.pid))
print(number + ";cluster")
"""
_SQUEUE = """
import sys
from pathlib import Path
jobs = next(a for a in sys.argv if a.startswith("--jobs=")).removeprefix("--jobs=").split(",")
for job in jobs:
    pid = (Path(__file__).parent / "jobs" / job).read_text()
    try:
        alive = Path("/proc/" + pid + "/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        alive = False
    print(job, "RUNNING" if alive else "FAILED")
"""
_SCANCEL = """
import os, signal, sys
from pathlib import Path
for job in sys.argv[1:]:
    try:
        os.killpg(int((Path(__file__).parent / "jobs" / job).read_text()), signal.SIGKILL)
    except OSError:
        pass
"""
_SSH = """
import json, os, sys
from pathlib import Path
host, command = sys.argv[-2:]
(Path(__file__).parent / "ssh.log").open("a").write(json.dumps([host, os.getpid()]) + "\\n")
if host == "dead":
    sys.exit("ssh: connect to host dead port 22: Connection refused")
os.execve("/bin/sh", ["sh", "-c", command], {k: v for k, v in os.environ.items() if k != "TILEWRIGHT_PARENT"})
"""


def install(folder: Path) -> str:
    """Write the programs into the folder; PATH with them first."""
    for name, text in (("sbatch", _SBATCH), ("squeue", _SQUEUE), ("scancel", _SCANCEL), ("ssh", _SSH)):
        script = folder / name
        script.write_text(f"#!{sys.executable}{text}")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
