"""Touchstones: what a candidate may need is looked for, and found or told with its remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import Lack
from tilewright.facts.outcome import Failure
from tilewright.facts.problem import Target
from tilewright.flow.lacks import Lacks
from tilewright.stages.build.touchstone import needed

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
    Lacks("cpu", workdir=tmp_path, hidden=()).require(candidate, refused)
    wrong = Failure(stage="check", reason="wrong_values", summary="output 0")
    (tmp_path / "stand-in").mkdir()
    (tmp_path / "stand-in" / "ninja").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "stand-in" / "ninja").chmod(0o755)
    monkeypatch.setattr("sys.executable", _python_in(tmp_path / "stand-in"))
    lacks = Lacks("cpu", workdir=tmp_path, hidden=())
    lacks.require(candidate, wrong)  # who gave a wrong answer lacked nothing
    with pytest.raises(
        Lack, match=r"^the machine lacks what torch builds extensions with \(.*[Nn]inja.*pip install ninja"
    ):
        lacks.require(candidate, refused)


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
        Lacks("cpu", workdir=tmp_path / "work", hidden=()).require(candidate, refused)
