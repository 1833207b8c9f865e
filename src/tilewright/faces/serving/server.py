"""The server: queue, judging processes, gate and routes put together, until a signal ends it."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn

from ...edges.gpu.machine import machine as measured_machine
from ...edges.queue import TicketQueue
from ...facts.errors import UserError
from ...facts.ticket import JudgingTerms
from ...report.site import LiveSite
from ..listening import LOCAL, opened_socket, url_of
from .counts import Counts
from .gate import GateTerms, HttpGate
from .keys import MOST_PRIORITY, KeyFile, KeyHolder, KeyLimits
from .pool import JudgePool, PoolTerms, ProgressBoard
from .process import JudgingProcess
from .roots import ProblemRoots
from .routes import Desk, application

_EVERYWHERE = ("0.0.0.0", "::")
_GRACE_S = 2
_MOST_CONNECTIONS = 1000
_MOST_HEAD = 32 << 10  # bytes of a request's head


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeTerms:
    """What the operator chose. `names`: further hosts under which clients may ask; `queue`: a URL, "" for a file in
    `state`, the server's own folder; `site`: folders of runs to show in a browser; `devices`: of which each has `jobs`
    judging processes, () for the usual one; `posted_problems`: whether clients may send problems, too."""

    host: str
    port: int
    names: tuple[str, ...]
    roots: tuple[Path, ...]
    state: Path
    queue: str
    keys: Path | None
    limits: KeyLimits
    most_bytes: int
    posted_problems: bool
    site: tuple[Path, ...] = ()
    jobs: int
    devices: tuple[str, ...]
    pool: PoolTerms
    judging: JudgingTerms

    @property
    def local(self) -> bool:
        return self.host in LOCAL


def serve(terms: ServeTerms, *, say: Callable[[str], None]) -> None:
    """Serve until a signal. Raises UserError for an address that lies open without keys, and for what can't be had."""
    _require_sound(terms)
    roots = ProblemRoots(terms.roots)
    keys = KeyFile(terms.keys, terms.limits) if terms.keys else None
    with _alone(terms.state) as server, opened_socket(terms.host, terms.port, of="--port") as listening:
        measured_machine(terms.judging.target, cache_dir=Path(terms.judging.cache), say=say)  # while nothing runs
        with closing(TicketQueue(terms.queue or str(terms.state / "queue.db"), server=server)) as queue:
            board, counts = ProgressBoard(), Counts()
            judges = judging_processes(terms, terms.state / "judging")
            desk = Desk(
                queue=queue,
                board=board,
                roots=roots,
                counts=counts,
                posted_problems=terms.posted_problems,
                judges=len(judges),
                site=LiveSite(terms.site) if terms.site else None,
            )
            gate = HttpGate(application(desk), _gate_terms(terms, keys), counts)
            with closing(JudgePool(queue, judges, terms.pool, path_of=roots.path_of, say=say, board=board)) as pool:
                pool.start()
                print(f"listening on {url_of(terms.host, listening)}", file=sys.stderr, flush=True)
                uvicorn.Server(settings_of(gate)).run(sockets=[listening])


def _require_sound(terms: ServeTerms) -> None:
    if not terms.local and terms.keys is None:
        raise UserError(
            f"--host {terms.host}: whoever reaches this address could have code run here; give --keys FILE (made with "
            "`tilewright serve --keys FILE --new-key NAME`), or serve 127.0.0.1"
        )
    if terms.host in _EVERYWHERE and not terms.names:
        raise UserError(f"--host {terms.host}: say with --name under which name clients ask, e.g. --name judge.lan")
    for folder in terms.site:
        if not folder.is_dir():
            raise UserError(f"--site {folder}: no such folder")
    if not terms.posted_problems and not terms.roots:
        raise UserError(
            "no problems: name a folder of them with --root, or let clients send theirs with --posted-problems, whose "
            "code runs with your rights"
        )


@contextmanager
def _alone(state: Path) -> Iterator[str]:
    """The name of this server, which the folder keeps; UserError where another server works in it."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state / "server").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"--state {state}: another server works there; choose another folder") from None
        file.seek(0)
        name = file.read().strip()
        if not name:
            name = secrets.token_hex(8)
            file.write(name)
            file.flush()
            os.fsync(file.fileno())
        yield name


def judging_processes(terms: ServeTerms, folder: Path) -> list[JudgingProcess]:
    """On each device so many, with a folder in which nothing is left of an earlier server that was killed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    judging = replace(terms.judging, folder=str(folder.resolve()))
    places = [{"CUDA_VISIBLE_DEVICES": device} for device in terms.devices] or [{}]
    return [JudgingProcess(judging, environment=place) for place in places for _ in range(terms.jobs)]


def _gate_terms(terms: ServeTerms, keys: KeyFile | None) -> GateTerms:
    mine = () if terms.host in _EVERYWHERE else (terms.host,)
    own = KeyLimits(rate=terms.limits.rate, queued=terms.limits.queued, priority=MOST_PRIORITY)
    return GateTerms(
        hosts=frozenset(name.lower() for name in (*LOCAL, *mine, *terms.names)), keys=keys,
        everybody=KeyHolder(name="local", digest="", limits=own), most_bytes=terms.most_bytes,
    )  # fmt: skip


def settings_of(gate: HttpGate) -> uvicorn.Config:
    """How HTTP is spoken: no proxies are believed, and what a peer may hold open is bounded."""
    return uvicorn.Config(
        gate, log_level="warning", access_log=False, lifespan="off", ws="none", http="h11", loop="asyncio",
        proxy_headers=False, server_header=False, limit_concurrency=_MOST_CONNECTIONS, timeout_keep_alive=30,
        timeout_graceful_shutdown=_GRACE_S, h11_max_incomplete_event_size=_MOST_HEAD,
    )  # fmt: skip
