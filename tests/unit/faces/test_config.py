"""Settings: keys come from the environment first, then from a keyring; budgets are read in every unit."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tilewright.faces import config


class Keyring(ModuleType):
    def __init__(self, kept: dict[tuple[str, str], str]) -> None:
        super().__init__("keyring")
        self.errors = ModuleType("keyring.errors")
        self.errors.KeyringError = RuntimeError  # type: ignore[attr-defined]
        self._kept = kept

    def get_password(self, service: str, name: str) -> str | None:
        if not self._kept:
            raise RuntimeError("no backend")
        return self._kept.get((service, name))


@pytest.mark.parametrize(("kept", "found"), [({("tilewright", "A_KEY"): "from the ring"}, "from the ring"), ({}, None)])
def test_keys_come_from_the_environment_first(
    monkeypatch: pytest.MonkeyPatch, kept: dict[tuple[str, str], str], found: str | None
) -> None:
    ring = Keyring(kept)
    monkeypatch.setitem(sys.modules, "keyring", ring)
    monkeypatch.setitem(sys.modules, "keyring.errors", ring.errors)
    for name in ("A_KEY", "B_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert config.key(("A_KEY", "B_KEY")) == found
    monkeypatch.setenv("B_KEY", "second")
    assert config.key(("A_KEY", "B_KEY")) == "second"
    monkeypatch.setenv("A_KEY", "first")
    assert config.key(("A_KEY", "B_KEY")) == "first"
