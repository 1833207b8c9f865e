"""Vetted skeletons near to a kind of work: a model learns from them where none fits, and sees what it may change."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

from ...facts.candidate import SourceFile
from ...facts.problem import Target

_PRODUCT = "cuda/gemm/mainloop/wgmma.py"
_ROWS = ("cpu/rows.h", "cpu/reductions.h")
# By the categories of strategies.category; () where nothing of ours is near.
_NEAR: Mapping[Target, Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "cuda": {
        "gemm": (_PRODUCT, "cuda/gemm/host/plan.py"), "convolution": (_PRODUCT,),
        "attention": (_PRODUCT, "cuda/rows/exponentials.py"),
        "pointwise": ("cuda/rows/engine.py", "cuda/common/addresses.py"),
        "row_reduction": ("cuda/rows/cta.py", "cuda/rows/combine.py"),
        "column_reduction": ("cuda/rows/cta.py", "cuda/rows/combine.py"),
        "scan": ("cuda/rows/scan.py", "cuda/rows/combine.py"), "loss": ("cuda/rows/cta.py", "cuda/rows/combine.py"),
        "mixed": ("cuda/rows/cta.py",),
    },
    "cpu": {
        "gemm": (), "convolution": (), "attention": _ROWS, "pointwise": ("cpu/rows.h", "cpu/vec.h"),
        "row_reduction": _ROWS, "column_reduction": ("cpu/columns.h", "cpu/reductions.h"), "scan": ("cpu/scan.h",),
        "loss": _ROWS, "mixed": _ROWS,
    },
})  # fmt: skip


def skeletons_near(category: str, target: Target) -> tuple[SourceFile, ...]:
    """The heart of the skeletons that do this kind of work, under the paths that they have in a candidate."""
    root = files("tilewright.kernels")
    return tuple(
        SourceFile(path=f"tilewright_kernels/{path}", text=root.joinpath(path).read_text(encoding="utf-8"))
        for path in _NEAR[target][category]
    )
