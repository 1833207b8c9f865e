"""What static detectors see in a candidate's text. They are tripwires: what they find is told, never judged by."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ...facts.candidate import Candidate, SourceFile

_TIMEOUT_S = 20.0
_LARGEST = 400_000  # characters of one file: generated tables are no code to be looked at
_MOST = 8
_LIBRARY = "tilewright_kernels/"
_KERNELS = Path(__file__).parents[2] / "kernels"


def tripwires(candidate: Candidate) -> tuple[str, ...]:
    """A line for each finding of kernelguard in the candidate's files; one line that says so where it can't be run.
    Copies of the library's own files, half a megabyte that takes it five seconds, are not shown to it."""
    chosen = {f.path: f.text for f in candidate.files if len(f.text) <= _LARGEST and not _is_copy(f)}
    script = Path(__file__).with_name("detect.py")
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(script)], input=json.dumps(chosen), capture_output=True, text=True,
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


def _is_copy(file: SourceFile) -> bool:
    """Whether it is a file of the library's, word for word."""
    own = _KERNELS / file.path.removeprefix(_LIBRARY)
    return file.path.startswith(_LIBRARY) and own.is_file() and own.read_text(encoding="utf-8") == file.text
