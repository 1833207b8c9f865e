"""What can have the code under test called back between two steps of the cell's own, and how each is looked at.

Tracers, profilers, monitors (Python 3.12), handlers of signals, past Python too, timers, torch's own hook into frames.
Hooks of audits can't be listed: a cell lets none be added (judge.candidate_process.channel thread)."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal's own are in Python: it looks for signals there
import ctypes
import gc
import signal
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch._C._dynamo import eval_frame

from .load import CodeRaised, installed_paths

_MONITORS = 6  # tools that Python 3.12 gives numbers to; tracers and profilers have two more
_sigaction = ctypes.CDLL(None, use_errno=True).sigaction
_SIGACTION_WORDS = 32  # glibc's and musl's take 19; the handler comes first
_THREADS = (32, 33)  # signals by which the C library talks to its own threads
# What stops a thread in the middle of an instruction, rings after a while, or is anybody's to send.
_NATIVE = tuple(
    s for s in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGALRM,
                signal.SIGVTALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO)
)  # fmt: skip
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_getitimer = signal.getitimer
_LIBRARIES = ("/usr/", "/lib", "/opt/", "/nix/")
_NOBODY = (_signal.SIG_DFL, _signal.SIG_IGN)


def _monitors() -> Iterator[Callable[[], Any]]:
    monitoring: Any = getattr(sys, "monitoring", None)
    return (partial(monitoring.get_tool, number) for number in range(_MONITORS if monitoring else 0))


# Each is a function of C's: no code of Python's runs when the clock asks it, which could be traced.
HOOKS: tuple[Callable[[], Any], ...] = (
    sys.gettrace,
    sys.getprofile,
    *_monitors(),
    getattr(eval_frame, "get_eval_frame_callback", bool),  # torch.compile's: called for every frame
    getattr(eval_frame, "get_bytecode_debugger_callback", bool),
    *(partial(_signal.getsignal, s) for s in sorted(signal.valid_signals())),
)


class Handlers:
    """Handlers of signals as the kernel knows them, those that native code has set among them: addresses."""

    __slots__ = ("_found", "asked")

    def __init__(self, signals: tuple[int, ...]) -> None:
        self._found = tuple((ctypes.c_size_t * _SIGACTION_WORDS)() for _ in signals)
        # Asking is a call of C's for each: nothing of Python's runs.
        self.asked: tuple[Callable[[], Any], ...] = tuple(
            partial(_sigaction, int(s), None, place) for s, place in zip(signals, self._found, strict=True)
        )

    def answers(self) -> tuple[int, ...]:
        """The addresses when they were asked for last."""
        return tuple(int(place[0]) for place in self._found)


class Hooks:
    """The hooks, as they were at first, and as they are at a moment that the clock chooses."""

    __slots__ = ("_addresses", "_before", "_handlers", "all")

    def __init__(self) -> None:
        self._handlers = Handlers(_NATIVE)
        self.all = (*HOOKS, *self._handlers.asked)
        self._before = tuple(hook() for hook in self.all)
        self._addresses = self._handlers.answers()

    def require_unchanged(self, now: list[Any]) -> None:
        """Raise CodeRaised("tampering") where a hook is set that was not at first; `now`: what `all` answered."""
        if not all(map(_calls_nobody_new, now, self._before)):
            raise CodeRaised(
                "tampering",
                "it leaves a tracer, a profiler, a monitor or a handler of signals on, to be called back later",
            )
        self._addresses = require_of_libraries(self._addresses, self._handlers.answers())


def _calls_nobody_new(now: Any, before: Any) -> bool:
    """Whether a hook is what it was, or one that runs no code of Python's: a signal that is ignored, or ends us."""
    return now is before or any(now is nobody for nobody in _NOBODY)


def require_of_libraries(before: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
    """The handlers `now`: to be held against those that follow, since to look one up takes milliseconds, for which
    whoever has a call timed would stand accused. Raises CodeRaised("tampering") where one that is new is not a
    library's: those of Python's are looked at by name, and one that only says where a process crashed does nothing
    else."""
    new = {address for was, address in zip(before, now, strict=True) if address != was and address > 1}
    if new and not all(map(_lies_in_a_library, new)):
        raise CodeRaised("tampering", "it leaves a handler of signals of its own on, past Python, to be called back")
    return now


def _lies_in_a_library(address: int) -> bool:
    places = (*installed_paths(), sys.prefix, sys.base_prefix, *_LIBRARIES)
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, _, _, inode, *path = line.split(maxsplit=5)
            start, _, end = span.partition("-")
            if int(start, 16) <= address < int(end, 16):
                return inode != "0" and bool(path) and path[0].startswith(places) and "(deleted)" not in path[0]
    return False


class Standing:
    """What stands between a cell's requests, where no clock runs: the rest of what calls back. For one thread's tracer
    and profiler, that which asks."""

    def __init__(self) -> None:
        self._handlers = Handlers(tuple(s for s in sorted(signal.valid_signals()) if s not in _THREADS))
        self._addresses = self._asked()
        self._tracers = self._all_tracers()
        self._listed = {id(value) for _, values in _lists() for value in values}
        self._kept = [value for _, values in _lists() for value in values]  # so that no other gets its number

    def _asked(self) -> tuple[int, ...]:
        for ask in self._handlers.asked:
            ask()
        return self._handlers.answers()

    @staticmethod
    def _all_tracers() -> tuple[Any, ...]:
        return sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()

    def check(self) -> None:
        """Raise CodeRaised("tampering") where something stands that calls the code under test back."""
        for now, before in zip(self._all_tracers(), self._tracers, strict=True):
            if now is not None and now is not before:
                raise CodeRaised("tampering", "it set a tracer or a profiler on a thread of the cell's, or on new ones")
        for name, values in _lists():
            if any(id(v) not in self._listed and not _is_installed(v) for v in values):
                raise CodeRaised("tampering", f"it put something of its own into {name}, to be called back")
        if any(any(_getitimer(timer)) for timer in _TIMERS):
            raise CodeRaised("tampering", "it leaves a timer running that sends a signal")
        self._addresses = require_of_libraries(self._addresses, self._asked())


def _lists() -> tuple[tuple[str, list[Any]], ...]:
    """What Python calls by the list."""
    return (
        ("gc.callbacks", gc.callbacks), ("sys.meta_path", sys.meta_path), ("sys.path_hooks", sys.path_hooks),
        ("sys.unraisablehook", [sys.unraisablehook]),
    )  # fmt: skip


def _is_installed(value: Any) -> bool:
    """Whether all code of Python's that a call of the value runs lies among installed files, as far as it shows."""
    if isinstance(value, types.FunctionType):
        return not value.__closure__ and _lies_installed(value)
    owner = value if isinstance(value, type) else type(value)
    functions = [f for f in map(_plain, vars(owner).values()) if isinstance(f, types.FunctionType)]
    return bool(functions) and all(map(_lies_installed, functions))


def _plain(value: Any) -> Any:
    return value.__func__ if isinstance(value, classmethod | staticmethod) else value


def _lies_installed(function: types.FunctionType) -> bool:
    return function.__code__.co_filename.startswith((*installed_paths(), sysconfig.get_path("stdlib"), "<frozen "))
