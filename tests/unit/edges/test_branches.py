"""Branches of the fork server: what they import, what of it they refuse, and what runs on it."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.edges.sandbox import forkserver
from tilewright.edges.sandbox.environment import common_environment
from tilewright.edges.sandbox.forkserver import Branch, Trunk, server_for
from tilewright.edges.sandbox.processes import descendants
from tilewright.judge.candidate_process import branch
from tilewright.judge.client import Cell, CellFault, CellPlan
from tilewright.judge.wire import messages as wire
from waiting import wait_until

pytestmark = pytest.mark.slow

AT_HOME = "import os\nHOME = os.environ['HOME']\n"
WITH_A_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
PROBLEM = """
import sys
assert "athome" in sys.modules
import torch
class Model(torch.nn.Module): pass
def get_inputs(): return [torch.ones(3)]
def get_init_inputs(): return []
"""


@pytest.fixture
def packages(tmp_path: Path) -> dict[str, str]:
    """An outer environment whose PYTHONPATH has installed packages in one folder, and a user's own in another."""
    installed, own = tmp_path / "installed", tmp_path / "own"
    (installed / "some.dist-info").mkdir(parents=True)
    own.mkdir()
    (installed / "athome.py").write_text(AT_HOME)
    (installed / "threaded.py").write_text(WITH_A_THREAD)
    (installed / "compiling.py").write_text("import torch._inductor.codecache\n")
    for place in (installed / "spaced", installed / "shared", own / "shared"):
        place.mkdir()
        (place / "inner.py").touch()
    (own / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(map(str, (installed, own)))}


@pytest.fixture(autouse=True)
def no_servers_are_left() -> Iterator[None]:
    known = set(forkserver._servers)
    yield
    for key in reversed([key for key in forkserver._servers if key not in known]):
        forkserver._servers.pop(key).close()


def _load(tmp_path: Path, outer: dict[str, str], imports: tuple[str, ...], source: str) -> None:
    """Raises CellFault where the candidate's source does, in a cell that is forked of what has imported these."""
    plan = CellPlan(
        name="candidate", device="cpu", folder=tmp_path / "cell", memory_bytes=3 << 30, threads=1, imports=imports
    )
    with Cell(plan, outer=outer) as cell:
        folder = plan.folder / "candidate"
        folder.mkdir()
        (folder / "model.py").write_text(f"{textwrap.dedent(source)}\nclass ModelNew: pass\n")
        cell.do(wire.LoadCandidate(folder=str(folder), entry="model.py"), limit_s=120.0)


def test_a_cell_has_imported_what_is_installed_and_nothing_of_the_users(
    tmp_path: Path, packages: dict[str, str]
) -> None:
    there = f"""
        import os, sys
        assert not {{"mine", "nowhere", "shared.inner"}} & set(sys.modules) and "spaced.inner" in sys.modules
        assert sys.modules["athome"].HOME not in ({str(Path.home())!r}, os.environ["HOME"])
        """
    _load(tmp_path, packages, ("athome", "mine", "nowhere.at.all", "spaced.inner", "shared.inner"), there)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(CellFault, match="AssertionError"):
        _load(tmp_path, packages, (), there)


def test_a_reference_has_them_too(tmp_path: Path, packages: dict[str, str]) -> None:
    plan = CellPlan(
        name="reference", device="cpu", folder=tmp_path / "cell", memory_bytes=0, threads=1, isolate=False,
        imports=("athome",),
    )  # fmt: skip
    with Cell(plan, outer=packages) as cell:
        loaded = wire.LoadProblem(path=str(tmp_path / "problem.py"), source=PROBLEM, cases=("{}",), compiled=False)
        cell.do(loaded, limit_s=120.0)


@pytest.mark.parametrize(("name", "why"), [("threaded", "threads"), ("compiling", "compiler"), ("athome", "")])
def test_a_branch_is_left_aside_whose_children_could_not_run_on_it(
    name: str, why: str, packages: dict[str, str]
) -> None:
    environment = common_environment(threads=1, outer=packages)
    server = server_for(environment, imports=(name,))
    trunk, tried = list(forkserver._servers.values())[-2:]
    assert isinstance(tried, Branch) and isinstance(trunk, Trunk)
    assert why in tried.spoilt and bool(why) == bool(tried.spoilt)
    assert server is (trunk if why else tried)
    assert (tried.spoilt in forkserver.left_aside()) == bool(why)
    assert server_for(environment, imports=(name,)) is server, "it is tried once"


def test_it_is_seen_that_cuda_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    device = "/dev/nvidia0"
    monkeypatch.setattr(os, "readlink", lambda path: device if path.endswith("/1") else "/dev/null")
    assert not branch._has_started_cuda(), "devices were counted"
    device = "/dev/nvidia-uvm"
    assert branch._has_started_cuda()


def test_branches_end_with_their_trunk(packages: dict[str, str]) -> None:
    environment = common_environment(threads=1, outer=packages)
    trunk = Trunk(environment)
    outer = Branch(trunk, environment=environment, imports=("athome",))
    inner = Branch(outer, environment=environment)
    below = descendants(trunk._process.pid)
    assert {outer._process.pid, inner._process.pid} <= set(below)
    homes = [Path(b._home.name) for b in (outer, inner)]
    for server in (inner, outer, trunk):
        server.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in below) and not any(map(Path.exists, homes))


def test_what_has_died_is_started_anew_with_its_branches(packages: dict[str, str]) -> None:
    environment = common_environment(threads=1, outer=packages)
    known = len(forkserver._servers)
    first = server_for(environment, imports=("athome",))
    os.kill(next(iter(list(forkserver._servers.values())[known:]))._process.pid, signal.SIGKILL)
    wait_until(lambda: not first.alive)
    second = server_for(environment, imports=("athome",))
    assert second is not first and second.alive and len(forkserver._servers) == known + 2
    assert not Path(f"/proc/{first._process.pid}").exists()


def test_a_module_is_run_as_a_process_of_its_own(tmp_path: Path, packages: dict[str, str]) -> None:
    (tmp_path / "asked.py").write_text("import os, sys\nprint(sys.stdin.read() + os.environ['WHAT'] + os.getcwd())\n")
    trunk = Trunk(common_environment(threads=1, outer=packages))
    try:
        (tmp_path / "given").write_text("given ")
        reading, writing = os.pipe()
        with open(tmp_path / "given") as given, open(writing, "wb") as end:
            child = trunk.run("asked", tmp_path, {"WHAT": "by "}, given.fileno(), end.fileno())
        with open(reading) as said:
            assert said.read() == f"given by {tmp_path}\n"
        assert child.wait(20.0) == 0 and child.pid != os.getpid() and "asked" not in sys.modules
    finally:
        trunk.close()
