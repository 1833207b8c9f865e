"""The fork server of cells, and what it forks.

The server imports torch and all that a candidate's cell runs on, once, and runs nothing else. For each request it forks
a process that gives up its privileges, binds its clocks and becomes a cell: it reads requests from its own channel and
answers each with one message. The first line on that channel is the judge's setup (JSON): nonce, device, protections
asked for. A branch of the server has imported more, and forks in its turn: cells, or processes that run a module of
ours, a compiler say (see `branch`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # tracing would import it, for seconds in each cell; _inductor must not be: it keeps folders

from ..wire import calls as wire
from ..wire.channel import Channel
from . import absent
from . import channel_thread as porter
from .confine import Confinement, adopt_orphans, close_memory, confine
from .load import installed_paths
from .session import CandidateSession
from .tripwire import Tripwire, own_modules

_DSL = ("cutlass.cute", "tvm_ffi")  # what kernels are made of, and run on
_MOST_BYTES = 1 << 20  # of a request to the server
_ROUNDS = 50
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_KEPT_BYTES = 32 << 20  # the largest block that glibc lets its heap hold
_MOST_KEPT_BYTES = 1 << 30


def forked(control: socket.socket) -> tuple[socket.socket, int]:
    """Serve until the judge has gone. Returns in every forked process: its channel, and the server's process id."""
    close_memory()
    adopt_orphans()
    _allocate_alike()
    gc.freeze()  # pages that no collection writes to stay shared
    gc.enable()
    server, spoilt = os.getpid(), ""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 2)
        if not data:
            _end_children()
            raise SystemExit(0)
        asked: dict[str, Any] = json.loads(data)
        answer: int | str | None = None
        if asked["kind"] in ("start", "branch", "run"):
            answer = os.fork()
            if answer == 0:
                control.close()
                if asked["kind"] == "start":
                    return _become(asked, *descriptors), server
                from .branch import branched, run  # no candidate's cell needs it

                if asked["kind"] == "run":
                    run(asked, *descriptors)
                (control, spoilt), server = branched(asked, *descriptors), os.getpid()
                continue
        elif asked["kind"] == "spoilt":
            answer = spoilt
        else:
            answer = _status(asked["pid"], reap=asked["kind"] == "reap")
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps(answer).encode())


def _allocate_alike() -> None:
    """Have malloc keep what is freed, in this process and in all that it forks. Of itself it learns from what a process
    frees what to keep and what to map anew: a cell that has freed larger blocks would be the faster one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT_BYTES)


def _end_children() -> None:
    """All of them, also those that gave up to die with us; and theirs, which are ours then."""
    for _ in range(_ROUNDS):
        try:
            below = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        except OSError:
            return
        for pid in map(int, below):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if not below:
            return


def _status(pid: int, *, reap: bool) -> int | None:
    """The exit code of a child, negative for a signal; None while it lives, or where it is none of ours."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | (0 if reap else os.WNOWAIT))
    except ChildProcessError:
        return None
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _become(asked: dict[str, Any], channel: int, output: int) -> socket.socket:
    """Take the place of a process that was started with this environment, folder and output."""
    os.setsid()
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None
    return socket.socket(fileno=channel)


def _setup_line(end: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        byte = end.recv(1)
        if not byte:
            raise SystemExit(2)
        data += byte
    found: dict[str, Any] = json.loads(data)
    return found


def _session(device: str, *, of_candidate: bool) -> tuple[CandidateSession, Mapping[str, type]]:
    """With the messages that it understands."""
    if of_candidate:
        return CandidateSession(device), wire.KINDS
    from ..reference_process.session import ReferenceSession
    from ..wire.messages import ALL_KINDS

    return ReferenceSession(device), ALL_KINDS


def opened(end: socket.socket, server: int) -> Iterator[Any]:
    """The cell, ready: every step of the iterator answers a request."""
    setup = _setup_line(end)
    installed_paths()  # what is found now is kept: the code under test may change where modules are looked for
    isolate = setup["isolate"]
    place = hiding_place(Path(setup["own"])) if isolate else None
    active, missing = confine(
        Confinement(
            memory_bytes=setup["memory_bytes"], isolate=isolate, namespaces=setup["namespaces"], parent_pid=server,
            device=setup["device"], own=setup["own"], hidden=tuple(setup["hidden"]),
        )
    )  # fmt: skip
    if isolate and setup["device"] == "cuda":
        for name in _DSL:  # before anybody waits for the cell
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    if setup["threads"]:
        torch.set_num_threads(setup["threads"])
    if setup["matmul"]:
        torch.set_float32_matmul_precision(setup["matmul"])
    session, kinds = _session(setup["device"], of_candidate=isolate)
    channel = Channel(end, setup["nonce"], kinds)
    channel.send(wire.Hello(protections=active, missing=missing))
    tripwire = None
    if place is not None:
        ours = own_modules()  # before they are put away
        porter.refuse_searches(channel)
        put_away(place)
        tripwire = Tripwire(session, ours)  # after that, which puts something of ours among what finds modules
    requests = porter.requests(channel, session, tripwire)
    gc.collect()
    gc.freeze()  # a collection walks what came after torch alone: microseconds, not a tenth of a second
    return requests


# ---- Our own modules, put away before a candidate is loaded. A candidate must run where Tilewright is not installed:
# in its cell `import tilewright` finds nothing. What is installed in the same folder (of a wheel that is site-packages,
# where all else lies) is found as before.

_ROOT = Path(__file__).resolve().parents[2]


def hiding_place(folder: Path) -> Path:
    """A folder in `folder` whose `sitecustomize` hides Tilewright from each Python process that starts with it on its
    path. To be made before the disk is closed."""
    place = folder / "site"
    place.mkdir(exist_ok=True)
    text = Path(absent.__file__).read_text(encoding="utf-8")
    (place / "sitecustomize.py").write_text(f"{text}\n\nstart_without({_ROOT.name!r})\n", encoding="utf-8")
    return place


def put_away(place: Path) -> None:
    """Forget Tilewright: no import finds a module of it from now on, neither here nor in a process that is forked or
    started from here, unless that leaves the environment aside (`python -I`): then the closed disk alone denies it.
    What was imported lives on, out of `sys.modules`. `place`: what `hiding_place` gave."""
    absent.hide(_ROOT.name)
    sys.modules["__main__"] = types.ModuleType("__main__")
    others = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(place), others)))
