"""What makes kernels, as digests: a winner is believed for the skeletons alone that it was measured with."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable

from ..facts.problem import Target

_RENDERERS = {"cuda": ("rows/text.py",), "cpu": ("cpu/renderer.py", "cpu/declared.py", "cpu/source.py", "cpu/text.py")}
_OF_ALL = ("ops.py", "store.py")
_LOOK_ON = ("ahead.py", "cache.py", "cubin.py", "demand.py")  # they look at what was compiled, or keep it


@functools.cache
def skeleton_digests(target: Target) -> tuple[tuple[str, str], ...]:
    """By name, a digest of what makes kernels for the target: `kernels` of all but products of matrices, `products` of
    these with what they share. Comments, docstrings and white space count for nothing."""
    kernels, here = files("tilewright.kernels"), files(__package__)
    own = [*map(kernels.joinpath, _OF_ALL), *map(here.joinpath, _RENDERERS[target]), *_in(kernels.joinpath(target))]
    products = [here.joinpath("gemm", "points.py"), *_in(kernels.joinpath("cuda", "gemm"))] if target == "cuda" else []
    return ("kernels", _digest(own)), ("products", _digest(own + products))


def _in(folder: Traversable) -> Iterable[Traversable]:
    """Its files, and those of its folders but `gemm`."""
    for file in folder.iterdir():
        if file.is_dir() and file.name not in ("gemm", "__pycache__"):
            yield from _in(file)
        elif file.name.endswith((".py", ".h")) and file.name not in _LOOK_ON:
            yield file


def _digest(sources: Iterable[Traversable]) -> str:
    texts = [(f.name, meaning(f.name, f.read_text(encoding="utf-8"))) for f in sources]
    return hashlib.sha256("\0".join(part for pair in sorted(texts) for part in pair).encode()).hexdigest()[:12]


def meaning(name: str, text: str) -> str:
    """What of a file of this name is more than comments, docstrings and white space; the same under every Python."""
    if name.endswith(".py"):
        return repr(_parts(ast.parse(text)))
    return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).split())


def _parts(node: object) -> object:
    """A syntax tree as names and values, without what is empty: newer Pythons have fields that older ones have not."""
    if isinstance(node, list):
        return [_parts(item) for item in node if not _is_docstring(item)]
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, _parts(value)) for name, value in ast.iter_fields(node) if value is not None and value != [])
    return type(node).__name__, *fields


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
