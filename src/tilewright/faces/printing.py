"""Results on stdout, as tables or as one JSON object; progress on stderr."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console, RenderableType


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a command came to: an object for programs, what is drawn of it for people, and whether it exits with 1."""

    object: Any
    drawn: Sequence[RenderableType]
    refused: bool = False


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever reads has gone: `exits.exit_code` knows what that means, rich would end the process."""
        raise BrokenPipeError


stderr = _Console(stderr=True, highlight=False, soft_wrap=True)
stdout = _Console(highlight=False)


Loudness = Literal["quiet", "usual", "verbose"]
_loudness: list[Loudness] = ["usual"]  # as the command that runs was asked to be
_began_s = [time.monotonic()]


def tell(loudness: Loudness) -> None:
    """How much this command tells on stderr, from here on."""
    _loudness[0], _began_s[0] = loudness, time.monotonic()


def verbose() -> bool:
    return _loudness[0] == "verbose"


def say(as_json: bool) -> Callable[[str], None]:
    """Progress on stderr; nothing where the output is for a program, unless it is to be told all the same (`verbose`),
    and nothing where it is to be quiet. That nobody reads it any more ends no run."""
    silent = _loudness[0] == "quiet" or (as_json and not verbose())
    return (lambda text: None) if silent else _progress


def _progress(text: str) -> None:
    began = f"{time.monotonic() - _began_s[0]:8.1f} s" if verbose() else ""
    with suppress(OSError, ValueError):  # ValueError: it is closed
        stderr.print(f"{began}  {text}", style="dim", markup=False)


def print_text(*lines: str) -> None:
    """Lines as they are: nothing in them is markup, or breaks."""
    for told in lines:
        stdout.print(told, markup=False, soft_wrap=True)


def show(result: Any, *, as_json: bool) -> int:
    """Print what a run came to; the exit code for it."""
    if as_json:
        print_json(result.summary)
    else:
        stdout.print(result.table)
        for told in result.lines:
            stdout.print(told, soft_wrap=True, markup=False)
    return 1 if result.summary["status"] in ("failed", "unfinished") else 0


def put(shown: Shown, *, as_json: bool) -> int:
    """Print the object, or what is drawn of it; the exit code for it."""
    if as_json:
        print_json(shown.object)
    for item in () if as_json else shown.drawn:
        print(item) if isinstance(item, str) else stdout.print(item)
    return 1 if shown.refused else 0


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))
