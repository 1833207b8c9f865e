"""The text of a file that is read and not run, and its syntax tree; every fault is one line for the user."""

from __future__ import annotations

import ast
import os
import stat
import warnings
from pathlib import Path

from ...facts.errors import UserError

_MOST_BYTES = 8 << 20


def text_of(path: Path) -> str:
    """The file's text; raises UserError with the reason where it can't be had, or is too long."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{path}: not a regular file")
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UserError(f"{path}: larger than {_MOST_BYTES >> 20} MB; that is no problem file")
        return data.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not Python (not UTF-8 text)") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise UserError(f"{str(path)!r}: cannot be read: {error}") from error


def parsed(source: str, path: Path) -> ast.Module:
    """The syntax tree of a file's text; raises UserError where it is not Python, or nests too deeply to be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python finds doubtful in it is the author's
            return ast.parse(source, filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"{path}: not Python{line}: {getattr(error, 'msg', error)}") from error
    except (RecursionError, MemoryError) as error:
        raise UserError(f"{path}: its expressions are nested too deeply") from error
