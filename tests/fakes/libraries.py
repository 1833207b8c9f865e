"""What a library has written for a graph, as Python has it, and the graph's values to give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilewright.facts.pattern import Choice
from tilewright.facts.problem import Target
from tilewright.ir.graph import Graph
from tilewright.realise.case_code import plain_steps


def scope_of(choice: Choice) -> dict[str, Any]:
    """What `model.py` of a choice defines."""
    assert choice.written is not None
    scope: dict[str, Any] = {}
    exec(choice.written.candidate.files[0].text, scope)
    return scope


def values_of(graph: Graph, args: Sequence[Tensor], *, target: Target, module: Any = None) -> dict[str, Tensor]:
    """The values of a graph's nodes where its module gets these arguments, run operator by operator."""
    plain = plain_steps(graph, target=target)
    names: dict[str, Any] = {"torch": torch, "self": module, **dict(zip(plain.parameters, args, strict=True))}
    texts, seen = {v.node: v.text for v in plain.values}, dict[str, Tensor]()
    for step in plain.steps:
        if not step.text.startswith("del "):
            exec(step.text, names)
        for node, text in texts.items():
            if node not in seen:
                try:
                    seen[node] = eval(text, names)
                except (NameError, AttributeError):
                    continue
    return seen
