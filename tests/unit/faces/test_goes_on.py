"""A run of the Python interface that was stopped: what is raised names its folder, and the same call goes on there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tilewright
from tilewright.edges.sandbox.strain import Strain
from tilewright.faces import api
from tilewright.facts.outcome import Timed
from tilewright.facts.run import Request
from tilewright.run.evaluator import Evaluator

X = torch.randn(6, 16)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("call", ["optimize", "evaluate"])
def test_where_the_machine_is_too_busy_the_folder_and_the_way_on_are_told(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> None:
        raise tilewright.TooBusy("others had 2 of 2 processors", lasts=True)

    monkeypatch.setattr(api, "run", busy)
    monkeypatch.setattr(api, "judge_given", busy)
    given: tuple[Any, ...] = ([X],) if call == "optimize" else (tilewright.faces.api.Candidate(files=()), [X])
    with pytest.raises(tilewright.TooBusy, match="others had 2 of 2") as raised:
        getattr(tilewright, call)(nn.LayerNorm(16), *given, target="cpu", out=tmp_path / "run")
    assert raised.value.folder == tmp_path / "run" and raised.value.lasts
    assert str(raised.value).endswith(f"then {call}(..., out={str(tmp_path / 'run')!r}) goes on from there")


def test_other_faults_name_the_folder_in_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sick(*_: object, **__: object) -> None:
        raise tilewright.SickDevice("it is hot")

    monkeypatch.setattr(api, "run", sick)
    with pytest.raises(tilewright.HarnessError) as raised:
        tilewright.optimize(nn.LayerNorm(16), [X], target="cpu", out=tmp_path / "run")
    assert str(tmp_path / "run") in raised.value.__notes__[0]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + nn.functional.mish(y - 0.1 * y * y.abs())


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.measured
@pytest.mark.usefixtures("own_cache", "haste")
def test_the_same_call_goes_on_and_gives_the_module_for_all_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, module = tmp_path / "run", Block().eval()
    examples = [[torch.randn(64, 768)], [torch.randn(4, 16, 768)]]
    tries = 0

    def stopped(*args: Any, **kwargs: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise tilewright.HarnessError("stopped")
        return perform(*args, **kwargs)

    perform = Evaluator.perform
    monkeypatch.setattr(Evaluator, "perform", stopped)
    monkeypatch.setattr(Strain, "starves", lambda *_, **__: False)  # what is asked here is not how fast it is
    monkeypatch.setattr(Timed, "faster_than", lambda *_, **__: True)
    settings: dict[str, Any] = {"target": "cpu", "out": out, "budget": "600s", "timing": "0.2s", "compiled": False}
    with pytest.raises(tilewright.HarnessError, match="stopped"):
        tilewright.optimize(module, examples, **settings)
    with pytest.raises(tilewright.UserError, match="another module"):
        tilewright.optimize(nn.LayerNorm(768), examples, **settings)
    found = tilewright.optimize(module, [[torch.randn_like(x)] for (x,) in examples], **settings)
    assert found.status == "improved", found.report
    made, said = tries, list[str]()
    again = tilewright.optimize(module, examples, say=said.append, **settings)
    assert again.status == "improved" and tries == made and again.report == found.report
    with torch.no_grad():
        for x in (*(x for (x,) in examples), torch.randn(100, 768)):
            torch.testing.assert_close(again.module(x), module(x), rtol=1e-5, atol=1e-5)
    assert again.fallbacks() == {}
    fused = tilewright.load(out)
    assert fused.__name__ == "ModelNew" and fused is not type(again.module)
    assert tilewright.load(out / "candidate")().state_dict().keys() == module.state_dict().keys()


@pytest.mark.parametrize("mode", [None, "training"])
def test_the_mode_is_the_problems(mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def run(request: Request, **_: object) -> None:
        judged.append(request.problem.mode)
        raise tilewright.HarnessError("enough")

    monkeypatch.setattr(api, "run", run)
    with pytest.raises(tilewright.HarnessError):
        tilewright.optimize(nn.LayerNorm(16), [X], target="cpu", out=tmp_path / "run", mode=mode)
    assert judged == [mode or "inference"]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.measured
@pytest.mark.usefixtures("own_cache", "haste")
def test_optimised_for_training_it_gives_gradients_by_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Strain, "starves", lambda *_, **__: False)
    monkeypatch.setattr(Timed, "faster_than", lambda *_, **__: True)
    module, x = Block(), torch.randn(64, 768)
    found = tilewright.optimize(
        module, [x], target="cpu", out=tmp_path / "run", budget="5s", timing="0.2s", compiled=False, mode="training"
    )
    assert found.status == "improved" and found.summary["mode"] == "training", found.report
    grads = []
    for one in (module, found.module):
        module.zero_grad()
        given = x.clone().requires_grad_()
        one(given).square().sum().backward()
        grads.append((given.grad, *(p.grad for p in module.parameters())))
    assert len(grads[0]) == 3 and found.fallbacks() == {}
    for theirs, ours in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
