"""The engine on Ray itself: two nodes of a cluster on this machine, actors that are killed, a head that goes.

Skipped where Ray is not installed; `make thorough` runs it, `test_engines.py` holds its siblings."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tilewright.run.cluster.engine import EngineGone, Reported
from tilewright.run.cluster.ray_engine import RayEngine
from tilewright.run.cluster.task import LostTask, TaskOrder, TaskResult

pytestmark = [
    pytest.mark.thorough, pytest.mark.skipif(find_spec("ray") is None, reason="no Ray"),
    pytest.mark.filterwarnings("ignore"),
]  # fmt: skip

TESTS = Path(__file__).parents[3]
PROGRAM = "from fakes.ray_seats import main; raise SystemExit(main())"
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        found.add_node(num_cpus=1)
        yield found
        found.shutdown()


def order(number: int, seconds: float) -> TaskOrder:
    return TaskOrder(
        file=f"t{number}.py", source="", verb="optimize", target="cpu", budget_s=seconds, budget="", settings=(),
        stamp="s",
    )  # fmt: skip


def collected(
    engine: RayEngine, until: Callable[[list[Reported]], bool], *, patience_s: float = PATIENCE_S
) -> list[Reported]:
    found: list[Reported] = []
    ends_at = time.monotonic() + patience_s
    while not until(found):
        assert time.monotonic() < ends_at, (found, engine.nodes())
        found += engine.reports(0.2)
    return found


def pids(found: Sequence[Reported]) -> dict[str, int]:
    return {r.key: r.node.pid for r in found if isinstance(r, TaskResult)}


def test_a_node_has_one_actor_and_what_a_killed_one_had_is_lost(cluster: Any, tmp_path: Path) -> None:
    with RayEngine(cluster.address, target="cpu", jobs=1, log=tmp_path / "ray.log", program=PROGRAM) as engine:
        for number in (*range(6), *range(6)):
            engine.submit(order(number, 0.2))
        found = collected(engine, lambda found: len(found) == 6)
        assert len({r.key for r in found}) == 6
        assert len(set(pids(found).values())) == 2 == len(engine.nodes()), "two nodes, an actor each"
        collected(engine, lambda found: {n.device for n in engine.nodes()} == {"one GPU"})
        engine.submit(order(7, 30.0))
        collected(engine, lambda found: (tmp_path / "ray.log").exists())
        time.sleep(1.0)
        for pid in set(pids(found).values()):
            os.kill(pid, signal.SIGKILL)
        (lost,) = collected(engine, lambda found: len(found) == 1)
        assert isinstance(lost, LostTask) and lost.key == order(7, 30.0).key
        engine.submit(order(8, 0.1))  # by an actor that took a dead one's place
        (result,) = collected(engine, lambda found: len(found) == 1)
        assert isinstance(result, TaskResult) and result.node.pid not in pids(found).values()


def test_a_node_that_goes_takes_its_task_and_the_other_does_the_next(cluster: Any, tmp_path: Path) -> None:
    extra = cluster.add_node(num_cpus=1)
    with RayEngine(cluster.address, target="cpu", jobs=1, log=tmp_path / "ray.log", program=PROGRAM) as engine:
        collected(engine, lambda found: sum(n.state == "ready" for n in engine.nodes()) == 3)
        for number in range(3):
            engine.submit(order(number, 8.0))
        time.sleep(1.0)
        cluster.remove_node(extra, allow_graceful=False)
        found = collected(engine, lambda found: len(found) == 3)
        (lost,) = [r for r in found if isinstance(r, LostTask)]
        collected(engine, lambda found: {n.name: n.state for n in engine.nodes()}[lost.node] == "lost")
        engine.submit(next(o for o in (order(n, 8.0) for n in range(3)) if o.key == lost.key).again())
        (again,) = collected(engine, lambda found: len(found) == 1)
        assert isinstance(again, TaskResult) and (again.key, again.attempt) == (lost.key, 1)


PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(torch.exp(x) * 2.0 + 1.0, -1)


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
"""


def test_kernels_of_orders_that_wait_are_compiled_by_tasks_beside_what_measures(cluster: Any, tmp_path: Path) -> None:
    """Two orders keep both seats until something was built; the third begins with its kernels in its node's cache."""
    program = "from fakes.ray_seats import builds_ahead; raise SystemExit(builds_ahead())"
    with RayEngine(cluster.address, target="cpu", jobs=1, log=tmp_path / "ray.log", program=program) as engine:
        first, second = (replace(order(n, 600.0), settings=("--without", "tuning")) for n in range(2))
        for one in (first, second):  # nothing is built for these
            engine.submit(one)
        third = replace(order(2, 0.1), source=PROBLEM)
        engine.submit(third)
        found = collected(engine, lambda found: len(found) == 3, patience_s=800.0)
        by_key = {r.key: r for r in found if isinstance(r, TaskResult)}
        assert any(name.endswith(".so") for name in by_key[third.key].task["kernels"])
        assert not by_key[first.key].task["kernels"], "nothing was there before"


def test_without_a_head_the_campaign_is_told_so(cluster: Any, tmp_path: Path) -> None:
    """The last test of the module: the cluster is gone afterwards."""
    engine = RayEngine(
        cluster.address, target="cpu", jobs=1, log=tmp_path / "ray.log", program=PROGRAM, silence_s=20.0
    )  # fmt: skip
    with engine:
        collected(engine, lambda found: any(n.state == "ready" for n in engine.nodes()))
        cluster.head_node.kill_gcs_server(check_alive=False)
        with pytest.raises(EngineGone, match="Ray at"):
            collected(engine, lambda found: False)
