"""Vetted skeletons near to a kind of work: a model learns from them where none fits, and sees what it may change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from types import MappingProxyType

from ...facts.candidate import SourceFile
from ...facts.problem import Target
from .. import table

_PRODUCT = "cuda/gemm/mainloop/wgmma.py"
_REDUCTIONS = "cpu/reductions.h"
_ROWS = ("cpu/rows.h", _REDUCTIONS)
# Parts of a file that fit few kinds of work: by path and in its order, how each begins and how what
# follows it does.
_PARTS = {
    _REDUCTIONS: (
        ("positions", "// Position of the extremum:", "// The first COUNT elements of each of LISTS rows"),
        ("ranking", "// The first COUNT elements of each of LISTS rows", "// Mean and sum of squared deviations."),
        ("moments", "// Mean and sum of squared deviations.", "// Maximum and sum of exp(x - maximum)."),
    )
}
# By category, the parts that it has no use for; what a module itself asks for says more, see `skeletons_near`.
_WANTED = {"ranking": {"largest", "smallest"}, "positions": {"argmax", "argmin"}, "moments": {"moments"}}
_UNUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "pointwise": ("ranking", "positions"),
        "loss": ("ranking",),
        "mixed": ("ranking", "positions"),
        "row_reduction": ("ranking",),
        "column_reduction": ("ranking",),
    }
)
# In the place of those: where a kernel of our own for attention was proven on a GPU; where a convolution is depthwise.
_ATTENTION = ("cuda/attention/kernel.py", "cuda/attention/softmax.py")
_DEPTHWISE = ("cuda/depthwise/staged.py",)
# By the categories of strategies.category; () where nothing of ours is near.
_NEAR: Mapping[Target, Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "cuda": {
        "gemm": (_PRODUCT, "cuda/gemm/host/plan.py"),
        "convolution": ("cuda/conv/implicit.py", "cuda/conv/gather.py"),
        "attention": (_PRODUCT, "cuda/rows/exponentials.py"), "recurrence": (_PRODUCT,),
        "pointwise": ("cuda/rows/engine.py", "cuda/common/addresses.py"),
        "row_reduction": ("cuda/rows/cta.py", "cuda/rows/combine.py"),
        "column_reduction": ("cuda/rows/cta.py", "cuda/rows/combine.py"),
        "scan": ("cuda/rows/scan.py", "cuda/rows/combine.py"), "loss": ("cuda/rows/cta.py", "cuda/rows/combine.py"),
        "mixed": ("cuda/rows/cta.py",),
    },
    "cpu": {
        "gemm": (), "convolution": (), "attention": ("cpu/attention.h",), "recurrence": (),
        "pointwise": ("cpu/rows.h", "cpu/vec.h"),
        "row_reduction": _ROWS, "column_reduction": ("cpu/columns.h", "cpu/reductions.h"), "scan": ("cpu/scan.h",),
        "loss": _ROWS, "mixed": _ROWS,
    },
})  # fmt: skip


def skeletons_near(
    category: str, target: Target, ops: Collection[str] = (), *, depthwise: bool = False
) -> tuple[SourceFile, ...]:
    """The heart of the skeletons that do this kind of work, under the paths that they have in a candidate. Parts of
    them that the module's `ops` (names of its graph's nodes) and its category have no use for are left out, with a line
    in their place. `depthwise`: the convolutions are."""
    paths = _NEAR[target][category]
    if target == "cuda" and category == "attention" and "attention" not in table.UNPROVEN:
        paths = _ATTENTION
    if target == "cuda" and category in ("convolution", "mixed") and depthwise:
        paths = _DEPTHWISE
    root = files("tilewright.kernels")
    unused = [part for part in _UNUSED.get(category, ()) if not _WANTED[part] & set(ops)]
    return tuple(
        SourceFile(
            path=f"tilewright_kernels/{path}",
            text=_without(root.joinpath(path).read_text(encoding="utf-8"), _PARTS.get(path, ()), unused),
        )
        for path in paths
    )


def _without(text: str, parts: Sequence[tuple[str, str, str]], unused: Sequence[str]) -> str:
    for name, begins, ends in parts:
        if name in unused:
            first, last = text.index(begins), text.index(ends)
            text = f"{text[:first]}// ({name}: not of use here)\n\n{text[last:]}"
    return text
