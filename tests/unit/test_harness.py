"""benchmarks/harness.py: every table's tasks are problems with kernels of ours; children that hang or break; a run on a
CPU from a table to a result file."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fakes.realisers import cuda
from tilewright.frontend.trace import trace
from tilewright.fusion import match

pytestmark = pytest.mark.each(3)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
tables: Any = importlib.import_module("tables")
subjects: Any = importlib.import_module("subjects")
sys.path.remove(str(BENCHMARKS))
EACH = {
    "transformers": 26,
    "convolutions": 7,
    "reduced": 12,
    "eight-bit": 9,
    "libraries": 20,
    "common": 20,
    "cpu": 64,
    "rows": 5,
}  # every so many


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("harness")


def some() -> Iterator[Any]:
    for name, table in tables.TABLES.items():
        yield from (pytest.param(task, id=f"{name}: {task.name}") for task in list(table())[:: EACH.get(name, 4)])


@pytest.mark.parametrize("task", list(some()))
def test_a_task_is_a_problem_that_kernels_of_ours_compute(task: Any, tmp_path: Path) -> None:
    """Traced without its tensors; `apart` and `algebra` are other candidates."""
    module, inputs = subjects.opened(task, "meta", tmp_path)
    made = list(subjects.ours(task, subjects.graph_of(task, module, inputs), subjects.Way(points=2)))
    kinds = {name.split()[0] for name, *_ in made}
    assert kinds == {"ours", *(["apart"] if task.apart else []), *(["algebra"] if task.algebra else [])}
    assert all(recipe for _, recipe, _ in made) and len({candidate.id for *_, candidate in made}) == len(made)


def test_names_are_told_apart() -> None:
    for table in tables.TABLES.values():
        names = [task.name for task in table()]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "operation", ["softmax", "layer norm", "rms norm", "add, rms norm", "swiglu", "gelu", "cross entropy"]
)
def test_common_operations_are_one_kernel_of_many_rows(operation: str) -> None:
    found = []
    for rows in (2048, 2064):
        names: dict[str, Any] = {}
        exec(tables.row(operation, rows, 64, tables.BF16).source, names)
        graph = trace(names["Model"](), tuple(names["get_inputs"]()), {})
        found.append(match(graph, unsupported=cuda.unsupported, space=cuda.space))
        assert not found[-1].unmatched
    one, other = (m.patterns for m in found)
    assert len(one) == len(other) == 1 + (operation == "cross entropy"), "a loss adds up what its rows gave"
    assert one[0].shape_class == other[0].shape_class, "a winner serves other numbers of rows, too"


def test_knobs_of_products_are_set_one_by_one() -> None:
    task = tables.linear(1, 4096, 4096, tables.BF16)
    with torch.device("meta"):
        names: dict[str, Any] = {}
        exec(task.source, names)
        graph = trace(names["Model"](), tuple(names["get_inputs"]()), {})
    made = list(subjects.ours(task, graph, subjects.Way(at="split_k=1,2 stages=auto,4")))
    assert [name for name, *_ in made] == [f"ours split_k={k} stages={s}" for k in (1, 2) for s in ("auto", 4)]
    assert [dict(recipe[0].point)["split_k"] for _, recipe, _ in made] == [1, 1, 2, 2]


def test_the_best_of_the_first_half_is_told_by_its_second() -> None:
    samples = {"eager": [4.0, 4.0, 6.0, 6.0], "ours 0": [2.0, 2.0, 3.0, 3.0], "ours 1": [3.0, 3.0, 1.0, 1.0]}
    found = subjects.told(samples)
    assert found["best"] == {"eager": "eager", "ours": "ours 0"} and found["us"] == {"eager": 6.0, "ours": 3.0}
    assert found["ratio"] == {"eager": [2.0, 2.0, 2.0]} and found["points_us"] == {"ours 0": 2.0, "ours 1": 3.0}


def test_wrong_results_are_told_from_last_bits() -> None:
    exact = torch.randn(64, 64, dtype=torch.float64)
    own = exact.float()
    off, limit = subjects.errors([own.clone()], [exact], [own])
    assert off <= limit
    off, limit = subjects.errors([own.half().float()], [exact], [own])
    assert off > limit
    codes = torch.zeros(1000, dtype=torch.int8)
    off, limit = subjects.errors([codes + 1], [codes], [codes])
    assert off > limit


_SERVES = """
import json, os, sys, time
for line in sys.stdin:
    name = line.strip()
    if name == "hangs":
        time.sleep(600)
    if name == "breaks":
        os._exit(1)
    print(json.dumps({"problem": name, "by": os.getpid()}), flush=True)
"""


def test_a_child_answers_one_after_another_and_begins_anew_after_what_hangs_or_breaks(script: ModuleType) -> None:
    child = script.Child([sys.executable, "-c", _SERVES])
    one, two = (json.loads(child.ask(name, 120.0)) for name in ("a", "b"))
    assert (one["problem"], two["problem"]) == ("a", "b") and one["by"] == two["by"]
    assert child.ask("hangs", 0.2) is None
    three = json.loads(child.ask("c", 120.0))
    assert three["problem"] == "c" and three["by"] != one["by"]
    assert child.ask("breaks", 120.0) == ""
    assert json.loads(child.ask("d", 120.0))["problem"] == "d"
    child.end()


def test_a_child_is_heard_beside_a_thousand_open_files(script: ModuleType) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    child = script.Child([sys.executable, "-c", _SERVES])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        with ExitStack() as files:
            for _ in range(1100):  # select() takes numbers below 1024
                files.enter_context(open(os.devnull))
            assert json.loads(child.ask("a", 120.0))["problem"] == "a"
    finally:
        child.end()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_tasks_of_a_table_are_written_as_problem_files(script: ModuleType, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["harness.py", "layers", "--only", "gpt2:gelu", "--write", str(tmp_path)])
    assert script.main() == 0
    names = sorted(f.name for f in tmp_path.iterdir())
    assert names == [f"{n}_fused_gpt2_gelu_{rows}_bf16.py" for n, rows in ((1, 1), (2, 1024), (3, 8192))]
    assert "class Model(torch.nn.Module)" in (tmp_path / names[0]).read_text()


@pytest.mark.slow
def test_a_table_becomes_a_result_file_on_a_cpu(
    script: ModuleType, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    file, made = tmp_path / "found.json", tmp_path / "problems"
    made.mkdir()
    (made / "1_swiglu.py").write_text(tables.row("swiglu", 64, 256).source)
    (made / "2_broken.py").write_text("raise ValueError('no problem')\n")
    words = [str(made), "--target", "cpu", "--rounds", "2", "--without", "compile", "--jobs", "1", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["harness.py", *words])
    assert script.main() == 1, "one of the two has no result"
    right, broken = json.loads(file.read_text())["tasks"]
    assert right["us"].keys() == {"eager", "ours"} == right["error"].keys() and right["error"]["ours"] < 1e-6
    assert "no problem" in broken["failures"][""]
    assert "eager / ours: geometric mean" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["harness.py", "--show", str(file)])
    assert script.main() == 0 and "| 1_swiglu | " in capsys.readouterr().out
