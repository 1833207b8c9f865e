"""A live module and its example inputs as a problem file that another process can run, a case for each set of them."""

from __future__ import annotations

import ast
import base64
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import nn

from ..facts.errors import UserError
from ..judge.candidate_process.load import installed_paths

_NUMBERED = re.compile(rb"[0-9a-f]{32}")  # what cloudpickle numbers classes with, in each process anew

_TEMPLATE = '''"""Captured from a live module by tilewright: its structure, without the values of its parameters."""

import base64
import io
import pickle
from pathlib import Path

import torch

STRUCTURE = """
{structure}
"""
STATE = Path(__file__).with_name("state.pt")  # present beside the problem alone; a candidate is given its state
INPUTS = {inputs}
CASES = {cases}


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, described):
        kind, shape, dtype, requires_grad = described
        tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
        return torch.nn.Parameter(tensor, requires_grad=requires_grad) if kind == "parameter" else tensor


def _module():
    module = _Unpickler(io.BytesIO(base64.b64decode(STRUCTURE))).load()
    if STATE.exists():
        module.load_state_dict(torch.load(STATE, map_location="cpu", weights_only=True))
    return module


class Model(type(_module())):
    def __init__(self):
        torch.nn.Module.__init__(self)
        self.__dict__.update(_module().__dict__)


def get_init_inputs(example=0):
    return []


def get_inputs(example=0):
    return [_drawn(*described) if isinstance(described, tuple) else described for described in INPUTS[example]]


def _drawn(shape, stride, dtype, low, high, mean, deviation):
    kind = getattr(torch, dtype)
    if kind == torch.bool:
        drawn = torch.rand(shape) < mean
    elif not kind.is_floating_point:
        drawn = torch.randint(int(low), int(high) + 1, shape, dtype=kind)
    elif low >= 0:
        drawn = (torch.rand(shape) * (high - low) + low).to(kind)
    else:
        drawn = (torch.randn(shape) * deviation + mean).to(kind)
    if drawn.stride() == stride:
        return drawn
    return torch.empty_strided(shape, stride, dtype=kind, device=drawn.device).copy_(drawn)
'''


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Leaves out the values of tensors that the state_dict holds: they travel beside, and change."""

    def __init__(self, file: io.BytesIO, module: nn.Module) -> None:
        super().__init__(file)
        self._state = {id(t) for t in module.state_dict(keep_vars=True).values()}

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in self._state:
            return None
        kind = "parameter" if isinstance(value, nn.Parameter) else "buffer"
        return kind, tuple(value.shape), _dtype_name(value), value.requires_grad


@contextmanager
def _by_value(module: nn.Module) -> Iterator[None]:
    """Pickle classes by value that another process may not find: all that no installed package defines."""
    installed = installed_paths()
    own = set()
    for part in module.modules():
        home = sys.modules.get(type(part).__module__)
        file = getattr(home, "__file__", None)
        if home is not None and file and not file.startswith(installed):
            own.add(home)
    for home in own:
        cloudpickle.register_pickle_by_value(home)
    try:
        yield
    finally:
        for home in own:
            cloudpickle.unregister_pickle_by_value(home)


def write_problem(module: object, example_inputs: Sequence[Any], folder: Path) -> Path:
    """Write `problem.py` and `state.pt` into `folder`; returns the problem file. `example_inputs`: the arguments of one
    call, or a list of such lists, the main case first.

    Inputs are re-drawn from the range and moments of the examples, as far as these are finite, with their shapes,
    strides and dtypes. Raises UserError if the module can't be pickled (the message names the part), and for what is no
    module or no list."""
    if not isinstance(module, nn.Module):
        made = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        raise UserError(f"module: {made}, not an nn.Module; give an instance, and put a function into one's forward")
    if not isinstance(example_inputs, list | tuple):
        kind = type(example_inputs).__name__
        raise UserError(f"example_inputs: a {kind}; give a list with one element for each argument of forward, as [x]")
    raw = io.BytesIO()
    try:
        with _by_value(module):
            _Pickler(raw, module).dump(module)
    except Exception as error:  # whatever a user's __getstate__ or __reduce__ raises
        raise UserError(f"{type(module).__name__}: cannot be sent to another process: {error}") from error
    sets = _sets(example_inputs)
    inputs = [[_described(value, i) for i, value in enumerate(example)] for example in sets]
    cases = [{"example": i} for i in range(len(sets))]
    text = base64.encodebytes(raw.getvalue()).decode().strip()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({k: v.detach().cpu() for k, v in module.state_dict().items()}, folder / "state.pt")
    path = folder / "problem.py"
    path.write_text(_TEMPLATE.format(structure=text, inputs=repr(inputs), cases=repr(cases)), encoding="utf-8")
    return path


def _sets(examples: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """No argument of a call may be a list or a tuple: where all of the examples are, each is a call of its own."""
    several = bool(examples) and all(isinstance(example, list | tuple) for example in examples)
    return examples if several else (examples,)


def is_same(one: str, other: str) -> bool:
    """Whether two captured problems, texts of their files, have the same structure and inputs of the same shapes,
    strides and dtypes, or the same plain values; the values of tensors may differ."""
    return _looks(one) == _looks(other)


def _looks(captured: str) -> tuple[bytes, Any]:
    assigned = (node for node in ast.parse(captured).body if isinstance(node, ast.Assign))
    values = {node.targets[0].id: node.value for node in assigned if isinstance(node.targets[0], ast.Name)}
    if not {"STRUCTURE", "INPUTS"} <= values.keys():  # a file that somebody wrote
        return captured.encode(), None
    structure = base64.b64decode(ast.literal_eval(values["STRUCTURE"]))
    inputs = ast.literal_eval(values["INPUTS"])
    looks = [[value[:3] if isinstance(value, tuple) else (value,) for value in example] for example in inputs]
    return _NUMBERED.sub(b"", structure), looks


def _described(value: Any, index: int) -> Any:
    if value is None or isinstance(value, int | float | bool | str):
        return value
    if not isinstance(value, torch.Tensor):
        raise UserError(f"example input {index}: a {type(value).__name__}; give tensors, numbers, strings or None")
    numbers = value.detach().double()
    numbers = numbers[numbers.isfinite()]
    moments: Mapping[str, float] = {"low": 0.0, "high": 0.0, "mean": 0.0, "deviation": 0.0}
    if numbers.numel():
        moments = {
            "low": numbers.min().item(), "high": numbers.max().item(),
            "mean": numbers.mean().item(), "deviation": numbers.std(correction=0).item(),
        }  # fmt: skip
    return (tuple(value.shape), value.stride(), _dtype_name(value), *moments.values())


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
