"""What makes kernels, as digests: a winner is believed for the skeletons alone that it was measured with."""

from __future__ import annotations

import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable

from ...facts.problem import Target

_RENDERERS = {"cuda": ("cuda_text.py",), "cpu": ("cpu.py", "cpu_source.py", "cpu_text.py")}
_OF_ALL = ("ops.py", "store.py")
_LOOK_ON = ("ahead.py", "cubin.py", "demand.py")  # they look at what was compiled


@functools.cache
def skeleton_digests(target: Target) -> tuple[tuple[str, str], ...]:
    """By name, a digest of what makes kernels for the target: `kernels` of all but products of matrices, `products` of
    these with what they share. Comments, docstrings and white space count for nothing."""
    kernels, here = files("tilewright.kernels"), files(__package__)
    own = [*map(kernels.joinpath, _OF_ALL), *map(here.joinpath, _RENDERERS[target]), *_in(kernels.joinpath(target))]
    products = [here.joinpath("cuda_product.py"), *_in(kernels.joinpath("cuda", "gemm"))] if target == "cuda" else []
    return ("kernels", _digest(own)), ("products", _digest(own + products))


def _in(folder: Traversable) -> Iterable[Traversable]:
    return (f for f in folder.iterdir() if f.name.endswith((".py", ".h")) and f.name not in _LOOK_ON)


def _digest(sources: Iterable[Traversable]) -> str:
    texts = [(f.name, meaning(f.name, f.read_text(encoding="utf-8"))) for f in sources]
    return hashlib.sha256("\0".join(part for pair in sorted(texts) for part in pair).encode()).hexdigest()[:12]


def meaning(name: str, text: str) -> str:
    """What of a file of this name is more than comments, docstrings and white space."""
    if not name.endswith(".py"):
        return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).split())
    kept: list[str] = []
    line: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            docstring = len(line) == 1 and line[0].endswith(('"', "'"))
            kept += [] if docstring else [" ".join(line)]
            line = []
        elif token.type in (tokenize.INDENT, tokenize.DEDENT):
            kept.append(tokenize.tok_name[token.type])
        elif token.type not in (tokenize.COMMENT, tokenize.NL):
            line.append(token.string)
    return "\n".join(kept)
