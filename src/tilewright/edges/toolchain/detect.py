"""A script for a child process: kernelguard over the files of a candidate, {path: text} as JSON on stdin.

Prints a JSON list of [path, pattern, severity, evidence]. The texts are looked at, never run. Patterns over text that
nobody knows may take for ever: the parent has a deadline.
"""

from __future__ import annotations

import json
import sys

import kernelguard  # type: ignore[import-untyped]


def main() -> None:
    found: list[list[str]] = []
    for path, text in json.load(sys.stdin).items():
        for match in kernelguard.analyze_code(text)["matched_patterns"]:
            found.append([path, *(str(match.get(key, "")) for key in ("pattern", "severity", "evidence"))])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
