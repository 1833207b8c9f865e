"""Of many tests that are alike, which run each time: the others are marked `thorough`, and run by `make thorough`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest


def thin_out(items: Sequence[pytest.Item]) -> None:
    """Of a test that is marked `few`, mark as `thorough` all sets of parameters but those at the places told; where
    none is told, all but as many as have each value of each parameter among them. Of what is left of a file marked
    `one_in(n)`, mark all but each n-th."""
    alike: dict[tuple[pytest.Item | None, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("few"):
            alike.setdefault((item.parent, item.originalname), []).append(item)  # type: ignore[arg-type]
    for found in alike.values():
        mark = found[0].get_closest_marker("few")
        places = mark.args if mark and mark.args else with_each_value([item.callspec.params for item in found])
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
