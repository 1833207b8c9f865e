"""Settings: the one place that reads the environment and the user's file."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..facts.errors import UserError
from ..facts.pattern import COMPILE_MODES
from ..facts.run import Limits, Timing

if TYPE_CHECKING:
    from ..run.session import Terms

T = TypeVar("T", int, float)

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_LONGEST_S = 366 * 24 * 3600.0
_MOST = 10**15  # tokens, calls, tries or dollars
_MOST_NUMBERS = 100_000  # that a list of problems may name
_LONGEST_VALUE = 10_000
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def cache_dir() -> Path:
    """What is shared between runs on this machine: measured rates, tuned winners, builds."""
    named = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilewright"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings:
    """What the user's file says: the model that is asked where none is named, and short names of models."""

    model: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)


def settings_file() -> Path:
    """`TILEWRIGHT_CONFIG`, else `~/.config/tilewright/config.toml`."""
    named = os.environ.get("TILEWRIGHT_CONFIG")
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(named) if named else home / "tilewright" / "config.toml"


def settings() -> UserSettings:
    """Of the user's file; nothing where there is none. UserError for one that can't be read, or says anything else."""
    path = settings_file()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return UserSettings()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: can't be read ({str(error)[:200]}); mend it, or remove it") from None
    aliases = found.pop("aliases", {})
    model = found.pop("model", "")
    if found or not isinstance(model, str) or not isinstance(aliases, dict):
        raise UserError(f'{path}: holds `model = "PROVIDER:NAME"` and a table [aliases], nothing else')
    if wrong := [k for k, v in aliases.items() if ":" in k or not isinstance(v, str) or ":" not in v]:
        raise UserError(f'{path}: alias {_short(wrong[0])}: write a name without a colon = "PROVIDER:NAME"')
    return UserSettings(model=model, aliases=aliases)


def model_of(named: str | None, *, asking: bool) -> str | None:
    """The model that a name or an alias means; where none is named and the strategy asks one, the user's own; None
    where none is to be asked. UserError as `settings`."""
    if named is None and not asking:
        return None
    mine = settings()
    name = mine.model if named in (None, "default") else named
    if named == "default" and not name:
        raise UserError(f'--model default: {settings_file()} names none; write model = "PROVIDER:NAME" there')
    return mine.aliases.get(name or "", name) or None


