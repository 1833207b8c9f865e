"""A candidate's text, read: its entry's tree, ModelNew and its methods, and what certainly runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...facts.candidate import Candidate

_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
# Words by which a name may be bound, or a frame be looked at, behind a reader's back.
_BEHIND = re.compile(r"\b(exec|eval|globals|locals|setattr|vars|__import__|import_module|_getframe|__dict__)\b")
_PLAIN = ("staticmethod", "no_grad", "inference_mode")  # decorators that leave a method's result as it is
_LIBRARY = "tilewright_kernels/"
_SPECIAL = ("__call__", "__new__", "__getattribute__", "__getattr__", "__init_subclass__")
_BRANCHES = (ast.If, ast.For, ast.While, ast.Try, ast.Match, ast.FunctionDef, ast.ClassDef)
_LATER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.BoolOp)


class Reading:
    """`tree` of None: the entry does not parse, for the reason `fault`."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.texts = {file.path: file.text for file in candidate.files}
        self.fault = ""
        self.tree: ast.Module | None = None
        entry = self.texts.get(candidate.entry, "")
        try:
            self.tree = ast.parse(entry)
            compile(self.tree, candidate.entry, "exec", dont_inherit=True)
        except _UNREADABLE as error:
            self.tree = None
            line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
            self.fault = f"{candidate.entry}: {line}{getattr(error, 'msg', None) or type(error).__name__}"
        self.behind = bool(_BEHIND.search(entry))
        self.model = model_class(self.tree, "ModelNew") if self.tree is not None else None

    @property
    def text(self) -> str:
        """Of all files that are not the library's own."""
        return "\n".join(file.text for file in self.written.files)

    @property
    def written(self) -> Candidate:
        """Without the library's own files."""
        files = self.candidate.files
        return replace(self.candidate, files=tuple(f for f in files if not f.path.startswith(_LIBRARY)))

    @property
    def plain(self) -> bool:
        """Whether ModelNew is what its text says: bound once, undecorated, without a metaclass."""
        model = self.model
        if model is None or self.tree is None or self.behind:
            return False
        bound = [n for n in ast.walk(self.tree) if isinstance(n, ast.Name | ast.ClassDef) and _binds(n, "ModelNew")]
        patched = any(isinstance(n, ast.Attribute) and _loads(n.value, "ModelNew") for n in ast.walk(self.tree))
        special = any(method(model, name) is not None for name in _SPECIAL)
        return len(bound) == 1 and not (patched or special or model.decorator_list or model.keywords)

    @property
    def forward(self) -> ast.FunctionDef | None:
        """ModelNew's own, where its calls certainly come to it as it is written."""
        found = method(self.model, "forward") if self.model is not None else None
        names = {_last(d.func if isinstance(d, ast.Call) else d) for d in found.decorator_list} if found else set()
        replaced = self.model is not None and re.search(r"\bforward\s*=", ast.unparse(self.model))
        return found if self.plain and names <= set(_PLAIN) and not replaced else None

    @property
    def constructor(self) -> ast.FunctionDef | None:
        found = method(self.model, "__init__") if self.plain and self.model is not None else None
        return found if found is not None and not found.decorator_list else None


def model_class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name), None)


def method(owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def certain(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run whenever the block does, up to the first that may leave it."""
    for statement in body:
        if isinstance(statement, ast.With):
            yield from certain(statement.body)
            if any(isinstance(n, ast.Return | ast.Raise) for n in ast.walk(statement)):
                return
        elif isinstance(statement, _BRANCHES):
            if not isinstance(statement, ast.FunctionDef | ast.ClassDef) and any(
                isinstance(n, ast.Return | ast.Raise) for n in ast.walk(statement)
            ):
                return
        else:
            yield statement
            if isinstance(statement, ast.Return | ast.Raise):
                return


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement that are evaluated whenever it runs."""
    yield node
    children = [node.values[0]] if isinstance(node, ast.BoolOp) else list(ast.iter_child_nodes(node))
    if isinstance(node, ast.IfExp):
        children = [node.test]
    if isinstance(node, _LATER) and not isinstance(node, ast.BoolOp | ast.IfExp):
        return
    for child in children:
        yield from evaluated(child)


def called(node: ast.AST) -> str:
    """The last name of what a call calls: "half" of `x.half()`, "exp" of `torch.exp(x)`; "" where it is no call."""
    return _last(node.func) if isinstance(node, ast.Call) else ""


def parameters(function: ast.FunctionDef) -> list[str]:
    """The positional ones, without `self`."""
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args)][1:]


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.ClassDef):
        return node.name == name
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store | ast.Del)


def _loads(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
