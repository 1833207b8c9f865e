"""Of many tests that are alike, which run each time: the others are marked `thorough`, and run by `make thorough`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest


def thin_out(items: Sequence[pytest.Item]) -> None:
    """Of a test that is marked `few`, mark as `thorough` all sets of parameters but those at the places told; where
    none is told, all but as many as have each value of each parameter among them. Of each test of a file marked
    `each(n)` leave each n-th set, and where parameters are crossed as many as have each value. Of what is left of a
    file marked `one_in(n)`, mark all but each n-th."""
    alike: dict[tuple[pytest.Item | None, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and (item.get_closest_marker("few") or item.get_closest_marker("each")):
            alike.setdefault((item.parent, item.originalname), []).append(item)  # type: ignore[arg-type]
    for found in alike.values():
        places = _places(found)
        for place, item in enumerate(found):
            if place not in places:
                item.add_marker(pytest.mark.thorough)
    left: dict[object, int] = {}
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark and not item.get_closest_marker("thorough"):
            left[item.path] = left.get(item.path, -1) + 1
            if left[item.path] % mark.args[0]:
                item.add_marker(pytest.mark.thorough)


def _places(alike: Sequence[pytest.Function]) -> Sequence[int]:
    """The places of the sets of parameters of a test that run each time."""
    few, each = (alike[0].get_closest_marker(name) for name in ("few", "each"))
    if few is not None and few.args:
        return few.args
    given = [item.callspec.params for item in alike if hasattr(item, "callspec")]
    if few is None and each is not None and not crossed(given):
        return range(0, len(alike), each.args[0])
    return with_each_value(given)


def crossed(given: Sequence[Mapping[str, object]]) -> bool:
    """Whether these are all combinations of the values of several parameters."""
    values = [{repr(one[name]) for one in given} for name in given[0]] if given else []
    return len(values) > 1 and len(given) == math.prod(map(len, values)) > max(map(len, values))


def with_each_value(given: Sequence[Mapping[str, object]]) -> list[int]:
    """The places of as few sets of parameters as show each value of each parameter: each next one adds most, the first
    of equals."""
    values = [{(name, repr(value)) for name, value in parameters.items()} for parameters in given]
    left, chosen = set().union(*values), []
    while left:
        best = max(range(len(given)), key=lambda place: len(values[place] & left))
        chosen.append(best)
        left -= values[best]
    return chosen
