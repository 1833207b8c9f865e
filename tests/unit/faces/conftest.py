"""A cache folder for each test that starts the command line: it knows this machine's rates, and no winner."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilewright.edges.gpu.machine import machine


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    machine("cpu", cache_dir=folder)
    return folder


@pytest.fixture
def own_cache(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured, tmp_path / "cache")
