"""How a command ends: its exit code, and one line for every failure that has a cause in the user's hands."""

from __future__ import annotations

import errno
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from ..facts.errors import HarnessError, ModelOut, Pending, TooBusy, UserError

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # click's, wherever this version of typer keeps click


def exit_code(run: Callable[[], Any]) -> int:
    try:
        code = run()
        return code if isinstance(code, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except _UsageError as error:
        return line(getattr(error, "format_message", error.__str__)(), 2)
    except UserError as error:
        return line(str(error), 2)
    except (OSError, sqlite3.OperationalError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "disk is full" in str(error):
            return line(
                f"the disk is full ({error}); free some space, then `tilewright resume DIR` continues the run", 2
            )
        if isinstance(error, PermissionError):
            return line(f"{error.filename}: permission denied; choose another --out", 2)
        return _ours(error)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Pending as awaited:
        return line(f"pending: {awaited}; `tilewright resume DIR` goes on when it is there", 75)
    except ModelOut as error:
        return line(f"{error}; `tilewright resume DIR` goes on from here", 3)
    except TooBusy as error:
        return line(f"{error}; a run that has begun goes on with `tilewright resume DIR`", 3)
    except HarnessError as error:
        return line(f"internal: {error}", 3)
    except Exception as error:
        return _ours(error)


def line(text: str, code: int) -> int:
    print("tilewright: " + " ".join(text.split()), file=sys.stderr)
    return code


def _ours(error: BaseException) -> int:
    traceback.print_exception(error)
    return line("internal error (above); the journal of the run is intact", 3)


class Interruptible:
    """On Ctrl-C, say that nothing is lost and how to go on."""

    def __init__(self, out: Path, *, resumable: bool = True, again: str = "") -> None:
        self.again = again or (f"continue with `tilewright resume {out}`" if resumable else "start it again")

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:
            line(f"interrupted; the journal is intact: {self.again}", 130)
