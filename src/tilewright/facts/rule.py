"""A Rule: a kind of pattern that the matcher finds, what realises it where; with an example, limits and evidence."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.program import RANKED, Program, Reduction, Statement
from .pattern import Pattern
from .problem import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """`code` defines `example(...)`, a function of tensors; `inputs` says of which, one a line: "x 64 256" is normal in
    the dtype in question, "i64<50 300" whole numbers below 50, "bool 64" truth values."""

    code: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Realisation:
    """On a target: the skeleton's main file under `kernels/`, how what is rendered from it names it (`mark`), on which
    architectures it runs, and the dtypes of tensors with which the rule's example is realised by it."""

    target: Target
    skeleton: str
    mark: str
    architectures: tuple[str, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What is left to torch all the same: `example` is, on these targets, for a reason that holds `says`."""

    text: str
    targets: tuple[Target, ...]
    example: Example
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A pattern is of the first rule of the table that has its kind and whose `feature` it has ("": any).

    `lowerings` names the families of operators of which such patterns are made; `evidence` what shows it: tests, and
    pages of measurements with their headings ("docs/measured.md#Long rows")."""

    name: str
    kinds: tuple[str, ...]
    feature: str
    about: str
    lowerings: tuple[str, ...]
    example: Example
    realised: tuple[Realisation, ...]
    limits: tuple[Limit, ...] = ()
    evidence: tuple[str, ...] = ()

    def on(self, target: Target) -> Realisation | None:
        return next((r for r in self.realised if r.target == target), None)


FEATURES = ("ranked", "gathers", "weighted", "loads", "turned")


def features(program: Program) -> frozenset[str]:
    """Of FEATURES: it keeps the first of a row in order; it reads where values say, or at positions of its own,
    sums of which are weighted; one of its operands lies across the lanes."""
    has = {
        "ranked": any(isinstance(item, Reduction) and item.op in RANKED for item in program.body),
        "gathers": any(load.args for load in program.loads),
        "weighted": bool(program.loads) and _weighted(program),
        "loads": bool(program.loads),
        "turned": any(o.transposed for o in program.operands if not o.indexed),
    }
    return frozenset(name for name, there in has.items() if there)


def _weighted(program: Program) -> bool:
    """Whether products with what varies within a row are summed."""
    along = any(not o.indexed and any(o.shape[d] > 1 for d in program.reduced) for o in program.operands)
    products = {item.result for item in program.body if isinstance(item, Statement) and item.op == "mul"}
    return along and any(isinstance(i, Reduction) and i.op == "sum" and i.arg in products for i in program.body)


def rule_of(rules: tuple[Rule, ...], pattern: Pattern) -> Rule | None:
    """The first that fits; None where the table has none."""
    found = features(pattern.program)
    return next((r for r in rules if pattern.kind in r.kinds and (not r.feature or r.feature in found)), None)
