"""Orders and answers as files, each whole or not there, for whatever copies files from one machine to the other.

    FOLDER/orders/RUN-0003-DIGEST.order      written by the machine that asks
    FOLDER/answers/RUN-0003-DIGEST.answer    written by the machine that judges

A file's first line holds a digest of its name and the rest, so what is half written, damaged or renamed counts as not
there. A name holds run, number and a digest of the order: answers to anything else are never looked at.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ...facts import codec
from ...facts.errors import UserError
from ...facts.order import Answer, Order
from ...facts.version import VERSION

T = TypeVar("T", Order, Answer)

_HEAD = re.compile(rb"tilewright (\S{1,40}) ([0-9a-f]{64})\n")
_MOST_BYTES = 1 << 30
_NAME = re.compile(r"([0-9a-f]{12})-(\d{4,9})-[0-9a-f]{16}")


def name_of(order: Order) -> str:
    """Run, number, and a digest over all that the order wants, whatever was done before."""
    bare = replace(order, job=replace(order.job, before=())) if order.job is not None else order
    digest = hashlib.sha256(codec.dumps(bare).encode()).hexdigest()[:16]
    return f"{order.request.run}-{order.number:04d}-{digest}"


class Bundle:
    """The folder, which need not be there yet. Reading raises UserError for a file that is whole and yet can't be
    read: another version wrote it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._orders = folder / "orders"
        self._answers = folder / "answers"

    # ---- the machine that asks

    def post(self, order: Order) -> bool:
        """See to it that the order lies there whole; whether it did not before."""
        place = self._orders / f"{name_of(order)}.order"
        if whole(place) is not None:
            return False
        write_whole(place, codec.dumps(order))
        return True

    def place_of_answer(self, order: Order) -> Path:
        return self._answers / f"{name_of(order)}.answer"

    def answer(self, order: Order) -> Answer | None:
        """None while it is not there, or not whole."""
        return _read(self.place_of_answer(order), Answer)

    def withdraw(self, run: str, *, before: int) -> None:
        """Remove the run's orders of smaller numbers, and the answers to them."""
        for file in (*_files(self._orders, "order"), *_files(self._answers, "answer")):
            named = _NAME.fullmatch(file.stem)
            if named and named[1] == run and int(named[2]) < before:
                with suppress(OSError):  # a folder of that name is nobody's order
                    file.unlink(missing_ok=True)

    # ---- the machine that judges

    def waiting(self, say: Callable[[str], None]) -> tuple[Order, ...]:
        """All orders that lie there whole and without a whole answer, by name; what can't be read is told of."""
        found: list[Order] = []
        for file in _files(self._orders, "order"):
            try:
                if whole(self._answers / f"{file.stem}.answer") is not None:  # not read: there may be thousands
                    continue
                order = _read(file, Order)
            except UserError as error:
                say(f"{error}; left out")
                continue
            if order is None:
                say(f"{file.name}: not whole; it may still be on its way, or is a copy under another name")
            elif name_of(order) != file.stem or not _NAME.fullmatch(file.stem):
                say(f"{file.name}: is not named after what it holds")
            else:
                found.append(order)
        return tuple(found)

    def answered(self, run: str, *, numbers: range) -> tuple[tuple[Order, Answer], ...]:
        """The run's orders of these numbers that lie there with their answers, in their order. What can't be read is
        left out, as `waiting` has told."""
        named = [(f, m) for f in _files(self._orders, "order") if (m := _NAME.fullmatch(f.stem)) and m[1] == run]
        found: list[tuple[Order, Answer]] = []
        for file, name in named:
            with suppress(UserError):
                order = _read(file, Order) if int(name[2]) in numbers else None
                answer = None if order is None else self.answer(order)
                if order is not None and answer is not None:
                    found.append((order, answer))
        return tuple(found)

    def reply(self, order: Order, answer: Answer) -> None:
        """Put the answer there."""
        write_whole(self.place_of_answer(order), codec.dumps(answer))

    @contextmanager
    def claimed(self, work: str) -> Iterator[bool]:
        """Whether no other process of this machine is at this work; it is this one's for as long as the block."""
        claims = self.folder / ".claims"
        claims.mkdir(parents=True, exist_ok=True)
        with (claims / hashlib.sha256(work.encode()).hexdigest()[:16]).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True


def _files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"*.{kind}"))


def write_whole(path: Path, body: str) -> None:
    """Replace the file by a whole one, durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = body.encode()
    digest = _digest(path, text)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    with new.open("wb") as file:
        file.write(f"tilewright {VERSION} {digest}\n".encode() + text)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(path: Path, text: bytes) -> str:
    return hashlib.sha256(path.name.encode() + b"\n" + text).hexdigest()


def whole(path: Path) -> tuple[str, bytes] | None:
    """The version that wrote the file, and what it holds; None where it is not there, or not whole."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{path}: no regular file; remove it")
            text = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:  # a folder of this name, or what may not be read
        raise UserError(f"{path}: cannot be read ({error.strerror}); remove it, or let it be read") from None
    if len(text) > _MOST_BYTES:
        raise UserError(f"{path}: larger than {_MOST_BYTES >> 20} MB; remove it")
    head = _HEAD.match(text)
    if head is None or _digest(path, text[head.end() :]) != head[2].decode():
        return None
    return head[1].decode(), text[head.end() :]


def _read(path: Path, kind: type[T]) -> T | None:
    """None where it is not there, or not whole."""
    found = whole(path)
    if found is None:
        return None
    version, body = found
    try:
        return codec.read(body.decode(), kind)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: whole, and yet it can't be read ({error}); Tilewright {version} wrote it, this is {VERSION}: use "
            "one version on both machines, and remove the file"
        ) from None
