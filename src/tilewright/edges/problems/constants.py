"""The value of a top-level name of a module that is read and not run: only what the name needs is evaluated, and no
value grows beyond what a problem's cases can want."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

_MOST = 1_000_000  # characters and elements of a value, those within counted
_MOST_BITS = 1024  # of an integer: 308 digits, as many as a float has
_MOST_DEPTH = 150  # of an expression within others
_SHOWN = 60  # characters of an expression that a message quotes
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType({
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Pow: operator.pow, ast.LShift: operator.lshift,
})  # fmt: skip


class NotConstant(ValueError):
    """The expression is no constant, or one that is too large."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A statement that gives a name its value; `value` of None: by anything but a plain assignment."""

    name: str
    line: int
    value: ast.expr | None


class Constants:
    """The top-level assignments of a module. A name means its last assignment before where it is read."""

    def __init__(self, tree: ast.Module) -> None:
        self._bound = [bound for statement in tree.body for bound in _bindings(statement)]
        self._known: dict[int, tuple[Any, int]] = {}

    def line(self, name: str) -> int | None:
        """Where the name is bound last; None where it is nowhere."""
        found = self._last(name, len(self._bound))
        return None if found is None else self._bound[found].line

    def value(self, name: str) -> Any:
        """Its value, made of literals, earlier constants, arithmetic and `dict(...)`; tuples become lists. Raises
        NotConstant for anything else, and ArithmeticError or TypeError where Python would."""
        return self._named(name, len(self._bound), 0)[0]

    def _last(self, name: str, before: int) -> int | None:
        return next((i for i in reversed(range(before)) if self._bound[i].name == name), None)

    def _named(self, name: str, before: int, depth: int) -> tuple[Any, int]:
        at = self._last(name, before)
        value = None if at is None else self._bound[at].value
        if at is None or value is None:
            raise NotConstant(f"{name[:_SHOWN]!r} is not constant")
        if at not in self._known:
            self._known[at] = self._of(value, at, depth + 1)
        return self._known[at]

    def _of(self, node: ast.expr, before: int, depth: int) -> tuple[Any, int]:
        """The value of an expression and its size; names mean what statements before `before` made them."""
        if depth > _MOST_DEPTH:
            raise NotConstant("it is nested too deeply")

        def within(inner: ast.expr) -> tuple[Any, int]:
            return self._of(inner, before, depth + 1)

        match node:
            case ast.Constant():
                return _held(node.value, 1)
            case ast.Name():
                return self._named(node.id, before, depth)
            case ast.Tuple() | ast.List():
                found = [within(element) for element in node.elts]
                return _held([value for value, _ in found], sum(size for _, size in found) + 1)
            case ast.Dict() if all(k is not None for k in node.keys):
                keys = [within(k) for k in node.keys if k is not None]
                values = [within(v) for v in node.values]
                made = {k: v for (k, _), (v, _) in zip(keys, values, strict=True)}
                return _held(made, sum(size for _, size in (*keys, *values)) + 1)
            case ast.Call(func=ast.Name(id="dict"), args=[]) if all(k.arg for k in node.keywords):
                named = [(str(k.arg), within(k.value)) for k in node.keywords]
                return _held({k: v for k, (v, _) in named}, sum(size + len(k) for k, (_, size) in named) + 1)
            case ast.UnaryOp(op=ast.USub()):
                return _held(-within(node.operand)[0], 1)
            case ast.BinOp() if type(node.op) in _OPERATORS:
                return _combined(node.op, within(node.left), within(node.right))
        raise NotConstant(f"{_quoted(node)!r} is not constant")


def _bindings(statement: ast.stmt) -> list[_Bound]:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return [_Bound(name, statement.lineno, value)]
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return [] if value is None else [_Bound(name, statement.lineno, value)]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [_Bound(name, statement.lineno, None)]
    # Whatever else stores a name, even within a branch or a loop: nobody can tell its value without running it.
    stored = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
    return [_Bound(n.id, statement.lineno, None) for n in stored]


def _combined(op: ast.operator, left: tuple[Any, int], right: tuple[Any, int]) -> tuple[Any, int]:
    """The result of an operator on values with their sizes; refused before it is made where it would be too large."""
    (a, a_size), (b, b_size) = left, right
    size = a_size + b_size
    if isinstance(op, ast.Mult):
        for sequence, size_of, times in ((a, a_size, b), (b, b_size, a)):
            if isinstance(sequence, str | bytes | list) and isinstance(times, int):
                size = size_of * max(times, 1)
    if isinstance(a, int) and isinstance(b, int):
        bits = {ast.LShift: a.bit_length() + b, ast.Pow: max(a.bit_length(), 1) * max(b, 1)}.get(type(op), 0)
        if bits > _MOST_BITS:
            raise NotConstant("it is too large")
    if size > _MOST:
        raise NotConstant("it is too large")
    return _held(_OPERATORS[type(op)](a, b), size)


def _held(value: Any, size: int) -> tuple[Any, int]:
    size = max(size, len(value)) if isinstance(value, str | bytes) else size
    if size > _MOST or (isinstance(value, int) and value.bit_length() > _MOST_BITS):
        raise NotConstant("it is too large")
    return value, size


def _quoted(node: ast.expr) -> str:
    try:
        return ast.unparse(node)[:_SHOWN]
    except (RecursionError, ValueError):  # what nests too deeply, or can't be written
        return type(node).__name__
