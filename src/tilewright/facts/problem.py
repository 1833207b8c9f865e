"""A Problem: a reference module, its cases, its mode and its precision contract."""

from __future__ import annotations

import ast
import hashlib
import sys
from dataclasses import dataclass, replace
from typing import Literal

from .tensor import TensorSpec as TensorSpec

Target = Literal["cuda", "cpu"]
Precision = Literal["reference", "tf32", "bf16", "fp16"]
Mode = Literal["inference", "training"]


_THERE = {*sys.stdlib_module_names, "torch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSize:
    """A keyword argument of the cases, a size, that may have any value from `low` to `high`; `size`: the one it has in
    the case, or the main one."""

    name: str
    size: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`source` is the text of the problem file; `path` its place (its folder is readable to the reference cell alone).

    `cases` holds keyword arguments, JSON text each, for `get_inputs` and `get_init_inputs`; a KernelBench file has the
    one case `{}`. `data_files` names files beside the problem file that it reads. `environment`: variables, name and
    value, that its cells see beside those of every cell. `open`: the sizes throughout whose ranges one candidate is to
    hold."""

    name: str
    path: str
    source: str
    target: Target
    cases: tuple[str, ...] = ("{}",)
    mode: Mode = "inference"
    precision: Precision = "reference"
    environment: tuple[tuple[str, str], ...] = ()
    open: tuple[OpenSize, ...] = ()

    @property
    def imports(self) -> tuple[str, ...]:
        """The modules that its file imports at the top, but for torch's and the standard library's. None where it has
        variables of its own: they may steer an import."""
        try:
            body = [] if self.environment else ast.parse(self.source).body
        except (SyntaxError, ValueError):
            return ()
        found = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
        found += [node.module for node in body if isinstance(node, ast.ImportFrom) and node.module and not node.level]
        return tuple(sorted({name for name in found if name.partition(".")[0] not in _THERE}))

    @property
    def allow_tf32(self) -> bool:
        """Whether products in fp32 may lose all but TF32's bits: where a class of fewer bits is asked for."""
        return self.precision in ("tf32", "fp16", "bf16")

    def allowed(self, work: Work) -> Work:
        """The work in the class that is asked for: TF32's bits are had at fp16's rate, too."""
        return replace(work, dtype="f16") if self.allow_tf32 and work.dtype == "f32" else work

    @property
    def digest(self) -> str:
        seen = (f"{name}={value}" for name, value in self.environment)
        text = "\0".join((self.source, self.target, self.mode, self.precision, *self.cases, *seen))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call of a case must do at least: bytes of inputs + used state read and outputs written, and flops."""

    bytes_read: int
    bytes_written: int
    matmul_flops: int
    conv_flops: int
    dtype: str  # the widest floating dtype of its matrix products' operands, "f32" where there are none
    spared_flops: int = 0  # of both: what declared algebra does without (see frontend.rewrite.algebra)

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def flops(self) -> int:
        return self.matmul_flops + self.conv_flops - self.spared_flops
