"""What Fused does where a launch of all its CTAs at once is too large for the device; launches are fakes."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from tilewright.kernels.cuda.launch import Fused

from .test_cuda_plan import spec_of

MESSAGES = ("CUDA Error Code: 720", "error: cudaErrorCooperativeLaunchTooLarge (error code: 720)")


class Operand:
    """What Fused asks of a tensor on a GPU."""

    shape, dtype, is_cuda, device = (8, 1024), torch.float32, True, torch.device("cpu")

    def stride(self):
        return (1024, 1)

    def data_ptr(self):
        return 4096

    def get_device(self):
        return 0


def fused_that(monkeypatch, fails):
    """A Fused whose launches by teams raise what `fails` makes, and the ways in which it launched."""
    facts = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    fused, ways = Fused(spec_of((8, 1024), (1,)), lambda *_: None, {}), []

    def launch(strides, alignments, device):
        spread = "grid" if device.teams else "split"

        def run(*tensors):
            ways.append(spread)
            if device.teams:
                raise fails()

        return run, SimpleNamespace(plan=SimpleNamespace(spread=spread), work_bytes=64, zeroed=device.teams)

    monkeypatch.setattr(fused, "launch", launch)
    return fused, ways


@pytest.mark.parametrize("message", MESSAGES)
def test_rows_are_read_again_and_it_is_said_once(monkeypatch, message):
    fused, ways = fused_that(monkeypatch, lambda: RuntimeError(message))
    with pytest.warns(UserWarning, match="can't hold all CTAs at once"):
        fused(Operand())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fused(Operand())
    assert ways == ["grid", "split", "split"]


def test_other_errors_are_not_hidden(monkeypatch):
    fused, ways = fused_that(monkeypatch, lambda: RuntimeError("CUDA Error Code: 700"))
    with pytest.raises(RuntimeError, match="700"):
        fused(Operand())
    assert ways == ["grid"]
