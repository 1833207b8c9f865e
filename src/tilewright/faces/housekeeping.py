"""Commands that look after what runs leave: `site`, `logs`, `clean`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from . import config, options
from .cleaning import AGAIN, WHAT, CleaningBounds, What
from .printing import print_text, put, say


def site(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or of results of `bench`.")],
    out: Annotated[Path, typer.Option("--out", metavar="SITE", help="Where the pages are written.")] = Path("site"),
    as_json: options.JsonOption = False,
) -> None:
    """Show runs in a browser: a leaderboard, reports, candidates, dialogues, as files that any web server can host."""
    from .sites import shown, write_site

    put(shown(write_site(folders, out, say=say(as_json)), out), as_json=as_json)


def logs(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A run, or a folder of runs: the latest in it.")
    ] = Path("runs"),
    tail: Annotated[int, typer.Option("--tail", min=0, max=100_000, help="Show so many of its last steps.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", help="Stay, and show each step as it comes.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Say where the latest run keeps its journal and its reports, and what it did last."""
    from . import latest

    found = latest.read(latest.latest(folder))
    if follow and not as_json:
        print_text(*latest.head(found))
        latest.follow(found, tail=tail, put=print_text)
    else:
        put(latest.shown(found, tail=tail), as_json=as_json)


def clean(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[runs|builds|kernels|modules]...", help="What goes; default: kernels and modules."),
    ] = None,
    older: Annotated[str, typer.Option("--older", help="What was not used for so long; default: 30d.")] = "",
    keep: Annotated[str, typer.Option("--keep", metavar="SIZE", help="And what is beyond it, e.g. 2GB.")] = "",
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="The folder of runs.")] = Path("runs"),
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Runs that have not ended, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would go.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Remove old runs, and what the cache can make again; nothing that is in use or that others made."""
    from ..report import words
    from .cleaning import clean as run
    from .cleaning import shown, size

    chosen: list[What] = [options.one_of(name, WHAT, "clean") for name in what or AGAIN]
    older = older or ("" if keep else "30d")
    bounds = CleaningBounds(
        older_s=config.seconds(older, "--older") if older else None, keep_bytes=size(keep, "--keep") if keep else None,
        unfinished=unfinished,
    )  # fmt: skip
    cleaned = run(
        chosen, runs=runs, cache=config.cache_dir(), bounds=bounds, dry=dry_run, now_unix_s=time.time()
    )  # fmt: skip
    put(shown(cleaned, words.amount), as_json=as_json)
