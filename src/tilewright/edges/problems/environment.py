"""Which variables of the environment a problem's text reads: in a cell there are few of them, so that the module could
become another one unnoticed."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

_READERS = ("environ", "environb", "getenv", "getenvb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """`names` as the text has them, sorted; `others`: it reads some whose names it makes while it runs."""

    names: tuple[str, ...] = ()
    others: bool = False


def environment_read(source: str) -> Reads:
    """By the text alone: `os.environ[NAME]`, `.get`, `os.getenv`, and whatever else is done with these two."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Reads()
    aliases = {alias.asname or alias.name: alias.name for node in ast.walk(tree)
               if isinstance(node, ast.ImportFrom) and node.module == "os" for alias in node.names}  # fmt: skip
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = [_name(node, parents) for node in ast.walk(tree) if _reads(node, aliases)]
    return Reads(names=tuple(sorted({name for name in found if name})), others=None in found)


def _reads(node: ast.AST, aliases: dict[str, str]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _READERS
    return isinstance(node, ast.Name) and aliases.get(node.id) in _READERS


def _name(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str | None:
    """What is read where `environ` or `getenv` stands; "" where it is set or deleted, None where it can't be told."""
    above = parents.get(node)
    if isinstance(above, ast.Attribute):  # environ.get(NAME), .pop, .setdefault
        above = parents.get(above)
    asked: ast.AST | None = None
    if isinstance(above, ast.Subscript):
        if not isinstance(above.ctx, ast.Load):
            return ""
        asked = above.slice
    elif isinstance(above, ast.Call) and above.args:
        asked = above.args[0]
    elif isinstance(above, ast.Compare):  # NAME in environ
        asked = above.left
    if isinstance(asked, ast.Constant) and isinstance(asked.value, str | bytes):
        return asked.value if isinstance(asked.value, str) else asked.value.decode(errors="replace")
    return None
