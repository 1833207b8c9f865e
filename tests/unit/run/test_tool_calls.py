"""Answers of tools in words, from what a judge gives: told briefly, cut, and never the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.asked import START, asking, in_turns
from fakes.facts import timed
from tilewright.facts.errors import TooBusy
from tilewright.facts.move import CallTool
from tilewright.facts.outcome import Failure, Interleaved, VariantTime
from tilewright.facts.tools import MOST_ANSWER
from tilewright.judge.objects import CodeSeen
from tilewright.run.tool_calls import answered


class Looks:
    def __init__(self, **found: Any) -> None:
        self.found = found

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.found[name]


class Judge:
    def __init__(self, **found: Any) -> None:
        self.looks = Looks(**found)


def told(tool: str, folder: Path, *, text: str = "", several: int = 1, **found: Any) -> str:
    move = CallTool(tool=tool, candidates=(START,) * several, text=text)
    return answered(lambda: Judge(**found), asking(), move, realised=folder).text  # type: ignore[arg-type,return-value]


def test_what_a_judge_gives_is_told_in_words(tmp_path: Path) -> None:
    assert "50% of the error allowance is used" in told("run", tmp_path, run_small=timed(2.0).checked)
    wrong = Failure(stage="check", reason="wrong_values", summary="output 0", excerpt="oh")
    assert told("run", tmp_path, run_small=wrong) == "refused at check: wrong values: output 0\noh"
    turns = in_turns([100.0, 50.0])
    turns = Interleaved(variants=(*turns.variants, VariantTime(time_ns=None, ratio=None, failure="hung: no end")))
    lines = told("time", tmp_path, several=3, interleave=turns).splitlines()
    assert lines == [
        "the files as they were shown: 0.1 us", "variant 1: 0.05 us, 2x [2, 2] as fast as those",
        "variant 2: hung: no end",
    ]  # fmt: skip
    seen = CodeSeen(finished=True, said="", remarks=("k.cpp:2:1: optimized: loop vectorized",), code=("f: 3 calls",))
    assert "loop vectorized" in told("compile", tmp_path, compiled=seen)
    assert told("code", tmp_path, compiled=seen) == "f: 3 calls"
    broken = CodeSeen(finished=False, said="k.cpp:1: error", remarks=(), code=())
    assert "did not get to the end:\nk.cpp:1: error" in told("compile", tmp_path, compiled=broken)
    long = told("tensor", tmp_path, returned="x" * 20_000)
    assert len(long) < MOST_ANSWER + 100 and "of 20000 characters" in long


def test_notes_and_files_are_found_and_read_without_a_judge(tmp_path: Path) -> None:
    def never() -> Any:
        raise AssertionError("no judge is needed")

    def read(tool: str, text: str) -> str:
        move = CallTool(tool=tool, candidates=(START,) if tool == "read" else (), text=text)
        return answered(never, asking(), move, realised=tmp_path).text

    hits = read("search", "softmax online row")
    name = hits.splitlines()[0].split(": ")[0]
    assert name.split()[0] in ("note", "rule", "skeleton") and len(read("read", name)) > 100
    assert read("read", "model.py") == START.files[0].text
    assert "there is no 'nothing'" in read("read", "nothing") and "nothing was found" in read("search", "qqqq")


def test_a_busy_machine_ends_no_run(tmp_path: Path) -> None:
    def busy() -> Any:
        raise TooBusy("others have it")

    found = answered(busy, asking(), CallTool(tool="run", candidates=(START,)), realised=tmp_path)
    assert found.text.startswith("not now: ")


@pytest.mark.parametrize("tool", ["melt", "run", "time"])
def test_a_move_that_means_nothing_is_said_so(tmp_path: Path, tool: str) -> None:
    assert "can't be called so" in answered(lambda: None, asking(), CallTool(tool=tool), realised=tmp_path).text  # type: ignore[arg-type,return-value]
