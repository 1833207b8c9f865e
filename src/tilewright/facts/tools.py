"""The tools that a model may call between two submissions: one table, for providers' interfaces, mailboxes and MCP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MOST_CALLS = 8  # of tools, in one step
MOST_VARIANTS = 4  # timed in turns at once
MOST_ANSWER = 8000  # characters of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolArgument:
    """What a tool takes: a text, or a list of texts; left out unless it is `needed`."""

    name: str
    about: str
    kind: Literal["text", "texts"] = "text"
    needed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """`about`: what a model reads of it. `of_a_candidate`: it looks at a candidate, or several; else it reads."""

    name: str
    about: str
    arguments: tuple[ToolArgument, ...]
    of_a_candidate: bool = True


EDITS = ToolArgument(
    name="edits",
    about="edits or whole files in the form of a reply (FILE lines, SEARCH/REPLACE blocks), of the files that you were "
    "shown; empty or left out: those files as they are",
)
TOOLS = (
    ToolSpec(
        name="compile", arguments=(EDITS,),
        about="Build a candidate and run it once: the compiler's errors and remarks (what was vectorised and what "
        "was not; on a GPU registers, spills and shared memory of each kernel).",
    ),
    ToolSpec(
        name="run", arguments=(EDITS,),
        about="Hold a candidate against the module on the smallest case: is it right there, how much of the "
        "error allowance does it use, or where is it wrong. The judge looks at more.",
    ),
    ToolSpec(
        name="time",
        arguments=(ToolArgument(
            name="variants", kind="texts", needed=True,
            about=f"edits of up to {MOST_VARIANTS - 1} variants, each as `edits` of other tools; the files as they "
            "were shown are timed beside them",
        ),),
        about="Time variants in turns, in the same rounds on the first case, each against the files as they were "
        "shown.",
    ),
    ToolSpec(
        name="code", arguments=(EDITS,),
        about="The machine code of a candidate: instructions of each function by kind, and the longest loop's listing; "
        "on a GPU registers, spills and the mix of instructions of each kernel.",
    ),
    ToolSpec(
        name="profile", arguments=(EDITS,),
        about="Where the time of a call goes, what limits it, the counters that say so, and what is likely to pay.",
    ),
    ToolSpec(
        name="tensor",
        arguments=(EDITS, ToolArgument(
            name="at", about='elements of an output of the candidate, as in "0: 3, 8:16" (output: indices or ranges); '
            "left out: its statistics and its first elements",
        )),
        about="Look at what a candidate returns on the smallest case: shapes, ranges, how many NaN and where, "
        "elements.",
    ),
    ToolSpec(
        name="search", of_a_candidate=False,
        arguments=(ToolArgument(name="query", needed=True, about="a few words, as in `online softmax wgmma`"),),
        about="Find notes on techniques, vetted skeletons and examples that were judged on this machine.",
    ),
    ToolSpec(
        name="read", of_a_candidate=False,
        arguments=(ToolArgument(name="name", needed=True, about="a name that `search` gave, or a file's path"),),
        about="Read a note, an example or a skeleton that `search` found, or a file that was not shown.",
    ),
)  # fmt: skip
NAMES = tuple(tool.name for tool in TOOLS)


def spec_of(name: str) -> ToolSpec | None:
    return next((tool for tool in TOOLS if tool.name == name), None)
