"""Read a problem file (KernelBench's convention, or ours with CASES) by its syntax tree alone; nothing in it is run."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any, cast, get_args

from ...facts.errors import UserError
from ...facts.problem import Mode, OpenSize, Precision, Problem, Target
from .constants import Constants
from .open_sizes import open_sizes, showing
from .source import parsed, text_of
from .task import MOST_CASES, is_task, read_task

_REQUIRED = ("Model", "get_inputs", "get_init_inputs")


def read_problem(
    path: Path, *, target: Target, precision: Precision = "reference", mode: Mode | None = None
) -> Problem:
    """The Problem in the file, or the robust-kbench task folder, at `path`; on the CPU `CPU_CASES`, where there are
    any, replace `CASES`. Without a mode, the file's own `MODE` counts, else inference.

    Raises UserError (one line: the file, what is wrong, what to do) if it can't be read, is not Python, lacks a
    required name, or its CASES are not a literal list of dicts."""
    if os.path.isdir(path):  # the path's own is_dir raises for what can't be a name
        if is_task(path):
            return read_task(path, target=target, precision=precision, mode=mode)
        raise UserError(
            f"{path}: is a folder without func_forward.py or func_backward.py (a robust-kbench task); "
            f"give one problem file, or use `tilewright bench {path}`"
        )
    source = text_of(path)
    tree = parsed(source, path)
    names = _top_level_names(tree)
    for name in _REQUIRED:
        if name not in names:
            raise UserError(f"{path}: no `{name}`; a problem file defines Model, get_inputs and get_init_inputs")
    constants = Constants(tree)
    cases = _cases(constants, path, target)
    sizes: tuple[OpenSize, ...] = ()
    if constants.line("DYNAMIC") is not None:
        must = "be a dict of names and pairs of whole numbers"
        sizes = open_sizes(_evaluated(constants, "DYNAMIC", path, must=must), json.loads(cases[0]), path)
    return Problem(
        name=path.stem, path=str(path.resolve()), source=source, target=target, open=sizes,
        cases=showing(cases, sizes) if sizes else cases, mode=mode or _mode(constants, path), precision=precision,
    )  # fmt: skip


def _mode(constants: Constants, path: Path) -> Mode:
    if constants.line("MODE") is None:
        return "inference"
    wanted = _evaluated(constants, "MODE", path, must='be "inference" or "training"')
    for mode in get_args(Mode):
        if wanted == mode:
            return cast(Mode, mode)
    raise UserError(f'{path}: MODE is {repr(wanted)[:60]}; it must be "inference" or "training"')


def _evaluated(constants: Constants, name: str, path: Path, *, must: str) -> Any:
    try:
        return constants.value(name)
    except (ValueError, ArithmeticError, TypeError, RecursionError) as error:
        raise UserError(f"{path}, line {constants.line(name)}: {name} must {must} ({error})") from error


def _top_level_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {a.asname or a.name for a in node.names}
        elif isinstance(node, ast.Assign):
            names |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _cases(constants: Constants, path: Path, target: Target) -> tuple[str, ...]:
    name = "CPU_CASES" if target == "cpu" and constants.line("CPU_CASES") else "CASES"
    must = "be a list of dicts made of literals and constants"
    cases = _evaluated(constants, name, path, must=must) if constants.line(name) else [{}]
    if not isinstance(cases, list | tuple) or not cases or not all(isinstance(c, dict) for c in cases):
        raise UserError(
            f"{path}: {name} must be a non-empty list of dicts (keyword arguments of get_inputs and get_init_inputs)"
        )
    if len(cases) > MOST_CASES:
        raise UserError(f"{path}: {name} has {len(cases)} cases, and {MOST_CASES} are the most")
    try:
        return tuple(json.dumps(c, sort_keys=True) for c in cases)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: {name} holds a value that JSON can't: {error}") from error
