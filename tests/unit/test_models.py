"""The benchmark of real modules: what is compared, and what is said of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import models
import zoo

RECORD: dict[str, Any] = {
    "name": "a", "status": "improved", "seconds": 12.0, "own_share": 0.5, "best": "default",
    "over_best": [1.1, 1.2, 1.3], "over_best_warm": [1.0, 1.1, 1.2],
    "against": {"eager": {"over_ours": [1.9, 2.0, 2.1]}, "default": {"over_ours": [1.1, 1.2, 1.3]}},
}  # fmt: skip
BEHIND = RECORD | {"name": "b", "over_best": [0.7, 0.8, 0.9], "seconds": 30.0}


class Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            x = x * 1.0
        return x


def test_the_best_of_the_others_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = zoo.Zoo(module=Slow(), args=(torch.ones(64),))
    monkeypatch.setattr(models, "compiled", lambda *_: iter([("default", lambda: None), ("other", "broke")]))
    found = models.compared(given, nn.Identity(), "cpu", modes=models.MODES, rounds=8, limit_s=1.0)
    assert found["best"] == "default" and found["failures"] == {"other": "broke"}
    assert found["against"]["eager"]["over_ours_warm"][1] > 5 > found["against"]["default"]["over_ours_warm"][1]


def test_a_step_of_training_gives_gradients_anew() -> None:
    layer = nn.Linear(4, 4)
    given = zoo.Zoo(module=layer, args=(torch.ones(2, 4),), training=True)
    call = models.call_of(given, layer)
    call()
    assert layer.weight.grad is not None
    first = layer.weight.grad.clone()
    call()
    torch.testing.assert_close(layer.weight.grad, first)


def test_what_is_said_of_all() -> None:
    lost = {"name": "c", "failures": {"": "its process broke off"}}
    said = list(models.summary([RECORD, BEHIND, lost]))
    assert said[0].endswith("geometric mean 0.980 of 2") and said[1] == "behind beyond noise: b"
    assert said[2].startswith("longest to a result: 30 s (b)") and said[3] == "without a result: c"
    table = "\n".join(models.markdown({"device": "d", "date": "x", "commit": "0" * 40, "command": "y",
                                       "tasks": [RECORD, lost]}))  # fmt: skip
    assert "| a | 2.00 [1.90, 2.10] | 1.20 [1.10, 1.30] | 1.10 [1.00, 1.20] | default | 12 | 50% |" in table
    assert "| c | no result |" in table


def test_the_zoo_holds_what_is_promised() -> None:
    names = list(zoo.MODELS)
    assert len(names) >= 20 and sum(n.startswith("training:") for n in names) >= 4
    assert sum(n.startswith("generate:") for n in names) >= 2
    built = zoo.MODELS["torch encoder, 2 layers of 128, 4x32, fp32"]()
    assert built.module(*built.args).shape == (4, 32, 128)
