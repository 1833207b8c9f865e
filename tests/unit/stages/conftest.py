"""Kernels in C++ are compiled in haste here."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_haste(request: pytest.FixtureRequest, hasty_compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of arithmetic that an optimiser might change are marked `optimised`."""
    monkeypatch.setenv("CXX", str(hasty_compiler))
    if request.node.get_closest_marker("optimised") is None:
        monkeypatch.setenv("TESTS_IN_HASTE", "1")
