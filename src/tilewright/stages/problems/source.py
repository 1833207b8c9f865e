"""The text of a Python file that is read and not run, and its syntax tree; every fault is one line for the user."""

from __future__ import annotations

import ast
from pathlib import Path

from ...facts.errors import UserError


def text_of(path: Path) -> str:
    """The file's text; raises UserError with the reason where it can't be had."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not Python (not UTF-8 text)") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def parsed(source: str, path: Path) -> ast.Module:
    """The syntax tree of a file's text; raises UserError where it is not Python."""
    try:
        return ast.parse(source, filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"{path}: not Python{line}: {getattr(error, 'msg', error)}") from error
