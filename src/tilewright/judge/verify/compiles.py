"""The compile verifier: Python's own compiler, names and modules that are not there, g++ over plain C and C++."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePosixPath

from ...edges.toolchain.syntax import syntax_fault
from ...facts.verdict import Verdict
from .reading import Reading, certain, evaluated

_LOOKED_INTO = ("torch", "torch.nn", "torch.nn.functional")


def compiles(reading: Reading) -> Verdict:
    """Proven: a syntax error, no ModelNew, a module that is not installed here, a name that is bound nowhere, where
    each certainly counts; what g++ says of a C++ file."""
    if reading.tree is None:
        return Verdict(verifier="compile", says="proven", why=reading.fault)
    proofs = [*_no_model(reading), *_missing(reading), *_unbound(reading), *_absent(reading), *_faulty(reading)]
    if proofs:
        return Verdict(verifier="compile", says="proven", why=proofs[0])
    signs = [f"{path} does not parse" for path, text in reading.texts.items() if path.endswith(".py") and not _ok(text)]
    foreign = re.search(r"load_inline|cpp_extension|__global__|\.cu\b", reading.text)
    says = "suspect" if signs else "unknown" if foreign else "clean"
    return Verdict(verifier="compile", says=says, why="; ".join(signs))  # type: ignore[arg-type]


def _no_model(reading: Reading) -> Iterator[str]:
    if "ModelNew" not in reading.texts[reading.candidate.entry] and not (reading.behind or _stars(reading)):
        yield f"no_entry: {reading.candidate.entry} binds no ModelNew"


def _missing(reading: Reading) -> Iterator[str]:
    """Modules that the entry certainly imports, and that neither lie beside it nor are installed."""
    beside = {PurePosixPath(path).parts[0].removesuffix(".py") for path in reading.texts}
    assert reading.tree is not None
    for node in certain(reading.tree.body):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        for root in (name.partition(".")[0] for name in names):
            if root not in beside and "sys.path" not in reading.text and not _installed(root):
                yield f"line {node.lineno}: there is no module {root}"


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _unbound(reading: Reading) -> Iterator[str]:
    """Names that are read where they certainly are, and bound nowhere in the file."""
    if reading.behind or _stars(reading) or reading.tree is None:
        return
    known = set(dir(builtins)) | {"__file__", "__name__", "__doc__", "__spec__", "__class__"} | _bound(reading.tree)
    for node in _evaluated(reading):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in known:
            yield f"line {node.lineno}: the name {node.id} is bound nowhere"


def _evaluated(reading: Reading) -> Iterator[ast.AST]:
    """What certainly is, when the module is made and called."""
    assert reading.tree is not None
    bodies = [reading.tree.body]
    bodies += [f.body for f in (reading.constructor, reading.forward) if f is not None]
    return (node for body in bodies for statement in certain(body) for node in evaluated(statement))


def _absent(reading: Reading) -> Iterator[str]:
    """What is asked of torch, under the names that it is imported by, and is not there."""
    owners: dict[str, str] = {}
    assert reading.tree is not None
    bound = [n.id for n in ast.walk(reading.tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
    for statement in reading.tree.body:
        if isinstance(statement, ast.Import):
            owners |= {a.asname or a.name: a.name for a in statement.names if a.name in _LOOKED_INTO}
        if isinstance(statement, ast.ImportFrom) and statement.level == 0:
            full = {a.asname or a.name: f"{statement.module}.{a.name}" for a in statement.names}
            owners |= {name: module for name, module in full.items() if module in _LOOKED_INTO}
    written = {
        ast.unparse(n) for n in ast.walk(reading.tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    }
    for node in _evaluated(reading):
        if not isinstance(node, ast.Attribute) or reading.behind:
            continue
        owner = ast.unparse(node.value)
        known = owner in owners and owner not in bound and f"{owner}.{node.attr}" not in written
        if known and not hasattr(import_module(owners[owner]), node.attr):
            yield f"line {node.lineno}: {owners[owner]} has no {node.attr}"


def _bound(tree: ast.Module) -> set[str]:
    """Every name that anything in the file binds, in whatever scope."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            found |= set(node.names)
    return found


def _stars(reading: Reading) -> bool:
    tree = reading.tree
    return tree is not None and any(isinstance(n, ast.alias) and n.name == "*" for n in ast.walk(tree))


def _faulty(reading: Reading) -> Iterator[str]:
    """Of files that the entry names, and that need nothing but the standard headers."""
    entry = reading.texts[reading.candidate.entry]
    for path, text in reading.texts.items():
        named = PurePosixPath(path).name in entry
        includes = re.findall(r"^\s*#\s*include\s*(<[^>]+>|\"[^\"]+\")", text, flags=re.M)
        standard = all(re.fullmatch(r"<[\w]+(\.h)?>", include) for include in includes)
        if named and standard and path.endswith((".cpp", ".cc", ".c")):
            fault = syntax_fault(text, "c" if path.endswith(".c") else "c++")
            if fault:
                yield f"{path}: {fault}"


def _ok(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
