"""The table of many discoveries: means by level, what is left to torch, and what failed and why."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

_SPEC = importlib.util.spec_from_file_location("discoveries", Path(__file__).parents[2] / "benchmarks/discoveries.py")
assert _SPEC is not None and _SPEC.loader is not None
discoveries: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(discoveries)


def task(name: str, covered: float) -> dict[str, Any]:
    part = {"rule": "", "floor_ns": 1.0, "calls": ["a", "b"], "distance": 0.5}
    return {
        "problem": name, "target": "cuda", "module_ns": 100.0, "covered": covered, "gain": covered / 2,
        "parts": [
            part | {"pattern": "fused_0", "title": "gelu", "why": "", "share": covered, "ns": 60.0, "gain": 0.1},
            part | {"pattern": "", "title": "conv", "why": "no skeleton", "share": 1 - covered, "ns": 1.0, "gain": 0.0},
        ],
        "calls": [{"call": "a"}],
    }  # fmt: skip


def test_means_lacks_and_failures_of_each_level(tmp_path: Path) -> None:
    discoveries.put(tmp_path / "run.json", {"commit": "abc", "machine": {"device": "d"}})
    discoveries.put(tmp_path / "level2" / "10_b.json", task("10_b", 0.6))
    discoveries.put(tmp_path / "level2" / "9_a.json", task("9_a", 0.2))
    late = {"problem": "1_c", "verdict": {"reason": "failed", "summary": "no result within 30 s"}}
    discoveries.put(tmp_path / "level3" / "1_c.json", late)
    found = discoveries.numbers(tmp_path)
    assert found["commit"] == "abc" and [t["problem"] for t in found["tasks"]] == ["9_a", "10_b", "1_c"]
    assert found["levels"]["level2"]["mean_covered"] == 0.4 and found["levels"]["level3"]["failed"] == 1
    assert "calls" not in found["tasks"][0] and found["tasks"][0]["parts"][1]["why"] == "no skeleton"
    told = "\n".join(discoveries.lines(found))
    assert "| level2 | 2 | 40% | 40% | 20% | 0 |" in told and "- conv: 60.0% of the time in 2: no skeleton" in told
    assert "- not looked into: 1_c: no result within 30 s" in told
    json.dumps(found)
    found |= {"date": "2026-11-23", "command": "look", "machine": {"device": "d", "torch": "2"}}
    rows = [line for line in discoveries.page(found) if line.startswith("| 9_a")]
    assert rows == ["| 9_a | 0.0001 ms | 20% | 10% | conv 80%: no skeleton |"]


_SERVES = """
import json, os, sys, time
for line in sys.stdin:
    name = line.strip()
    if name == "hangs":
        time.sleep(600)
    if name == "breaks":
        os._exit(1)
    print(json.dumps({"problem": name, "by": os.getpid()}), flush=True)
"""


def test_a_place_looks_into_one_after_another_and_begins_anew_after_what_hangs_or_breaks() -> None:
    place = discoveries.Place("", Namespace(target="cpu", budget="0.3s"))
    place._command = [sys.executable, "-c", _SERVES]
    one, two = (place.asked(Path(name), 120.0) for name in ("a", "b"))
    assert (one["problem"], two["problem"]) == ("a", "b") and one["by"] == two["by"]
    assert place.asked(Path("hangs"), 0.2) is None
    three = place.asked(Path("c"), 120.0)
    assert three["problem"] == "c" and three["by"] != one["by"]
    assert place.asked(Path("breaks"), 120.0)["verdict"]["summary"] == "its process broke off"
    assert place.asked(Path("d"), 120.0)["problem"] == "d"
    place.end()


def test_a_place_is_heard_beside_a_thousand_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    place = discoveries.Place("", Namespace(target="cpu", budget="0.3s"))
    place._command = [sys.executable, "-c", _SERVES]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        with ExitStack() as files:
            for _ in range(1100):  # select() takes numbers below 1024
                files.enter_context(open(os.devnull))
            assert place.asked(Path("a"), 120.0)["problem"] == "a"
    finally:
        place.end()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
