"""Children that compile: what they have said counts, though they be ended."""

from __future__ import annotations

from pathlib import Path

from tilewright.run.children import shared_out

CHILD = """
import json, sys, time
for job in json.load(sys.stdin)["jobs"]:
    time.sleep(job)
    print(json.dumps(job), flush=True)
"""


def test_what_a_child_said_before_its_time_was_over_counts(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    said = shared_out("child", {}, [0, 0.1, 600, 0], folder=tmp_path, jobs=1, limit_s=5.0)
    assert said == ["0", "0.1", "", ""]
