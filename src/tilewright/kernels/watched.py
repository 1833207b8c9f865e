"""What must be as it is now for a fused call to stand for a module: asked at each call, by identity."""

from __future__ import annotations

import gc
import types
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn


class Watched:
    """`same`, the value under a key of a mapping; `sizes`, mappings that get no more keys; `keys`, those that stay in a
    mapping under any value; `ordered`, mappings whose values stay in order; `attributes` of what is no mapping;
    `contents` of what has no attributes; `types`, modules and their classes; `empty`, mappings, and the key under which
    each has an empty one; `versions`, tensors that nobody writes to. `settled`: dictionaries, by identity, to which a
    program seldom writes between two calls. `tensors`: by path, the mapping and the key of each parameter and buffer;
    `shared`: paths of those that have several. `kept` holds what the identities belong to."""

    def __init__(self) -> None:
        self.tensors: dict[str, tuple[Any, str]] = {}
        self.same: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}
        self.sizes: list[tuple[Any, int]] = []
        self.empty: list[tuple[Any, str]] = []
        self.versions: list[tuple[Tensor, int]] = []
        self.types: list[tuple[nn.Module, type]] = []
        self.ordered: list[dict[str, nn.Module | None]] = []
        self.keys: list[tuple[Any, str]] = []
        self.attributes: list[tuple[Any, str, Any]] = []
        self.contents: list[tuple[Any, Any]] = []
        self.settled: dict[int, dict[Any, Any]] = {}
        self.shared: set[str] = set()
        self.kept: list[Any] = []
        self._spaces: dict[type, Any] = {}

    def value(self, mapping: Any, key: Any, value: Any) -> None:
        self.same[id(mapping), key] = mapping, key, value

    def space_of(self, owner: type) -> Any:
        """What a class holds; each look at it makes a new proxy."""
        if owner not in self._spaces:
            self._spaces[owner] = behind(vars(owner))
            self.settle(self._spaces[owner])
        return self._spaces[owner]

    def settle(self, mapping: Any) -> None:
        if type(mapping) is dict:
            self.settled[id(mapping)] = mapping

    def checks(self, free: Collection[str]) -> list[tuple[Any, Any, Any]]:
        """What must be the same; `free`: paths of tensors that may be replaced by their like."""
        places = (self.tensors[path] for path in free if path in self.tensors and path not in self.shared)
        without = {(id(mapping), key) for mapping, key in places}
        return [triple for place, triple in self.same.items() if place not in without]


def behind(proxy: types.MappingProxyType[Any, Any]) -> Any:
    """The dictionary that a class shows through a proxy: a look at it takes half the time."""
    found = gc.get_referents(proxy)
    return found[0] if len(found) == 1 and type(found[0]) is dict and found[0].keys() == proxy.keys() else proxy
