"""A live module as a problem file: a case for each set of examples, and whether two captures are of one module."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tilewright.edges.problems import read_problem
from tilewright.faces import capture
from tilewright.faces.capture import is_same, packages_of, write_problem

SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import nn
from tilewright.faces.capture import write_problem

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.gain, self.classes = nn.LayerNorm(8), 1.5, 8
    def forward(self, x):
        return torch.tanh(self.norm(x.view(-1, self.classes))) * self.gain

write_problem(Own(), [torch.randn(4, 8), 2.0], Path(sys.argv[1]))
"""


def captured(folder: Path, module: nn.Module, inputs: Sequence[Any]) -> tuple[Path, dict[str, Any]]:
    path = write_problem(module, inputs, folder)
    names: dict[str, Any] = {"__file__": str(path), "__name__": "captured"}
    exec(path.read_text(), names)
    return path, names


def test_the_packages_that_a_module_is_made_of_are_told_before_and_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "some").mkdir(parents=True)
    (tmp_path / "site" / "some" / "__init__.py").touch()
    for name in ("some/layers", "own"):
        (tmp_path / "site" / f"{name}.py").write_text("from torch import nn\nclass Scale(nn.ReLU): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    places = (*capture.installed_paths(), str(tmp_path / "site" / "some"))
    monkeypatch.setattr(capture, "installed_paths", lambda: places)
    layers, own = importlib.import_module("some.layers"), importlib.import_module("own")
    module = nn.Sequential(nn.Linear(8, 4), layers.Scale(), own.Scale())
    assert packages_of(module) == ("some.layers",)
    path, names = captured(tmp_path / "problem", module, [torch.randn(3, 8)])
    assert read_problem(path, target="cpu").imports == ("some.layers",)
    assert names["Model"]()(torch.randn(3, 8)).shape == (3, 4)


def test_each_set_of_examples_is_a_case(tmp_path: Path) -> None:
    path, names = captured(tmp_path, nn.Linear(8, 4), [[torch.randn(3, 8)], (torch.randn(5, 2, 8),)])
    assert read_problem(path, target="cpu").cases == ('{"example": 0}', '{"example": 1}')
    assert [names["get_inputs"](example=n)[0].shape for n in range(2)] == [(3, 8), (5, 2, 8)]
    assert names["get_init_inputs"](example=1) == []
    assert names["Model"]()(*names["get_inputs"](example=1)).shape == (5, 2, 4)


@pytest.mark.parametrize("inputs", [[torch.ones(3, 8)], (torch.ones(3, 8), 2.0, None), []])
def test_the_arguments_of_one_call_are_one_case(inputs: Sequence[Any], tmp_path: Path) -> None:
    path, names = captured(tmp_path, nn.Identity(), inputs)
    assert read_problem(path, target="cpu").cases == ('{"example": 0}',)
    assert len(names["get_inputs"]()) == len(inputs)


def test_masks_with_infinities_can_be_drawn(tmp_path: Path) -> None:
    mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf"))
    _, names = captured(tmp_path, nn.Identity(), [mask])
    (drawn,) = names["get_inputs"]()
    assert drawn.shape == (4, 4) and not drawn.isnan().any()


def test_one_module_is_known_again_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    texts = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        subprocess.run([sys.executable, str(script), str(folder)], check=True)
        texts.append((folder / "problem.py").read_text())
    assert texts[0] != texts[1] and is_same(*texts), "numbers of classes and moments of inputs differ, no more"
    script.write_text(SCRIPT.replace("torch.tanh", "torch.sin"))
    subprocess.run([sys.executable, str(script), str(tmp_path / "changed")], check=True)
    assert not is_same(texts[0], (tmp_path / "changed" / "problem.py").read_text())


def test_another_structure_or_another_shape_is_another_problem(tmp_path: Path) -> None:
    def text(module: nn.Module, *inputs: Any) -> str:
        return write_problem(module, inputs, tmp_path).read_text()

    x = torch.randn(3, 8)
    one = text(nn.Linear(8, 4), x, 2.0)
    assert is_same(one, text(nn.Linear(8, 4), torch.randn(3, 8), 2.0))
    for other in (
        text(nn.Linear(8, 5), x, 2.0), text(nn.Linear(8, 4).eval(), x, 2.0), text(nn.Linear(8, 4), x[:2], 2.0),
        text(nn.Linear(8, 4), x.double(), 2.0), text(nn.Linear(8, 4), x, 3.0), text(nn.Linear(8, 4), x), "x = 1",
    ):  # fmt: skip
        assert not is_same(one, other)


LOCKED = """
import threading
import torch
from torch import nn

LOCK = threading.Lock()

class Own(nn.Module):
    def forward(self, x):
        with LOCK:
            return torch.tanh(x)
"""
CAPTURE = """
import sys
from pathlib import Path
import torch
import {module}
from tilewright.faces.capture import write_problem
write_problem({module}.Own(), torch.ones(3), Path(sys.argv[1]))
"""


def test_what_cannot_travel_by_value_is_found_by_name_where_another_process_finds_it(tmp_path: Path) -> None:
    (tmp_path / "locked.py").write_text(LOCKED)

    def ran(text: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | more
        return subprocess.run(
            [sys.executable, "-c", text, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True
        )

    capture = CAPTURE.format(module="locked")
    refused = ran(capture, str(tmp_path / "problem"))  # found in the folder where it runs, as other processes do not
    assert "Own: cannot be sent to another process: cannot pickle '_thread.lock' object" in refused.stderr
    (other := tmp_path / "other").mkdir()
    (other / "locked.py").write_text("")
    another = ran(capture, str(tmp_path / "problem"), PYTHONPATH=str(other))  # `locked` would be another one there
    assert "cannot pickle '_thread.lock' object" in another.stderr
    taken = ran(capture, str(tmp_path / "problem"), PYTHONPATH=str(tmp_path))
    assert taken.returncode == 0, taken.stderr
    names: dict[str, Any] = {"__file__": str(tmp_path / "problem" / "problem.py"), "__name__": "captured"}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        exec((tmp_path / "problem" / "problem.py").read_text(), names)
        assert torch.equal(names["Model"]()(torch.ones(3)), torch.ones(3).tanh())
        sys.modules.pop("locked")
