"""What a verifier is given beside the candidate: the problem, its shapes and dtypes, the device."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...facts.problem import Problem
from ...facts.run import CaseFacts
from .reading import method, model_class


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSubject:
    """`cases`: what was learnt of each by running the reference once."""

    problem: Problem
    cases: tuple[CaseFacts, ...]
    device: str

    @property
    def main(self) -> CaseFacts:
        return self.cases[0]

    def reference(self, name: str) -> ast.FunctionDef | None:
        """A method of the reference's own, where its text can be read."""
        try:
            tree = ast.parse(self.problem.source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        found = model_class(tree, "Model")
        return method(found, name) if found is not None else None
