"""`tilewright serve`: the flags of the judge over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..facts.errors import UserError
from ..facts.ticket import JudgingTerms
from . import config, options
from .options import devices_of, target_of
from .printing import say, stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningOptions:
    """Where the server is reached, and by whom."""

    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than this machine's need --keys.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any.")] = 8765
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="A further name under which clients ask; repeatable."),
    ] = None
    site: Annotated[
        list[Path] | None,
        typer.Option("--site", metavar="DIR", help="Runs to show in a browser under /site/; repeatable."),
    ] = None
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="FILE", help="Who may ask: names and digests of tokens.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Where tickets wait, and how many may."""

    state: Annotated[Path, typer.Option("--state", metavar="DIR", help="Folder of the server, with its queue.")] = Path(
        "runs/serve"
    )
    queue: Annotated[
        str, typer.Option("--queue", metavar="postgresql://...", help="The queue; default: a file in --state.")
    ] = ""
    rate: Annotated[int, typer.Option("--rate", min=1, max=1_000_000, help="Submissions a minute, of each key.")] = 600
    queued: Annotated[
        int, typer.Option("--queued", min=1, max=1_000_000, help="Tickets that may wait, of each key.")
    ] = 1000
    most_bytes: Annotated[
        int, typer.Option("--most-bytes", min=1024, max=1 << 30, help="Bytes of a request's body at most.")
    ] = 4 << 20
    limit: Annotated[str, typer.Option("--limit", help="Time for one judgement at most, e.g. 10m.")] = "30m"
    keep: Annotated[str, typer.Option("--keep", help="For how long tickets that have ended are kept, e.g. 72h.")] = (
        "168h"
    )


@options.grouped
def serve(
    root: Annotated[
        list[Path] | None, typer.Option("--root", metavar="DIR", help="Problems that are known by name; repeatable.")
    ] = None,
    roots_only: Annotated[
        bool,
        typer.Option(
            "--problems-from-roots-only/--posted-problems",
            help="Whether clients may send problems, too, which run with your rights.",
        ),
    ] = True,
    new_key: Annotated[
        str, typer.Option("--new-key", metavar="NAME", help="Add a key to --keys, print its token, and end.")
    ] = "",
    *,
    listening: ListeningOptions,
    queue: QueueOptions,
    shared: options.TimedOptions,
    sanitize: options.SanitizeOption = False,
    jobs: options.JobsOption = 1,
    devices: Annotated[
        str | None, typer.Option("--devices", help="GPUs to judge on, e.g. 0,1,2,3; default: one.")
    ] = None,
) -> None:
    """Judge candidates that are sent over HTTP: tickets, verdicts, progress, and rewards for a trainer of models."""
    if new_key:
        _add_key(listening.keys, new_key)
        return
    try:
        from .serving.keys import KeyLimits
        from .serving.pool import PoolTerms
        from .serving.server import ServeTerms
        from .serving.server import serve as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "pydantic"):
            raise
        raise UserError(f"`tilewright serve` needs {error.name}: pip install 'tilewright[serve]'") from None
    judging = JudgingTerms(
        target=target_of(shared.target), timing=shared.timed, seed=shared.seed, cache=str(config.cache_dir()),
        sanitize=sanitize, environment=config.environment(shared.env or ()),
    )  # fmt: skip
    terms = ServeTerms(
        host=listening.host, port=listening.port, names=tuple(listening.name or ()), roots=tuple(root or ()),
        state=queue.state, queue=queue.queue, keys=listening.keys,
        limits=KeyLimits(rate=queue.rate, queued=queue.queued), most_bytes=queue.most_bytes,
        posted_problems=not roots_only, site=tuple(listening.site or ()), jobs=jobs, devices=devices_of(devices),
        pool=PoolTerms(limit_s=config.seconds(queue.limit, "--limit"), kept_s=config.seconds(queue.keep, "--keep")),
        judging=judging,
    )  # fmt: skip
    run(terms, say=say(False))


def _add_key(keys: Path | None, name: str) -> None:
    from .serving.keys import add_key

    if keys is None:
        raise UserError("--new-key: name the file of keys, too: --keys FILE")
    stdout.print(add_key(keys, name), markup=False, soft_wrap=True)
