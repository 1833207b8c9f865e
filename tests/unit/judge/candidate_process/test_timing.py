"""What a timed call returned is kept as it was when the clock stopped."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import signal
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tilewright.judge.candidate_process import hooks, timing
from tilewright.judge.candidate_process.load import CodeRaised
from tilewright.judge.candidate_process.timing import Sample, Scatter, Timer, as_it_is
from tilewright.judge.wire import calls as wire


def test_a_small_result_is_copied_into_the_copy_before() -> None:
    x = torch.randn(100, 7)
    first = as_it_is((x, x[:, 0]), ()).copies
    again = as_it_is((x + 1, x[:, 0] + 1), first).copies
    assert all(isinstance(c, torch.Tensor) for c in again)
    assert [c.data_ptr() for c in again] == [c.data_ptr() for c in first]  # type: ignore[union-attr]
    torch.testing.assert_close(again[0], x + 1)


def test_of_a_large_result_parts_are_kept_that_go_back_to_their_places() -> None:
    x = torch.arange(3000 * 4001, dtype=torch.float32).view(3000, 4001)
    (sample,) = as_it_is(x, ()).copies
    assert isinstance(sample, Sample)
    assert sample.values.numel() == 1024 * 64
    place = torch.full_like(x, -1.0)
    sample.put_into(place)
    kept = place != -1.0
    assert int(kept.sum()) == sample.values.numel()
    assert torch.equal(place[kept], x[kept])
    assert bool(kept.view(-1)[-2 * sample.step :].any()), "the end is filled last"
    starts = {s.start for _ in range(8) if isinstance(s := as_it_is(x, ()).copies[0], Sample)}
    assert len(starts) > 1


def test_of_what_is_large_and_out_of_order_single_elements_are_kept() -> None:
    x = torch.arange(3000 * 4001, dtype=torch.float32).view(3000, 4001)
    (scatter,) = as_it_is(x.T, ()).copies
    assert isinstance(scatter, Scatter)
    place = torch.full((4001, 3000), -1.0)
    scatter.put_into(place)
    kept = place != -1.0
    assert 4000 < int(kept.sum()) <= 4096
    assert torch.equal(place[kept], x.T[kept])


class Later(torch.Tensor):
    pass


def test_what_becomes_of_a_result_later_is_not_seen() -> None:
    x = torch.ones(3)
    result: Any = {"a": x, "b": torch.ones(2).as_subclass(Later)}
    seen = as_it_is(result, ())
    result["b"].__class__ = torch.Tensor
    result["c"] = x
    assert seen.kinds == ("torch.Tensor", "Later") and len(seen.tensors) == 2 and "'c'" not in str(seen.tree)
    assert isinstance(seen.copies[0], torch.Tensor) and seen.copies[1] is None
    assert "object" in as_it_is({"a": object()}, ()).lack


def _traces() -> None:
    sys.settrace(lambda *_: None)


def _profiles() -> None:
    sys.setprofile(lambda *_: None)


def _handles() -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)


def _monitors() -> None:
    sys.monitoring.use_tool_id(3, "mine")  # type: ignore[attr-defined]  # Python 3.12


def _hooks_frames() -> None:
    from torch._dynamo.types import ConvertFrameReturn

    torch._C._dynamo.eval_frame.set_eval_frame(lambda *_: ConvertFrameReturn())


def _handles_natively() -> None:
    ctypes.CDLL(None).signal(signal.SIGSEGV, NATIVE)


NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: None)
LATER_PYTHON = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="needs Python 3.12")


@pytest.fixture(autouse=True)
def nothing_stays_on() -> Iterator[None]:
    libc, before = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    libc.sigaction(signal.SIGSEGV, None, before)
    yield
    libc.sigaction(signal.SIGSEGV, before, None)
    torch._C._dynamo.eval_frame.set_eval_frame(None)
    if hasattr(sys, "monitoring") and sys.monitoring.get_tool(3) == "mine":
        sys.monitoring.free_tool_id(3)


@pytest.mark.parametrize(
    "leave",
    [_traces, _profiles, _handles, _hooks_frames, _handles_natively, pytest.param(_monitors, marks=LATER_PYTHON)],
)
def test_what_calls_back_after_the_clock_is_refused(leave: Callable[[], None]) -> None:
    timer, before = Timer("cpu"), (sys.gettrace(), sys.getprofile(), signal.getsignal(signal.SIGALRM))
    timer.time(lambda: torch.ones(2), ())
    try:
        with pytest.raises(CodeRaised) as caught:
            timer.time(leave, ())
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
        signal.signal(signal.SIGALRM, before[2])
    assert caught.value.reason == "tampering"


def test_a_tool_of_python_312_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held by a stand-in where Python has no monitors; and where it has none, none are looked for."""
    held: dict[int, str] = {0: "a debugger"}
    monkeypatch.setattr(sys, "monitoring", types.SimpleNamespace(get_tool=held.get), raising=False)
    monkeypatch.setattr(hooks, "HOOKS", tuple(hooks._monitors()))
    found = hooks.Hooks()
    found.require_unchanged([hook() for hook in found.all])
    held[4] = "mine"
    with pytest.raises(CodeRaised, match="a monitor"):
        found.require_unchanged([hook() for hook in found.all])
    monkeypatch.delattr(sys, "monitoring")
    assert list(hooks._monitors()) == []


