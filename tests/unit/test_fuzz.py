"""A share of the fuzz in every run: `python benchmarks/fuzz.py` does thousands of each kind."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
INPUTS = {"problems": 300, "configs": 300, "commands": 200, "journals": 200, "replies": 250, "candidates": 200,
          "messages": 250, "orders": 250}  # fmt: skip


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "benchmarks" / "fuzz.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module  # dataclasses look there for the types of their fields
    spec.loader.exec_module(module)
    return module


def test_every_kind_has_its_share(script: ModuleType) -> None:
    assert INPUTS.keys() == script.KINDS.keys()


@pytest.mark.parametrize("kind", INPUTS)
def test_bad_input_comes_to_a_value_or_a_line(script: ModuleType, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = script.counted(kind, range(INPUTS[kind]), seed=1)
    assert not found.faults, found.faults[0]
    assert found.lines + found.values == INPUTS[kind] and found.values, "some of it is valid still"


def test_a_fault_would_be_seen(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(dice: object, world: object) -> None:
        raise ZeroDivisionError("by nought")

    def chatty(dice: object, world: object) -> None:
        print("one\ntwo", file=sys.stderr)

    for act, said in ((broken, "ZeroDivisionError: by nought"), (chatty, "more than a line")):
        monkeypatch.setitem(script.KINDS, "problems", act)
        assert said in script.counted("problems", range(1), seed=0).faults[0]
