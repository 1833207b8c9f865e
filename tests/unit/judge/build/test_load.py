"""Candidates from disk: files, folders, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.facts.errors import UserError
from tilewright.judge.build import load_candidate

MODEL = "class ModelNew:\n    pass\n"


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    found = load_candidate(tmp_path / "mine.py")
    assert found.entry == "mine.py" and [f.path for f in found.files] == ["mine.py"]


def test_a_folder_takes_its_files_and_leaves_caches(tmp_path: Path) -> None:
    for name in ("model.py", "other.py", "sub/kernel.cu", "__pycache__/model.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(MODEL)
    found = load_candidate(tmp_path)
    assert found.entry == "model.py"
    assert [f.path for f in found.files] == ["model.py", "other.py", "sub/kernel.cu"]


def test_the_only_file_with_the_class_is_the_entry(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b import ModelNew\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    assert load_candidate(tmp_path).entry == "a.py"


@pytest.mark.parametrize("binding", ["ModelNew = object\n", "from x import *\n", "import x as ModelNew\n", MODEL])
def test_bindings(tmp_path: Path, binding: str) -> None:
    (tmp_path / "m.py").write_text(binding)
    assert load_candidate(tmp_path / "m.py").entry == "m.py"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("class Model:\n    pass\n")
    with pytest.raises(UserError, match="ModelNew"):
        load_candidate(tmp_path / "m.py")
    with pytest.raises(UserError, match="ModelNew"):
        load_candidate(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        load_candidate(tmp_path / "gone")


def test_bytes_are_no_source(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "blob.so").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(UserError, match=r"blob\.so"):
        load_candidate(tmp_path)
