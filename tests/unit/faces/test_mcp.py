"""The MCP server with the SDK's own client: over stdio through a kill to the report, and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

from fakes.server_process import COSINES, server_process
from tilewright.edges.ledger import Ledger
from tilewright.edges.sandbox.processes import children
from tilewright.facts.move import Await, CallTool, Inspect, Stop, Try
from tilewright.facts.tools import NAMES, TOOLS

PROBLEM = COSINES.format(shape="64, 512")
RIGHT = """import torch
from torch import nn

from many import HOW_MANY


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.cos(x) * HOW_MANY
"""
ELSEWHERE = {"Host": "elsewhere.example", "Content-Type": "application/json"}
COMMAND = ["mcp", "--target", "cpu", "--timing", "0.2s", "--no-compile", "--budget", "1h,3tries"]


class Agent:
    """A client that a test talks through: `answer` is what a tool says, `told` what came of it at last, `refused` the
    text of its error."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def told(self, tool: str, **given: Any) -> Any:
        found = await self.answer(tool, **given)
        while isinstance(found, dict) and found.get("state") == "working":
            found = await self.answer("wait", run=found["run"])
        return found

    async def answer(self, tool: str, **given: Any) -> Any:
        result = await self.client.call_tool(tool, given, progress_callback=given.pop("progress", None))
        assert not result.is_error, result.content
        found = result.structured_content
        return found["result"] if set(found) == {"result"} else found

    async def refused(self, tool: str, **given: Any) -> str:
        result = await self.client.call_tool(tool, given)
        assert result.is_error, result.structured_content
        return result.content[0].text


@asynccontextmanager
async def over_stdio(folder: Path) -> AsyncIterator[Agent]:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "tilewright", *COMMAND], env=dict(os.environ), cwd=folder
    )
    async with Client(server) as client:
        yield Agent(client)


@contextmanager
def over_http(folder: Path, *flags: str) -> Iterator[str]:
    """A server of its own at a free port; its address."""
    with server_process(folder, *COMMAND, "--http", "0", *flags) as (url, _):
        yield url


@pytest.fixture
def agent_runs(tmp_path: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # teams of threads on a busy machine wait for one another
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("TILEWRIGHT_LEASES", str(tmp_path / "tmp"))  # others' runs are not waited for
    (tmp_path / "tmp").mkdir()
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems" / "cosines.py").write_text(PROBLEM)
    return tmp_path


def server_pid() -> int:
    told = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in children(os.getpid())}
    (found,) = [pid for pid, words in told.items() if {"tilewright", "mcp"} <= set(words)]
    return found


async def until_it_is_killed(folder: Path) -> None:
    async with over_stdio(folder) as agent:
        tools = {t.name for t in (await agent.client.list_tools()).tools}
        assert tools == {
            "open_problem", "read_problem", "read_skeletons", "submit", "attempts", "attempt", "profile", "tune",
            "wait", "finish", *NAMES,
        }  # fmt: skip
        abouts = {t.name: t.description for t in (await agent.client.list_tools()).tools}
        assert all(spec.about in abouts[spec.name] for spec in TOOLS if spec.name != "profile")  # the one table
        assert "lies outside" in await agent.refused("open_problem", problem="/etc/passwd")
        assert "no such file" in await agent.refused("open_problem", problem="problems/sines.py")
        assert "open one with open_problem" in await agent.refused("read_problem")
        opened = await agent.told("open_problem", problem="problems/cosines.py", budget="2h")
        assert (opened["run"], opened["state"], opened["attempts"]) == ("runs/cosines-agent-1", "open", 0)
        assert (opened["budget"]["seconds"], opened["budget"]["tries"]) == (3600, 3)  # the operator's is the most
        read = await agent.told("read_problem")
        assert "torch.cos(x) for _ in range(24)" in read and "The floor" in read and "What is judged" in read
        made = await agent.told("read_skeletons")
        assert "cos -> add" in made and "FILE: fused_0.py" in made
        profile = await agent.told("profile")
        assert {"aten::cos": 24, "aten::add": 24}.items() <= {n["name"]: n["times"] for n in profile["longest"]}.items()
        assert "ModelNew in model.py" in await agent.refused("submit", idea="nothing")
        files = {"model.py": RIGHT, "many.py": "HOW_MANY = 25\n"}
        looked = await agent.told("run", files=files)
        assert looked["tool"] == "run" and "refused at check: wrong values" in looked["answer"]
        right = {"model.py": RIGHT, "many.py": "HOW_MANY = 24\n"}
        assert "right on the smallest case" in (await agent.told("run", files=right))["answer"]
        assert "variant 1: " in (await agent.told("time", variants=[right], base="library"))["answer"]
        assert "float32[64, 512]; 0 NaN" in (await agent.told("tensor", base="library"))["answer"]
        assert "rule" in (await agent.told("search", query="pointwise fusion"))["answer"]
        assert "give one to 3" in await agent.refused("time", variants=[])
        wrong = await agent.told("submit", idea="one cosine", files=files)
        assert (wrong["attempt"], wrong["state"], wrong["best"]) == (1, "refused", None)
        assert (wrong["verdict"]["stage"], wrong["verdict"]["reason"]) == ("check", "wrong_values")
        assert "the truth is" in wrong["verdict"]["summary"]
        assert "was refused" in await agent.refused("tune", attempt=1)

        async def kill(progress: float, total: float | None, said: str | None) -> None:
            if said and "built" in said:
                os.kill(server_pid(), signal.SIGKILL)

        with contextlib.suppress(MCPError):
            mended = {"many.py": "HOW_MANY = 24\n"}
            await agent.told("submit", idea="24 of them", base="1", files=mended, progress=kill)
            raise AssertionError("the server should be dead")


