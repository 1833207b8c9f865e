"""Compilation in child processes, forked of one that has imported the DSL and the skeletons: a job each, or some of
many, the next ones as soon as a processor is free for them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import select
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..edges.gpu.machine import threads
from ..edges.sandbox.forkserver import ForkServer, compile_environment, skeleton_server
from ..edges.sandbox.offspring import ending

LIMIT_S = 240.0
_OURS = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TILEWRIGHT_NO_KERNEL_CACHE")  # what a child has that a cell has not
_POLL_S = 0.1
_PIECE_BYTES = 1 << 16
_SHARES = 4  # of what is left, that each worker has before it


def shared_out(
    module: str, asked: Mapping[str, Any], tasks: Sequence[Any], *, folder: Path, jobs: int, limit_s: float = LIMIT_S,
    imports: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """The line that a child says of each of the tasks, in their order; "" for one that was not done within `limit_s`,
    or in which its child died.

    A child runs the module in `folder`, which is on its path; it gets `asked` and its `jobs` as JSON. The tasks begin
    in their order, of many several in one child, one after another. At most `jobs` children run; of all runs' together
    no more than have a permit. `imports`: modules of ours in `folder`, which are imported once for all children."""
    allowed = most(threads())
    count = max(1, min(jobs, allowed or jobs, len(tasks)))
    # As in a cell: what else steers a compiler would make another kernel than the one that a cell asks for.
    environment = compile_environment() | {name: os.environ[name] for name in _OURS if name in os.environ}
    with skeleton_server(folder, environment, imports) as server, ThreadPoolExecutor(count) as pool:
        work = _Work(
            server=server, module=module, asked=asked, folder=folder, environment=environment,
            ends_at_s=time.monotonic() + limit_s, left=deque(enumerate(tasks)), workers=count, said=[""] * len(tasks),
        )  # fmt: skip
        try:
            workers = [pool.submit(work.go_on, allowed) for _ in range(count)]
            while wait(workers, timeout=_POLL_S).not_done:
                pass  # whoever interrupts this thread is heard
        finally:
            work.over.set()
    for worker in workers:
        worker.result()
    return work.said


@dataclass(kw_only=True)
class _Work:
    """Tasks that `workers` threads take, `left` those that none has taken; `said`: what came of each."""

    server: ForkServer
    module: str
    asked: Mapping[str, Any]
    folder: Path
    environment: Mapping[str, str]
    ends_at_s: float
    left: deque[tuple[int, Any]]
    workers: int
    said: list[str]
    over: threading.Event = field(default_factory=threading.Event)
    taking: threading.Lock = field(default_factory=threading.Lock)

    def go_on(self, allowed: int) -> None:
        with permit(allowed):
            while not self._must_end() and (taken := self._taken()):
                lines = self._answers([task for _, task in taken])
                for (place, _), line in zip(taken, lines, strict=False):
                    self.said[place] = line
                with self.taking:  # what a child had before it that died in a task
                    self.left.extendleft(reversed(taken[len(lines) + 1 :]))

    def _taken(self) -> list[tuple[int, Any]]:
        """One; while there are many, as many as keep all busy until the last."""
        with self.taking:
            count = min(len(self.left), max(1, len(self.left) // (_SHARES * self.workers)))
            return [self.left.popleft() for _ in range(count)]

    def _must_end(self) -> bool:
        return self.over.is_set() or ending() or time.monotonic() > self.ends_at_s

    def _answers(self, tasks: list[Any]) -> list[str]:
        """The lines that a child of its own says of the tasks, as far as it comes in time."""
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as given, open(reading, "rb", buffering=0) as output:
            given.write(json.dumps({**self.asked, "jobs": tasks}).encode())
            given.seek(0)
            with open(writing, "wb") as end:
                child = self.server.run(self.module, self.folder, self.environment, given.fileno(), end.fileno())
            said = b""
            try:
                while not self._must_end():
                    if select.select([output], [], [], _POLL_S)[0]:
                        piece = output.read(_PIECE_BYTES)
                        if not piece:
                            child.end()
                            break
                        said += piece
            finally:
                child.kill()
        return said[: said.rfind(b"\n") + 1].decode(errors="replace").splitlines()


# ---- Permits to compile: of all runs on the same cores no more processes compile at a time than leave cores to those
# that measure there, whose host else takes several times as long over its part.

_FEW = 8  # cores, which those that compile share as they come
_WAIT_S = (0.2, 0.6)  # between two tries: hundreds of threads may wait, and each tries every slot
_MOST_WAIT_S = 60.0  # who holds one may have been stopped


def most(cores: int) -> int:
    """Processes that may compile at a time; 0: any number."""
    return 0 if cores <= _FEW else cores - cores // 4


@contextmanager
def permit(count: int, *, folder: Path | None = None, wait_s: float = _MOST_WAIT_S) -> Iterator[None]:
    """Hold one of so many (0: of any number), or none after so long a wait. A process that dies gives back its own;
    where no file can be written, nobody waits."""
    if not count:
        yield
        return
    ends = time.monotonic() + wait_s
    place = folder if folder is not None else _place(os.sched_getaffinity(0))
    slots = [place / str(n) for n in range(count)]
    with ExitStack() as held:
        try:
            place.mkdir(parents=True, exist_ok=True)
            while not any(_taken(slot, held) for slot in random.sample(slots, count)) and time.monotonic() < ends:
                time.sleep(random.uniform(*_WAIT_S))
        except OSError:
            held.close()
        yield


def _place(cores: set[int]) -> Path:
    """The folder of those that may use these cores: runs that are kept to cores of their own wait for nobody."""
    named = hashlib.sha256(repr(sorted(cores)).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"tilewright-{os.getuid()}" / f"compiling-{named}"


def _taken(slot: Path, held: ExitStack) -> bool:
    file = slot.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    held.enter_context(file)
    return True
