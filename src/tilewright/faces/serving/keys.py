"""Who may submit: names, digests of their tokens and their limits, in a file that its owner alone may read.

    NAME sha256:DIGEST [rate=60] [queued=100] [priority=5]

A token is 256 random bits, so that a plain digest of it is enough to keep. The file is read again when it changes."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from ...facts.errors import UserError

_PREFIX = "tw_"
_LINE = re.compile(r"([\w.-]{1,60}) sha256:([0-9a-f]{64})((?: (?:rate|queued|priority)=[0-9]{1,6})*)")
_NAME = re.compile(r"[\w.-]{1,60}")
MOST_PRIORITY = 9
_MOST_TOKEN = 200  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """`rate`: submissions a minute; `queued`: tickets that wait at a time; `priority`: the most that may be asked."""

    rate: int
    queued: int
    priority: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHolder:
    """Whoever has a key. `digest` of its token; "" on the machine's own address, where none is needed."""

    name: str
    digest: str
    limits: KeyLimits


class KeyFile:
    """The keys in a file. Raises UserError for one that others may read, or that holds anything else."""

    def __init__(self, path: Path, usual: KeyLimits) -> None:
        self._path, self._usual = path, usual
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._holders: tuple[KeyHolder, ...] = ()
        self.holders()

    def holders(self) -> tuple[KeyHolder, ...]:
        """As the file says now."""
        with self._lock:
            found = _status(self._path)
            seen = found.st_mtime_ns, found.st_size
            if seen != self._seen:
                self._holders = _read(self._path, self._usual)
                self._seen = seen
            return self._holders

    def holder(self, token: str) -> KeyHolder | None:
        """Whose token it is. All keys are compared, in constant time."""
        presented = digest_of(token[:_MOST_TOKEN])
        found: KeyHolder | None = None
        for holder in self.holders():
            if hmac.compare_digest(holder.digest, presented):
                found = holder
        return found


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def add_key(path: Path, name: str) -> str:
    """Add a key of this name to the file, which is made with mode 0600 where it is not there; its token, which is kept
    nowhere. UserError for a name that is taken, or can be none."""
    if not _NAME.fullmatch(name):
        raise UserError(f"--new-key {name[:80]!r}: a name has letters, digits, '.', '-' and '_', 60 at most")
    if path.exists() and any(holder.name == name for holder in _read(path, KeyLimits(rate=1, queued=1))):
        raise UserError(f"--new-key {name}: {path} has a key of this name; remove its line, or choose another name")
    token = _PREFIX + secrets.token_urlsafe(32)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
        file.write(f"{name} sha256:{digest_of(token)}\n")
    return token


def _status(path: Path) -> os.stat_result:
    try:
        found = path.stat()
    except OSError as error:
        raise UserError(
            f"--keys {path}: {error.strerror}; make it with `tilewright serve --keys {path} --new-key NAME`"
        ) from None
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.getuid():
        raise UserError(f"--keys {path}: others can read or write it; it must be your file of mode 0600")
    return found


def _read(path: Path, usual: KeyLimits) -> tuple[KeyHolder, ...]:
    _status(path)
    found: dict[str, KeyHolder] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = _LINE.fullmatch(line.strip())
        if not parts or parts[1] in found:
            raise UserError(f"--keys {path}, line {number}: not `NAME sha256:DIGEST [rate=N] [queued=N] [priority=N]`")
        own = {name: int(value) for name, _, value in (part.partition("=") for part in parts[3].split())}
        limits = replace(usual, **own)
        if limits.priority > MOST_PRIORITY:
            raise UserError(f"--keys {path}, line {number}: priorities go from 0 to {MOST_PRIORITY}")
        found[parts[1]] = KeyHolder(name=parts[1], digest=parts[2], limits=limits)
    return tuple(found.values())