async def from_there_to_the_report(folder: Path) -> dict[str, Any]:
    async with over_stdio(folder) as agent:
        problem, run = "problems/cosines.py", "runs/cosines-agent-1"
        opened = await agent.told("open_problem", problem=problem, folder=run)
        assert (opened["run"], opened["attempts"], opened["budget"]["tries_used"]) == (run, 1, 1)
        handed = {"base": "1", "files": {"many.py": "HOW_MANY = 24\n"}}
        working = await agent.answer("submit", idea="24 of them", wait_s=0.0, **handed)
        assert working["state"] == "working" and "attempt 2 is being judged" in working["what"]
        assert "call wait" in await agent.refused("profile")
        passed = await agent.told("wait")
        assert (passed["attempt"], passed["state"]) == (2, "accepted")
        assert passed["verdict"]["reason"] == "faster" and passed["ratio"]["eager"]["low"] > 1
        assert "letter for letter" in (await agent.told("submit", idea="again", **handed))["note"]
        profile = await agent.told("profile", attempt=2)
        assert {n["name"]: n["times"] for n in profile["longest"]}["aten::cos"] == 1
        source = await agent.told("attempt", number=2, source=True)
        assert source["files"] == {"model.py": RIGHT, "many.py": "HOW_MANY = 24\n"}
        listed = await agent.told("attempts")
        assert [(a["attempt"], a["state"]) for a in listed["attempts"]] == [(1, "refused"), (2, "accepted")]
        assert listed["best"] == 2
        return await agent.told("finish", why="one cosine is enough")


@pytest.mark.slow
def test_an_agent_is_killed_midway_and_carries_its_run_to_the_report(agent_runs: Path) -> None:
    asyncio.run(until_it_is_killed(agent_runs))
    ended = asyncio.run(from_there_to_the_report(agent_runs))
    assert (ended["status"], ended["verdict"]["accepted"]) == ("improved", True)
    run = agent_runs / "runs" / "cosines-agent-1"
    assert Path(ended["candidate"], "many.py").read_text() == "HOW_MANY = 24\n"
    assert "one cosine is enough" in ended["report_text"] and (run / "report.html").exists()
    with Ledger(run / "run.db", readonly=True) as ledger:
        moves = [e.move for e in ledger.events() if not isinstance(e.move, Await)]
        agents = {e.move.agent for e in ledger.events() if isinstance(e.move, Await)}
    assert [type(m) for m in moves] == [Inspect, *[CallTool] * 5, Try, Try, Inspect, Stop]
    assert all(name.startswith("mcp ") for name in agents)


async def two_clients(address: str) -> None:
    async with Client(address) as one, Client(address, mode="legacy") as other:
        agent, second = Agent(one), Agent(other)
        opened = await agent.told("open_problem", problem="cosines.py", folder="mine", budget="1try")
        assert opened["run"] == "mine"
        bad = "class ModelNew:\n    def __init__(self:\n"
        refused = await agent.told("submit", run="mine", idea="typed in a hurry", files={"model.py": bad})
        assert (refused["verdict"]["stage"], refused["verdict"]["reason"]) == ("build", "does_not_load")
        assert "SyntaxError" in refused["verdict"]["summary"] + refused["verdict"]["excerpt"]
        listed = await second.told("attempts", run="mine")
        assert [a["idea"] for a in listed["attempts"]] == ["typed in a hurry"]
        text = await second.refused("submit", run="mine", idea="more", files={"model.py": RIGHT})
        assert "the tries are used up (1); call finish" in text
        ended = await second.told("finish", run="mine", why="no try is left")
        assert (ended["status"], ended["verdict"]["reason"]) == ("failed", "does_not_load")
        again = await agent.told("open_problem", problem="cosines.py", folder="mine")
        assert again["state"] == "ended" and "no try is left" in again["ended"]
        assert "this run has ended" in await agent.refused("profile", run="mine")


@pytest.mark.slow
def test_two_clients_share_a_run_over_http_to_the_end_of_its_budget(agent_runs: Path) -> None:
    with over_http(agent_runs, "--root", "problems") as address:
        asyncio.run(two_clients(address))
        where = http.client.HTTPConnection(address.split("/")[2], timeout=300)
        with contextlib.closing(where):
            where.request("POST", "/mcp", body="{}", headers=ELSEWHERE)
            assert where.getresponse().status == 421  # a page in a browser must not reach it by another name
