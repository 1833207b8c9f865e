"""A candidate under ncu, with a program in its place that lets the candidate run and shows recorded pages."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.facts import MACHINE
from fakes.jobs import MODEL, job
from tilewright.edges.sandbox.under import Ran
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.judge import profiles as profile
from tilewright.judge.profile.limits import ProfiledCall
from tilewright.judge.profiles import ProfileLook, by_counters, code_in, diagnosed, lack, why_not
from tilewright.judge.wire.messages import SpentClocks

PAGES = Path(__file__).with_name("profile") / "ncu"
# Stands where ncu does: options, then the command, which it runs, or a report, of which it prints a page. All that it
# is called with is written down beside it.
PROGRAM = """
import os, pathlib, subprocess, sys
arguments = sys.argv[1:]
here = pathlib.Path(__file__).parent
with open(here / "calls", "a") as calls:
    print(*arguments, file=calls)
assert not os.environ["HOME"].startswith(str(here / "job")), "the candidate could write there"
if "--import" in arguments:
    report = arguments[arguments.index("--import") + 1]
    which = open(report).read()
    page = arguments[arguments.index("--page") + 1]
    path = pathlib.Path(PAGES) / f"{which}.{page}.csv"
    print(path.read_text(), end="")
else:
    done = subprocess.run(arguments[arguments.index(sys.executable):])
    only = "--launch-skip" in arguments
    if done.returncode == 0 and not FAILS:
        pathlib.Path(arguments[arguments.index("--export") + 1]).write_text("chosen" if only else "first")
    print(FAILS or "==PROF== Report")
    sys.exit(done.returncode)
"""


def look(folder: Path, text: str = MODEL, fails: str = "") -> ProfileLook:
    path = folder / "ncu.py"
    path.write_text(f"PAGES, FAILS = {str(PAGES)!r}, {fails!r}\n{PROGRAM}")
    (folder / "reports").mkdir()
    return ProfileLook(
        job=job(folder, text), reports=folder / "reports", question="auto", say=print,
        program=(sys.executable, str(path)),
    )  # fmt: skip


def test_why_nothing_was_counted_is_said_in_one_line() -> None:
    def ran(text: str, finished: bool = True, timed_out: bool = False) -> str:
        return why_not(Ran(text=text, finished=finished, timed_out=timed_out))

    assert ran("", timed_out=True) == "ncu took more than 120 s"
    denied = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    assert "ERR_NVGPUCTRPERM: the administrator can permit it" in ran(denied)
    assert ran("==PROF== Connected\n==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n") == (
        "ncu: Failed to initialize the profiler: LibraryNotLoaded"
    )
    assert ran("==PROF== Disconnected\n") == "ncu: no kernel was launched in the profiled call"
    assert ran("RuntimeError: oh\n==PROF== Disconnected\n", finished=False) == "ncu: RuntimeError: oh"


def test_without_ncu_launches_bear_the_evidence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profile, "cuda_tool", lambda name: None)
    found = by_counters(replace(look(tmp_path), program=()))
    assert (found.kernels, found.notes) == ((), ("ncu was not found: it comes with the CUDA toolkit",))
    described = job(tmp_path / "reports").described
    assert lack(described) == ""
    spent = [
        SpentClocks(name="a", ns=2.0, threads=32, ctas=1, registers=8),
        SpentClocks(name="b", ns=9.0),
        SpentClocks(name="a", ns=3.0),
    ]
    known = diagnosed(None, spent, ProfiledCall(MACHINE, described.work, 14.0), None)
    assert [(k.name, k.times, k.source) for k in known.kernels] == [
        ("b", 1, "CUPTI"), ("a", 1, "CUPTI"), ("a", 1, "CUPTI"),
    ]  # fmt: skip


@pytest.mark.slow
def test_the_longest_kernel_is_looked_at_twice_with_the_sections_of_its_limit(tmp_path: Path) -> None:
    found = by_counters(look(tmp_path))
    assert found.notes == () and len(found.kernels) == 5
    longest = max(found.kernels, key=lambda k: k.ns)
    assert (longest.name.split("(")[0], longest.limit, longest.source) == ("conflicts", "shared memory", "ncu")
    assert longest.hot[0].where == "FADD R21, R12, R21" and found.advice[0].rule == "SharedMemoryConflicts"
    first, second = [c.split() for c in (tmp_path / "calls").read_text().splitlines() if "--export" in c]
    assert "MemoryWorkloadAnalysis_Tables" not in first and "MemoryWorkloadAnalysis_Tables" in second
    assert second[second.index("--launch-skip") + 1] == "2" and "--profile-from-start" in first


def test_what_is_no_machine_code_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "junk.cubin").write_bytes(b"\x7fELF\x02 and no more")
    (tmp_path / "host.o").write_bytes(b"\x7fELF\x02" + bytes(200))
    assert code_in(tmp_path) == code_in(tmp_path / "nowhere") == ()


def test_a_candidate_that_has_no_place_of_its_own_is_refused(tmp_path: Path) -> None:
    outside = Candidate(files=(SourceFile(path="../model.py", text=MODEL),))
    found = by_counters(replace(look(tmp_path), job=replace(job(tmp_path / "reports"), candidate=outside)))
    assert found.kernels == () and len(found.notes) == 1
