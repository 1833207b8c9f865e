"""Read a robust-kbench task folder: its module and its settings become one Problem; nothing in it is run.

    FOLDER/func_forward.py   Model(**init) whose forward takes `fn`, get_inputs(**inputs)     -> inference
    FOLDER/func_backward.py  the same, and an AutogradFunction to hang a kernel into          -> training
    FOLDER/config_forward.json, config_backward.json
                             {single,multi}_{init,input,shared}_configs: lists of keyword arguments

A case is one element of the product init x input x shared, the shared settings handed to both: first those of the
single lists, of which the first is the main case, then those of the multi lists that are not among them.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...facts.errors import UserError
from ...facts.problem import Mode, Precision, Problem, Target
from .source import parsed, text_of

_SIDE: Mapping[Mode, str] = {"inference": "forward", "training": "backward"}
MOST_CASES = 10_000
_KINDS = ("init", "input", "shared")

# Appended to the task's own file: the same two functions as in every problem file, over the settings of a case.
_ADAPTER = '''

_inputs_of_the_task = get_inputs


def get_inputs(init, inputs):
    """The task's own inputs, for one of its settings."""
    return _inputs_of_the_task(**inputs)


def get_init_inputs(init, inputs):
    """The arguments of the task's Model, by name."""
    return init
'''

Settings = dict[str, Any]


def is_task(folder: Path) -> bool:
    return any((folder / f"func_{side}.py").is_file() for side in _SIDE.values())


def read_task(folder: Path, *, target: Target, precision: Precision, mode: Mode | None) -> Problem:
    """The Problem of a task folder. Without a mode: inference, where the folder has a forward side.

    Raises UserError (one line: the file, the key, the value, what to do) for what is missing or malformed."""
    mode = mode or ("inference" if (folder / "func_forward.py").is_file() else "training")
    module, config = folder / f"func_{_SIDE[mode]}.py", folder / f"config_{_SIDE[mode]}.json"
    if not module.is_file():
        raise UserError(f"{folder}: no {module.name}, which --mode {mode} needs")
    source = text_of(module)
    takes = _arguments(parsed(source, module), module)
    lists = _lists(config)
    cases: dict[str, None] = {}
    for kind in ("single", "multi"):
        cases |= dict.fromkeys(itertools.islice(_product(lists, kind, takes, config), MOST_CASES + 1))
    if len(cases) > MOST_CASES:
        raise UserError(f"{config}: its lists make more than {MOST_CASES} cases together")
    return Problem(
        name=folder.resolve().name, path=str(module.resolve()), source=source + _ADAPTER, target=target,
        cases=tuple(cases), mode=mode, precision=precision,
    )  # fmt: skip


# ---- what the module's functions take


@dataclass(frozen=True, slots=True)
class _Takes:
    """The names of a function's arguments; `any` where it takes every keyword."""

    function: str
    names: tuple[str, ...]
    any: bool

    def check(self, settings: Settings, *, where: str) -> None:
        for key in settings:
            if not self.any and key not in self.names:
                raise UserError(
                    f"{where}: {key!r}: {settings[key]!r} is no argument of {self.function} "
                    f"(it takes {', '.join(self.names) or 'none'})"
                )


def _arguments(tree: ast.Module, path: Path) -> Mapping[str, _Takes]:
    """What `Model` ("init") and `get_inputs` ("input") may be called with."""
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    inputs = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "get_inputs"), None)
    if model is None or inputs is None:
        lacking = "Model" if model is None else "get_inputs"
        raise UserError(f"{path}: no `{lacking}`; a task's module defines Model and get_inputs")
    make = next((n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    init = _Takes("Model", (), False) if make is None else _takes("Model", make, skip=1)
    return {"init": init, "input": _takes("get_inputs", inputs, skip=0)}


def _takes(name: str, function: ast.FunctionDef, *, skip: int) -> _Takes:
    spec = function.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args)][skip:] + [a.arg for a in spec.kwonlyargs]
    return _Takes(name, tuple(names), spec.kwarg is not None)


# ---- settings


def _lists(path: Path) -> Mapping[str, list[Settings]]:
    """The six lists of a config file by key; a list that is not there is empty."""
    try:
        found = json.loads(text_of(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: must be an object of lists, not {_shown(found)}")
    known = [f"{kind}_{part}_configs" for kind in ("single", "multi") for part in _KINDS]
    for key, value in found.items():
        if key not in known:
            raise UserError(f"{path}: unknown key {key!r}; known are {', '.join(known)}")
        if not isinstance(value, list):
            raise UserError(f"{path}: {key!r} must be a list of objects, not {_shown(value)}")
        for index, settings in enumerate(value):
            if not isinstance(settings, dict):
                raise UserError(f"{path}: {key}[{index}] must be an object of settings, not {_shown(settings)}")
    for key in known[:3]:
        if not found.get(key):
            raise UserError(f"{path}: {key!r} is {'empty' if key in found else 'not there'}; give at least [{{}}]")
    return {key: found.get(key, []) for key in known}


def _product(lists: Mapping[str, list[Settings]], kind: str, takes: Mapping[str, _Takes], path: Path) -> Iterator[str]:
    """The cases of the single or of the multi lists, JSON text each."""
    keys = {part: f"{kind}_{part}_configs" for part in _KINDS}
    numbered = [list(enumerate(lists[keys[part]])) for part in _KINDS]
    for (i, init), (j, inputs), (k, shared) in itertools.product(*numbered):
        takes["init"].check(init, where=f"{path}: {keys['init']}[{i}]")
        takes["input"].check(inputs, where=f"{path}: {keys['input']}[{j}]")
        for part in ("init", "input"):
            takes[part].check(shared, where=f"{path}: {keys['shared']}[{k}]")
        yield json.dumps({"init": {**init, **shared}, "inputs": {**inputs, **shared}}, sort_keys=True)


def _shown(value: object) -> str:
    return json.dumps(value)[:60]
