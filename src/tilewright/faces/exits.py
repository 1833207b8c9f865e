"""How a command ends: its exit code, and one line for every failure that has a cause in the user's hands."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer

from ..facts.errors import HarnessError, ModelOut, Pending, TooBusy, UserError
from .printing import verbose

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # click's, wherever this version of typer keeps click
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNFIT = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.EEXIST, errno.ENXIO)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.ENODEV, errno.ESTALE, errno.EIO)
_LONGEST = 4000  # characters of a line
_GRACE_S = 30.0  # for cleaning up after a signal
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end; raised in the main thread."""


def exit_code(run: Callable[[], Any]) -> int:
    """What `run` returns, or the code for what it raises, which is told in one line on stderr: 2 the user's mistake, 3
    ours, 75 pending, 128 + n ended by signal n, unless a result was handed over all the same (`stands`)."""
    _left.clear()
    _stands.clear()
    code = _code_of(run)
    if not _obeying or _stands:
        return code
    if not _told:  # whatever libraries have made of the exception
        line("interrupted; start it again", 0)
    return 128 + _obeying[0]


def _code_of(run: Callable[[], Any]) -> int:
    try:
        code = run()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.Exit as stop:
        return stop.exit_code if _flushed() else _unheard()
    except _UsageError as error:
        return line(getattr(error, "format_message", error.__str__)().replace(": Value error, ", ": "), 2)
    except UserError as error:
        if verbose():
            with contextlib.suppress(OSError, ValueError):
                traceback.print_exception(error)
        return line(str(error), 2)
    except (BrokenPipeError, SystemExit):  # the latter is what typer makes of it
        return _unheard()
    except (OSError, sqlite3.Error) as error:
        return _of_the_machine(error)
    except (KeyboardInterrupt, typer.Abort):
        return 128 + signal.SIGINT
    except Pending as awaited:
        return line(f"pending: {awaited}; when it is there, {_going_on()}", 75)
    except ModelOut as error:
        return line(f"{error}; {_going_on()}", 3)
    except TooBusy as error:
        return line(f"{error}; then {_going_on()}", 3)
    except HarnessError as error:
        return line(f"internal: {error}", 3)
    except ModuleNotFoundError as error:
        return _ours(error) if (error.name or "tilewright").startswith("tilewright") else _not_installed(error)
    except MemoryError:
        return line("the machine's memory is full; give it a smaller problem, or end other processes", 2)
    except Exception as error:
        return _ours(error)


def leave(code: int) -> NoReturn:
    """End this process. After a signal without waiting for threads, which may wait for input that never comes."""
    if _obeying:
        from ..edges.sandbox.forkserver import close_servers
        from ..edges.sandbox.offspring import close_guard

        close_servers()
        close_guard()
        _flushed()
        os._exit(code)
    sys.exit(code)


def line(text: str, code: int) -> int:
    """One line on stderr, where that is still open, whatever the text holds: no letter of it steers a terminal; the
    code."""
    words = " ".join(text[:_LONGEST].split()) + (" ..." if len(text) > _LONGEST else "")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or never there
        print(f"tilewright: {shown}", file=sys.stderr)
    return code


def _of_the_machine(error: OSError | sqlite3.Error) -> int:
    """A disk, a folder or a permission that is lacking is told of in one line; anything else is ours."""
    number, text = getattr(error, "errno", None), str(error)
    where = getattr(error, "filename", None) or "the run's folder"
    if number in _FULL or "disk is full" in text:
        return line(f"the disk is full ({error}); free some space, then {_going_on()}", 2)
    moved = getattr(error, "sqlite_errorname", "") == "SQLITE_READONLY_DBMOVED"
    if isinstance(error, PermissionError) or ("readonly database" in text and not moved):
        return line(f"{where}: permission denied; choose another --out", 2)
    if number in _UNFIT and getattr(error, "filename", None):
        return line(f"{where}: {getattr(error, 'strerror', error)}; choose another name", 2)
    if moved or number in _GONE or "disk I/O error" in text or "unable to open database" in text:
        return line(
            f"{where}: gone or unreadable ({getattr(error, 'strerror', None) or text}); was the run's folder removed? "
            "Start again, with another --out", 2,
        )  # fmt: skip
    return _ours(error)


def _not_installed(error: ModuleNotFoundError) -> int:
    python = sys.executable
    return line(
        f"{error.name} is not installed for {python}, and Tilewright needs it; `{python} -m pip check` names what else "
        "is missing, and installing Tilewright again without --no-deps brings it", 2,
    )  # fmt: skip


def _ours(error: BaseException) -> int:
    with contextlib.suppress(OSError, ValueError):
        traceback.print_exception(error)
    return line("internal error (above); the journal of the run is intact", 3)


# ---- output that nobody reads


def _flushed() -> bool:
    try:
        sys.stdout.flush()
    except (BrokenPipeError, AttributeError):
        return sys.stdout is None
    return True


def _unheard() -> int:
    """Whoever read our output has closed it, as `| head` does: no fault, and what is left unwritten goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    return 128 + signal.SIGPIPE


def open_standards() -> None:
    """See to it that standard input, output and error are there, and that they take every text: a letter that their
    encoding lacks is written as its escape."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115 - for as long as the process
        setattr(sys, name, stream)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


# ---- signals


_again: list[str] = []  # how to go on, as those blocks say that are open
_told: list[str] = []  # what they said at an interruption
_left: list[str] = []  # how to go on, as those blocks said that another exception has left
_obeying: list[int] = []  # the signals that came
_stands: list[bool] = []  # whether a result was handed over that came before a signal


def stands() -> None:
    """From here on the exit code is the result's, though a signal has ended the search for a better one."""
    _stands.append(True)


class Interruptible:
    """On Ctrl-C, SIGTERM and SIGHUP, say that nothing is lost and how to go on."""

    def __init__(self, out: Path, *, resumable: bool = True, again: str = "") -> None:
        self.again = again or (f"continue with `tilewright resume {out}`" if resumable else "start it again")

    def __enter__(self) -> None:
        _again.append(self.again)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            _told.append(self.again)
            line(f"interrupted; the journal is intact: {self.again}", 130)
        else:
            _again.remove(self.again)
            if kind is not None:
                _left.append(self.again)


def _going_on() -> str:
    """How to go on, as the innermost block said that an exception has left."""
    return _left[0] if _left else "continue a run that has begun with `tilewright resume DIR`"


def obey_signals() -> None:
    """From here on SIGINT, SIGTERM and SIGHUP end the children and raise Stopped in the main thread. At a second one,
    or where cleaning up takes longer than half a minute, all processes below are killed and this one ends at once. What
    the parent had ignored (nohup) stays ignored. What kills this process at once ends its children, too."""
    from ..edges.sandbox.offspring import watch_over_us

    watch_over_us()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _obey)


def _obey(number: int, _: FrameType | None) -> None:
    from ..edges.sandbox.offspring import end_offspring

    _obeying.append(number)
    if len(_obeying) > 1:
        _end_at_once()
    patience = threading.Timer(_GRACE_S, _end_at_once)
    patience.daemon = True
    patience.start()
    end_offspring()
    raise Stopped


def _end_at_once() -> None:
    from ..edges.sandbox.processes import children, kill_tree

    line(f"ended without cleaning up; the journal is intact: {(_again or ['start it again'])[-1]}", 0)
    for pid in children(os.getpid()):
        kill_tree(pid)
    os._exit(128 + _obeying[0])
