"""A candidate from texts: alone, over another one, and what is none."""

from __future__ import annotations

import pytest

from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import UserError
from tilewright.judge.build import candidate_of

MODEL = "class ModelNew: ...\n"
BASE = Candidate(
    files=(SourceFile(path="main.py", text=MODEL), SourceFile(path="k.cpp", text="int k;")), entry="main.py"
)


def test_texts_alone_are_a_candidate_whose_entry_is_model_py() -> None:
    made = candidate_of({"sub/./k.cpp": "int k;", "model.py": MODEL})
    assert [(f.path, f.text) for f in made.files] == [("model.py", MODEL), ("sub/k.cpp", "int k;")]
    assert made.entry == "model.py"


def test_over_another_one_the_other_files_stay_and_null_leaves_one_out() -> None:
    made = candidate_of({"k.cpp": "int j;", "new.h": "//"}, BASE)
    assert {f.path: f.text for f in made.files} == {"main.py": MODEL, "k.cpp": "int j;", "new.h": "//"}
    assert made.entry == "main.py"
    assert [f.path for f in candidate_of({"k.cpp": None}, BASE).files] == ["main.py"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"k.py": MODEL}, "no file 'model.py' with a class ModelNew; there are k.py"),
        ({"model.py": "class Model: ..."}, "with a class ModelNew"),
        ({"../model.py": MODEL}, "by their paths in the candidate's folder"),
        ({"/model.py": MODEL}, "by their paths in the candidate's folder"),
        ({"": MODEL}, "by their paths in the candidate's folder"),
        ({"gone.py": None, "model.py": MODEL}, "is to be left out, and is not there"),
        ({"model.py": MODEL, "data.py": "#" * (8 << 20) + "#"}, "is too long"),
        ({"model.py": MODEL} | {f"f{n}.py": "" for n in range(500)}, "501 files; a candidate has at most 500"),
    ],
)
def test_what_is_no_candidate_is_refused(texts: dict[str, str | None], said: str) -> None:
    with pytest.raises(UserError, match=said):
        candidate_of(texts)


@pytest.mark.parametrize(
    "path",
    [
        "x" * 5000 + ".py",
        "a/" * 400 + "b.py",
        "a\0.py",
        "a\n.py",
        "\ud800.py",
        "é" * 100 + ".py",
        "model.py/x.py",
        ".",
        "a/..",
    ],
)
def test_names_that_no_folder_can_hold_are_refused(path: str) -> None:
    with pytest.raises(UserError) as told:
        candidate_of({"model.py": MODEL, path: "x = 1"})
    assert len(str(told.value)) < 300
    with pytest.raises(UserError, match="surrogates"):
        candidate_of({"model.py": MODEL + "\ud800"})
