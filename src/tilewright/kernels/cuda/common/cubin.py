"""What compiled kernels take of a multiprocessor, read from a cubin: an ELF file, so no tool of NVIDIA's is needed.

Which records hold what is not documented by NVIDIA; the numbers below are those that binary utilities agree on, and
tests hold them against kernels whose needs are known.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_REGISTERS, _FRAME = 0x2F, 0x11  # attributes of .nv.info: (symbol, value) each
_WITH_VALUE = 4  # the format of an attribute whose size follows; the others are 4 bytes in all
_FUNCTION = 2  # a symbol's type
_ELF = b"\x7fELF\x02"  # how a 64-bit ELF file begins
_MACHINE_AT, _CUDA = 18, (190).to_bytes(2, "little")  # EM_CUDA


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """One kernel: registers and bytes of local memory a thread (spilled registers and arrays that are indexed at run
    time), and bytes of static shared memory a CTA."""

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    content: memoryview
    size: int  # of what takes no place in the file, too


def cubin_of(content: bytes) -> bytes:
    """The cubin within an object that the DSL exported. Raises ValueError where there is not just one."""
    places = (found.start() for found in re.finditer(re.escape(_ELF), content))
    cubins = [at for at in places if content[at + _MACHINE_AT : at + _MACHINE_AT + 2] == _CUDA]
    if len(cubins) != 1:
        raise ValueError(f"an object with {len(cubins)} cubins")
    return content[cubins[0] :]


def taken(cubin: bytes) -> tuple[KernelResources, ...]:
    """Every kernel of a cubin. Raises ValueError on what is none."""
    try:
        sections = {s.name: s for s in _sections(cubin)}
        names = _symbols(sections)
        found = dict(_attributes(sections[".nv.info"].content))
    except (struct.error, KeyError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a cubin: {error!r}") from error
    kernels = sorted(symbol for attribute, symbol in found if attribute == _REGISTERS)
    return tuple(
        KernelResources(
            name=names[symbol],
            registers=found[_REGISTERS, symbol],
            local_bytes=found.get((_FRAME, symbol), 0),
            shared_bytes=sections[shared].size if (shared := f".nv.shared.{names[symbol]}") in sections else 0,
        )
        for symbol in kernels
        if f".nv.info.{names[symbol]}" in sections  # functions that kernels call have none
    )


def _sections(cubin: bytes) -> Iterator[_Section]:
    if cubin[:5] != _ELF:
        raise ValueError("not a cubin: no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    each, count, of_names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * each) for i in range(count)]
    names = memoryview(cubin)[headers[of_names][4] :]
    for name, kind, _, _, offset, size in headers:
        content = memoryview(cubin)[offset : offset + size] if kind != 8 else memoryview(b"")  # 8: nothing in the file
        yield _Section(_text(names, name), content, size)


def _symbols(sections: dict[str, _Section]) -> dict[int, str]:
    names, table = sections[".strtab"].content, sections[".symtab"].content
    entries = (struct.unpack_from("<IBBHQQ", table, i) for i in range(0, len(table), 24))
    return {i: _text(names, entry[0]) for i, entry in enumerate(entries) if entry[1] & 15 == _FUNCTION}


def _attributes(content: memoryview) -> Iterator[tuple[tuple[int, int], int]]:
    """((attribute, symbol), value) of every record that is about a symbol."""
    at = 0
    while at < len(content):
        kind, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if kind == _WITH_VALUE:
            if size == 8:
                symbol, value = struct.unpack_from("<II", content, at)
                yield (attribute, symbol), value
            at += size


def _text(content: memoryview, start: int) -> str:
    return bytes(content[start : start + 65536]).split(b"\0", 1)[0].decode()
