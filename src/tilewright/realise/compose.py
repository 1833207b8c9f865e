"""A recipe becomes a candidate: model.py around the fused kernels, the user's file beside it, and what they import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files

from ..facts.candidate import Candidate, SourceFile
from ..facts.device import Device
from ..facts.pattern import CUDA_GRAPH, INDUCTOR, Choice, Pattern, Recipe, inductor_mode, without_inductor
from ..facts.problem import Target
from ..facts.run import CaseFacts, Matched, patterns_by_id
from .case_code import CaseCode, case_code, states
from .open_cases import groups, merged, ranges
from .segment_code import SegmentCode, around, segment_code
from .signature import signature
from .table import Realisers, realisers
from .templates import template
from .written.code import placed, written_files


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What the template writes of one case; without a body it runs the original forward."""

    index: int
    parameters: tuple[str, ...]
    keywords: tuple[str, ...]
    conditions: tuple[str, ...]
    body: tuple[str, ...]
    once: tuple[str, ...]  # what it takes from a function that is called once
    traced: str  # the condition that there are as many rows as were traced; "": any call has as many
    tensors: tuple[str, ...]  # expressions of those in the arguments
    states: tuple[str, ...]  # entries of a dict: what it reads of the module
    is_open: bool  # it holds for many sizes
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
    problem_source: str, cases: Sequence[CaseFacts], matched: Sequence[Matched], recipe: Recipe, *, device: Device,
    make: Realisers | None = None,
) -> Candidate:  # fmt: skip
    """The candidate in which the recipe's patterns are fused and everything else runs as torch does it.

    `matched` holds the patterns of each case; a case that was not traced, or in which nothing is fused, runs the
    original forward; with INDUCTOR in the recipe, torch.compile runs what is left to torch of the other cases, or of
    the module as it is where nothing else is in the recipe, or a CUDA graph replays the cases. `make` renders the
    kernels (None: the realisers of the table for the device). Raises KeyError where the recipe names a pattern that no
    case has."""
    make, target = make or realisers(device), device.target
    mode, recipe = inductor_mode(recipe), without_inductor(recipe)
    known = patterns_by_id(matched)
    written = [choice for choice in recipe if choice.written is not None]
    points = {choice.pattern: choice.point for choice in recipe if choice.written is None}
    chosen = [known[name] for name in points]
    made = list(map(partial(_made, target=target, chosen=set(points)), matched))
    codes, used = _cases(cases, matched, made, set(points), written, target, make, mode=mode)
    segments = [code for found in made for code in found if code.segment.id in used]
    used.update(name for code in segments for name in code.used)
    chosen = [p for p in chosen if p.id in used]
    training = any(facts.graph is not None and facts.graph.wanted for facts in cases)
    theirs = [c for c in written if c.pattern in used]
    fused = [file for p in chosen for file in make.render(p.program, p.id, points[p.id])]
    shared = {file.path: file for file in (*_ours(mode), *make.skeleton_files([p.program for p in chosen]))}
    parts = _Parts(
        cases=codes, chosen=chosen, segments=[c.segment.id for c in segments], written=theirs,
        packages=list(dict.fromkeys(path.split("/")[0] for path in shared)),
        mode=mode, whole=bool(mode) and mode != CUDA_GRAPH and not used,
    )  # fmt: skip
    model = SourceFile(path="model.py", text=_model(parts, training, target))
    original = SourceFile(path="original.py", text=problem_source)
    others = [file for choice in theirs for file in written_files(choice, cases[0].graph, opaque=bool(mode))]
    return Candidate(files=(model, original, *(code.file for code in segments), *fused, *others, *shared.values()))


@cache
def _ours(mode: str) -> tuple[SourceFile, ...]:
    """What the module asks before it runs a case, and what it has for torch.compile, verbatim, for
    `tilewright_kernels/`."""
    kernels = files("tilewright.kernels")
    guards = ("__init__.py", "contents.py", "guards.py", "reached.py", "survey.py", "watched.py")
    names = (*guards, *(("compiled.py", "graphed.py", "ops.py") if mode else ()))
    return tuple(SourceFile(path=f"tilewright_kernels/{n}", text=kernels.joinpath(n).read_text()) for n in names)


_TRAINING: Mapping[bool | None, tuple[str, ...]] = {True: ("self.training",), False: ("not self.training",), None: ()}


def _made(found: Matched, *, target: Target, chosen: set[str]) -> list[SegmentCode]:
    """The segments of a case in which a chosen pattern stands."""
    patterns = [p for p in found.patterns if p.id in chosen]
    codes = [segment_code(s, patterns, target=target) for s in found.segments]
    return [code for code in codes if code is not None]


