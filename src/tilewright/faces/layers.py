"""A model taken apart: each distinct layer that can be traced is optimised once, and replaced wherever it stands.

A model may hold what no tracer follows: a router that picks experts by value, a loop until something is reached. Its
layers are modules by themselves. From the root down, a module that can't be traced stays as it is, and its children are
looked at; so do those of a module that repeats a layer. Modules are one layer if their classes, the shapes of their
parameters and the graphs of what they compute are equal; each place keeps its own parameters.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import nn

from ..facts.errors import Lack, UserError
from ..facts.problem import Precision
from ..frontend.trace import trace
from ..ir.graph import Graph
from . import config
from .api import Optimized, optimize
from .examples import ExampleCall, examples_of, module_of
from .live import adapted_module, fallbacks, repeated
from .recorded import Calls, form, recorded, signature
from .trees import trees_of

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_LEAST_S = 10.0  # of a budget: less is not begun with
_MOST_CASES = 4  # sets of shapes that one layer is optimised for
Solve = Callable[[nn.Module, Sequence[ExampleCall], float, str], Optimized]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A distinct layer, and the paths in the model at which it stands. `status`: "improved" (all `replaced` paths hold
    the faster one), another one of `optimize`'s, "not traced" or "not tried"; `why` says more where it is not improved.
    `ratio`: its speed against eager, 0.0 where none was measured."""

    name: str
    paths: tuple[str, ...]
    parameters: int
    status: str
    why: str = ""
    ratio: float = 0.0
    replaced: tuple[str, ...] = ()
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizedLayers:
    """`model` is the given one, changed in place. `layers`: those that were optimised, or could not be, largest first;
    what stands within a layer that was optimised is not among them."""

    model: nn.Module
    layers: tuple[Layer, ...]

    @property
    def report(self) -> str:
        """A table in Markdown."""
        lines = ["| layer | places | replaced | against eager | |", "|---|---|---|---|---|"]
        for layer in self.layers:
            ratio = f"{layer.ratio:.2f}" if layer.ratio else ""
            why = layer.why.replace("|", "\\|")
            places = f"{layer.name} (`{layer.paths[0]}`) | {len(layer.paths)} | {len(layer.replaced)}"
            lines.append(f"| {places} | {ratio} | "
                         f"{layer.status}{': ' if why else ''}{why} |")  # fmt: skip
        return "\n".join(lines) + "\n"

    def fallbacks(self) -> dict[str, int]:
        """How often calls of replaced layers ran the original forward, by reason."""
        found: dict[str, int] = {}
        for kind in {type(module): module for module in self.model.modules()}.values():
            for reason, times in fallbacks(kind).items():
                found[reason] = found.get(reason, 0) + times
        return found


def optimize_layers(
    model: nn.Module,
    example: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: Literal["auto", "cuda", "cpu"] = "auto",
    out: str | Path | None = None,
    budget: str | float = "10m",
    timing: str = "6s",
    compiled: bool = True,
    seed: int = 0,
    precision: Precision = "reference",
    algebra: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> OptimizedLayers:
    """Optimise the layers of a model for a call like `model(*example, **kwargs)` (one example, as `optimize` takes it)
    and replace those that get faster, in the model itself; `state_dict` keeps its keys.

    The model is called once. `budget` is for all layers, the largest first, by their parameters in all places;
    `optimize` explains the other settings. A folder within `out` holds the run of each layer, which goes on from there
    when the call is made again. Raises UserError where the model does not take the example, and what `optimize` raises
    for reasons that concern any layer."""

    model, examples = module_of(model), examples_of(example, kwargs)
    if len(examples) > 1:
        raise UserError("example: several calls; give one")
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="tilewright-"))

    def solve(module: nn.Module, examples: Sequence[ExampleCall], budget_s: float, name: str) -> Optimized:
        return optimize(
            module, list(examples), target=target, out=folder / name, budget=budget_s, timing=timing, compiled=compiled,
            seed=seed, precision=precision, algebra=algebra, say=say,
        )  # fmt: skip

    parts = taken_apart(model, recorded(model, examples[0]))
    return replaced(model, parts, solve, budget_s=config.seconds(budget, "budget"), say=say)


@dataclass(slots=True, kw_only=True)
class LayerUnit:
    """A distinct layer: `modules` with their paths compute `graph`, each with its own parameters, on such examples."""

    examples: list[ExampleCall]
    graph: Graph
    modules: dict[nn.Module, tuple[str, ...]] = field(default_factory=dict)

    @property
    def first(self) -> nn.Module:
        return next(iter(self.modules))

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for paths in self.modules.values() for path in paths)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.first.parameters())

    @property
    def weight(self) -> int:
        return (1 + self.parameters) * len(self.modules)

    def layer(self, status: str, **more: Any) -> Layer:
        name = type(self.first).__name__
        return Layer(name=name, paths=self.paths, parameters=self.parameters, status=status, **more)


