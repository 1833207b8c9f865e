"""What makes kernels, as digests: a winner is believed for the skeletons alone that it was measured with."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files

from ..facts.problem import Target
from .table import REALISERS

_LOOK_ON = ("ahead.py", "cache.py", "cubin.py", "demand.py")  # they look at what was compiled, or keep it


@functools.cache
def skeleton_digests(target: Target) -> tuple[tuple[str, str], ...]:
    """By the name that realisers of the target give it, a digest of what makes their kernels: the skeletons that
    candidates carry, and what writes the text around them. Comments, docstrings and white space count for nothing."""
    sources: dict[str, dict[str, str]] = {}
    for realiser in (r for r in REALISERS if r.target == target):
        written = {name: files(__package__).joinpath(name).read_text(encoding="utf-8") for name in realiser.writers}
        carried = {f.path: f.text for f in realiser.skeleton_files() if _is_of_kernels(f.path)}
        sources.setdefault(realiser.digest, {}).update(written | carried)
    return tuple((name, _digest(sources[name])) for name in sorted(sources))


def _is_of_kernels(path: str) -> bool:
    """Whether a skeleton's text may change what a kernel is, or how it is launched."""
    _, folder, *rest = path.split("/")
    return rest[-1] not in _LOOK_ON if rest else folder in ("ops.py", "store.py")


def _digest(texts: Mapping[str, str]) -> str:
    meanings = [(name := path.rpartition("/")[2], meaning(name, text)) for path, text in texts.items()]
    return hashlib.sha256("\0".join(part for pair in sorted(meanings) for part in pair).encode()).hexdigest()[:12]


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
