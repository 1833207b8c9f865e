"""What is copied into a candidate is what lies in the folder of the kernels, so that no file of it is missing there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tilewright.kernels
from fakes import kernel_programs as kp
from fakes.realisers import cpu, cuda
from tilewright.ir.program import Program
from tilewright.realise.table import Realisers

ROOT = Path(tilewright.kernels.__file__).parent
SHARED = {"__init__.py", "ops.py", "autograd.py", "store.py"}
GUARDS = {
    "contents.py",
    "guards.py",
    "reached.py",
    "survey.py",
    "watched.py",
}  # of the module that is composed, whatever its kernels
OURS = {"cuda/common/ahead.py", "cuda/common/demand.py"}  # they look at what candidates compiled
PRODUCTS = {"cuda/common/cubin.py"}
PARTS = ("mainloop", "epilogue", "prologue", "fp32", "host")
SOFTMAX = kp.softmax((64, 1000))
PRODUCT = kp.product(512, 512, 512)


NEITHER_ROWS_NOR_COLUMNS = {
    "cpu/attention.h", "cpu/attention_backward.h", "cpu/recurrent.h", "cpu/recurrent.py",
}  # fmt: skip


def lying(folder: str) -> set[str]:
    """Of a folder of the kernels, those below left out."""
    return {str(p.relative_to(ROOT)) for p in (ROOT / folder).iterdir() if p.suffix in (".py", ".h")}


def copied(target: Realisers, programs: Sequence[Program]) -> set[str]:
    files = target.skeleton_files(programs)
    assert len({f.path for f in files}) == len(files)
    assert all(f.text == (ROOT / f.path.removeprefix("tilewright_kernels/")).read_text() for f in files)
    return {f.path.removeprefix("tilewright_kernels/") for f in files}


def test_every_file_of_the_skeletons_is_copied_where_it_is_needed() -> None:
    assert lying("") == SHARED | GUARDS | {"compiled.py", "graphed.py", "nvcc.py"}
    rows = SHARED | {p for part in ("", "/common", "/rows") for p in lying(f"cuda{part}")} - OURS - PRODUCTS
    assert copied(cuda, [SOFTMAX]) == rows
    assert copied(cuda, [SOFTMAX, PRODUCT]) == rows | PRODUCTS | {
        p for f in ("", *PARTS) for p in lying(f"cuda/gemm/{f}")
    }
    assert copied(cpu, [SOFTMAX]) == SHARED | lying("cpu") - NEITHER_ROWS_NOR_COLUMNS


def test_no_program_needs_no_file() -> None:
    assert copied(cuda, []) == copied(cpu, []) == set()
