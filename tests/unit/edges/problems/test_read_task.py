"""robust-kbench task folders: cases are products of settings, and every fault in a config names file, key and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.edges.problems import read_problem
from tilewright.facts.candidate import SourceFile
from tilewright.facts.errors import UserError
from tilewright.judge.build import load_candidate

MODULE = """
import torch

def forward_fn(x, scale):
    return x * scale

class Model(torch.nn.Module):
    def __init__(self, width=4, kind="ones"):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))

    def forward(self, x, fn=forward_fn):
        return fn(x, self.scale)

def get_inputs(rows=2, width=4):
    return [torch.rand(rows, width)]
"""
CONFIG: dict[str, Any] = {
    "single_init_configs": [{"kind": "ones"}],
    "single_input_configs": [{"rows": 8}],
    "single_shared_configs": [{"width": 16}],
    "multi_init_configs": [{"kind": "ones"}, {"kind": "twos"}],
    "multi_input_configs": [{"rows": 8}, {"rows": 3}],
    "multi_shared_configs": [{"width": 16}, {"width": 5}],
}


def task(folder: Path, *, sides: tuple[str, ...] = ("forward",), config: Any = CONFIG, module: str = MODULE) -> Path:
    folder.mkdir(exist_ok=True)
    for side in sides:
        (folder / f"func_{side}.py").write_text(module)
        (folder / f"config_{side}.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def test_cases_are_the_single_product_and_then_the_multi_product(tmp_path: Path) -> None:
    problem = read_problem(task(tmp_path / "scale"), target="cpu")
    assert (problem.name, problem.mode) == ("scale", "inference")
    assert problem.path == str(tmp_path / "scale" / "func_forward.py")
    cases = [json.loads(c) for c in problem.cases]
    assert cases[0] == {"init": {"kind": "ones", "width": 16}, "inputs": {"rows": 8, "width": 16}}
    found = [(c["init"]["kind"], c["inputs"]["rows"], c["init"]["width"]) for c in cases]
    assert sorted(found) == sorted((k, r, w) for k in ("ones", "twos") for r in (8, 3) for w in (16, 5))


def test_the_adapter_hands_settings_to_the_tasks_own_functions(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(read_problem(task(tmp_path), target="cpu").source, names)
    case = {"init": {"width": 3}, "inputs": {"rows": 5, "width": 3}}
    module = names["Model"](**names["get_init_inputs"](**case))
    assert module(*names["get_inputs"](**case)).shape == (5, 3)


def test_the_side_is_chosen_by_the_mode(tmp_path: Path) -> None:
    both = task(tmp_path / "both", sides=("forward", "backward"))
    assert read_problem(both, target="cpu").mode == "inference"
    assert read_problem(both, target="cpu", mode="training").path.endswith("func_backward.py")
    assert read_problem(task(tmp_path / "b", sides=("backward",)), target="cpu").mode == "training"
    with pytest.raises(UserError, match=r"no func_backward\.py, which --mode training needs"):
        read_problem(task(tmp_path / "f"), target="cpu", mode="training")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"not JSON: .* line 1"),
        ([1], r"must be an object of lists, not \[1\]"),
        (CONFIG | {"single_inputs": []}, "unknown key 'single_inputs'; known are single_init_configs"),
        (CONFIG | {"multi_init_configs": {"a": 1}}, "'multi_init_configs' must be a list of objects, not {\"a\": 1}"),
        (CONFIG | {"single_input_configs": [3]}, r"single_input_configs\[0\] must be an object of settings, not 3"),
        (CONFIG | {"single_init_configs": []}, "'single_init_configs' is empty"),
        ({k: v for k, v in CONFIG.items() if k != "single_shared_configs"}, "'single_shared_configs' is not there"),
        (CONFIG | {"multi_input_configs": [{}, {"row": 8}]},
         r"multi_input_configs\[1\]: 'row': 8 is no argument of get_inputs \(it takes rows, width\)"),
        (CONFIG | {"single_shared_configs": [{"rows": 8}]},
         r"single_shared_configs\[0\]: 'rows': 8 is no argument of Model \(it takes width, kind\)"),
    ],
)  # fmt: skip
def test_faults_of_a_config_name_file_key_and_value(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_problem(task(tmp_path, config=config), target="cpu")
    assert str(caught.value).startswith(f"{tmp_path / 'config_forward.json'}: ")
    assert "\n" not in str(caught.value)


def test_a_config_that_is_not_there_and_a_module_without_its_names(tmp_path: Path) -> None:
    (task(tmp_path / "a") / "config_forward.json").unlink()
    with pytest.raises(UserError, match=r"config_forward\.json: no such file"):
        read_problem(tmp_path / "a", target="cpu")
    with pytest.raises(UserError, match=r"func_forward\.py: no `get_inputs`"):
        read_problem(task(tmp_path / "b", module="class Model: pass"), target="cpu")


def test_a_kernel_is_wrapped_for_its_task(tmp_path: Path) -> None:
    problem = read_problem(task(tmp_path / "t", sides=("forward", "backward")), target="cpu")
    (tmp_path / "k.cu").write_text('m.def("forward", &forward);')
    candidate = load_candidate(tmp_path / "k.cu", problem)
    assert candidate.entry == "model.py"
    assert candidate.files[1:] == (
        SourceFile(path="task.py", text=problem.source),
        SourceFile(path="kernel.cu", text='m.def("forward", &forward);'),
    )
    training = read_problem(tmp_path / "t", target="cpu", mode="training")
    with pytest.raises(UserError, match="names no `backward`, which --mode training calls"):
        load_candidate(tmp_path / "k.cu", training)


def test_a_kernel_needs_a_task(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("class Model: pass\ndef get_inputs(): ...\ndef get_init_inputs(): ...")
    (tmp_path / "k.cu").write_text("forward")
    problem = read_problem(tmp_path / "p.py", target="cpu")
    with pytest.raises(UserError, match=r"whose Model\.forward takes `fn`"):
        load_candidate(tmp_path / "k.cu", problem)
