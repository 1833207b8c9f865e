"""A live module and its example inputs as a problem file that another process can run, a case for each set of them."""

from __future__ import annotations

import ast
import base64
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch
import torch.utils._pytree as pytree
from torch import nn

from ..edges.sandbox.environment import common_environment
from ..facts.errors import UserError
from ..judge.candidate_process.load import installed_paths
from .examples import ExampleCall, examples_of, module_of
from .open_shapes import OpenShapes
from .trees import Trees, adapted, trees_of

_NUMBERED = re.compile(rb"[0-9a-f]{32}")  # what cloudpickle numbers classes with, in each process anew

_FIND = """
import importlib.util, sys
for name in sys.argv[1:]:
    found = importlib.util.find_spec(name)
    print(found and found.origin)
"""

_TEMPLATE = '''"""Captured from a live module by tilewright: its structure, without the values of its parameters."""

import base64
import io
import pickle
from pathlib import Path
{any}
import torch
{imports}
STRUCTURE = """
{structure}
"""
STATE = Path(__file__).with_name("state.pt")  # present beside the problem alone; a candidate is given its state
INPUTS = {inputs}{written}
CASES = {cases}{dynamic}


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, described):
        kind, shape, dtype, requires_grad = described
        tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
        return torch.nn.Parameter(tensor, requires_grad=requires_grad) if kind == "parameter" else tensor


def _module():
    module = _Unpickler(io.BytesIO(base64.b64decode(STRUCTURE))).load(){taken}
    if STATE.exists():
        module.load_state_dict(torch.load(STATE, map_location="cpu", weights_only=True))
    return module


{adapted}class Model({base}):
    def __init__(self):
        torch.nn.Module.__init__(self)
        self.__dict__.update(_module().__dict__){buffers}


def get_init_inputs(example=0, **sizes):
    return []


def get_inputs(example=0, **sizes):
    return _made(INPUTS[example], sizes)


def _made(described, sizes):
    if isinstance(described, dict):
        return {{name: _made(value, sizes) for name, value in described.items()}}
    if isinstance(described, list):
        return [_made(value, sizes) for value in described]
    if not isinstance(described, tuple):
        return described
    kind, *rest = described
    if kind == "tuple":
        return tuple(_made(value, sizes) for value in rest)
    draw, (shape, stride, *rest) = (_places, rest) if kind == "places" else (_drawn, described)
    shape = tuple(sizes.get(size, size) for size in shape)
    return draw(shape, stride or torch.empty(shape, device="meta").stride(), *rest)


def _places(shape, stride, dtype, first):
    counted = torch.arange(first, first + shape[-1], dtype=getattr(torch, dtype)).expand(shape)
    return torch.empty_strided(shape, stride, dtype=counted.dtype, device=counted.device).copy_(counted)


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

_ADAPTED = """{source}

def _given():
    import torch.utils._pytree as pytree

    _, given, nodes = _Unpickler(io.BytesIO(base64.b64decode(STRUCTURE))).load()
    for kind, node in nodes.items():
        if node is not None and kind not in pytree.SUPPORTED_NODES:
            pytree.register_pytree_node(kind, *node)
    return given


"""


_BUFFERS = """
        for name, described in WRITTEN.items():
            self.register_buffer(name, _made(described, {}))"""


_NONE_OPEN = OpenShapes()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Leaves out the values of tensors that the state_dict holds: they travel beside, and change."""

    def __init__(self, file: io.BytesIO, module: nn.Module) -> None:
        super().__init__(file)
        self._state = {id(t) for t in module.state_dict(keep_vars=True).values()}

    def reducer_override(self, value: Any) -> Any:
        """Modules of classes of their own, such as torch.classes, to which any function refers that uses torch and an
        attribute `classes` of whatever: they are imported by name, which cloudpickle does for plain ones alone."""
        if type(value) is not ModuleType and isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in self._state:
            return None
        kind = "parameter" if isinstance(value, nn.Parameter) else "buffer"
        return kind, tuple(value.shape), _dtype_name(value), value.requires_grad


def _pickled(module: nn.Module, held: object, kinds: Iterable[type]) -> bytes:
    """By value where another process may not find the classes: all that no package in site-packages defines. Where that
    fails, as functions use a package's locks and caches, by name what a cell does find, of a package that is installed
    from elsewhere (`pip install -e`), say, or on PYTHONPATH."""
    own = _own(kinds)
    try:
        return _dumped(module, held, own)
    except Exception:
        found = _found_by_name(own)
        if not found:
            raise
        return _dumped(module, held, own - found)


def _own(kinds: Iterable[type]) -> set[ModuleType]:
    installed, own = installed_paths(), set()
    for kind in kinds:
        home = sys.modules.get(kind.__module__)
        file = getattr(home, "__file__", None)
        if home is not None and file and not file.startswith(installed):
            own.add(home)
    return own


def _found_by_name(own: Iterable[ModuleType]) -> set[ModuleType]:
    """Those whose package a cell's process finds in the same place."""
    roots = {home: home.__name__.partition(".")[0] for home in own}
    names = sorted(set(roots.values()) - {"__main__"})
    environment = common_environment(threads=0, outer=os.environ)
    asked = [sys.executable, "-P", "-c", _FIND, *names]
    done = subprocess.run(asked, env=environment, cwd="/", capture_output=True, text=True, check=False)
    places = dict(zip(names, done.stdout.splitlines(), strict=False))  # fewer where the search for one raises
    here = {root: getattr(sys.modules.get(root), "__file__", "") for root in places}
    return {home for home, root in roots.items() if root in places and places[root] == here[root]}


def _dumped(module: nn.Module, held: object, own: Iterable[ModuleType]) -> bytes:
    raw = io.BytesIO()
    with _by_value(own):
        _Pickler(raw, module).dump(held)
    return raw.getvalue()


@contextmanager
def _by_value(own: Iterable[ModuleType]) -> Iterator[None]:
    for home in own:
        cloudpickle.register_pickle_by_value(home)
    try:
        yield
    finally:
        for home in own:
            cloudpickle.unregister_pickle_by_value(home)


def write_problem(
    module: object, example_inputs: Any, folder: Path, *, kwargs: Mapping[str, Any] | None = None
) -> Path:  # fmt: skip
    """Write `problem.py` and `state.pt` into `folder`; returns the problem file. `example_inputs` and `kwargs`: as
    `examples_of` takes them.

    Inputs are re-drawn from the range and moments of the examples, as far as these are finite, with their shapes,
    strides and dtypes. Raises UserError if the module can't be pickled (the message names the part), and for what is no
    module, or no example of its arguments."""
    module = module_of(module)
    examples = examples_of(example_inputs, kwargs)
    return write_examples(module, examples, trees_of(module, examples), folder)


def write_examples(
    module: nn.Module, examples: Sequence[ExampleCall], trees: Trees, folder: Path, shapes: OpenShapes = _NONE_OPEN
) -> Path:
    """The same of examples that are looked through already; with open sizes, the first of them stands for all."""
    examples = examples[:1] if shapes.sizes else examples
    nodes = {kind: _node(kind) for kind in trees.kinds()}
    held = module if trees.plain else (module, trees.layouts(), nodes)
    try:
        raw = _pickled(module, held, [*map(type, module.modules()), *nodes])
    except Exception as error:  # whatever a user's __getstate__ or __reduce__ raises
        raise UserError(f"{type(module).__name__}: cannot be sent to another process: {error}") from error
    inputs = [_arguments(module, example, trees, shapes) for example in examples]
    cases = shapes.cases if shapes.sizes else [{"example": i} for i in range(len(examples))]
    text = base64.encodebytes(raw).decode().strip()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({k: v.detach().cpu() for k, v in module.state_dict().items()}, folder / "state.pt")
    path = folder / "problem.py"
    extra = {"any": "", "adapted": "", "taken": "", "base": "type(_module())"} if trees.plain else {
        "any": "from typing import Any\n", "taken": "[0]",
        "adapted": _ADAPTED.format(source=inspect.getsource(adapted)),
        "base": f"adapted(type(_module()), _given(), {trees.result is not None}, {trees.autocast!r})",
    }  # fmt: skip
    written = _written(examples, trees)
    extra["written"] = f"\nWRITTEN = {written!r}  # arguments that forward writes to" if written else ""
    extra["buffers"] = _BUFFERS if written else ""
    extra["dynamic"] = f"\nDYNAMIC = {shapes.ranges!r}" if shapes.sizes else ""
    extra["imports"] = "".join(f"import {name}\n" for name in packages_of(module))
    made = _TEMPLATE.format(structure=text, inputs=repr(inputs), cases=repr(cases), **extra)
    path.write_text(made, encoding="utf-8")
    return path


def packages_of(module: nn.Module) -> tuple[str, ...]:
    """The modules of installed packages that define what a live module is made of, but for torch's: its problem file
    imports them."""
    installed, homes = installed_paths(), {kind.__module__ for kind in map(type, module.modules())}
    files = {name: getattr(sys.modules.get(name), "__file__", None) or "" for name in homes}
    return tuple(sorted(n for n, f in files.items() if f.startswith(installed) and n.partition(".")[0] != "torch"))


def _node(kind: type) -> tuple[Any, Any] | None:
    """How torch takes such a container apart and makes it, where another process may not know it."""
    found = pytree.SUPPORTED_NODES.get(kind)
    known = found is None or kind.__module__.split(".")[0] in ("builtins", "collections", "torch")
    return None if known or found is None else (found.flatten_fn, found.unflatten_fn)


def _arguments(module: nn.Module, example: ExampleCall, trees: Trees, shapes: OpenShapes) -> Any:
    """The arguments of the captured forward, described: by name where some are given so."""
    described = partial(_described, shapes=shapes)
    if trees.given:
        flat = trees.flat(example.args, example.kwargs)
        assert flat is not None
        return [described(value, f"example input {i}") for i, value in enumerate(flat.leaves)]
    if not example.kwargs:
        return [described(value, f"example input {i}") for i, value in enumerate(example.args)]
    return {name: described(value, name) for name, value in example.named(module).items()}


def _written(examples: Sequence[ExampleCall], trees: Trees) -> dict[str, Any]:
    """The tensors that forward writes to, described, by their buffers' names. Where examples hold several values for
    one, their moments are those of all. Of a cache that is empty, or in part, those of what is not zero count: what is
    all zeros shows nothing that is read."""
    found: dict[str, list[torch.Tensor]] = {}
    for example in examples if trees.writes else ():
        flat = trees.flat(example.args, example.kwargs)
        for name, tensor in flat.written.items() if flat is not None else ():
            found.setdefault(name, []).append(tensor)
    described: dict[str, Any] = {}
    for name, tensors in found.items():
        numbers = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
        if tensors[0].is_floating_point():
            numbers = numbers[numbers != 0]
            numbers = numbers if numbers.numel() > 1 else numbers.new_tensor([-1.0, 1.0])
        first = tensors[0]
        described[name] = (tuple(first.shape), first.stride(), _dtype_name(first), *_moments(numbers).values())
    return described


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
    return _NUMBERED.sub(b"", structure), [_look(example) for example in inputs]


def _look(described: Any) -> Any:
    if isinstance(described, dict):
        return [(name, _look(value)) for name, value in described.items()]
    if isinstance(described, list) or (isinstance(described, tuple) and described[0] == "tuple"):
        return type(described), [_look(value) for value in described]
    if isinstance(described, tuple) and described[0] == "places":
        return described[1:4]
    return described[:3] if isinstance(described, tuple) else (described,)


def _described(value: Any, name: str, shapes: OpenShapes) -> Any:
    if value is None or isinstance(value, int | float | bool | str):
        return value
    if isinstance(value, dict):
        return {key: _described(item, f"{name}[{key!r}]", shapes) for key, item in value.items()}
    if type(value) in (list, tuple):
        items = [_described(item, f"{name}[{i}]", shapes) for i, item in enumerate(value)]
        return items if type(value) is list else ("tuple", *items)
    if not isinstance(value, torch.Tensor):
        raise UserError(f"{name}: a {type(value).__name__}; give tensors, numbers, strings or None")
    if value.is_meta:
        raise UserError(f"{name}: lies on the meta device and has no values; give an example with some")
    shape = shapes.shape(value)
    stride = value.stride() if shape == value.shape else None  # of open sizes: as it comes
    if (first := _first_of_places(value)) is not None:
        return ("places", shape, stride, _dtype_name(value), first)
    return (shape, stride, _dtype_name(value), *_moments(value.detach().double()).values())


def _moments(numbers: torch.Tensor) -> Mapping[str, float]:
    numbers = numbers[numbers.isfinite()]
    if not numbers.numel():
        return {"low": 0.0, "high": 0.0, "mean": 0.0, "deviation": 0.0}
    return {
        "low": numbers.min().item(), "high": numbers.max().item(),
        "mean": numbers.mean().item(), "deviation": numbers.std(correction=0).item(),
    }  # fmt: skip


def _first_of_places(value: torch.Tensor) -> int | None:
    """Where numbers that count up along the last dimension, in all rows alike, begin: places in a sequence. Numbers
    drawn for them would come twice, and which of two writes to one place stays is not said."""
    if value.dtype not in (torch.int32, torch.int64) or not value.ndim or value.shape[-1] < 2 or not value.numel():
        return None
    first = int(value.flatten()[0])
    counted = torch.arange(first, first + value.shape[-1], dtype=value.dtype, device=value.device)
    return first if torch.equal(value, counted.expand(value.shape)) else None


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
