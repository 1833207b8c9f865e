"""What static detectors see in a candidate's text. They are tripwires: what they find is told, never judged by."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ...facts.candidate import Candidate

_TIMEOUT_S = 20.0
_LARGEST = 400_000  # characters of one file: generated tables are no code to be looked at
_MOST = 8


def tripwires(candidate: Candidate) -> tuple[str, ...]:
    """A line for each finding of kernelguard in the candidate's files; one line that says so where it can't be run."""
    chosen = {file.path: file.text for file in candidate.files if len(file.text) <= _LARGEST}
    script = Path(__file__).with_name("detect.py")
    try:
        done = subprocess.run(
            [sys.executable, str(script)], input=json.dumps(chosen), capture_output=True, text=True,
            timeout=_TIMEOUT_S, check=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return (f"static detectors gave no answer within {_TIMEOUT_S:.0f} s",)
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or ["?"])[-1]
        return (f"static detectors could not be run: {why[:200]}",)
    found = [
        f"static detector: {pattern} ({severity}) in {path}: {' '.join(evidence.split())[:120]}"
        for path, pattern, severity, evidence in json.loads(done.stdout)
    ]
    return tuple(found[:_MOST])
