"""Calls that leave streams behind, told by what a driver says of recording them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tilewright.judge.candidate_process import looks as unjoined


@pytest.mark.parametrize(
    ("call_raises", "end_says", "leaves"),
    [
        ("", "", False), ("", "CUDA error: capturing stream has unjoined work", True),
        ("", "operation failed due to a previous error during capture", False), ("can't be recorded", "", False),
        ("it waits for the device", "CUDA error: capturing stream has unjoined work", True),
    ],
)  # fmt: skip
def test_what_the_driver_says_when_a_recording_ends(
    monkeypatch: pytest.MonkeyPatch, call_raises: str, end_says: str, leaves: bool
) -> None:
    seen = []

    class Graph:
        def capture_begin(self, *, capture_error_mode: str) -> None:
            seen.append("begin")

        def capture_end(self) -> None:
            seen.append("end")
            if end_says:
                raise RuntimeError(end_says)

    @contextlib.contextmanager
    def entered(stream: object) -> Iterator[None]:
        yield

    def call() -> None:
        seen.append("call")
        if call_raises:
            raise ValueError(call_raises)

    monkeypatch.setattr(unjoined.driver, "synchronize", lambda: None)
    monkeypatch.setattr(unjoined, "_Graph", Graph)
    monkeypatch.setattr(unjoined, "_Stream", object)
    monkeypatch.setattr(unjoined, "_entered", entered)
    assert unjoined.leaves_streams(call) == leaves
    assert seen == ["begin", "call", "end"]