@dataclass(slots=True, kw_only=True)
class Parts:
    """A model taken apart: what can be traced, and what can't be, with the reason."""

    units: list[LayerUnit] = field(default_factory=list)
    left: list[Layer] = field(default_factory=list)


def taken_apart(model: nn.Module, calls: Mapping[nn.Module, Calls]) -> Parts:
    """The model's layers, each the largest module below the root that can be traced and repeats none itself."""
    parts = Parts()
    alike: dict[Any, list[ExampleCall]] = {}
    for module, found in calls.items():
        known = alike.setdefault(form(module), [])
        seen = {signature(e.args, dict(e.kwargs)) for e in known}
        known += [e for e in found.examples.values() if signature(e.args, dict(e.kwargs)) not in seen]
    waiting = [model]
    met: set[nn.Module] = set()
    while waiting:
        module = waiting.pop()
        if module in met:
            continue
        met.add(module)
        inside = list(module.children())
        apart = module not in calls or (inside and (module is model or _repeats(module)))
        if not apart:
            reason = _add(parts.units, module, calls[module], alike[form(module)])
            apart = bool(reason)
            if reason:
                parts.left.append(Layer(
                    name=type(module).__name__, paths=tuple(calls[module].paths), status="not traced", why=reason,
                    parameters=sum(p.numel() for p in module.parameters()),
                ))  # fmt: skip
        if apart:
            waiting += reversed(inside)
    return parts


def _repeats(module: nn.Module) -> bool:
    """Whether a list in it, or itself as a list, holds a layer with layers in it several times."""
    for part in module.modules():
        forms = [form(child) for child in part.children() if any(child.children())]
        if isinstance(part, _LISTS) and len(set(forms)) < len(forms):
            return True
    return False


def _add(units: list[LayerUnit], module: nn.Module, calls: Calls, examples: Sequence[ExampleCall]) -> str:
    """Add a module to the layer that it is, perhaps a new one; why it can't be traced, "" where it can."""
    some = sorted(examples, key=_size, reverse=True)[:_MOST_CASES]
    try:
        graph = traced(module, some[0])
    except (ValueError, RuntimeError, TypeError, UserError) as error:  # what tracers raise, beside ValueError
        lines = str(error).strip().splitlines()
        return lines[0][:300] if lines else type(error).__name__
    if not graph.calls:
        return "nothing to compute"
    unit = next((u for u in units if form(u.first) == form(module) and u.graph == graph), None)
    if unit is None:
        units.append(unit := LayerUnit(examples=some, graph=graph))
    unit.modules[module] = tuple(calls.paths)
    return ""


def _size(example: ExampleCall) -> int:
    leaves = pytree.tree_leaves((example.args, dict(example.kwargs)))
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def traced(module: nn.Module, example: ExampleCall) -> Graph:
    """What a call of the module computes. Raises ValueError where it can't be traced."""
    trees = trees_of(module, [example])
    flat = trees.flat(example.args, example.kwargs)
    judged = adapted_module(module, trees, written=flat.written if flat is not None else {})
    with torch.no_grad():
        if trees.given:
            return trace(judged, flat.leaves if flat is not None else (), {})
        return trace(judged, (), dict(example.named(module))) if example.kwargs else trace(judged, example.args, {})


def replaced(model: nn.Module, parts: Parts, solve: Solve, *, budget_s: float, say: Say) -> OptimizedLayers:
    """Each layer solved, largest first, and put where it stands."""
    layers: list[Layer] = []
    waiting = sorted(parts.units, key=lambda unit: -unit.weight)
    ends = time.monotonic() + budget_s
    for number, unit in enumerate(waiting):
        share = unit.weight / sum(other.weight for other in waiting[number:])
        left_s = ends - time.monotonic()
        if left_s < min(_LEAST_S, budget_s / 2):
            layers.append(unit.layer("not tried", why="the budget is spent"))
            continue
        name = f"{number:02}-{type(unit.first).__name__}"
        say(f"layer {name}: {len(unit.modules)} time(s), as {unit.paths[0]}")
        layers.append(_solved(model, unit, partial(solve, unit.first, unit.examples, share * left_s, name)))
    layers += sorted(parts.left, key=lambda layer: -layer.parameters)
    return OptimizedLayers(model=model, layers=tuple(layers))


def _solved(model: nn.Module, unit: LayerUnit, solve: Callable[[], Optimized]) -> Layer:
    try:
        found = solve()
    except Lack:  # what the machine lacks, it lacks for all of them
        raise
    except UserError as error:
        return unit.layer("refused", why=str(error))
    ratio = float(((found.summary.get("ratio") or {}).get("eager") or {}).get("mid") or 0.0)
    if found.status != "improved":
        return unit.layer(found.status, ratio=ratio, folder=found.folder)
    for module, paths in unit.modules.items():
        new = found.module if module is unit.first else repeated(module, found.module)
        for path in paths:
            *parents, name = path.split(".")
            model.get_submodule(".".join(parents))._modules[name] = new
    return unit.layer(found.status, ratio=ratio, folder=found.folder, replaced=unit.paths)
