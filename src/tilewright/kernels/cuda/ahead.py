"""A script for a child process: compiles a fused file at many knob settings, and keeps on disk what it compiles.

No GPU is needed. Operands are taken to be aligned, and to lie as their Spec says. On stdin one JSON object: `arch`,
`processors`, and `jobs`, a list of [path of the fused file, {knob: value}]; on stdout one JSON object for each job, a
line each: `objects`, the paths of what is kept, or `failure` alone. The folder of the files must be on Python's path.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from .demand import fused_of
from .plan import Device


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints is no answer
    asked = json.load(sys.stdin)
    device = Device(processors=asked["processors"], arch=asked["arch"])
    for path, knobs in asked["jobs"]:
        try:
            fused = fused_of(Path(path))
            fused.configure(**knobs)
            fused.prepare(device)
            answer: dict[str, Any] = {"objects": sorted(map(str, fused.objects))}
        except Exception as error:  # of whatever kind: one setting that does not compile must not hide the others
            answer = {"failure": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
