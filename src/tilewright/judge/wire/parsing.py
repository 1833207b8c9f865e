"""Messages as plain trees and back: what does not fit the type expected, field by field, is a WireError."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any


class WireError(Exception):
    """The other side sent something that is not a message, or closed the channel."""


@cache
def _hints(cls: type) -> dict[str, Any]:
    # By itself it would look the names up in `sys.modules`, where a candidate's cell has nothing of ours.
    return typing.get_type_hints(cls, cls.__init__.__globals__)  # type: ignore[misc]


def to_plain(value: Any) -> Any:
    """A tree for `json.dumps` of a message or of what is in one."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [to_plain(v) for v in value] if isinstance(value, tuple) else value


def parse(hint: Any, tree: Any) -> Any:
    """`tree` as a value of exactly the hinted type; WireError where it does not fit. bool is no int; int is a float."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        arms = typing.get_args(hint)
        if not isinstance(tree, list):
            raise WireError(f"a list was expected, not {type(tree).__name__}")
        if len(arms) == 2 and arms[1] is Ellipsis:
            return tuple(parse(arms[0], v) for v in tree)
        if len(arms) != len(tree):
            raise WireError(f"{len(arms)} items were expected, not {len(tree)}")
        return tuple(parse(a, v) for a, v in zip(arms, tree, strict=True))
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        raise WireError("unions do not travel")
    if dataclasses.is_dataclass(hint):
        hints = _hints(typing.cast(type, hint))
        if not isinstance(tree, dict) or set(tree) != set(hints):
            raise WireError(f"no {getattr(hint, '__name__', hint)}: {str(tree)[:100]}")
        return typing.cast(Any, hint)(**{k: parse(h, tree[k]) for k, h in hints.items()})
    if hint is float and type(tree) is int:
        return float(tree)
    if type(tree) is not hint:
        raise WireError(f"{getattr(hint, '__name__', hint)} was expected, not {type(tree).__name__}")
    return tree
