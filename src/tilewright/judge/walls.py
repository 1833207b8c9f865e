"""Confine this process like a candidate's cell, and print what came of it: {"active": [...], "missing": [...]}."""

from __future__ import annotations

import json
import os
import sys

from .candidate_process.confine import Confinement, confine


def main() -> None:
    asked = Confinement(
        memory_bytes=0, isolate=True, namespaces=True, parent_pid=os.getppid(), device="cpu", own=os.getcwd()
    )
    active, missing = confine(asked)
    sys.stdout.write(json.dumps({"active": active, "missing": missing}))


if __name__ == "__main__":
    main()
