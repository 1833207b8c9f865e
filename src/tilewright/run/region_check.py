"""Holds what is realised of a graph to the precision contract, once, on the values that one eager call has there."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ..facts.pattern import Choice, Match, Pattern
from ..ir.alone import attention_backward_in, attention_in
from ..ir.graph import Graph, Node, Ref, Struct, refs
from ..judge.candidate_process.load import last_line
from ..judge.check import metric
from ..judge.reference_process.widened import Widened
from ..realise.case_code import CaseCode, case_code
from ..realise.case_units import Placed
from ..realise.subproblem_code import NotAlone, alone, arguments
from .unsearched import Unsearched

_FLOATS = re.compile(r"\btorch\.(float32|float16|bfloat16)\b")
_LINE = 200
Function = Callable[..., Any]


def refused(plan: Unsearched, model: ModuleType, module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, str]:
    """By the names of choices, what of the plan must be left to torch, and why: "" of what could not be compared. The
    graph runs in eager mode on these inputs of `module`, which are not written to; `model` is the loaded candidate."""
    graph, target = plan.graph, plan.machine.target
    checks: dict[str, _Check] = {}
    places: list[Placed] = []
    for choice in plan.recipe:
        region = choice.written.regions[0] if choice.written is not None else _pattern(plan, choice).matches[0].region
        try:
            takes, code = arguments(graph, region), case_code(alone(graph, region), (), target=target)
        except (NotAlone, ValueError):
            continue
        fused = _fused(plan, model, choice)
        terms = _terms(plan, choice)
        checks[choice.pattern] = _Check(
            fused=fused, plain=_function(code), wide=_function(code, wide=True), terms=terms
        )
        places.append(Placed(name=choice.pattern, title=choice.pattern, takes=takes, gives=region.outputs))
    names = {name: SimpleNamespace(run=check.run) for name, check in checks.items()}
    case = _function(case_code(graph, (), target=target, placed=places), names)
    written = {u.target for u in graph.updates}
    given = [t.clone() if name in written else t for t, name in zip(inputs, refs(graph.arguments), strict=True)]
    devices = [torch.cuda.current_device()] if target == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        case(module, *given)
    unknown = (c.pattern for c in plan.recipe if c.pattern not in checks or not checks[c.pattern].called)
    return dict.fromkeys(unknown, "") | {name: check.why for name, check in checks.items() if check.why}


@dataclass(slots=True, kw_only=True)
class _Check:
    """Of one choice, at the first of its places. `wide` is the plain function in float64; `terms`: of its longest
    sum."""

    fused: Function
    plain: Function
    wide: Function
    terms: int
    called: bool = field(default=False, init=False)
    why: str = field(default="", init=False)  # what is wrong

    def run(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """What the reference gives."""
        self.called = True
        own = _tuple(self.plain(None, *operands))
        try:
            made = _tuple(self.fused(*operands))
        except Exception as error:  # of as many kinds as compilers, drivers and libraries have
            self.why = f"it can't be run here ({type(error).__name__}: {last_line(error)[:_LINE]})"
            return own
        if len(made) != len(own):
            self.why = f"it gives {len(made)} tensors, not {len(own)}"
            return own
        truth = self._truth(own, operands)
        found = (_difference(*tensors, self.terms) for tensors in zip(made, own, truth, strict=True))
        self.why = next(filter(None, found), "")
        return own

    def _truth(self, own: tuple[Tensor, ...], operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """In float64, or the reference's own result where an operator has no float64."""
        try:
            with Widened():
                return _tuple(self.wide(None, *(t.double() if t.is_floating_point() else t for t in operands)))
        except (RuntimeError, NotImplementedError):
            return own


def _difference(made: Tensor, own: Tensor, truth: Tensor, terms: int) -> str:
    """What is wrong with a result; "" where it holds the contract."""
    if (made.shape, made.dtype) != (own.shape, own.dtype):
        return f"it gives {made.dtype} {list(made.shape)}, not {own.dtype} {list(own.shape)}"
    with metric.calm(own):
        theirs = metric.distance(own, truth, own)
        if metric.differing_specials(own, truth) or theirs.norm > metric.hopeless(own.dtype):
            truth = own
            theirs = metric.distance(own, truth, own)
        found = metric.distance(made, truth, own)
    norm, worst = metric.allowance(own.dtype, (theirs.norm, theirs.worst), length=terms)
    if found.misplaced == 0 and found.norm <= norm and found.worst <= worst:
        return ""
    return f"its error is {found.norm:.2g} ({found.worst:.2g} at worst), {norm:.2g} ({worst:.2g}) is allowed"


def _pattern(plan: Unsearched, choice: Choice) -> Pattern:
    return next(p for p in plan.matched.patterns if p.id == choice.pattern)


def _fused(plan: Unsearched, model: ModuleType, choice: Choice) -> Function:
    """The choice at its first place, over what `arguments` names."""
    file = getattr(model, choice.pattern)
    if choice.written is not None:
        run: Function = file.run
        return run
    pattern = _pattern(plan, choice)
    code = case_code(_around(plan.graph, pattern.matches[0]), (pattern,), target=plan.machine.target)
    fused, count = _function(code, {choice.pattern: file}), len(code.parameters)
    return lambda *operands: fused(None, *operands[:count])


def _around(graph: Graph, match: Match) -> Graph:
    """A match by itself, under the names that it has in the graph."""
    region, nodes = match.region, {n.name: n for n in graph.nodes}
    inputs = tuple(
        Node(name=n, op="input", shape=nodes[n].shape, dtype=nodes[n].dtype, path=n, order=nodes[n].order)
        for n in region.inputs
    )
    inside = tuple(n for n in graph.nodes if n.name in region.nodes)
    return Graph(
        nodes=(*inputs, *inside), outputs=region.outputs, arguments=tuple(Ref(name=n) for n in region.inputs),
        result=Struct(kind="tuple", items=tuple(Ref(name=n) for n in region.outputs)),
    )  # fmt: skip


def _terms(plan: Unsearched, choice: Choice) -> int:
    """How many numbers its results sum at most; of a library's call the largest size that it sees."""
    if choice.written is not None:
        inside = set(choice.written.regions[0].nodes)
        return max((size for n in plan.graph.nodes if n.name in inside for size in n.shape), default=1)
    program = _pattern(plan, choice).program
    sums = [prod(product.over) for product in program.products]
    whole = attention_in(program)
    sums += [whole.keys, whole.depth] if whole is not None else []
    backward = attention_backward_in(program)
    if backward is not None:
        sums += [backward.keys, backward.depth, prod(program.domain[:-1])]
    return max(program.inner_size, *sums, 1)


def _function(code: CaseCode, names: dict[str, Any] | None = None, *, wide: bool = False) -> Function:
    """The code as a function of `self` and its parameters; `wide`: with float64 in the place of narrower floats."""
    lines = (_FLOATS.sub("torch.float64", line) if wide else line for line in code.body)
    text = "\n    ".join((f"def case({', '.join(('self', *code.parameters))}):", *lines))
    space: dict[str, Any] = {"torch": torch, "Tensor": Tensor, **(names or {})}
    exec(text, space)
    function: Function = space["case"]
    return function


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
