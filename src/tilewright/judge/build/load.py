"""Reading a candidate from disk: a file or a folder with ModelNew, or a kernel of robust-kbench, by anybody."""

from __future__ import annotations

import ast
import itertools
import os
import warnings
from pathlib import Path

from ...facts.candidate import MAX_FILE_BYTES, MAX_FILES, Candidate, SourceFile, fault_in
from ...facts.errors import UserError
from ...facts.problem import Problem
from .extension import SUFFIXES, wrapped

_SKIPPED = {"__pycache__", ".git", "build"}  # build: what a candidate compiled beside itself


def load_candidate(path: Path, problem: Problem | None = None) -> Candidate:
    """The candidate at `path`. In a folder the entry is model.py, or else the only top-level file that defines
    ModelNew. A `.cu` or `.cpp` file is a kernel of robust-kbench, for the task that `problem` is. Raises UserError with
    what is missing."""
    if not os.path.exists(path):  # the path's own raises for what can't be a name
        raise UserError(
            f"{path}: no such file or folder; give a candidate: a Python file or a folder that defines ModelNew"
        )
    if path.is_file() and path.suffix in SUFFIXES and problem is not None:
        return wrapped(_read(path, path.name), problem)
    if path.is_file():
        return Candidate(files=(_read(path, path.name),), entry=path.name) if _defines_model(path) else _refuse(path)
    if not path.is_dir():
        raise UserError(f"{path}: neither a regular file nor a folder; give a candidate that is one of them")
    found = (p for p in path.rglob("*") if p.is_file() and not _SKIPPED & set(p.relative_to(path).parts))
    names = sorted(itertools.islice(found, MAX_FILES + 1))
    if len(names) > MAX_FILES:
        raise UserError(f"{path} holds more than {MAX_FILES} files, the most that a candidate may have")
    tops = [p for p in names if p.parent == path and p.suffix == ".py" and _defines_model(p)]
    entry = next((p for p in tops if p.name == "model.py"), tops[0] if len(tops) == 1 else None)
    if entry is None:
        return _refuse(path)
    files = tuple(_read(p, p.relative_to(path).as_posix()) for p in names)
    if fault := fault_in({f.path: f.text for f in files}):
        raise UserError(f"{path}: {fault}")
    return Candidate(files=files, entry=entry.name)


def _refuse(path: Path) -> Candidate:
    raise UserError(f"{path} defines no class ModelNew; name it so, in model.py where there are several files")


def _read(path: Path, name: str) -> SourceFile:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UserError(f"{path} has more than {MAX_FILE_BYTES} bytes, the most of a source file")
        return SourceFile(path=name, text=data.decode("utf-8").replace("\r\n", "\n"))
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text; a candidate's files are source") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _defines_model(path: Path) -> bool:
    """Whether a top-level statement could bind ModelNew. A file that does not parse may: the cell then says what is
    wrong."""
    text = _read(path, path.name).text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python finds doubtful in it is the author's
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "ModelNew" in text
    return any(_binds(node) for node in ast.walk(ast.Module(body=body, type_ignores=[])))


def _binds(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return node.name == "ModelNew"
    if isinstance(node, ast.Name):
        return node.id == "ModelNew" and isinstance(node.ctx, ast.Store)
    return isinstance(node, ast.alias) and (node.asname or node.name) in ("ModelNew", "*")
