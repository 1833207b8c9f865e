"""What Fused does where a launch of all its CTAs at once is too large for the device; launches are fakes."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tilewright.kernels.cuda.common.calls import fresh, lasting
from tilewright.kernels.cuda.common.spec import ArraySpec
from tilewright.kernels.cuda.rows.engine import SCRAP_BYTES
from tilewright.kernels.cuda.rows.launch import Fused

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

    def is_contiguous(self):
        return True


def fused_that(monkeypatch, fails):
    """A Fused whose launches by teams raise what `fails` makes, and the ways in which it launched."""
    facts = SimpleNamespace(
        major=9, minor=0, multi_processor_count=132, shared_memory_per_multiprocessor=228 << 10,
        max_threads_per_multi_processor=2048,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    fused, ways = Fused(spec_of((8, 1024), (1,)), lambda *_: None, {}), []

    def launch(strides, alignments, device, rows):
        cta_split = "grid" if device.teams else "split"

        def run(*tensors):
            ways.append(cta_split)
            if device.teams:
                raise fails()

        return run, SimpleNamespace(
            spec=fused.spec, plan=SimpleNamespace(cta_split=cta_split), work_bytes=64, zeroed=device.teams
        )  # fmt: skip

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


def fused_into(monkeypatch, outputs, *, work_bytes=8):
    """A Fused whose launches write down what they were given."""
    seen, prepared = [], []
    spec = spec_of((8, 1024), (1,))
    outs = tuple(ArraySpec(name=f"y{i}", dtype="f32", shape=shape) for i, (shape, _) in enumerate(outputs))
    fused = Fused(replace(spec, outputs=outs), lambda *_: None, {})
    makers = tuple(fresh(shape, dtype, torch.device("cpu")) for shape, dtype in outputs)
    scrap = torch.empty(work_bytes, dtype=torch.uint8) if work_bytes <= SCRAP_BYTES else None

    def prepare(operands):
        prepared.append([o.stride() for o in operands])
        return (
            lambda *tensors: seen.append(tensors), scrap, lambda operand: torch.zeros(work_bytes, dtype=torch.uint8),
            *makers,
        )  # fmt: skip

    monkeypatch.setattr(fused, "_prepare", prepare)
    return fused, seen, prepared


@pytest.mark.parametrize(
    ("outputs", "work_bytes"),
    [
        ((((8, 1024), torch.float32),), 8),
        ((((8, 1024), torch.float32),), 4096),
        ((((8, 1024), torch.bfloat16), ((8, 1), torch.int64)), 8),
        ((((8, 1024), torch.bfloat16), ((8, 1), torch.int64)), 4096),
    ],
)
def test_a_call_makes_fresh_outputs_and_the_workspace_that_the_launch_wants(monkeypatch, outputs, work_bytes):
    fused, seen, _ = fused_into(monkeypatch, outputs, work_bytes=work_bytes)
    x = torch.zeros(8, 1024)
    first, second = fused(x), fused.call(x)
    for made, given in zip((first, second), seen, strict=True):
        assert [(tuple(t.shape), t.dtype) for t in made] == list(outputs)
        assert given[0] is x and all(a is b for a, b in zip(given[1:-1], made, strict=True))
        assert given[-1].dtype == torch.uint8 and given[-1].numel() == work_bytes
        assert all(t.is_contiguous() for t in made)
    assert first[0].data_ptr() != second[0].data_ptr()


def test_a_layout_is_prepared_once_until_other_settings_are_wanted(monkeypatch):
    fused, seen, prepared = fused_into(monkeypatch, (((8, 1024), torch.float32),))
    whole = torch.zeros(9 * 1024 + 1)
    aligned, again, odd = whole[: 8 * 1024], whole[: 8 * 1024], whole[1 : 8 * 1024 + 1]
    for x in (aligned, again, odd, aligned):
        fused.call(x.view(8, 1024))
    assert len(seen) == 4 and len(prepared) == 2, "an address that is no multiple of 16 is another layout"
    fused.call(torch.zeros(1024, 8).t())
    assert prepared[2:] == [[(1, 8)]]
    fused.configure(unroll=2)
    fused.call(aligned.view(8, 1024))
    assert len(prepared) == 4


def test_what_a_first_call_keeps_is_allocated_beside_its_thread(monkeypatch):
    """A pool of CUDA graphs takes what the capturing thread allocates; inside a capture nothing else can be done."""
    threads: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for capturing in (False, True):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda capturing=capturing: capturing)
        assert lasting(lambda: threads.append(threading.get_ident()) or "made") == "made"
    assert threads[0] != threading.get_ident() == threads[1]