def test_a_librarys_own_word_of_a_crash_may_stay_on_and_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else calls beside it take milliseconds longer outside their clock, as if they worked there."""
    before = faulthandler.is_enabled()
    faulthandler.disable()
    looked_up: list[int] = []
    lies = hooks._lies_in_a_library
    monkeypatch.setattr(hooks, "_lies_in_a_library", lambda place: looked_up.append(place) or lies(place))
    try:
        timer = Timer("cpu")
        timer.time(partial(faulthandler.enable, sys.__stderr__), ())
        assert looked_up
        looked_up.clear()
        timer.time(lambda: None, ())
        assert looked_up == []
    finally:
        faulthandler.disable()
        if before:
            faulthandler.enable(sys.__stderr__)


def test_no_collection_comes_between_the_clock_and_the_copies() -> None:
    result = torch.ones(3)

    def changed(phase: str, info: dict[str, int]) -> None:
        result.zero_()

    def call() -> torch.Tensor:
        gc.callbacks.append(changed)
        gc.set_threshold(1)
        return result

    usual = gc.get_threshold()
    try:
        _, seen = Timer("cpu").time(call, ())
        gc.collect()
    finally:
        gc.callbacks.remove(changed)
        gc.set_threshold(*usual)
    (kept,) = seen.copies
    assert isinstance(kept, torch.Tensor) and kept.tolist() == [1.0] * 3 and result.tolist() == [0.0] * 3


def test_signals_that_nobody_handles_may_be_left_so() -> None:
    timer, before = Timer("cpu"), signal.getsignal(signal.SIGPIPE)
    try:
        for action in (signal.SIG_DFL, signal.SIG_IGN):
            timer.time(partial(signal.signal, signal.SIGPIPE, action), ())
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_calls_left_pending_with_the_interpreter_are_made_while_the_clock_runs() -> None:
    result, left = torch.zeros(1), [300]
    api = ctypes.pythonapi

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def later(_: int) -> int:
        left[0] -= 1
        if left[0]:
            api.Py_AddPendingCall(later, None)
        else:
            result.fill_(1.0)
        return 0

    def call() -> torch.Tensor:
        api.Py_AddPendingCall(later, None)
        return result

    clock, ends = timing._clock, []
    with patch.object(timing, "_clock", lambda: ends.append(float(result)) or clock()):
        Timer("cpu").time(call, ())
    assert ends == [0.0, 1.0]


@pytest.mark.parametrize(("threads_at_once", "tries"), [((2.0,), 1), ((1.0, 1.0, 1.9), 3), ((1.0,) * 99, 16)])
def test_threads_are_gathered_until_they_work_at_once(
    monkeypatch: pytest.MonkeyPatch, threads_at_once: tuple[float, ...], tries: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    timer, made = Timer("cpu"), 0

    def work(team: torch.Tensor) -> None:
        nonlocal made
        made += 1

    monkeypatch.setattr(timing, "_any", work)
    monkeypatch.setattr(timing, "_clock", lambda: 100_000 * made)
    monkeypatch.setattr(timing, "_cpu", lambda: int(sum(100_000 * n for n in threads_at_once[:made])))
    timer.prepare(None, (), wire.TimedCall(slot=0, swaps=()))
    assert made == tries


def test_one_thread_needs_no_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(timing, "_any", lambda team: pytest.fail("nobody else is there"))
    Timer("cpu").prepare(None, (), wire.TimedCall(slot=0, swaps=()))
