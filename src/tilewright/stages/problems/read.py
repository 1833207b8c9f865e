"""Read a problem file (KernelBench's convention, or ours with CASES) by its syntax tree alone; nothing in it is run."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_args

from ...facts.errors import UserError
from ...facts.problem import Mode, Precision, Problem, Target
from .source import parsed, text_of
from .task import is_task, read_task

_REQUIRED = ("Model", "get_inputs", "get_init_inputs")
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType({
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Pow: operator.pow, ast.LShift: operator.lshift,
})  # fmt: skip


def read_problem(
    path: Path, *, target: Target, precision: Precision = "reference", mode: Mode | None = None
) -> Problem:
    """The Problem in the file, or the robust-kbench task folder, at `path`; on the CPU `CPU_CASES`, where there are
    any, replace `CASES`. Without a mode, the file's own `MODE` counts, else inference.

    Raises UserError (one line: the file, what is wrong, what to do) if it can't be read, is not Python, lacks a
    required name, or its CASES are not a literal list of dicts."""
    if path.is_dir():
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
    constants, cases = _settings(tree, path)
    return Problem(
        name=path.stem,
        path=str(path.resolve()),
        source=source,
        target=target,
        cases=_cases(cases, path, target),
        mode=mode or _mode(constants, path),
        precision=precision,
    )


def _mode(constants: Mapping[str, Any], path: Path) -> Mode:
    wanted = constants.get("MODE", "inference")
    for mode in get_args(Mode):
        if wanted == mode:
            return cast(Mode, mode)
    raise UserError(f'{path}: MODE is {wanted!r}; it must be "inference" or "training"')


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


def _settings(tree: ast.Module, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The constants of the file, and those among them that hold cases."""
    constants: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for node in tree.body:
        target_node, value = None, None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target_node, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign):
            target_node, value = node.target, node.value
        if not isinstance(target_node, ast.Name) or value is None:
            continue
        try:
            constants[target_node.id] = _constant(value, constants)
        except (ValueError, ArithmeticError, TypeError) as error:
            if target_node.id in ("CASES", "CPU_CASES"):
                raise UserError(
                    f"{path}, line {node.lineno}: {target_node.id} must be a list of dicts "
                    f"made of literals and constants ({error})"
                ) from error
            continue
        if target_node.id in ("CASES", "CPU_CASES"):
            found[target_node.id] = constants[target_node.id]
    return constants, found


def _cases(found: Mapping[str, Any], path: Path, target: Target) -> tuple[str, ...]:
    name = "CPU_CASES" if target == "cpu" and "CPU_CASES" in found else "CASES"
    cases = found.get(name, [{}])
    if not isinstance(cases, list | tuple) or not cases or not all(isinstance(c, dict) for c in cases):
        raise UserError(
            f"{path}: {name} must be a non-empty list of dicts (keyword arguments of get_inputs and get_init_inputs)"
        )
    try:
        return tuple(json.dumps(c, sort_keys=True) for c in cases)
    except TypeError as error:
        raise UserError(f"{path}: {name} holds a value that JSON can't: {error}") from error


def _constant(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression made of literals, earlier constants, arithmetic and `dict(...)`; else ValueError."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in names:
            return names[node.id]
        case ast.Tuple() | ast.List():
            return [_constant(e, names) for e in node.elts]
        case ast.Dict() if all(k is not None for k in node.keys):
            return {_constant(k, names): _constant(v, names) for k, v in zip(node.keys, node.values, strict=True) if k}
        case ast.Call(func=ast.Name(id="dict"), args=[]) if all(k.arg for k in node.keywords):
            return {str(k.arg): _constant(k.value, names) for k in node.keywords}
        case ast.UnaryOp(op=ast.USub()):
            return -_constant(node.operand, names)
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_constant(node.left, names), _constant(node.right, names))
    raise ValueError(f"{ast.unparse(node)[:60]!r} is not constant")
