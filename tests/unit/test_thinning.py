"""What is left out of `make test` is little of each kind, and all of it runs by one command."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from thinning import crossed, with_each_value

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]


def test_each_value_is_shown_by_few() -> None:
    given = [{"a": a, "b": b} for a, b in itertools.product("xyz", (1, 2, 3, 4))]
    chosen = with_each_value(given)
    assert len(chosen) == 4 and chosen[0] == 0
    for name in "ab":
        assert {given[place][name] for place in chosen} == {one[name] for one in given}
    assert with_each_value([{"a": [1]}, {"a": [1]}]) == [0], "what is equal is shown once"


def test_combinations_are_told_from_pairs() -> None:
    assert crossed([{"a": a, "b": b} for a, b in itertools.product("xy", (1, 2, 3))])
    assert not crossed([{"a": "x", "b": 1}, {"a": "y", "b": 2}, {"a": "z", "b": 2}])
    assert not crossed([{"a": a, "b": 1} for a in "xyz"]) and not crossed([])


@pytest.mark.parametrize(
    ("mark", "kept"), [("each(3)", "a0 a3 a6 b"), ("few(1)", "a1 b"), ("few", "a0 a1 a2 a3 a4 a5 a6 b")]
)
def test_of_the_sets_of_a_test_few_run_each_time(mark: str, kept: str, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from thinning import thin_out\ndef pytest_collection_modifyitems(items): thin_out(items)")
    pytester.makepyfile(
        f"import pytest\n@pytest.mark.{mark}\n@pytest.mark.parametrize('n', range(7))\n"
        "def test_a(n): print(f'a{n}', end=' ')\ndef test_b(): print('b')"
    )
    done = pytester.runpytest_inprocess("-q", "-s", "-p", "no:cacheprovider", "-m", "not thorough", "-W", "ignore")
    assert [w.strip(".") for w in done.outlines[0].replace(".", " ").split() if w[0] in "ab"] == kept.split()


def test_one_command_leaves_nothing_out_but_the_proofs() -> None:
    """And the run of each time leaves out those and what is marked `thorough` alone."""
    makefile, settings = (ROOT / "Makefile").read_text(), (ROOT / "pyproject.toml").read_text()
    (each_time,) = re.findall(r'"-m", "([^"]*)"', settings)
    assert each_time == "not proof and not thorough"
    commands = dict(re.findall(r"^([a-z-]+): .*\n((?:\t.*\n)*)", makefile, re.MULTILINE))
    assert "-m" not in commands["test"].partition("$(TESTS)")[2]
    assert commands["thorough"].endswith('$(TESTS) -m "not proof"\n')
    assert commands["museum"].endswith('tests/cheats -m "not proof"\n')
