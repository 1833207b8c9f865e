"""`torch.compile(model, backend="tilewright")`: our kernels in the graphs that Dynamo finds, Inductor for the rest."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import SymInt, Tensor, fx, nn
from torch._dynamo.backends.inductor import inductor
from torch._inductor import list_mode_options
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from ..edges.gpu.machine import identity, threads
from ..edges.gpu.machine import known as known_machine
from ..edges.toolchain import versions
from ..facts.devices import device_of
from ..facts.machine import Machine
from ..facts.problem import Target
from ..frontend.rows import traced_operators
from ..frontend.trace import trace_operators
from ..ir.graph import Graph
from ..judge.candidate_process.load import last_line
from ..kernels.survey import PLAIN
from ..run.ahead import compiled_ahead
from ..run.optimize import write_candidate
from ..run.places import Places
from ..run.region_check import refused
from ..run.unsearched import Unsearched, unsearched
from . import config
from .live import loaded

_LINE = 200
_NO_COMPILER = "there is no C++ compiler (install g++ 12 or newer, or name one in CXX): graphs run in eager mode"
_NO_DSL = "nvidia-cutlass-dsl is not installed, so that no kernel can be compiled: Inductor has all graphs"
Function = Callable[..., Any]
_models: dict[str, ModuleType] = {}  # by candidate: operators are registered once
_said: set[str] = set()


def tilewright(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, mode: str = "default", options: dict[str, Any] | None = None
) -> Function:
    """The backend that Dynamo calls with each of its graphs; `mode` and `options` are torch.compile's, for Inductor.

    Nothing is searched: a part of a graph becomes a kernel of ours where one won before (here, or as shipped), or where
    it is an fp32 product on a GPU; attention may be a library's; Inductor compiles the rest, with ours in it. With
    `options={"tilewright.ranked": True}` all that fits becomes ours, at the likeliest settings, tuned or not. Before
    that each kernel runs once on the inputs at hand, and is held to the precision contract against the graph in eager
    mode: what does not hold it is Inductor's, with a RuntimeWarning. Compiled kernels are kept in the cache.

    Inductor has a graph whole in which nothing of ours fits, for which gradients are wanted (training), under autocast,
    with collectives, or with other sizes left open than one, the first of some inputs. Breaks, guards and recompilation
    are Dynamo's."""
    options = dict(options or {})
    ranked = bool(options.pop("tilewright.ranked", False))
    patches = {**list_mode_options(mode), **options}
    if lacking := _lacking(example_inputs):
        _say_once(lacking)
        return gm.forward if lacking == _NO_COMPILER else inductor(gm, example_inputs, config_patches=patches)
    made = None
    training = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in example_inputs)
    try:
        with torch._guards.tracing(None), torch.no_grad():
            if not training and (inputs := _inputs(gm, example_inputs)) is not None:
                made = _made(inputs, ranked=ranked)
    except Exception as error:  # a fault of ours is told, and does not end the user's program
        _say_once(f"a graph is left to Inductor: {type(error).__name__}: {last_line(error)[:_LINE]}")
    if made is None:
        return inductor(gm, example_inputs, config_patches=patches)  # type: ignore[no-any-return]
    return made.guarded(inductor(made.graph, example_inputs, config_patches=patches), gm)


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(f"tilewright: {text}", RuntimeWarning, stacklevel=3)


# ---- the inputs of a graph


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """`order`: places of the tensors among the graph's inputs, those with open sizes first; `many` says which have
    one; `fakes`: all inputs as Dynamo has them."""

    module: _OverTensors
    tensors: tuple[Tensor, ...]
    order: tuple[int, ...]
    many: tuple[bool, ...]
    fakes: tuple[Any, ...]

    @property
    def target(self) -> Target:
        return "cuda" if self.tensors[0].is_cuda else "cpu"

    def graph(self) -> Graph:
        """Raises ValueError where the graph can't be traced."""
        if any(self.many):
            return traced_operators(self.module, self.tensors, self.many)
        return trace_operators(self.module, self.tensors)


