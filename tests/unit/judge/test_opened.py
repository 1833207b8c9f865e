"""What is opened once for a problem, and in which order."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.edges.gpu.machine import identity
from tilewright.facts.machine import Machine
from tilewright.facts.problem import Problem, Target
from tilewright.judge import opened
from tilewright.judge.opened import JudgeOptions, OpenProblem


def _opening(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[OpenProblem, list[str]]:
    """With cells that only tell what is asked of them."""
    problem = Problem(name="p", path=str(tmp_path / "p.py"), source="", target=target)
    found, said = (
        OpenProblem(
            problem,
            machine=replace(identity("cpu"), target=target),
            seed=0,
            workdir=tmp_path,
            say=lambda text: None,
            options=JudgeOptions(compile_baseline=False, trace=False),
        ),
        list[str](),
    )

    @contextmanager
    def turn(name: str) -> Any:
        yield

    cells: Any = SimpleNamespace(
        open=lambda: said.append("cells"), spares=SimpleNamespace(start=lambda: said.append("spare")),
        reference=SimpleNamespace(do=lambda request, **_: said.append("loading")),
        load_problem=lambda **_: "load",
    )  # fmt: skip
    monkeypatch.setattr(opened, "require_device", lambda target: None)
    found.cells, found.turns = cells, SimpleNamespace(turn=turn)  # type: ignore[assignment]
    found.patience = SimpleNamespace(begin=lambda: None, tell=lambda: None)  # type: ignore[assignment]
    found._case = lambda *_, **__: said.append("case")  # type: ignore[assignment, method-assign, func-returns-value]
    return found, said


def test_a_gpu_is_measured_while_packages_are_imported_and_before_the_module_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, said = _opening("cuda", tmp_path, monkeypatch)
    loading, measuring = threading.Event(), threading.Event()

    def load(request: object, **_: object) -> None:
        loading.set()
        assert measuring.wait(20.0), "the one does not wait for the other"
        said.append("loading")

    def rates(patience: object) -> Machine:
        assert loading.wait(20.0)
        measuring.set()
        said.append("measured")
        return identity("cpu")

    found.cells.reference.do = load  # type: ignore[method-assign, assignment]
    found.open(rates)  # type: ignore[arg-type]
    assert said[:2] == ["cells", "spare"] and set(said[2:4]) == {"loading", "measured"} and said[4:] == ["case"]
    assert found.machine == identity("cpu")


def test_a_cpu_is_measured_while_nothing_else_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = _opening("cpu", tmp_path, monkeypatch)
    found.open(lambda patience: said.append("measured") or identity("cpu"))
    assert said == ["cells", "loading", "case", "measured", "spare"]


def test_what_measuring_raises_ends_the_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = _opening("cuda", tmp_path, monkeypatch)

    def rates(patience: object) -> Machine:
        raise ValueError("no rates")

    with pytest.raises(ValueError, match="no rates"):
        found.open(rates)  # type: ignore[arg-type]
    assert "case" not in said
