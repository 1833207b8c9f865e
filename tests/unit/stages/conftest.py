"""C++ kernels of these tests are compiled in haste: 1.5 s of a processor each in the place of 3.7."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# What a process keeps as its compiler outlives the test that asked for it: haste is told by another variable.
_SCRIPT = """#!/bin/bash
[ -z "$TESTS_IN_HASTE" ] || set -- "${@/#-O3/-O1}"
exec %s "$@"
"""


@pytest.fixture(scope="session")
def hasty_compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("compiler") / "g++"
    script.write_text(_SCRIPT % os.environ.get("CXX", "g++"))
    script.chmod(0o755)
    return script


@pytest.fixture(autouse=True)
def haste(request: pytest.FixtureRequest, hasty_compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of arithmetic that an optimiser might change are marked `optimised`."""
    monkeypatch.setenv("CXX", str(hasty_compiler))
    if request.node.get_closest_marker("optimised") is None:
        monkeypatch.setenv("TESTS_IN_HASTE", "1")
