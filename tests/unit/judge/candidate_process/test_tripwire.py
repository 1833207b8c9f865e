"""What was replaced under the cell is found."""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import signal
import sys
import threading
import warnings
import zipimport
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tilewright.judge.candidate_process.load import CodeRaised
from tilewright.judge.candidate_process.session import CandidateSession
from tilewright.judge.candidate_process.tripwire import Tripwire, own_modules


@pytest.fixture
def registered() -> Callable[[str, str], torch.library.Library]:
    def register(operator: str, key: str) -> torch.library.Library:
        def other(place: Tensor, *rest: object) -> Tensor:
            return place

        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl(operator, other, key)
        return library

    return register


def test_another_copy_in_torchs_dispatcher_is_found_and_another_gelu_is_nobodys_business(
    registered: Callable[[str, str], torch.library.Library],
) -> None:
    wire = Tripwire(CandidateSession("cpu"), own_modules())
    wire.check()
    kept = registered("gelu", "CPU")
    try:
        wire.check()
    finally:
        kept._destroy()
    for operator in ("copy_", "clone"):
        library = registered(operator, "CPU")
        try:
            with pytest.raises(CodeRaised, match=f"aten::{operator}") as caught:
                wire.check()
        finally:
            library._destroy()
        assert caught.value.reason == "tampering"
    wire.check()


class _Finder:
    def find_spec(self, *rest: object) -> None:
        return None


def _hears(*_: object) -> None:
    return None


def _hears_of_collections() -> Callable[[], None]:
    gc.callbacks.append(_hears)
    return lambda: gc.callbacks.remove(_hears)


def _finds_modules() -> Callable[[], None]:
    finder = _Finder()
    sys.meta_path.append(finder)
    return lambda: sys.meta_path.remove(finder)


def _finds_paths() -> Callable[[], None]:
    sys.path_hooks.append(_hears)
    return lambda: sys.path_hooks.remove(_hears)


def _hears_of_finalizers() -> Callable[[], None]:
    before, sys.unraisablehook = sys.unraisablehook, _hears
    return lambda: setattr(sys, "unraisablehook", before)


def _profiles_new_threads() -> Callable[[], None]:
    threading.setprofile(_hears)
    return lambda: threading.setprofile(None)  # type: ignore[arg-type]


def _leaves_a_timer() -> Callable[[], None]:
    signal.setitimer(signal.ITIMER_REAL, 600.0)
    return lambda: signal.setitimer(signal.ITIMER_REAL, 0.0) and None


def _imports_otherwise() -> Callable[[], None]:
    before, builtins.__import__ = builtins.__import__, lambda *rest, **named: before(*rest, **named)
    return lambda: setattr(builtins, "__import__", before)


def _handles_natively() -> Callable[[], None]:
    libc, before = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    libc.sigaction(signal.SIGUSR2, None, before)
    libc.signal(signal.SIGUSR2, NATIVE)
    return lambda: libc.sigaction(signal.SIGUSR2, before, None)


NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: None)


@pytest.mark.parametrize(
    "leave",
    [
        _hears_of_collections, _finds_modules, _finds_paths, _hears_of_finalizers, _profiles_new_threads,
        _leaves_a_timer, _imports_otherwise, _handles_natively,
    ],
)  # fmt: skip
def test_what_calls_back_between_requests_is_found(leave: Callable[[], Callable[[], None]]) -> None:
    wire = Tripwire(CandidateSession("cpu"), own_modules())
    wire.check()
    undo = leave()
    try:
        with pytest.raises(CodeRaised) as caught:
            wire.check()
    finally:
        undo()
    assert caught.value.reason == "tampering"
    wire.check()


def test_what_is_installed_may_listen() -> None:
    wire = Tripwire(CandidateSession("cpu"), own_modules())
    gc.callbacks.append(json.dumps)
    sys.meta_path.append(zipimport.zipimporter)  # type: ignore[arg-type]
    try:
        wire.check()
    finally:
        gc.callbacks.remove(json.dumps)
        sys.meta_path.remove(zipimport.zipimporter)  # type: ignore[arg-type]


def test_a_tracer_on_the_thread_that_looks_is_found() -> None:
    wire, found = Tripwire(CandidateSession("cpu"), own_modules()), []

    def look() -> None:
        sys.setprofile(_hears)
        try:
            wire.check()
        except CodeRaised as error:
            found.append(error.reason)
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == ["tampering"]


def test_modules_that_are_put_away_already_are_no_reason_to_watch_none() -> None:
    with pytest.raises(RuntimeError, match="put away"):
        Tripwire(CandidateSession("cpu"), ())