def environment(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The variables of these names, and of those in TILEWRIGHT_ENV (`NAME,NAME`), with their values, sorted. UserError
    for one that is not set, or that every cell has a value of its own for."""
    from ..edges.sandbox.environment import is_own

    listed = [name.strip() for name in os.environ.get("TILEWRIGHT_ENV", "").split(",") if name.strip()]
    for name in (*names, *listed):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", name):
            raise UserError(f"--env {_short(name)}: no name of a variable; write --env NAME, of one that is set")
        if is_own(name):
            raise UserError(f"--env {name}: cells have a value of their own for it; pass the problem another variable")
        if name not in os.environ:
            raise UserError(f"--env {name}: is not set here; set it, or leave --env {name} out")
    found = {name: os.environ[name] for name in (*names, *listed)}
    for name, value in found.items():
        if len(value) > _LONGEST_VALUE or (not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value)):
            raise UserError(f"--env {name}: its value is longer than {_LONGEST_VALUE} characters, or no text")
    return tuple(sorted(found.items()))


def env_flags(names: Sequence[str]) -> list[str]:
    """`--env` for each, as another command takes it; UserError as `environment`."""
    environment(names)
    return [word for name in dict.fromkeys(names) for word in ("--env", name)]


def hidden(names: Sequence[str]) -> tuple[str, ...]:
    """Those that are set here and that a cell does not see."""
    from ..edges.sandbox.environment import is_own

    return tuple(name for name in names if name in os.environ and not is_own(name))


def commit() -> str:
    """The commit of a copy that is no checkout, as its maker names it; "" where nobody did."""
    return os.environ.get("TILEWRIGHT_COMMIT", "")


def cluster_python() -> str:
    """The interpreter that Slurm and ssh start workers with: this one, or what TILEWRIGHT_CLUSTER_PYTHON says."""
    return os.environ.get("TILEWRIGHT_CLUSTER_PYTHON") or sys.executable


def node_name() -> str:
    """What the host is called that this worker of a campaign serves, as its driver does; "" where nobody says."""
    return os.environ.get("TILEWRIGHT_NODE", "")


def visible_devices() -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names; empty where it is not set."""
    return tuple(part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip())


def device_prices(text: str) -> tuple[tuple[str, float], ...]:
    """`2.5` or `H100=2.5,H200=4` as parts of a device's name with the USD of an hour; "" takes what
    TILEWRIGHT_DEVICE_PRICE says. UserError on anything else."""
    found = []
    for part in (text or os.environ.get("TILEWRIGHT_DEVICE_PRICE", "")).split(","):
        if part.strip():
            name, _, usd = part.strip().rpartition("=")
            if not re.fullmatch(_NUMBER, usd):
                raise UserError(f"--device-price {_short(part)}: no price; write 2.5, or H100=2.5,H200=4 (USD an hour)")
            found.append((name.strip(), float(usd)))
    return tuple(found)


def key(names: tuple[str, ...]) -> str | None:
    """A provider's key: the first of these variables that is set, else what the keyring keeps for the service
    `tilewright` under the first of these names, where there is a keyring."""
    for name in names:
        if value := os.environ.get(name):
            return value
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        kept: str | None = keyring.get_password("tilewright", names[0])
    except KeyringError:
        return None
    return kept


def agents_token() -> str | None:
    """What clients of `mcp --http` must send; None where they need send nothing."""
    return os.environ.get("TILEWRIGHT_MCP_TOKEN") or None


def address(text: str) -> tuple[str, int]:
    """`8765`, `127.0.0.1:8765` or `[::1]:8765` as host and port; UserError on anything else."""
    found = re.fullmatch(r"(?:(?:\[([0-9a-fA-F:]+)\]|([\w.-]+)):)?([0-9]{1,5})", text.strip())
    if not found or int(found[3]) > 65535:
        raise UserError(f"--http {_short(text)}: not an address; write 8765 or 127.0.0.1:8765")
    return found[1] or found[2] or "127.0.0.1", int(found[3])


def seconds(text: str | float, of: str) -> float:
    """`90`, `90s`, `5m`, `1.5h`, `30d` in seconds, a year at most; UserError, which names the setting `of`, on anything
    else."""
    text = text if isinstance(text, str) else f"{text:f}" if type(text) in (int, float) else str(text)
    found = re.fullmatch(rf"({_NUMBER})\s*([smhd]?)", text.strip())
    value = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 1e-3 <= value <= _LONGEST_S:
        raise UserError(f"{of}: {_short(text)} is not a duration; write 90s, 5m or 1h (a year at most)")
    return value


def timed(timing: str, *, compiled: bool | str, of: str = "--timing", modes_of: str = "--compile-modes") -> Timing:
    """How candidates are to be timed: for how long, and against torch.compile where it is `compiled`, in modes that a
    text names, by commas, or "all"; UserError on anything else."""
    modes: tuple[str, ...] = ()
    if isinstance(compiled, str) and compiled not in ("", "usual"):
        modes = COMPILE_MODES if compiled == "all" else tuple(part.strip() for part in compiled.split(","))
        if unknown := [mode for mode in modes if mode not in COMPILE_MODES]:
            raise UserError(
                f"{modes_of}: torch.compile has no mode {_short(unknown[0])}; it has {', '.join(COMPILE_MODES)}"
            )
    return Timing(budget_s=seconds(timing, of), compiled=compiled is not False, modes=modes)


def _short(text: str) -> str:
    """As a message quotes what the user wrote."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


_COUNT = re.compile(rf"({_NUMBER})\s*([kM]?)\s*(tokens?|calls?|tr(?:y|ies)|usd)")


def budget(text: str, *, usual_s: float) -> tuple[float, Limits]:
    """`30m,5usd,2Mtokens,40calls,20tries,device:20m`, in any order: seconds for the search (`usual_s` where none are
    named), and the other limits; UserError on anything else, and on a kind that is named twice."""
    found: dict[str, float] = {}
    for part in (p.strip() for p in text.split(",") if text):
        counted = _COUNT.fullmatch(part[1:] + "usd" if part.startswith("$") else part)
        if counted:
            kind = "try" if counted[3] == "tries" else counted[3].rstrip("s")
            value = float(counted[1]) * {"": 1.0, "k": 1e3, "M": 1e6}[counted[2]]
        else:
            kind = "device" if part.startswith("device:") else "time"
            try:
                value = seconds(part.removeprefix("device:"), "--budget")
            except UserError:
                raise UserError(
                    f"--budget: {_short(part)} is none; write 30m, 5usd, 2Mtokens, 40calls, 20tries or device:20m, or "
                    "several"
                ) from None
        if kind in found or not 0 < value <= _MOST or (kind in ("token", "call", "try") and value < 1):
            why = "is the second of its kind" if kind in found else "is too much" if value > _MOST else "allows nothing"
            raise UserError(f"--budget: {_short(part)} {why}")
        found[kind] = value
    limits = Limits(
        usd=found.get("usd"), device_s=found.get("device"),
        tokens=int(found["token"]) if "token" in found else None, calls=int(found["call"]) if "call" in found else None,
        tries=int(found["try"]) if "try" in found else None,
    )  # fmt: skip
    return found.get("time", usual_s), limits


def budget_text(budget_s: float, limits: Limits) -> str:
    """What `budget` reads as these."""
    named = (("usd", limits.usd), ("tokens", limits.tokens), ("calls", limits.calls), ("tries", limits.tries))
    parts = [f"{budget_s:g}s", *(f"{value:.15g}{unit}" for unit, value in named if value is not None)]
    return ",".join([*parts, *([f"device:{limits.device_s:g}s"] if limits.device_s is not None else [])])


def agents_terms(budget: str, *, timing: Timing, sanitize: bool | None, seed: int, evaluator: str = "") -> Terms:
    """The terms of runs whose moves coding agents make; UserError as `within`, and for an evaluator that is none."""
    from ..run.remote import bundle_folder
    from ..run.session import Terms

    if evaluator:
        bundle_folder(evaluator)
    most = Terms(
        budget_s=3600.0, limits=Limits(), timing=timing, sanitize=sanitize, seed=seed, evaluator=evaluator
    )  # fmt: skip
    budget_s, limits = _agents_budget(budget, usual_s=most.budget_s)
    return replace(most, budget_s=budget_s, limits=limits)


def _agents_budget(text: str, *, usual_s: float) -> tuple[float, Limits]:
    """Time, tries and the device's time: an agent's own calls, tokens and money can't be watched here."""
    found_s, limits = budget(text, usual_s=usual_s)
    if (limits.usd, limits.tokens, limits.calls) != (None, None, None):
        raise UserError(
            f"budget {_short(text)}: what a coding agent spends itself can't be watched here; write 1h, 20tries or "
            "device:20m, or several"
        )
    return found_s, limits


def within(terms: Terms, text: str) -> Terms:
    """The terms with the budget that an agent asks for, no larger than they say; UserError for one that can't be
    watched."""
    budget_s, limits = _agents_budget(text, usual_s=terms.budget_s)
    most = terms.limits
    return replace(
        terms, budget_s=min(budget_s, terms.budget_s),
        limits=Limits(tries=_least(limits.tries, most.tries), device_s=_least(limits.device_s, most.device_s)),
    )  # fmt: skip


def _least(one: T | None, other: T | None) -> T | None:
    return min((v for v in (one, other) if v is not None), default=None)


def numbers(text: str) -> tuple[int, ...]:
    """`1,5,19-31` as those numbers, each once; UserError on anything else."""
    found: dict[int, None] = {}
    for part in text.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", part)
        if not ends or int(ends[2] or ends[1]) < int(ends[1]):
            raise UserError(f"{_short(part)}: not a number or a range; write --only 1,5,19-31")
        asked = range(int(ends[1]), int(ends[2] or ends[1]) + 1)
        if len(asked) + len(found) > _MOST_NUMBERS:
            raise UserError(f"--only {_short(text)}: names more than {_MOST_NUMBERS} problems; write --only 1,5,19-31")
        found |= dict.fromkeys(asked)
    return tuple(found)
