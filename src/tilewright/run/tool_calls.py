"""What comes of a model's call of a tool (facts.tools), in words: for the judge's tools, and for those that read."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ..facts.candidate import Candidate
from ..facts.device import Device
from ..facts.dialogue import ToolAnswer
from ..facts.document import Document
from ..facts.errors import TooBusy
from ..facts.machine import Machine
from ..facts.move import CallTool
from ..facts.outcome import Checked, Failure, Inspected, Interleaved, Interval
from ..facts.run import SearchContext
from ..facts.tools import MOST_ANSWER
from ..search.retrieve import Index, packaged
from ..search.retrieve import store as table
from .realisations import document_of, doubt_of

if TYPE_CHECKING:
    from ..judge.evaluate import Judge
    from ..judge.objects import CodeSeen

_MOST_HITS = 6


def answered(judge: Callable[[], Judge], context: SearchContext, move: CallTool, *, realised: Path) -> ToolAnswer:
    """`judge` opens the judge where a tool needs it; `realised` is the folder of what was realised here before. Where
    others keep the machine from a tool, that is its answer."""
    try:
        text = _answer(judge, context, move, realised)
    except TooBusy as busy:
        text = f"not now: {busy}"
    cut = "" if len(text) <= MOST_ANSWER else f"\n... (the first {MOST_ANSWER} of {len(text)} characters)"
    return ToolAnswer(tool=move.tool, text=text[:MOST_ANSWER] + cut)


def _answer(judge: Callable[[], Judge], context: SearchContext, move: CallTool, realised: Path) -> str:
    match move.tool, move.candidates:
        case "search", _:
            text = _search(_documents(context, realised), context, move.text)
        case "read", given:
            text = _read(_documents(context, realised), context, given, move.text)
        case "time", given if given:
            text = _times(judge().looks.interleave(given))
        case "run", (candidate,):
            text = _right(judge().looks.run_small(candidate))
        case "tensor", (candidate,):
            found = judge().looks.returned(candidate, move.text)
            text = _refusal(found) if isinstance(found, Failure) else found
        case "profile", (candidate,):
            text = _profile(judge().inspect(candidate))
        case "compile", (candidate,):
            text = _compiled(judge().looks.compiled(candidate), context)
        case "code", (candidate,):
            text = _code(judge().looks.compiled(candidate))
        case _:
            text = f"{move.tool!r} can't be called so"
    return text


def _refusal(failure: Failure) -> str:
    text = f"refused at {failure.stage}: {failure.reason.replace('_', ' ')}: {failure.summary}"
    return f"{text}\n{failure.excerpt}" if failure.excerpt else text


def _right(found: Checked | Failure) -> str:
    if isinstance(found, Failure):
        return _refusal(found)
    worst = found.worst_error
    used = f"; {worst.share:.0%} of the error allowance is used (output {worst.output})" if worst is not None else ""
    return "\n".join([f"right on the smallest case, at one draw of its own inputs{used}", *found.notes])


def _times(found: Interleaved) -> str:
    lines = []
    for number, variant in enumerate(found.variants):
        name = f"variant {number}" if number else "the files as they were shown"
        if variant.time_ns is None or variant.ratio is None:
            lines.append(f"{name}: {variant.failure}")
            continue
        faster = f", {_span(variant.ratio)} as fast as those" if number else ""
        lines.append(f"{name}: {variant.time_ns.mid / 1e3:.4g} us{faster}")
    return "\n".join(lines)


def _span(ratio: Interval) -> str:
    return f"{ratio.mid:.3g}x [{ratio.low:.3g}, {ratio.high:.3g}]"


def _profile(found: Inspected | Failure) -> str:
    from ..search.strategies.telling import profile_lines

    return _refusal(found) if isinstance(found, Failure) else "\n".join(profile_lines(found))


def _compiled(found: CodeSeen | Failure, context: SearchContext) -> str:
    if isinstance(found, Failure):
        return _refusal(found)
    head = "built, and run once" if found.finished else f"it did not get to the end:\n{found.said}"
    if context.problem.target == "cuda":
        return "\n".join([head, *found.code])
    return "\n".join([head, *(found.remarks or ["the compiler said nothing of its loops"])])


def _code(found: CodeSeen | Failure) -> str:
    if isinstance(found, Failure):
        return _refusal(found)
    return "\n".join([*([] if found.finished else [f"it did not get to the end:\n{found.said}"]), *found.code])


# ---- what can be read


def _documents(context: SearchContext, realised: Path) -> tuple[Document, ...]:
    """Notes, rules and skeletons of ours, and what was realised on this device and judged: no other's."""
    machine: Machine = context.machine
    mine = (e for e in table.entries(realised) if e.problem.target == context.problem.target)
    return (*packaged(), *(document_of(e) for e in mine if not doubt_of(e, machine)))


def _search(documents: tuple[Document, ...], context: SearchContext, query: str) -> str:
    from ..facts.devices import device_of

    device: Device = device_of(context.machine)
    hits = Index(documents).search(query[:300], architecture=device.architecture, most=_MOST_HITS)
    told = [f"{h.document.kind} {h.document.name}: {h.document.title}\n  {h.excerpt}" for h in hits]
    return "\n".join(told) or "nothing was found; try other words"


def _read(
    documents: tuple[Document, ...], context: SearchContext, given: tuple[Candidate, ...], name: str
) -> str:  # fmt: skip
    name = name.strip()
    own = {f.path: f.text for candidate in given for f in candidate.files} | {f.path: f.text for f in context.near}
    if name in own:
        return own[name]
    short = name.split(" ")[-1]
    found = next((d for d in documents if short in (d.name, d.title)), None)
    if found is None:
        return f"there is no {name[:80]!r}; search gives names"
    if found.kind == "skeleton":
        place = files("tilewright.kernels").joinpath(found.name)
        return place.read_text(encoding="utf-8") if place.is_file() else found.text
    return f"{found.title}\n\n{found.text}"
