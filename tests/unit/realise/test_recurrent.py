"""Recurrent layers for CUDA: what is taken and what refused, and the files, loaded without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fakes.fused import load_fused
from fakes.realisers import H200, cuda, gpu
from tilewright.facts.devices import DEVICES
from tilewright.frontend.trace import trace
from tilewright.fusion.recurrence import recurrences
from tilewright.fusion.region import Flow
from tilewright.ir.program import Program
from tilewright.realise import table
from tilewright.realise.realiser import Fit, Refused
from tilewright.realise.recurrent import renderer as recurrent


class Sequence(nn.Module):
    def __init__(self, kind: str, inputs: int, hidden: int, **options: Any) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(inputs, hidden, **options)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x)[0]
        return made


def program_of(kind: str, shape: tuple[int, int, int], hidden: int, **options: Any) -> Program:
    with torch.device("meta"):
        module, x = Sequence(kind, shape[-1], hidden, **options), torch.zeros(shape)
    ((program, _),), _ = recurrences(Flow(trace(module, (x,), {})), lambda program: None)
    return program


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPROVEN", frozenset())


def test_nothing_is_proposed_before_it_has_run_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "UNPROVEN", frozenset({"recurrent"}))
    answer = cuda.fits(program_of("GRU", (9, 4, 8), 32))
    assert isinstance(answer, Refused) and answer.why == "no GPU has run the kernel of recurrent yet"


@pytest.mark.usefixtures("proven")
def test_what_fits_and_what_does_not() -> None:
    assert isinstance(recurrent.fits(program_of("LSTM", (512, 10, 128), 256, num_layers=6), H200), Fit)
    assert isinstance(recurrent.fits(program_of("RNN", (9, 4, 8), 1024), H200), Fit)
    for program, device, why in (
        (program_of("GRU", (9, 4, 8), 32), DEVICES["a100"], "sm_90a"),
        (program_of("LSTM", (9, 4, 8), 1024), H200, "hold fewer"),
        (program_of("GRU", (1, 4, 8), 32), H200, "nothing recurs"),
    ):
        answer = recurrent.fits(program, device)
        assert isinstance(answer, Refused) and why in answer.why


@pytest.mark.usefixtures("proven")
def test_its_files_load_and_compile_all_that_a_call_needs(tmp_path: Path) -> None:
    program = program_of("GRU", (4, 20, 8), 32, num_layers=3, batch_first=True, bidirectional=True)
    assert cuda.unsupported(program) is None and cuda.digest(program) == "recurrent"
    fused = load_fused(program, tmp_path)._FUSED
    assert fused.variants() == [((True, False), True), ((True, False), False)]
    fused.prepare(gpu())
    assert len(fused.store.known) == 2
    with pytest.raises(ValueError, match="must be one of"):
        fused.configure(cluster=5)
    demand = fused.demand(132)
    assert demand["ctas"] == fused.plan.cluster * -(-4 // fused.plan.batch) * 2