class _OverTensors(nn.Module):
    """A graph as a module over its tensors alone, in this order; `sizes`: by their places, its other inputs, of which
    None is the first size of the first tensor."""

    def __init__(self, gm: fx.GraphModule, order: Sequence[int], sizes: Mapping[int, int | None]) -> None:
        super().__init__()
        self.gm = gm
        self._order, self._sizes = tuple(order), dict(sizes)

    def forward(self, *tensors: Tensor) -> Any:
        given: dict[int, Any] = dict(zip(self._order, tensors, strict=True))
        given |= {i: tensors[0].shape[0] if n is None else n for i, n in self._sizes.items()}
        return self.gm(*(given[i] for i in range(len(given))))


def _inputs(gm: fx.GraphModule, examples: Sequence[Any]) -> _Inputs | None:
    """None where the graph is one for Inductor alone."""
    fakes = tuple(n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder")
    places = [i for i, fake in enumerate(fakes) if isinstance(fake, Tensor)]
    tensors = [examples[i] for i in places]
    devices = {t.device for t in tensors}
    if not all(type(t) in PLAIN for t in tensors) or len(devices) != 1:  # fakes among them, say
        return None
    device = devices.pop().type
    if device not in ("cpu", "cuda") or torch.is_autocast_enabled(device):
        return None
    numbers = {i: fake for i, fake in enumerate(fakes) if isinstance(fake, SymInt | int)}
    first = {i: _symbol(fakes[i].shape[0]) for i in places if fakes[i].dim()}
    many = [i for i, symbol in first.items() if symbol]
    inner = any(_symbol(n) for i in places for n in fakes[i].shape[1:])
    symbols = {s for s in (*first.values(), *map(_symbol, numbers.values())) if s}
    if len(places) + len(numbers) != len(fakes) or inner or len(symbols) > 1 or (symbols and not many):
        return None
    order = (*many, *(i for i in places if i not in many))
    sizes = {i: None if _symbol(number) else int(number) for i, number in numbers.items()}
    return _Inputs(
        module=_OverTensors(gm, order, sizes).eval(), tensors=tuple(examples[i] for i in order), order=order,
        many=tuple(i in many for i in order), fakes=fakes,
    )  # fmt: skip


def _symbol(size: int | SymInt) -> str:
    """What Dynamo calls a size that is left open; "" of one that is not."""
    return str(size) if isinstance(size, SymInt) and size.node.maybe_as_int() is None else ""


def _lacking(examples: Sequence[Any]) -> str:
    """What this machine lacks to compile kernels; "" where it lacks nothing."""
    cuda = any(isinstance(t, Tensor) and t.is_cuda for t in examples)
    return "" if _installed()["dsl" if cuda else "g++"] else _NO_DSL if cuda else _NO_COMPILER


@functools.cache
def _installed() -> dict[str, str]:
    return dict(versions())


# ---- what is made of it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """`graph` calls our operators; `takes`: whether kernels take so many rows, of which the input at `rows` tells."""

    graph: fx.GraphModule
    takes: Sequence[Callable[[int], bool]]
    rows: int

    def guarded(self, compiled: Function, gm: fx.GraphModule) -> Function:
        """The compiled graph; where it takes any number of rows, eager mode has those that a kernel does not take."""
        if not self.takes:
            return compiled

        def call(*given: Any) -> Any:
            rows = given[self.rows].shape[0]
            return compiled(*given) if all(takes(rows) for takes in self.takes) else gm(*given)

        return call


def _made(inputs: _Inputs, *, ranked: bool) -> _Made | None:
    """None where nothing of ours fits the graph."""
    places = Places(out=Path(), cache=config.cache_dir())
    try:
        graph = inputs.graph()
        states = {n.name for n in graph.nodes if n.op == "state"}
        if any(u.target in states for u in graph.updates) or any("c10d" in call.target for call in graph.calls):
            return None  # it can't be run once more: it writes to what it holds, or other processes take part
        machine = _machine(inputs.target, places.cache)
        plan = unsearched(graph, machine, winners=places.winners, allow_tf32=_allow_tf32(), ranked=ranked)
        if not _fits(plan, inputs):
            return None
        model = _loaded(plan, places)
    except ValueError:  # it can't be traced, or its parts wait for one another
        return None
    if wrong := refused(plan, model, inputs.module, inputs.tensors):
        for name, why in wrong.items():
            if why:
                _say_once(f"{plan.title(name)} is left to Inductor: {why}")
        plan = plan.without(wrong)
        if not _fits(plan, inputs):
            return None
        model = _loaded(plan, places)
    run = functools.partial(model.ModelNew._case_0.__wrapped__, inputs.module)
    if _looks(run, inputs.tensors) != _looks(inputs.module, inputs.tensors):
        return None
    made = make_fx(lambda *given: run(*(given[i] for i in inputs.order)), tracing_mode="fake")(*inputs.fakes)
    _mark(made, inputs.module.gm)
    takes = [getattr(model, p.id).takes for p in plan.patterns] if any(inputs.many) else []
    return _Made(graph=made, takes=takes, rows=inputs.order[0])


def _looks(function: Function, tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """How the results of a call lie in memory, each with the first of inputs and results that shares its memory."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    given = [mode.from_tensor(t, static_shapes=True) for t in tensors]
    with mode:
        seen = [*given, *(t for t in tree_leaves(function(*given)) if isinstance(t, Tensor))]
    storages = [t.untyped_storage()._cdata for t in seen]
    return [
        (t.shape, [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1], t.dtype, storages.index(storage))
        for t, storage in zip(seen, storages, strict=True)
    ]


def _mark(made: fx.GraphModule, gm: fx.GraphModule) -> None:
    """What Inductor learns of Dynamo's graph: which inputs stay where they are, so that no CUDA graph copies them. It
    takes that of no graph that has constants of its own."""
    if any(True for _ in made.buffers()):
        return
    made.meta.update(gm.meta)
    for name in ("_param_name_to_source", "_source_to_user_stacks", "compile_subgraph_reason"):
        if hasattr(gm, name):
            setattr(made, name, getattr(gm, name))
    for new, old in zip(*(m.graph.find_nodes(op="placeholder") for m in (made, gm)), strict=True):
        new._dynamo_source = old._dynamo_source
        new.meta |= {key: old.meta[key] for key in ("tensor_dict",) if key in old.meta}


def _fits(plan: Unsearched, inputs: _Inputs) -> bool:
    return bool(plan.recipe) and (plan.any_rows or not any(inputs.many))


def _allow_tf32() -> bool:
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # the program has set it for one library by itself
        return False


@functools.cache
def _machine(target: Target, cache: Path) -> Machine:
    return known_machine(target, cache_dir=cache) or identity(target)


def _loaded(plan: Unsearched, places: Places) -> ModuleType:
    """The plan's candidate, its kernels compiled, from the cache."""
    candidate = plan.candidate()
    if candidate.id not in _models:
        folder, machine = places.cache / "backend" / candidate.id, plan.machine
        if not (folder / "built").exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            places.libraries.mkdir(parents=True, exist_ok=True)
            write_candidate(candidate, folder)
            with suppress(FileExistsError):
                (folder / "build").symlink_to(places.libraries.resolve(), target_is_directory=True)
            ours = [choice for choice in plan.recipe if choice.written is None]
            compiled_ahead(
                candidate, ours, folder=places.libraries, jobs=threads(), device=device_of(machine)
            )  # what does not compile says so when it first runs
            (folder / "built").touch()
        _models[candidate.id] = loaded(folder, nn.Module)
    return _models[candidate.id]
