"""A move in a few words: what is done, and why."""

from __future__ import annotations

from ..facts.candidate import Candidate
from ..facts.move import (
    Ask,
    Await,
    CallTool,
    Capture,
    Compose,
    Enter,
    Inspect,
    Interleave,
    Move,
    Sanitize,
    Stop,
    Try,
    Tune,
    Verify,
    Within,
)
from ..facts.pattern import Recipe


def why(move: Move) -> str:
    if isinstance(move, Within):
        return why(move.move)
    return move.why if isinstance(move, Try | Ask | Stop) else ""


def what(move: Move) -> str:
    match move:
        case Try():
            return _named(move.what)
        case Tune():
            return f"{move.pattern}: {len(move.points)} settings"
        case Sanitize():
            return f"{_named(move.what)}, its memory watched"
        case Capture():
            return f"{_named(move.what)} as a CUDA graph"
        case Interleave():
            return f"time {len(move.candidates)} candidates in turns"
        case CallTool():
            return f"tool {move.tool}" + (f": {move.text[:60]}" if move.text else "")
        case Verify():
            return f"{_named(move.what)}, before it is judged"
        case Stop():
            return f"hand over {_named(move.best)}" if move.best else "keep the module as it is"
        case Ask():
            return f"ask {move.model}"
        case Await():
            return f"wait for {move.agent}"
        case Compose():
            return f"write out {_named(move.recipe)}"
        case Enter(subproblem=subproblem):
            return f"{subproblem.name} as a problem of its own: {subproblem.title}"
        case Within(subproblem=subproblem, move=made):
            return f"{subproblem.name} by itself: {what(made)}"
        case Inspect():
            return "profile " + ("the module as it is" if move.what is None else _named(move.what))


def _named(what: Candidate | Recipe) -> str:
    if isinstance(what, Candidate):
        return f"candidate {what.id}"
    named = (f"{c.pattern} ({c.written.title})" if c.written is not None else c.pattern for c in what)
    return ", ".join(named) or "the module as it is"
