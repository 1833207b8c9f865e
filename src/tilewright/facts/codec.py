"""Facts to JSON and back: every frozen dataclass of this package, tagged by its name; sequences become tuples."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .older import Product, broadcast, contracted, was_guess

T = TypeVar("T")

_MODULES = (
    "..ir.program", "..ir.access", ".space", ".candidate", ".profile", ".outcome", ".tensor", ".problem", ".machine",
    ".pattern", ".discovery", ".dialogue", ".move", "..ir.graph", ".segment", ".realised", ".run", ".audit", ".winner",
    ".demand", ".order", ".document", ".rule", ".verdict", ".gradients", ".ticket", ".lesson",
    "..ir.recurrence",
)  # fmt: skip


# Names of journals of format 4, which this version reads, and the next need not.
_OLD_CLASSES: dict[str, str] = {
    "Site": "Match", "Piece": "Subproblem", "Shirk": "DegenerateSolution", "Brief": "SearchContext",
    "Spread": "InputStatistics", "Step": "StatementOfGraph",
}  # fmt: skip
_OLD_FIELDS: dict[str, str] = {
    "sites": "matches", "shirks": "degenerate_solutions", "loose": "allow_tf32", "brief": "context",
    "piece": "subproblem",
}  # fmt: skip
_OLD_KNOBS = {"residence": "row_storage", "spread": "cta_split"}


@cache
def _classes() -> dict[str, type]:
    found: dict[str, type] = {}
    for name in _MODULES:
        module = import_module(name, __package__)
        for value in vars(module).values():
            if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__:
                found[value.__name__] = value
    return found


def to_plain(value: Any) -> Any:
    """A tree of dicts, lists and scalars that `json.dumps` takes; raises TypeError on anything that is not a fact."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, tuple | list):
        return [to_plain(v) for v in value]
    if type(value).__name__ in _classes():
        return {"$": type(value).__name__} | {
            f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    raise TypeError(f"not a fact: {type(value).__name__}")


_SCALARS = frozenset({str, int, float, bool, type(None)})


def from_plain(tree: Any) -> Any:
    """The inverse of `to_plain`, and of what journals of format 4 hold; raises KeyError on an unknown tag and TypeError
    on fields that do not fit."""
    if isinstance(tree, list):
        if len(tree) == 2 and isinstance(tree[0], str) and tree[0] in _OLD_KNOBS:
            return (_OLD_KNOBS[tree[0]], from_plain(tree[1]))
        values = tuple([v if v.__class__ in _SCALARS else from_plain(v) for v in tree])
        knobs = bool(tree) and isinstance(tree[0], list)
        older = knobs and any(isinstance(v, list) and v[:1] == ["residence"] for v in tree)
        return tuple(sorted(values)) if older else values
    if isinstance(tree, dict):
        tag: str = tree["$"]
        fields: dict[Any, Any] = {
            _OLD_FIELDS.get(k, k): v if v.__class__ in _SCALARS else from_plain(v) for k, v in tree.items() if k != "$"
        }
        if tag == "Knob":
            fields["name"] = _OLD_KNOBS.get(str(fields["name"]), fields["name"])
        if tag == "Operand" and "each" in fields:
            fields["at"] = broadcast(fields.pop("each"), fields["shape"])
        if tag == "Product":
            return Product(**fields)
        if tag == "Program" and any(isinstance(item, Product) for item in fields.get("body", ())):
            fields["body"] = contracted(fields["body"], fields["operands"], fields["domain"])
        if tag == "Pattern" and "guess" not in tree["space"]:
            fields["space"] = replace(fields["space"], guess=was_guess(fields["kind"], fields["program"]))
        return _classes()[_OLD_CLASSES.get(tag, tag)](**fields)
    return tree


def dumps(value: Any) -> str:
    return json.dumps(to_plain(value), separators=(",", ":"))


def loads(text: str) -> Any:
    return from_plain(json.loads(text))


def read(text: str, kind: type[T]) -> T:
    """A fact of this kind, or of a union of kinds, from foreign text; ValueError on anything else, all through."""
    try:
        value = loads(text)
        fitting = fits(value, kind)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}"[:200]) from None
    if not fitting:
        raise ValueError(f"not a {getattr(kind, '__name__', 'fact of these kinds')}")
    return value  # type: ignore[no-any-return]


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of this type, and all that it holds of the types that its fields name."""
    return _check(hint)(value)


@cache
def _check(hint: Any) -> Callable[[object], bool]:
    """What `fits` asks of a value, made once for each type: a journal holds values by the hundred thousand."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin is Literal:
        return lambda value: any(type(value) is type(a) and value == a for a in arguments)
    if origin in (Union, UnionType):
        any_of = tuple(map(_check, arguments))
        return lambda value: any(check(value) for check in any_of)
    if origin is tuple and arguments[-1:] == (...,):
        each = _check(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    if origin is tuple:
        in_turn = tuple(map(_check, arguments))
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(in_turn)
            and all(check(v) for check, v in zip(in_turn, value, strict=True))
        )
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return lambda value: type(value) is hint and all(check(getattr(value, n)) for n, check in _fields(hint))
    if hint is float:
        return lambda value: type(value) in (int, float)
    return lambda value: type(value) is hint


@cache
def _fields(fact: type) -> tuple[tuple[str, Callable[[object], bool]], ...]:
    return tuple((name, _check(hint)) for name, hint in get_type_hints(fact).items())
