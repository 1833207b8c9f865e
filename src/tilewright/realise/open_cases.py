"""The code of cases that differ in open sizes alone, as that of one case: numbers that differ are computed."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword

from ..facts.problem import OpenSize, Target
from ..facts.run import CaseFacts
from .case_code import CaseCode, case_code

_MOST_POWER = 2  # of a size in a product of sizes
_TAKEN = {"self", "torch", "args", "kwargs", "super", "why", "Tensor", "isinstance", "len"}  # names in model.py
_NUMBERS = re.compile(r"(\d+)")


class _Unlike(Exception):
    """Cases do not do one and the same at several sizes."""


def groups(cases: Sequence[CaseFacts]) -> list[list[int]]:
    """The numbers of the cases that can be traced, those together that differ in open sizes alone."""
    found: dict[object, list[int]] = {}
    for number, case in enumerate(cases):
        if case.graph is not None:
            found.setdefault(case.fixed if case.open else number, []).append(number)
    return list(found.values())


def merged(
    codes: Sequence[CaseCode], sizes: Sequence[Sequence[OpenSize]], rows: Sequence[Mapping[str, int]]
) -> CaseCode | None:
    """One case for all sizes in their ranges; None where the codes differ in more than numbers that follow the sizes.
    `rows`: for each case, of the kernels that are asked whether they take so many rows, how many there are."""
    code = codes[0]
    if len({(c.parameters, c.keywords, c.used, c.tensors) for c in codes}) > 1:
        return None
    numbers = _Numbers(sizes, taken=_identifiers(line for c in codes for line in (*c.conditions, *c.body)))
    try:
        conditions = _Conditions(numbers, [c.conditions for c in codes])
        body = numbers.lines([c.body for c in codes])
        asked = [f"{name}.takes({numbers.text([r[name] for r in rows])})" for name in rows[0]]
    except _Unlike:
        return None
    used = [name for name in numbers.sizes if name in _identifiers(body)]
    if used:
        body.insert(0, f"{', '.join(used)} = {', '.join(conditions.places[name] for name in used)}")
    return replace(code, conditions=(*conditions.lines, *asked), body=tuple(body), traced="", is_open=True)


def stay_apart(cases: Sequence[CaseFacts], target: Target) -> bool:
    """Whether cases that differ in open sizes alone can't be one, even where all is left to torch."""
    for numbers in groups(cases):
        codes = [case_code(graph, (), target=target) for graph in (cases[n].graph for n in numbers) if graph]
        if len(codes) > 1 and merged(codes, [cases[n].open for n in numbers], [{} for _ in numbers]) is None:
            return True
    return False


def ranges(texts: Sequence[str], sizes: Sequence[Sequence[OpenSize]]) -> str:
    """A text that the cases share but for sizes in it, with their ranges in the place of these."""
    numbers = _Numbers(sizes, taken=set())
    parts = zip(*map(_NUMBERS.split, texts), strict=True)
    found = (part[0] if len(set(part)) == 1 else numbers.text([int(n) for n in part]) for part in parts)
    spans = {name: f"{size.low} to {size.high}" for name, size in numbers.sizes.items()}
    return "".join(spans.get(text, text) for text in found)


class _Conditions:
    """Under which arguments the merged case applies; `places`: the expression that gives each size."""

    def __init__(self, numbers: _Numbers, conditions: Sequence[Sequence[str]]) -> None:
        self.lines: list[str] = []
        self.places: dict[str, str] = {}
        late: list[str] = []
        for line in numbers.lines(conditions, mode="eval"):
            self._measure(line, numbers.sizes)
            asked = _identifiers([line]) & numbers.sizes.keys()
            (self.lines if asked <= self.places.keys() else late).append(line)
        if len(self.places) < len(numbers.sizes):
            raise _Unlike
        self.lines += late

    def _measure(self, line: str, sizes: Mapping[str, OpenSize]) -> None:
        """What names the sizes that a condition on a shape shows for the first time, and asks for their ranges."""
        test = ast.parse(line, mode="eval").body
        if not (isinstance(test, ast.Compare) and isinstance(test.comparators[0], ast.Tuple)):
            return
        shape, extents = ast.unparse(test.left), test.comparators[0].elts
        shown = {e.id: d for d, e in enumerate(extents) if isinstance(e, ast.Name) and e.id in sizes}
        new = {name: f"{shape}[{d}]" for name, d in shown.items() if name not in self.places}
        self.lines += [f"len({shape}) == {len(extents)}"] if new else []
        self.lines += [f"{sizes[n].low} <= ({n} := {place}) <= {sizes[n].high}" for n, place in new.items()]
        self.places |= new


