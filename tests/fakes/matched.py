"""A function as a module, matched: every Program checked, and what is fused held against the module in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fakes.modules import Applies
from fakes.program_interpreter import GraphRun, widened
from tilewright.facts.run import Matched
from tilewright.facts.space import Space
from tilewright.frontend.trace import trace
from tilewright.fusion import match
from tilewright.ir.program import Program, Scan
from tilewright.ir.validation import validate
from tilewright.realise.case_code import case_code


def fused(function: Callable[..., Any], *args: Tensor, sparing: bool = False) -> Matched:
    """Match, check every Program, and compare what is fused, and what would be left to torch, with the module.
    `sparing`: as algebra has the graph."""
    module = Applies(function)
    graph = replace(trace(module, args, {}), sparing=sparing)
    matched = match(graph, unsupported=lambda program: None, space=lambda program: Space(knobs=(), points=((),)),
                    tiny_bytes=0)  # fmt: skip
    for pattern in matched.patterns:
        validate(pattern.program)
        case_code(graph, [pattern], target="cpu")
    with torch.no_grad():
        run = GraphRun(graph, module.double(), patterns=matched.patterns)
        torch.testing.assert_close(run(*widened(args)), module(*widened(args)))
        alone = GraphRun(graph, module.double())
        torch.testing.assert_close(alone(*widened(args)), module(*widened(args)))
    return matched


def only(matched: Matched) -> tuple[Program, Scan]:
    """The single Program, which holds all, and its scan."""
    assert len(matched.patterns) == 1 and not matched.unmatched
    program = matched.patterns[0].program
    assert program.scan is not None and matched.patterns[0].kind == "scan"
    return program, program.scan
