"""Touchstones: what a candidate may need is looked for, and found or told with its remedy."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.facts import context, pattern
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import Lack
from tilewright.facts.move import Move, Outcome, Try
from tilewright.facts.outcome import Failure
from tilewright.facts.problem import Target
from tilewright.facts.run import AGENT, GIVEN, Request, SearchContext
from tilewright.judge.build.touchstone import Touchstone, needed
from tilewright.judge.lacks import Lacks
from tilewright.run.evaluator import Evaluator
from tilewright.run.places import Places

CPP, EXTENSION, NVCC = "a C++ compiler that works", "what torch builds extensions with", "an nvcc that works"


def _candidate(text: str, **files: str) -> Candidate:
    others = tuple(SourceFile(path=name.replace("__", "."), text=body) for name, body in files.items())
    return Candidate(files=(SourceFile(path="model.py", text=text), *others))


@pytest.mark.parametrize(
    ("candidate", "target", "said", "wanted"),
    [
        (_candidate("import torch"), "cpu", "ValueError: mine", set()),
        (_candidate("import torch"), "cpu", 'File "/srv/u/compilers/g++/model.py", line 1', set()),
        (_candidate("import torch", one__cpp="int one;"), "cpu", "", {CPP}),
        (_candidate("import torch"), "cpu", "BuildError: g++ exited with 1", {CPP}),
        (_candidate("from torch.utils.cpp_extension import load_inline"), "cpu", "", {CPP, EXTENSION}),
        (_candidate("load(cuda_sources=[])"), "cuda", "", {NVCC}),
        (_candidate("load(cuda_sources=[])"), "cpu", "", set()),
        (_candidate("import cutlass.cute as cute"), "cuda", "", {"the CuTe DSL"}),
    ],
)
def test_what_a_candidate_may_need(candidate: Candidate, target: Target, said: str, wanted: set[str]) -> None:
    assert {t.what for t in needed(candidate, target, said)} == wanted


@pytest.mark.slow
def test_torchs_extensions_are_missed_where_there_is_no_ninja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here all is there, and the candidate's failure stands; without ninja it is the machine's."""
    candidate = _candidate("from torch.utils.cpp_extension import load_inline")
    refused = Failure(stage="build", reason="does_not_load", summary="RuntimeError: Error building extension")
    Lacks("cpu", workdir=tmp_path, hidden=()).require(candidate, refused, offered=None)
    wrong = Failure(stage="check", reason="wrong_values", summary="output 0")
    (tmp_path / "stand-in").mkdir()
    (tmp_path / "stand-in" / "ninja").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "stand-in" / "ninja").chmod(0o755)
    monkeypatch.setattr("sys.executable", _python_in(tmp_path / "stand-in"))
    lacks = Lacks("cpu", workdir=tmp_path, hidden=())
    lacks.require(candidate, wrong, offered=None)  # who gave a wrong answer lacked nothing
    with pytest.raises(
        Lack, match=r"^the machine lacks what torch builds extensions with \(.*[Nn]inja.*pip install ninja"
    ):
        lacks.require(candidate, refused, offered=None)


def _python_in(folder: Path) -> str:
    """This interpreter, started from a folder whose programs come first."""
    (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "python").chmod(0o755)
    return str(folder / "python")


@pytest.mark.slow
def test_a_module_that_launches_kernels_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "path" / "tvm_ffi").mkdir(parents=True)
    (tmp_path / "path" / "tvm_ffi" / "__init__.py").write_text("raise ModuleNotFoundError('No module named tvm_ffi')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    candidate = _candidate("import tvm_ffi")
    refused = Failure(stage="build", reason="does_not_load", summary="ModuleNotFoundError: No module named 'tvm_ffi'")
    with pytest.raises(Lack, match=r"the machine lacks tvm-ffi .*pip install apache-tvm-ffi"):
        Lacks("cpu", workdir=tmp_path / "work", hidden=()).require(candidate, refused, offered=None)


REFUSED = Failure(stage="build", reason="does_not_load", summary="RuntimeError: Error building extension")
WRITES = {
    NVCC: _candidate("load_inline(cuda_sources=[SOURCE])"),
    "Triton": _candidate("import triton"),
    "the CuTe DSL": _candidate("import cutlass.cute as cute"),
}


class Missing(Lacks):
    """On a machine without one thing."""

    what = ""

    def _fault(self, touchstone: Touchstone) -> Failure | None:
        fault = Failure(stage="build", reason="does_not_load", summary="error: it is not there")
        return fault if touchstone.what == self.what else None


@pytest.mark.parametrize(
    ("what", "offered", "whose"),
    [
        (NVCC, None, "machine"),  # the user's own
        (NVCC, ["cute-dsl", "triton"], "candidate"),  # a model's, that was told of other languages
        (NVCC, ["cute-dsl", "nvcc"], "machine"),  # that was told of it, and it does not work
        ("Triton", [], "candidate"),
        ("Triton", ["triton"], "machine"),
        ("the CuTe DSL", [], "machine"),  # the library's kernels need it, too
    ],
)
def test_what_was_not_offered_is_the_candidates_own_demand(
    what: str, offered: list[str] | None, whose: str, tmp_path: Path
) -> None:
    lacks = Missing("cuda", workdir=tmp_path, hidden=())
    lacks.what = what
    if whose == "machine":
        with pytest.raises(Lack, match=what):
            lacks.require(WRITES[what], REFUSED, offered=offered)
        return
    told = lacks.require(WRITES[what], REFUSED, offered=offered)
    assert told == replace(
        REFUSED, summary=f"{REFUSED.summary}; it may need {what}, which is not offered here (error: it is not there)"
    )


class Refusing(Evaluator):
    def _performed(self, context: SearchContext, move: Move) -> Outcome:
        return REFUSED


@pytest.mark.parametrize("strategy", ["cutegen", AGENT, GIVEN])
def test_a_model_hears_of_what_it_may_not_use_and_a_user_of_what_is_missing(strategy: str, tmp_path: Path) -> None:
    """A judgement that ends in a Lack ends the run: what a model writes must not be able to."""
    written = replace(context(pattern("fused_0")), strategy=strategy, languages=(("cute-dsl", "4.2"),))
    problem = replace(written.problem, target="cuda")
    request = Request(run="r", problem=problem, strategy=strategy, seed=0, budget_s=1.0)
    bench = Refusing(request, places=Places(out=tmp_path, cache=tmp_path), say=print, machine=written.machine)
    lacks = Missing("cuda", workdir=tmp_path, hidden=())
    lacks.what, bench._lacks = NVCC, lacks
    move = Try(what=WRITES[NVCC], why="asked")
    if strategy == GIVEN:
        with pytest.raises(Lack, match="the machine lacks an nvcc"):
            bench.perform(written, move)
    else:
        found = bench.perform(written, move)
        assert isinstance(found, Failure) and "it may need an nvcc that works, which is not offered" in found.summary