class _Numbers:
    """What numbers of the cases are in terms of their `sizes`, by the names that these have in the code."""

    def __init__(self, sizes: Sequence[Sequence[OpenSize]], *, taken: set[str]) -> None:
        hidden = taken | _TAKEN
        names = [next(n for n in _named(s.name) if n not in hidden and not iskeyword(n)) for s in sizes[0]]
        self.sizes = dict(zip(names, sizes[0], strict=True))
        self._count = len(sizes)
        powers = sorted(itertools.product(range(_MOST_POWER + 1), repeat=len(names)), key=sum)[1:]
        self._products = [
            (" * ".join(n for n, power in zip(names, p, strict=True) for _ in range(power)),
             [math.prod(s.size**power for s, power in zip(case, p, strict=True)) for case in sizes]) for p in powers
        ]  # fmt: skip

    def text(self, values: Sequence[int]) -> str:
        """The expression of a number that has these values: a multiple of a product of sizes, and a constant; the
        simplest that there is. Raises _Unlike where there is none."""
        if len(set(values)) == 1:
            return repr(values[0])
        linear = [(text, self._line(values, product)) for text, product in self._products]
        found = [(line[1] != 0, text, *line) for text, line in linear if line is not None]
        if not found:
            raise _Unlike
        _, text, slope, constant = min(found, key=lambda f: f[0])  # the first of them, which has the fewest factors
        made = text if slope == 1 else f"{slope} * {text}"
        return f"{made} {'+' if constant > 0 else '-'} {abs(constant)}" if constant else made

    def _line(self, values: Sequence[int], at: Sequence[int]) -> tuple[int, int] | None:
        """Slope and constant of the line through all of these points, where both are whole numbers."""
        other = next((i for i in range(self._count) if at[i] != at[0]), 0)
        rise, run = values[other] - values[0], at[other] - at[0]
        if run == 0 or rise % run:
            return None
        slope, constant = rise // run, values[0] - rise // run * at[0]
        return (slope, constant) if all(v == slope * a + constant for v, a in zip(values, at, strict=True)) else None

    def lines(self, cases: Sequence[Sequence[str]], mode: str = "exec") -> list[str]:
        """The lines of all cases as those of one. Raises _Unlike where there are none."""
        if len({len(lines) for lines in cases}) > 1:
            raise _Unlike
        return [self._together(lines, mode) for lines in zip(*cases, strict=True)]

    def _together(self, lines: Sequence[str], mode: str) -> str:
        if len(set(lines)) == 1:
            return lines[0]
        return ast.unparse(self._node([ast.parse(line, mode=mode) for line in lines]))

    def _node(self, nodes: Sequence[ast.AST]) -> ast.AST:
        """The first of the trees, with expressions for the whole numbers in which they differ."""
        first = nodes[0]
        if len({type(node) for node in nodes}) > 1:
            raise _Unlike
        if isinstance(first, ast.Constant):
            return self._constant([node.value for node in nodes if isinstance(node, ast.Constant)], first)
        for name, value in ast.iter_fields(first):
            values = [getattr(node, name) for node in nodes]
            if isinstance(value, ast.AST):
                setattr(first, name, self._node(values))
            elif isinstance(value, list):
                if len({len(v) for v in values}) > 1:
                    raise _Unlike
                value[:] = [self._node(v) if isinstance(v[0], ast.AST) else v[0] for v in zip(*values, strict=True)]
            elif any(v != value for v in values):
                raise _Unlike
        return first

    def _constant(self, values: Sequence[object], first: ast.Constant) -> ast.expr:
        whole = [v for v in values if type(v) is int]
        if len(whole) == len(values):
            return ast.parse(self.text(whole), mode="eval").body
        if any(v != values[0] for v in values):
            raise _Unlike
        return first


def _named(name: str) -> Iterable[str]:
    return (name + "_" * count for count in itertools.count())


def _identifiers(lines: Iterable[str]) -> set[str]:
    return {name for line in lines for name in re.findall(r"[A-Za-z_]\w*", line)}
