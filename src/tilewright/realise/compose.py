"""A recipe becomes a candidate: model.py around the fused kernels, the user's file beside it, and what they import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files

import jinja2

from ..facts.candidate import Candidate, SourceFile
from ..facts.device import Device
from ..facts.pattern import Choice, Pattern, Recipe
from ..facts.problem import Target
from ..facts.run import CaseFacts, Matched
from .case_code import case_code, states
from .segment_code import SegmentCode, around, segment_code
from .signature import signature
from .table import Realisers, realisers
from .written.code import placed, written_files


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What the template writes of one case; without a body it runs the original forward."""

    index: int
    parameters: tuple[str, ...]
    keywords: tuple[str, ...]
    conditions: tuple[str, ...]
    body: tuple[str, ...]
    tensors: tuple[str, ...]  # expressions of those in the arguments
    states: tuple[str, ...]  # entries of a dict: what it reads of the module
    acts: bool  # it does more than compute: random numbers are drawn, or tensors written
    judged: str  # the arguments that it takes, for a reader

    @property
    def given(self) -> str:
        """That exactly these keyword arguments are there."""
        return f"kwargs.keys() == {{{', '.join(map(repr, self.keywords))}}}" if self.keywords else "not kwargs"

    @property
    def signature(self) -> str:
        return ", ".join(("self", *self.parameters, *(("*",) if self.keywords else ()), *self.keywords))


def compose(
    problem_source: str,
    cases: Sequence[CaseFacts],
    matched: Sequence[Matched],
    recipe: Recipe,
    *,
    device: Device,
    make: Realisers | None = None,
) -> Candidate:
    """The candidate in which the recipe's patterns are fused and everything else runs as torch does it.

    `matched` holds the patterns of each case; a case that was not traced, or in which nothing is fused, runs the
    original forward. `make` renders the kernels (None: the realisers
    of the table for the device). Raises KeyError where the recipe
    names a pattern that no case has."""
    make, target = make or realisers(device), device.target
    known = {p.id: p for m in matched for p in m.patterns}
    written = [choice for choice in recipe if choice.written is not None]
    points = {choice.pattern: choice.point for choice in recipe if choice.written is None}
    chosen = [known[name] for name in points]
    made = list(map(partial(_made, target=target, chosen=set(points)), matched))
    codes, used = _cases(cases, matched, made, set(points), written, target, make)
    segments = [code for found in made for code in found if code.segment.id in used]
    used.update(name for code in segments for name in code.used)
    chosen = [p for p in chosen if p.id in used]
    training = any(facts.graph is not None and facts.graph.wanted for facts in cases)
    theirs = {c.pattern: c.written for c in written if c.written is not None and c.pattern in used}
    beside = [*(c.segment.id for c in segments), *theirs]
    about = [f"{name}: {w.title} (written for it, {len(w.regions)} place(s))" for name, w in theirs.items()]
    fused = [file for p in chosen for file in make.render(p.program, p.id, points[p.id])]
    shared = {file.path: file for file in (*_guards(), *make.skeleton_files([p.program for p in chosen]))}
    packages = list(dict.fromkeys(path.split("/")[0] for path in shared))
    model = SourceFile(path="model.py", text=_model(codes, chosen, beside, packages, training, target, about))
    original = SourceFile(path="original.py", text=problem_source)
    others = [file for name, w in theirs.items() for file in written_files(name, w)]
    return Candidate(files=(model, original, *(code.file for code in segments), *fused, *others, *shared.values()))


@cache
def _guards() -> tuple[SourceFile, ...]:
    """What the module asks before it runs a case, verbatim, for `tilewright_kernels/`."""
    kernels = files("tilewright.kernels")
    names = ("__init__.py", "contents.py", "guards.py", "survey.py")
    return tuple(SourceFile(path=f"tilewright_kernels/{n}", text=kernels.joinpath(n).read_text()) for n in names)


_TRAINING: Mapping[bool | None, tuple[str, ...]] = {True: ("self.training",), False: ("not self.training",), None: ()}


def _made(found: Matched, *, target: Target, chosen: set[str]) -> list[SegmentCode]:
    """The segments of a case in which a chosen pattern stands."""
    patterns = [p for p in found.patterns if p.id in chosen]
    codes = [segment_code(s, patterns, target=target) for s in found.segments]
    return [code for code in codes if code is not None]


def _cases(
    cases: Sequence[CaseFacts], matched: Sequence[Matched], made: Sequence[Sequence[SegmentCode]], chosen: set[str],
    written: Sequence[Choice], target: Target, make: Realisers,
) -> tuple[list[_Case], set[str]]:  # fmt: skip
    """The cases in order, equal ones once, and the ids of the patterns and segments that they call."""
    found_cases: list[_Case] = []
    used: set[str] = set()
    for facts, found, codes in zip(cases, matched, made, strict=True):
        if facts.graph is None:
            continue
        graph = around(facts.graph, [code.segment for code in codes])
        patterns = () if facts.graph.wanted else [p for p in found.patterns if p.id in chosen]
        there = placed(graph, written) if found.case == 0 else ()
        code = case_code(graph, patterns, target=target, any_rows=make.any_rows, placed=there)
        conditions = (*_TRAINING[facts.graph.training], *code.conditions)
        if any((c.conditions, c.keywords) == (conditions, code.keywords) for c in found_cases):
            continue
        used.update(code.used)
        body = code.body if code.used else ()
        found_cases.append(_Case(
            index=len(found_cases), parameters=code.parameters, keywords=code.keywords, conditions=conditions,
            body=body, tensors=code.tensors, states=states(facts.graph),
            acts=bool(facts.graph.updates) or any(call.ordered for call in facts.graph.calls),
            judged=signature(facts.graph, code.parameters, free=code.free, target=target),
        ))  # fmt: skip
    return found_cases, used


def _model(
    cases: Sequence[_Case], chosen: Sequence[Pattern], beside: Sequence[str], packages: Sequence[str], training: bool,
    target: Target, more: Sequence[str],
) -> str:  # fmt: skip
    """`beside`: what it imports that has no knobs; `packages`: what that imports."""
    lines = [f"{p.id}: {p.title} ({p.kind} over {p.program.domain}, {len(p.sites)} place(s))" for p in chosen]
    lines += more
    about = "The module with its fused kernels, made by Tilewright." if lines else "The module as it was."
    text = _template().render(
        about=about,
        patterns=lines,
        ids=[p.id for p in chosen],
        segments=list(beside),
        shared=list(packages),
        cases=cases,
        acting=tuple(case.index for case in cases if case.acts),
        training=training,
        target=target,
        plain=not any("torch.device(" in line for case in cases for line in case.body),
    )
    return f"{text.rstrip()}\n"


@cache
def _template() -> jinja2.Template:
    text = files(__package__).joinpath("model.py.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    return environment.from_string(text)
