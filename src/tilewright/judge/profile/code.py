"""What a kernel's machine code says without being run: the mix of its instructions, from a disassembler's listing."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from ...facts.profile import Measure

_KERNEL = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)|^\s*Function : (\S+)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)[.\s;]")
# By the opcode's head (CUDA Binary Utilities, instruction set reference); what is not named here is integer work,
# moves and conversions.
_CLASSES = (
    ("tensor cores", r"HGMMA|QGMMA|IGMMA|BGMMA|HMMA|IMMA|DMMA|QMMA|BMMA|UTC\w*MMA"),
    ("floating point", r"FFMA2?|FADD2?|FMUL2?|FMNMX3?|FSETP?|FSEL|FCHK|FSWZADD|DFMA|DADD|DMUL|DSETP|HFMA2|"
                       r"HADD2|HMUL2|HMNMX2|HSETP?2"),
    ("special functions", r"MUFU"),
    ("global memory", r"LDG|STG|LD|ST|ATOM|ATOMG|RED|REDG|LDGSTS|UTMALDG|UTMASTG|UTMAREDG|UBLKCP|UBLKRED|CCTL"),
    ("shared memory", r"LDS|STS|LDSM|STSM|ATOMS|LDTM|STTM"),
    ("local memory", r"LDL|STL"),
    ("synchronisation", r"BAR|SYNCS|MEMBAR|FENCE|DEPBAR|WARPSYNC|WARPGROUP|LDGDEPBAR|ERRBAR|UCGABAR_\w+|ARRIVES|"
                        r"CGAERRBAR|BSYNC|BSSY|BMOV"),
    ("shuffles", r"SHFL|REDUX|CREDUX|VOTE|VOTEU|MATCH"),
    ("branches", r"BRA|BRX|JMP|JMX|CALL|RET|EXIT|NOP|YIELD|BREAK|NANOSLEEP"),
)  # fmt: skip
_HEADS = tuple((name, re.compile(pattern)) for name, pattern in _CLASSES)
REST = "integers, moves and conversions"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCode:
    """One kernel: what it takes of a multiprocessor, and its instructions by class (counts, the most first; () where
    there was no disassembler). `threads` of a CTA; 0: not known."""

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int
    threads: int = 0
    mix: tuple[Measure, ...] = ()


def mixes(listing: str) -> dict[str, tuple[Measure, ...]]:
    """By kernel, how many instructions of each class there are in a listing of nvdisasm's or cuobjdump's."""
    counts: dict[str, Counter[str]] = {}
    here: Counter[str] | None = None
    for line in listing.splitlines():
        if found := _KERNEL.match(line):
            here = counts.setdefault(found[1] or found[2], Counter())
        elif here is not None and (instruction := _INSTRUCTION.match(line)):
            here[_class(instruction[1])] += 1
    return {
        name: tuple(Measure(name=kind, value=count) for kind, count in found.most_common())
        for name, found in counts.items()
        if found
    }


def _class(opcode: str) -> str:
    return next((name for name, pattern in _HEADS if pattern.fullmatch(opcode)), REST)
