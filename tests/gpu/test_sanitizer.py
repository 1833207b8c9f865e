"""compute-sanitizer on a GPU: candidates that the judge accepts, since their results are right, and that are not
sound; and one that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.edges.gpu.machine import machine
from tilewright.edges.problems import read_problem
from tilewright.edges.toolchain.installed import cuda_tool
from tilewright.facts.outcome import Failure, Sanitized, Timed
from tilewright.judge.build import load_candidate
from tilewright.judge.evaluate import Judge, JudgeOptions
from tilewright.judge.timing.measure import Effort

ROOM = Path(__file__).parent / "sanitizer"
EXHIBITS = sorted(p for p in ROOM.glob("*.py") if p.stem != "problem")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(cuda_tool("compute-sanitizer") is None, reason="compute-sanitizer is not installed"),
]


@pytest.mark.parametrize("path", EXHIBITS, ids=lambda p: p.stem)
def test_what_the_judge_accepts_is_looked_through(path: Path, tmp_path: Path) -> None:
    head = path.read_text().splitlines()[0].removeprefix("# ")
    problem = read_problem(ROOM / "problem.py", target="cuda")
    effort = Effort(tight=0.2, budget_s=0.3, min_rounds=3, max_rounds=6, verified=2)
    with Judge(
        problem, machine=machine("cuda", cache_dir=tmp_path), seed=1, workdir=tmp_path, say=print,
        options=JudgeOptions(effort=effort, compile_baseline=False),
    ) as judge:  # fmt: skip
        judge.open()
        candidate = load_candidate(path)
        timed = judge.evaluate(candidate)
        assert isinstance(timed, Timed), "its results are right"
        assert timed.checked.own_share is not None
        assert timed.checked.own_share > 0.95
        found = judge.sanitize(candidate)
    if head == "accepted":
        assert found == Sanitized(clean=("memcheck", "racecheck"), notes=())
    else:
        assert isinstance(found, Failure), found
        assert f"refused: {found.summary}".startswith(head)
        assert "in rows" in found.summary
