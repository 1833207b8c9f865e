"""What is left out of `make test` is little of each kind, and all of it runs by one command."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from thinning import with_each_value

ROOT = Path(__file__).parents[2]


def test_each_value_is_shown_by_few() -> None:
    given = [{"a": a, "b": b} for a, b in itertools.product("xyz", (1, 2, 3, 4))]
    chosen = with_each_value(given)
    assert len(chosen) == 4 and chosen[0] == 0
    for name in "ab":
        assert {given[place][name] for place in chosen} == {one[name] for one in given}
    assert with_each_value([{"a": [1]}, {"a": [1]}]) == [0], "what is equal is shown once"


def test_one_command_leaves_nothing_out_but_the_proofs() -> None:
    """And the run of each time leaves out those and what is marked `thorough` alone."""
    makefile, settings = (ROOT / "Makefile").read_text(), (ROOT / "pyproject.toml").read_text()
    (each_time,) = re.findall(r'"-m", "([^"]*)"', settings)
    assert each_time == "not proof and not thorough"
    commands = dict(re.findall(r"^([a-z-]+): .*\n((?:\t.*\n)*)", makefile, re.MULTILINE))
    assert "-m" not in commands["test"].partition("$(TESTS)")[2]
    assert commands["thorough"].endswith('$(TESTS) -m "not proof"\n')
    assert commands["museum"].endswith('tests/cheats -m "not proof"\n')
