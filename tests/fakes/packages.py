"""Packages that register realisers, as pip leaves them: code and metadata on the path, without a network."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "realiser_package" / "src"


def metadata(folder: Path, name: str, entry: str) -> Path:
    """A folder for the path that says that the package `name` registers this entry point."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[tilewright.realisers]\n{entry}\n")
    return folder


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, code: Path, name: str, entry: str) -> None:
    """Until the test ends, a package is there whose code lies in `code`."""
    for place in (code, metadata(folder, name, entry)):
        monkeypatch.syspath_prepend(str(place))
    importlib.invalidate_caches()
    module = entry.partition("=")[2].partition(":")[0].strip()
    monkeypatch.delitem(sys.modules, module, raising=False)
