"""Ranges of values along straight code: how far they certainly reach, and how many bits they keep."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .reading import called

_FULL = 24
_LARGEST = 3.4028235e38
_CASTS = {"half": 11, "float16": 11, "bfloat16": 8}
_WIDE = ("float", "float32", "double", "float64")
_SAME = ("contiguous", "clone", "reshape", "view", "flatten", "unsqueeze", "squeeze", "transpose", "permute", "t")
_PRODUCTS = ("matmul", "mm", "bmm", "linear", "addmm", "baddbmm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """`high`: some element is at least so large, `low`: some element is at most so small; None: nobody knows. `bits`:
    no more of it than these are significant. `wrong`: some element is infinite or NaN that need not be."""

    high: float | None = None
    low: float | None = None
    bits: int = _FULL
    wrong: bool = False
    positive: bool = False  # no element is negative
    drawn: bool = False  # it is an input, cast and moved alone: nothing but chance makes its bits nought


ANY = Range()


class Ranges:
    """What is known of names, statement by statement."""

    def __init__(self, known: Mapping[str, Range]) -> None:
        self._known = dict(known)

    def follow(self, statement: ast.stmt) -> None:
        """Learn from one that certainly runs; what it may have changed is forgotten."""
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
            targets = [statement.target]
            value = statement.value if isinstance(statement, ast.AnnAssign) else None
        plain = len(targets) == 1 and isinstance(targets[0], ast.Name) and value is not None
        found = self.of(value) if plain and value is not None else ANY
        for node in ast.walk(statement):  # written to, or handed to what may write to it in place
            if isinstance(node, ast.Name) and (not plain or isinstance(node.ctx, ast.Store)):
                self._known.pop(node.id, None)
        if plain and isinstance(targets[0], ast.Name):
            self._known[targets[0].id] = found

    def of(self, node: ast.expr) -> Range:
        if isinstance(node, ast.Name):
            return self._known.get(node.id, ANY)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _negated(self.of(node.operand))
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        name = called(node)
        if name and isinstance(node, ast.Call):
            return self._call(name, node)
        return ANY

    def _binary(self, node: ast.BinOp) -> Range:
        left, right = self.of(node.left), self.of(node.right)
        constant = _number(node.right)
        match node.op:
            case ast.MatMult():
                return _product(left, right)
            case ast.Mult() if constant is not None or _number(node.left) is not None:
                factor = constant if constant is not None else _number(node.left)
                assert factor is not None
                return _scaled(left if constant is not None else right, factor)
            case ast.Div() if constant:
                return _scaled(left, 1 / constant)
            case ast.Div():
                return Range(wrong=left.wrong and right.wrong)  # inf / inf
            case ast.Add() if constant is not None or _number(node.left) is not None:
                shift = constant if constant is not None else _number(node.left) or 0.0
                one = left if constant is not None else right
                moved = [None if v is None else v + shift for v in (one.high, one.low)]
                return Range(high=moved[0], low=moved[1], wrong=one.wrong, positive=one.positive and shift >= 0)
        return ANY

    def _call(self, name: str, node: ast.Call) -> Range:
        own = isinstance(node.func, ast.Attribute) and not _is_module(node.func.value)
        operands = [node.func.value] if own and isinstance(node.func, ast.Attribute) else []
        operands += node.args
        if not operands:
            return ANY
        value = self.of(operands[0])
        if name in ("to", "type"):
            cast = _dtype(operands[1]) if len(operands) > 1 else ""
            name = cast if cast else "?"
        if name in _CASTS:
            return replace(value, bits=min(value.bits, _CASTS[name]))
        if name in _WIDE or name in _SAME:
            return value
        if name in _PRODUCTS and len(operands) > 1:
            return _product(value, self.of(operands[1]))
        if name == "exp":
            return _exponential(value)
        if name in ("sum", "logsumexp") and value.positive and name == "sum":
            return Range(high=value.high, wrong=value.wrong, positive=True)
        if name in ("log", "log1p") and value.positive:
            return Range(wrong=value.wrong)
        if name == "relu":
            return Range(high=value.high, bits=value.bits, wrong=value.wrong, positive=True)
        return ANY


def _exponential(value: Range) -> Range:
    if value.high is None:
        return Range(positive=True)
    over = value.high > math.log(_LARGEST)
    return Range(high=math.inf if over else math.exp(value.high), wrong=over or value.wrong, positive=True)


def _product(left: Range, right: Range) -> Range:
    """Rounded operands leave their error in the result, of which some elements are then wrong in those bits; but a
    mask, say, loses nothing."""
    return Range(bits=min(side.bits if side.drawn else _FULL for side in (left, right)))


def _scaled(value: Range, factor: float) -> Range:
    ends = [None if v is None else v * factor for v in (value.high, value.low)]
    high, low = ends if factor > 0 else ends[::-1]
    exact = factor != 0 and math.frexp(factor)[0] in (0.5, -0.5)
    return Range(
        high=high, low=low, bits=value.bits if exact else _FULL, wrong=value.wrong and factor != 0,
        positive=value.positive and factor >= 0,
    )  # fmt: skip


def _negated(value: Range) -> Range:
    return _scaled(value, -1.0)


def _number(node: ast.expr) -> float | None:
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _dtype(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def _is_module(node: ast.expr) -> bool:
    """Whether a call's owner is a module of functions: torch, F, torch.nn.functional."""
    return ast.unparse(node) in ("torch", "F", "nn.functional", "torch.nn.functional")
