"""Seccomp: system calls by which a process could slow down others of its user, kept to itself.

The kernel lets a process set processors, priorities, schedulers and limits of any other that runs under the same user,
whatever namespace it is in. Behind this filter a process, and all that it starts, may set its own alone: those of
process 0, which is whoever calls, or of the process that called `keep_to_itself`. Others give EPERM. Setting its own
processors succeeds and changes nothing: what it uses lies on the processors that the judge looks at (edges.sandbox's
strain). Called once, by a process with a single thread that can gain no privileges. Linux on x86-64 and aarch64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from dataclasses import dataclass

_SET_MODE_FILTER, _SPEC_ALLOW = 1, 1 << 2  # without the second, older kernels slow down all that runs behind a filter
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: 32-bit words, jumps over constants
_ALLOW = 0x7FFF0000
_REFUSE, _UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_PASS_OVER = 0x00050000  # the call gives 0 and is not made
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000  # x86-64's second numbering
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1

Step = tuple[int, int, int, int]  # code, jump where true, jump where false, constant


@dataclass(frozen=True, slots=True)
class Numbers:
    """System calls of an architecture. `of_pid`: the process is the first argument; the first sets its processors.
    `of_kind`: what kind of number names whom is the first (with the value for a process), the number the second."""

    audit: int
    seccomp: int
    of_pid: tuple[int, ...]
    of_kind: tuple[tuple[int, int], ...]
    prlimit: int


_NUMBERS = {  # sched_setaffinity, _setparam, _setscheduler, _setattr; setpriority, ioprio_set; prlimit64
    "x86_64": Numbers(0xC000003E, 317, (203, 142, 144, 314), ((141, _PRIO_PROCESS), (251, _IOPRIO_WHO_PROCESS)), 302),
    "aarch64": Numbers(0xC00000B7, 277, (122, 118, 119, 274), ((140, _PRIO_PROCESS), (30, _IOPRIO_WHO_PROCESS)), 261),
}


def keep_to_itself() -> None:
    """Enter the filter. Raises OSError where the kernel has none, or knows it under other numbers."""
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        raise OSError(errno.ENOSYS, f"no system calls are known of {platform.machine()}")
    steps = _program(numbers, os.getpid())
    body = b"".join(struct.pack("=HBBI", *step) for step in steps)
    held = ctypes.create_string_buffer(body, len(body))
    program = ctypes.create_string_buffer(struct.pack("@HxxxxxxQ", len(steps), ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.syscall(numbers.seccomp, _SET_MODE_FILTER, _SPEC_ALLOW, ctypes.byref(program)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _program(numbers: Numbers, own: int) -> list[Step]:
    steps = [
        _word(_ARCHITECTURE), (_IF_EQUAL, 1, 0, numbers.audit), (_RETURN, 0, 0, _UNKNOWN),
        _word(_NUMBER), (_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _UNKNOWN),
    ]  # fmt: skip
    for number in numbers.of_pid:
        steps += _where(number, _only(0, own, then=_PASS_OVER if number == numbers.of_pid[0] else _ALLOW))
    for number, kind in numbers.of_kind:
        steps += _where(number, [_argument(0), (_IF_EQUAL, 1, 0, kind), (_RETURN, 0, 0, _REFUSE), *_only(1, own)])
    asks = [_argument(2), (_IF_EQUAL, 0, 3, 0), _argument(2, high=True), (_IF_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW)]
    steps += _where(numbers.prlimit, [*asks, *_only(0, own)])  # without new limits it only asks
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _where(number: int, then: list[Step]) -> list[Step]:
    """The steps, which end in a return, for one system call; its number is loaded before and after."""
    return [(_IF_EQUAL, 0, len(then), number), *then]


def _only(argument: int, own: int, *, then: int = _ALLOW) -> list[Step]:
    """`then` where the argument is 0 or our own process, and refuse elsewhere."""
    return [
        _argument(argument), (_IF_EQUAL, 2, 0, 0), (_IF_EQUAL, 1, 0, own),
        (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, then),
    ]  # fmt: skip


def _word(offset: int) -> Step:
    return _LOAD, 0, 0, offset


def _argument(number: int, *, high: bool = False) -> Step:
    return _word(_ARGUMENTS + 8 * number + (4 if high else 0))  # both architectures store the low half first
