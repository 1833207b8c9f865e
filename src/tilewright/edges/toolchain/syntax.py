"""What a compiler says of a text in C or C++, without making anything of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Literal

_LIMIT_S = 20.0
_STANDARDS = {"c++": ("c++17", "c++20"), "c": ("c11", "gnu17")}
_PROGRAMS = {"c++": ("CXX", "g++"), "c": ("CC", "gcc")}


def syntax_fault(text: str, language: Literal["c", "c++"]) -> str:
    """The first error, where the text is wrong under each of the usual standards; "" where it is not, or nobody can
    tell: no compiler, no answer in time, a header that is not there."""
    program = shutil.which(os.environ.get(*_PROGRAMS[language]))
    found = ""
    for standard in _STANDARDS[language] if program else ():
        command = [
            str(program), "-fsyntax-only", f"-std={standard}", "-march=native", "-fopenmp", "-w", f"-x{language}", "-",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        if done.returncode == 0 or "No such file" in done.stderr:
            return ""
        error = re.search(r"^<stdin>:(\d+):\d+: (?:fatal )?error: (.*)$", done.stderr, flags=re.M)
        if error is None:
            return ""
        found = f"line {error[1]}: {error[2]}"[:300]
    return found
