"""A cassette: what a model replied, kept by prompt and turn, and played back without the model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ...facts import codec
from ...facts.dialogue import Reply
from ...facts.errors import UserError
from ...facts.move import Ask
from .model import Model


class Cassette:
    """Lines of JSON at `path`: `key`, `ask`, `reply`. With an `inner` model, what is not on the cassette is asked and
    recorded, before it is handed on; a line that was cut off half-way counts as not recorded."""

    def __init__(self, path: Path, *, inner: Model | None = None) -> None:
        self._path = path
        self._inner = inner
        if inner is None and not path.is_file():
            raise UserError(f"cassette:{path}: no such file; record one with --model cassette:{path}=PROVIDER:NAME")
        self._replies = _read(path)

    def announce(self, asks: Sequence[Ask]) -> None:
        missing = [ask for ask in asks if _key(ask) not in self._replies]
        if self._inner is not None and missing:
            self._inner.announce(missing)

    def ask(self, ask: Ask) -> Reply:
        found = self._replies.get(_key(ask))
        if found is not None:
            return found
        if self._inner is None:
            raise UserError(
                f"cassette:{self._path}: holds no reply to turn {ask.turn} ({ask.prompt.digest}); the prompts have "
                f"changed since it was recorded: record it anew with cassette:{self._path}=PROVIDER:NAME"
            )
        reply = self._inner.ask(ask)
        self._record(ask, reply)
        return reply

    def _record(self, ask: Ask, reply: Reply) -> None:
        line = {"key": _key(ask), "ask": codec.to_plain(ask), "reply": codec.to_plain(reply)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            if file.tell() and not _ends_a_line(self._path):
                file.write(b"\n")
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._replies[_key(ask)] = reply


def _key(ask: Ask) -> str:
    return f"{ask.turn}-{ask.prompt.digest}"


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _read(path: Path) -> dict[str, Reply]:
    found: dict[str, Reply] = {}
    lines = path.read_bytes().splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            tree = json.loads(line)
        except ValueError:
            continue  # cut off by a kill while it was written
        except RecursionError:
            raise UserError(f"cassette:{path}: line {number} nests too deeply for a recorded reply") from None
        try:
            key, reply = str(tree["key"]), codec.read(json.dumps(tree["reply"]), Reply)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"cassette:{path}: line {number} is no recorded reply ({error!r})") from None
        found[key] = reply
    return found
