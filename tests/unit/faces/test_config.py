"""Settings: keys come from the environment first, then from a keyring; budgets are read in every unit."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tilewright.faces import config
from tilewright.facts.errors import UserError
from tilewright.facts.pattern import COMPILE_MODES
from tilewright.facts.run import Limits, Timing


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


def test_budgets_are_read_in_every_unit_together() -> None:
    assert config.budget("", usual_s=300.0) == (300.0, Limits())
    assert config.budget("90s", usual_s=300.0) == (90.0, Limits())
    found = config.budget("5usd, 2Mtokens,40calls,device:20m,1h", usual_s=300.0)
    assert found == (3600.0, Limits(usd=5.0, tokens=2_000_000, calls=40, device_s=1200.0))
    assert config.budget("$2.50,1call,1.5ktokens", usual_s=1.0) == (1.0, Limits(usd=2.5, tokens=1500, calls=1))
    assert config.budget("20tries", usual_s=1.0)[1].tries == 20 and config.budget("1 try", usual_s=1.0)[1].tries == 1


@pytest.mark.parametrize("text", ["soon", "5m,10m", "0calls", "0tries", "5eur", "device:", "5m,,", "-1usd"])
def test_a_budget_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--budget"):
        config.budget(text, usual_s=300.0)


@pytest.mark.parametrize(
    "text", ["90s", "3600s,2.5usd,2000000tokens,40calls,20tries,device:1200s", "300s,1calls", "60s,device:30s"]
)
def test_a_budget_is_written_as_it_is_read(text: str) -> None:
    assert config.budget_text(*config.budget(text, usual_s=1.0)) == text


def test_an_agent_takes_no_more_than_the_operator_gives() -> None:
    most = config.agents_terms("1h,20tries", timing=Timing(), sanitize=None, seed=0)
    assert (most.budget_s, most.limits) == (3600.0, Limits(tries=20))
    assert config.within(most, "") == most
    less = config.within(most, "10m,device:5m,3tries")
    assert (less.budget_s, less.limits) == (600.0, Limits(tries=3, device_s=300.0))
    assert config.within(most, "2h,50tries") == most
    with pytest.raises(UserError, match="can't be watched here; write 1h"):
        config.within(most, "5usd")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8765", ("127.0.0.1", 8765)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:0", ("::1", 0)),
        ("box-1:9", ("box-1", 9)),
    ],
)
def test_addresses_have_a_port_and_perhaps_a_host(text: str, found: tuple[str, int]) -> None:
    assert config.address(text) == found


@pytest.mark.parametrize("text", ["", "localhost", "1:2:3", "127.0.0.1:99999", "http://x:80"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="write 8765"):
        config.address(text)


NINES = "9" * 400


@pytest.mark.parametrize(
    "text", [NINES, NINES + "s", "nan", "inf", "-5", "1e9", "0", "0.0000001", "٣s", "9" * 12 + "h", ""]
)
def test_a_time_that_is_none(text: str) -> None:
    with pytest.raises(UserError) as told:
        config.seconds(text, "--timing")
    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        NINES + "usd",
        "$" + NINES,
        "999999999999999Mtokens",
        "0.5calls",
        "0.3tries",
        "nanusd",
        "-1usd",
        "device:" + NINES,
    ],
)
def test_a_budget_without_end_or_of_nothing_is_none(text: str) -> None:
    with pytest.raises(UserError) as told:
        config.budget(text, usual_s=1.0)
    assert len(str(told.value)) < 300


@pytest.mark.parametrize(
    "text", ["1-99999999999", NINES, "5-1", "1--2", "", "-", "٣", "1-999999,5-999999", "1," * 3 + "x"]
)
def test_numbers_without_end_are_refused(text: str) -> None:
    with pytest.raises(UserError) as told:
        config.numbers(text)
    assert len(str(told.value)) < 300


def test_modes_of_torch_compile_are_named_all_or_the_usual_ones() -> None:
    assert config.timed("2s", compiled="usual") == config.timed("2s", compiled=True) == Timing(budget_s=2.0)
    assert config.timed("6s", compiled=False) == Timing(compiled=False)
    assert config.timed("6s", compiled="all").modes == COMPILE_MODES
    assert config.timed("6s", compiled="default, max-autotune").modes == ("default", "max-autotune")
    with pytest.raises(UserError, match=r"--compile-modes: torch\.compile has no mode .fastest.; it has default, "):
        config.timed("6s", compiled="fastest")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("TILEWRIGHT_CONFIG", str(path))
    return path


@pytest.mark.parametrize(
    ("named", "asking", "meant"),
    [(None, True, "vllm:big"), (None, False, None), ("default", False, "vllm:big"), ("fast", False, "ollama:small"),
     ("openai:x", True, "openai:x"), ("unknown", True, "unknown")],
)  # fmt: skip
def test_a_users_own_model_and_aliases(mine: Path, named: str | None, asking: bool, meant: str | None) -> None:
    mine.write_text('model = "big"\n[aliases]\nbig = "vllm:big"\nfast = "ollama:small"\n')
    assert config.model_of(named, asking=asking) == meant


def test_without_a_file_of_settings_no_model_is_anybodys_own(mine: Path) -> None:
    assert config.model_of(None, asking=True) is None and not mine.exists()
    with pytest.raises(UserError, match=r"--model default: .*names none"):
        config.model_of("default", asking=False)


@pytest.mark.parametrize(
    "text", ["model = 3", "model = ", "modell = 'a:b'", "[aliases]\na = 3", "[aliases]\n'a:b' = 'c:d'", "aliases = 3",
             "[aliases]\na = 'nocolon'", "\xff"],
)  # fmt: skip
def test_a_file_of_settings_that_says_anything_else_is_the_users_to_mend(mine: Path, text: str) -> None:
    mine.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=str(mine)):
        config.model_of("fast", asking=False)
