"""The table of rules, read from the package's own data."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from tilewright.facts.devices import ARCHITECTURES
from tilewright.facts.problem import Target
from tilewright.facts.rule import Example, Limit, Realisation, Rule


@cache
def rules() -> tuple[Rule, ...]:
    """In the order in which they are tried."""
    text = files(__package__).joinpath("rules.toml").read_text(encoding="utf-8")
    return tuple(_rule(**entry) for entry in tomllib.loads(text)["rule"])


def _rule(
    *, example: dict[str, Any], realised: list[dict[str, Any]], limits: list[dict[str, Any]] | None = None,
    feature: str = "", **entry: Any,
) -> Rule:  # fmt: skip
    """What the table does not know, or lacks, is a TypeError."""
    return Rule(
        feature=feature, example=Example(**_frozen(example)),
        realised=tuple(_realisation(**entry) for entry in realised),
        limits=tuple(_limit(**entry) for entry in limits or ()), **_frozen(entry),
    )  # fmt: skip


def _realisation(*, target: Target, **entry: Any) -> Realisation:
    return Realisation(target=target, **{"architectures": ARCHITECTURES[target], **_frozen(entry)})


def _limit(*, example: dict[str, Any], **entry: Any) -> Limit:
    return Limit(example=Example(**_frozen(example)), **_frozen(entry))


def _frozen(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
