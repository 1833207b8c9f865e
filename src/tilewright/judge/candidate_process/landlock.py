"""Landlock: the kernel's own list of what a process, and all that it starts, may still open.

A *grant* allows rights on a file, or on a folder and all below it; what no grant names can't be opened any more, by
whichever user. A process in such a domain can't read the memory or the environment of one outside it either, nor
(version 6) signal it. Called once, by a process with a single thread. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))  # of every kind of file
_REFER, _TRUNCATE = 1 << 13, 1 << 14
READ = _EXECUTE | _READ_FILE | LIST
WRITE = _WRITE_FILE | _REMOVE_AND_MAKE | _REFER | _TRUNCATE
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE  # the rest makes sense for folders alone
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract sockets and signals

READ_ONLY_DISK = "read-only disk"
HIDDEN_DISK = "hidden disk"
NO_TCP = "no TCP"
KEPT_SIGNALS = "signals kept in"
_SINCE = {READ_ONLY_DISK: 1, HIDDEN_DISK: 1, NO_TCP: 4, KEPT_SIGNALS: 6}  # the version that brings it
PROTECTIONS = tuple(_SINCE)


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights (READ, LIST, WRITE or their sum) on a place, which must exist."""

    place: str
    rights: int


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def restrict(grants: Iterable[Grant], *, alone: bool = True) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Enter a domain with these grants: the protections that this kernel's version brings, and those it lacks. Unless
    it is to be `alone`, a process in it may still connect and signal to the outside."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    version = _checked(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)))
    known = READ | WRITE
    known &= ~(_REFER if version < 2 else 0) & ~(_TRUNCATE if version < 3 else 0)
    ruleset = _Ruleset(known, _TCP if alone and version >= 4 else 0, _SCOPES if alone and version >= 6 else 0)
    size = ctypes.c_size_t(24 if version >= 6 else 16 if version >= 4 else 8)
    handle = _checked(libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, ctypes.c_uint32(0)))
    try:
        for grant in grants:
            _add(libc, handle, grant, known)
        _checked(libc.syscall(_RESTRICT_SELF, handle, ctypes.c_uint32(0)))
    finally:
        os.close(handle)
    asked = {n: s for n, s in _SINCE.items() if alone or n not in (NO_TCP, KEPT_SIGNALS)}
    had = tuple(name for name, since in asked.items() if version >= since)
    lack = tuple(f"{n}: Landlock has version {version} here, not {s}" for n, s in asked.items() if version < s)
    return had, lack


def _add(libc: ctypes.CDLL, handle: int, grant: Grant, known: int) -> None:
    place = os.open(grant.place, os.O_PATH | os.O_CLOEXEC)
    try:
        rights = grant.rights & known
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        rule = _PathBeneath(rights, place)
        if rights:
            _checked(libc.syscall(_ADD_RULE, handle, _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0)))
    finally:
        os.close(place)


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
