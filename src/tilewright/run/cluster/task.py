"""What travels between the driver of a campaign and its nodes: orders, results, and what a node is."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from ...facts.problem import Target
from ...facts.version import VERSION
from ..campaign import Campaign, Task, Verb


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunRun:
    """A run that goes on: its folder as a gzipped tar, and the key of the machine on which it began."""

    machine: str
    archive: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOrder:
    """One problem of a campaign, to be done whole by one node. `attempt` counts from 0; orders that differ in it, or in
    what was `begun`, alone have the same `key`, and one of their results counts."""

    file: str  # the problem file's name
    source: str
    verb: Verb
    target: Target
    budget_s: float
    budget: str
    settings: tuple[str, ...]
    stamp: str
    version: str = VERSION
    attempt: int = 0
    begun: BegunRun | None = None

    @classmethod
    def of(cls, campaign: Campaign, file: Path, *, begun: BegunRun | None = None) -> TaskOrder:
        """The order for this file of the campaign."""
        return cls(
            file=file.name, source=file.read_text(encoding="utf-8"), verb=campaign.verb, target=campaign.target,
            budget_s=campaign.budget_s, budget=campaign.budget, settings=campaign.settings, stamp=campaign.stamp,
            begun=begun,
        )  # fmt: skip

    @property
    def key(self) -> str:
        """A digest of everything that the order wants, with the file's stem before it."""
        text = json.dumps(asdict(replace(self, attempt=0, begun=None)), sort_keys=True)
        return f"{Path(self.file).stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def name(self) -> str:
        """The key with the attempt: what one node is given once."""
        return f"{self.key}.{self.attempt}"

    def again(self) -> TaskOrder:
        return replace(self, attempt=self.attempt + 1)

    def campaign(self, folder: Path) -> Campaign:
        """The order as a campaign of one problem, in a folder of a node."""
        return Campaign(
            files=(folder / self.file,), out=folder / "out", target=self.target, budget_s=self.budget_s,
            settings=self.settings, jobs=1, devices=(), stamp=self.stamp, verb=self.verb, budget=self.budget,
        )  # fmt: skip

    def dumps(self) -> str:
        begun = self.begun and {"machine": self.begun.machine, "archive": _text(self.begun.archive)}
        return json.dumps(asdict(replace(self, begun=None)) | {"begun": begun})

    @classmethod
    def loads(cls, text: str) -> Self:
        """ValueError for text that is no order."""
        found = _object(cls, text)
        told = found.get("begun")
        begun = told and BegunRun(machine=told["machine"], archive=base64.b64decode(told["archive"]))
        return cls(**found | {"settings": tuple(found["settings"]), "begun": begun})


NodeState = Literal["starting", "ready", "quarantined", "lost", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One place that measures: a GPU of a host, or a host's CPU. `aa` is the median ratio of two timings of the same
    work when the node began, `aa_spread` the distance between its quartiles; `machine` is the key that is equal where
    times may be compared."""

    name: str
    host: str
    state: NodeState = "starting"
    device: str = ""
    driver: str = ""
    toolchain: str = ""
    machine: str = ""
    aa: float = 0.0
    aa_spread: float = 0.0
    why: str = ""  # of a quarantine, or of a node that was lost
    pid: int = 0
    beat: int = 0  # counts its signs of life

    @property
    def worker(self) -> str:
        """The process that serves the node: another one may take its place under the same name."""
        return f"{self.name}@{self.pid}"

    @property
    def identity(self) -> dict[str, str | float]:
        """What a result says of the node that made it."""
        names = ("name", "host", "device", "driver", "toolchain", "machine", "aa", "aa_spread")
        return {name: getattr(self, name) for name in names}

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        """ValueError for text that is no node."""
        return cls(**_object(cls, text))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a node made of an order. `fault`: why the node, not the task, is to blame that there is nothing; else `task`
    is what the command prints with `--json`. `folder` is the run's folder on the node, `archive` that folder as a
    gzipped tar (empty where the command keeps none)."""

    key: str
    attempt: int
    node: ClusterNode
    task: Task
    wall_s: float
    fault: str = ""
    folder: str = ""
    archive: bytes = b""

    def dumps(self) -> str:
        plain = asdict(self) | {"archive": _text(self.archive)}
        return json.dumps(plain)

    @classmethod
    def loads(cls, text: str) -> Self:
        """ValueError for text that is no result."""
        found = _object(cls, text)
        node = ClusterNode(**_known(ClusterNode, found["node"]))
        return cls(**found | {"node": node, "archive": base64.b64decode(found["archive"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTask:
    """The node that had this attempt of an order is gone, or gave it up."""

    key: str
    attempt: int
    node: str
    why: str


def _text(archive: bytes) -> str:
    return base64.b64encode(archive).decode()


def _object(kind: type[Any], text: str) -> dict[str, Any]:
    return _known(kind, json.loads(text))


def _known(kind: type[Any], found: Any) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    needed = {f.name for f in fields(kind) if f.default is MISSING}
    if not isinstance(found, Mapping) or found.keys() - names or needed - found.keys():
        raise ValueError(f"not a {kind.__name__}")
    return dict(found)