def _cases(
    cases: Sequence[CaseFacts], matched: Sequence[Matched], made: Sequence[Sequence[SegmentCode]], chosen: set[str],
    written: Sequence[Choice], target: Target, make: Realisers, *, mode: str,
) -> tuple[list[_Case], set[str]]:  # fmt: skip
    """The cases in order, equal ones once, and the ids of the patterns and segments that they call. With a `mode` of
    torch.compile they have a body where they call none, too; without one what depends on no input is made at the first
    call alone."""
    found_cases: list[_Case] = []
    used: set[str] = set()
    for numbers in groups(cases):
        codes = [
            _code(cases[n], matched[n], made[n], chosen, () if len(numbers) > 1 else written, target, make, mode=mode)
            for n in numbers
        ]
        one = _merged(codes, [cases[n] for n in numbers], [matched[n] for n in numbers], make)
        for n, code in [(numbers[0], one)] if one else zip(numbers, codes, strict=True):
            graph = cases[n].graph
            assert graph is not None
            conditions = (*_TRAINING[graph.training], *code.conditions)
            if any((c.conditions, c.keywords) == (conditions, code.keywords) for c in found_cases):
                continue
            used.update(code.used)
            body = code.body if code.used or mode else ()
            if body and code.lasting:
                body = (f"{', '.join(code.lasting)}, = _once_{len(found_cases)}()", *body)
            told = [signature(g, code.parameters, free=code.free, target=target)
                    for g in (cases[i].graph for i in (numbers if one else (n,))) if g is not None]  # fmt: skip
            found_cases.append(_Case(
                index=len(found_cases), parameters=code.parameters, keywords=code.keywords, conditions=conditions,
                body=body, once=(*code.once, f"return {', '.join(code.lasting)},") if body and code.lasting else (),
                traced=code.traced, tensors=code.tensors, states=states(graph), is_open=code.is_open,
                acts=bool(graph.updates) or any(call.ordered for call in graph.calls),
                judged=ranges(told, [cases[i].open for i in numbers]) if one else told[0],
            ))  # fmt: skip
    return found_cases, used


def _code(
    facts: CaseFacts, found: Matched, made: Sequence[SegmentCode], chosen: set[str], written: Sequence[Choice],
    target: Target, make: Realisers, *, mode: str,
) -> CaseCode:  # fmt: skip
    assert facts.graph is not None
    graph = around(facts.graph, [code.segment for code in made])
    patterns = () if facts.graph.wanted else [p for p in found.patterns if p.id in chosen]
    there = placed(graph, written) if found.case == 0 else ()
    once = mode in ("", CUDA_GRAPH) and not facts.open
    any_rows = (lambda program: False) if facts.open else make.any_rows
    return case_code(graph, patterns, target=target, placed=there, once=once, any_rows=any_rows)


def _merged(
    codes: Sequence[CaseCode], cases: Sequence[CaseFacts], matched: Sequence[Matched], make: Realisers
) -> CaseCode | None:
    """One code for cases that differ in open sizes alone."""
    if len(codes) == 1:
        return None
    asked = [{} if make.device.target == "cpu" else {
        p.id: p.program.domain[0] for p in m.patterns if p.id in codes[0].used and p.program.open
    } for m in matched]  # fmt: skip
    return merged(codes, [case.open for case in cases], asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What model.py is made of: `whole` is the module as it is, under torch.compile in this `mode`."""

    cases: Sequence[_Case]
    chosen: Sequence[Pattern]
    segments: Sequence[str]  # names of their files
    written: Sequence[Choice]
    packages: Sequence[str]  # what all of them import
    mode: str
    whole: bool

    @property
    def lines(self) -> list[str]:
        """What is realised, for a reader."""
        found = [
            f"{p.id}: {p.title} ({p.kind} over {p.program.domain}, {len(p.matches)} place(s))" for p in self.chosen
        ]
        theirs = [(c.pattern, c.written) for c in self.written if c.written is not None]
        found += [f"{name}: {w.title} (written for it, {len(w.regions)} place(s))" for name, w in theirs]
        if self.mode == CUDA_GRAPH:
            return [*found, f"{INDUCTOR}: all of it as one CUDA graph"]
        return found + ([f"{INDUCTOR}: all else, by torch.compile in mode {self.mode}"] if self.mode else [])


def _model(parts: _Parts, training: bool, target: Target) -> str:
    names = [choice.pattern for choice in parts.written]
    lines = parts.lines
    text = template(__package__, "model.py.jinja").render(
        about="The module with its fused kernels, made by Tilewright." if lines else "The module as it was.",
        patterns=lines, ids=[p.id for p in parts.chosen],
        turned=[c.pattern for c in parts.written if c.written is not None and c.written.points],
        segments=[*parts.segments, *names], shared=list(parts.packages), cases=parts.cases,
        acting=tuple(case.index for case in parts.cases if case.acts), training=training, target=target,
        plain=not any("torch.device(" in line for case in parts.cases for line in case.body), mode=parts.mode,
        whole=parts.whole,
    )  # fmt: skip
    return f"{text.rstrip()}\n"
