"""`--cluster`: the engine that it names, a live table of nodes, and what they cost."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table

from ..edges.bundle import SharedQueue
from ..edges.gpu.machine import look
from ..edges.launchers import SlurmJobs, SshHosts
from ..facts.errors import UserError
from ..run.campaign import Campaign
from ..run.cluster.dispatch import RESULTS, Dispatch, NodeShare, Progress
from ..run.cluster.engine import Engine
from ..run.cluster.local import LocalEngine
from ..run.cluster.ray_engine import RayEngine
from ..run.cluster.seat import Seat, here
from ..run.cluster.shared import SharedFolderEngine
from . import config
from .printing import stderr

_KINDS = "ray://HOST, ray, local, slurm:PARTITION[:JOBS] or ssh:HOST,HOST"
_SLURM_JOBS = 4
_CLIENT_PORT = 10001  # of Ray's client server
QUEUE = ".cluster"  # in the campaign's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """What `--cluster` and `--device-price` say; without an engine the local pool does the problems."""

    engine: str = ""
    prices: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, engine: str, price: str) -> ClusterChoice:
        """UserError for an engine or a price that is none."""
        kind, _, rest = engine.partition(":")
        known = not engine or (kind in ("slurm", "ssh") and rest) or engine in ("ray", "local")
        if not (known or (engine.startswith("ray://") and rest.strip("/"))):
            raise UserError(f"--cluster {engine!r}: unknown; write {_KINDS}")
        return cls(engine=engine, prices=config.device_prices(price))

    def usd(self, share: NodeShare) -> float | None:
        """For the time in which tasks occupied the node's device; None where no price is given for it."""
        for name, usd in self.prices:
            if name.lower() in share.node.device.lower():
                return share.busy_s / 3600 * usd
        return None


HERE = ClusterChoice()


@contextmanager
def dispatching(cluster: ClusterChoice, campaign: Campaign, *, say: Callable[[str], None]) -> Iterator[Dispatch]:
    """The engine, open, with a table of its nodes where stderr is a terminal; at the end a line for each node.
    UserError for what does not go together."""
    _require_fits(cluster, campaign)
    out = campaign.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        dispatch = Dispatch(
            engine=opened.enter_context(engine_of(cluster.engine, campaign, out)), lines=out / RESULTS, say=say
        )
        if stderr.is_terminal:
            live = opened.enter_context(Live(console=stderr, transient=True, refresh_per_second=2))
            dispatch.watch = lambda progress: live.update(progress_table(progress, cluster))
        yield dispatch
    for node in nodes_object(dispatch.progress(), cluster):
        paid = f", {node['usd']:.2f} USD" if node["usd"] is not None else ""
        say(f"{node['name']}: {node['tasks']} tasks, {node['busy_s']:.0f} s, {node['device_s']:.0f} s measuring{paid}")


def _require_fits(cluster: ClusterChoice, campaign: Campaign) -> None:
    if campaign.elsewhere:
        raise UserError("--cluster: nodes judge by themselves; leave --evaluator out")
    if any(word.startswith("mailbox:") for word in campaign.settings):
        raise UserError("--cluster: a mailbox is a folder of this machine; name a model that nodes can reach")
    if campaign.devices and cluster.engine != "local":
        raise UserError(f"--cluster {cluster.engine} finds the GPUs of its nodes by itself; leave --devices out")


def engine_of(name: str, campaign: Campaign, out: Path) -> Engine:
    """The engine that `--cluster` names, not open yet. UserError where it can't be had here."""
    kind, _, rest = name.partition(":")
    if name == "local":
        return LocalEngine(seats(campaign), jobs=campaign.jobs)
    if kind == "ray":
        host = rest.strip("/")
        address = "auto" if not host else f"ray://{host}" if ":" in host else f"ray://{host}:{_CLIENT_PORT}"
        return RayEngine(address, target=campaign.target, jobs=campaign.jobs, log=out / "ray.log")
    queue = SharedQueue(out / QUEUE)
    command = [
        *shlex.split(config.cluster_python()), "-m", "tilewright", "worker", str(queue.folder), "--campaign",
        campaign.target, "--jobs", str(campaign.jobs),
    ]  # fmt: skip
    if kind == "ssh":
        hosts = [host for host in rest.split(",") if host]
        return SharedFolderEngine(
            queue=queue, launcher=SshHosts(hosts=hosts, command=command, folder=Path.cwd(), logs=queue.logs)
        )
    partition, _, count = rest.partition(":")
    if count and not (count.isdecimal() and 0 < int(count) <= 10_000):
        raise UserError(f"--cluster {name}: {count!r} is no number of jobs; write slurm:PARTITION:8")
    jobs = SlurmJobs(
        partition=partition, count=min(int(count or _SLURM_JOBS), len(campaign.files)), target=campaign.target,
        command=command, logs=queue.logs,
    )  # fmt: skip
    return SharedFolderEngine(queue=queue, launcher=jobs)


def seats(campaign: Campaign) -> list[Seat]:
    """A seat for each of the devices, or for each GPU that is visible here; one for the CPU."""
    if campaign.target == "cpu":
        return [Seat(node=here("cpu"), target="cpu")]
    return [
        Seat(node=here(f"gpu{gpu}"), target="cuda", place={"CUDA_VISIBLE_DEVICES": gpu})
        for gpu in campaign.devices or visible_gpus()
    ]


def visible_gpus() -> tuple[str, ...]:
    """Values of CUDA_VISIBLE_DEVICES, one for each GPU that this process sees. UserError where it sees none."""
    sight = look()
    if sight.problem:
        raise UserError(f"no GPU here: {sight.problem}")
    named = config.visible_devices()
    return named or tuple(str(number) for number in range(len(sight.devices)))


def nodes_object(progress: Progress, cluster: ClusterChoice) -> list[dict[str, Any]]:
    """What `--json` says of each node: what it is, its tasks, seconds and money (null where no price is given)."""
    return [
        share.node.identity
        | {"state": share.node.state, "why": share.node.why, "tasks": share.tasks, "busy_s": share.busy_s}
        | {"device_s": share.device_s, "usd": cluster.usd(share)}
        for share in progress.shares
    ]


def progress_table(progress: Progress, cluster: ClusterChoice) -> Table:
    """One line a node."""
    title = f"{progress.done} of {progress.wanted} done" + (f", {progress.lost} attempts lost" if progress.lost else "")
    priced = bool(cluster.prices)
    shown = Table(
        "node", "state", "device", "A/A", "tasks", "busy", "measuring", *(["USD"] if priced else []), box=None,
        header_style="bold", title=title, title_justify="left",
    )  # fmt: skip
    for share in progress.shares:
        shown.add_row(*_cells(share, cluster.usd(share), priced=priced))
    return shown


def _cells(share: NodeShare, usd: float | None, *, priced: bool) -> Sequence[str]:
    node = share.node
    known = node.device != ""
    paid = [f"{usd:.2f}" if usd is not None else ""] if priced else []
    return [
        node.name, node.state, node.device, f"{node.aa:.3f} ± {node.aa_spread / 2:.3f}" if known else "",
        str(share.tasks), f"{share.busy_s:.0f} s", f"{share.device_s:.0f} s", *paid,
    ]  # fmt: skip
