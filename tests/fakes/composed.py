"""Composed candidates on a CPU, their kernels interpreted: made of a module's text, written out and imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fakes.realisers import CPU
from fakes.renderer import InterpretingRenderer
from tilewright.facts.candidate import Candidate
from tilewright.facts.pattern import Choice, Recipe
from tilewright.facts.problem import Work
from tilewright.facts.run import CaseFacts, Matched
from tilewright.frontend.trace import trace
from tilewright.fusion import match_all
from tilewright.realise.compose import compose


def case(
    source: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, training: bool = True
) -> CaseFacts:
    spec = importlib.util.spec_from_loader("problem", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = "original.py"
    exec(source, module.__dict__)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    graph = trace(module.Model().train(training), args, kwargs or {})
    return CaseFacts(inputs=(), outputs=(), work=work, graph=graph)


def matched(cases: Sequence[CaseFacts]) -> tuple[Matched, ...]:
    make = InterpretingRenderer()
    return match_all([c.graph for c in cases], unsupported=make.unsupported, space=make.space, tiny_bytes=0)


def all_of(found: Sequence[Matched]) -> Recipe:
    return tuple(Choice(pattern=p.id, point=p.space.points[0]) for m in found for p in m.patterns)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Any]:
    """Writes a candidate and imports its model.py as the judge does."""
    before = set(sys.modules)

    def forget() -> None:
        for name in set(sys.modules) - before:
            if name.startswith(("fused_", "model", "original")):
                del sys.modules[name]

    def loaded(candidate: Candidate) -> ModuleType:
        forget()
        folder = tmp_path / candidate.id
        for file in candidate.files:
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.path).write_text(file.text)
        sys.path.insert(0, str(folder))
        try:
            return importlib.import_module("model")
        finally:
            sys.path.remove(str(folder))

    yield loaded
    forget()


def same(got: Any, wanted: Any) -> None:
    for mine, value in zip(tree_leaves(got), tree_leaves(wanted), strict=True):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(mine, value, rtol=1e-4, atol=1e-5)
        else:
            assert mine == value


def composed(
    source: str, cases: Sequence[CaseFacts], recipe: Recipe | None = None, found: Sequence[Matched] = ()
) -> Candidate:
    """`found`: what `matched` gives of the cases, where it is known."""
    found = found or matched(cases)
    chosen = all_of(found) if recipe is None else recipe
    return compose(source, cases, found, chosen, device=CPU, make=InterpretingRenderer())
