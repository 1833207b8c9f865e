"""The doors of the MCP server, and its desk: who comes in, which places may be named, what a wait tells."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.faces.agent_runs import AgentRuns
from tilewright.faces.agents import _answering, _guarded, serve_http
from tilewright.faces.tools import House, Tools
from tilewright.facts.errors import UserError
from tilewright.facts.run import Limits, Timing
from tilewright.run.session import Terms

TERMS = Terms(budget_s=60.0, limits=Limits(), timing=Timing())


@pytest.fixture
def agent_runs(tmp_path: Path) -> AgentRuns:
    return AgentRuns(tmp_path / "root", tmp_path / "kept")


def house(tmp_path: Path) -> House:
    return House(cache=tmp_path, target="cpu", terms=TERMS, say=lambda _: None)


@pytest.mark.parametrize(("sent", "status"), [(b"", 401), (b"Bearer wrong", 401), (b"Bearer s3cret", 200)])
def test_without_the_token_nobody_comes_in(sent: bytes, status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    told: list[int] = []

    async def send(message: Any) -> None:
        told.extend([message["status"]] if "status" in message else [])

    scope = {"type": "http", "headers": [(b"authorization", sent)] if sent else []}
    asyncio.run(_guarded(app, "s3cret")(scope, None, send))
    assert told == [status]


def test_an_open_address_needs_a_token(agent_runs: AgentRuns, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="set TILEWRIGHT_MCP_TOKEN"):
        serve_http(agent_runs, house(tmp_path), host="0.0.0.0", port=0, token=None)


def test_without_the_sdk_one_line_says_what_to_install(
    agent_runs: AgentRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)  # as an import finds it that is not installed
    with pytest.raises(UserError, match=r"pip install 'tilewright\[mcp\]'"):
        serve_http(agent_runs, house(tmp_path), host="127.0.0.1", port=0, token=None)


def test_places_outside_the_root_are_refused_however_they_are_written(agent_runs: AgentRuns, tmp_path: Path) -> None:
    agent_runs.root.mkdir()
    (agent_runs.root / "out").symlink_to(tmp_path)
    assert agent_runs.inside("a/b.py") == agent_runs.root / "a" / "b.py"
    assert agent_runs.inside(str(agent_runs.runs / "x")) == agent_runs.runs / "x"  # new runs lie there
    for path in ("..", "/etc/passwd", "a/../../x", "out/x"):
        with pytest.raises(UserError, match=r"lies outside .* another --root"):
            agent_runs.inside(path)


def test_new_runs_get_folders_of_their_own(agent_runs: AgentRuns) -> None:
    first = agent_runs.folder("", Path("softmax.py"))
    assert first == agent_runs.runs / "softmax-agent-1"
    first.mkdir(parents=True)
    assert agent_runs.folder("", Path("softmax.py")) == agent_runs.runs / "softmax-agent-2"
    assert agent_runs.folder("mine", Path("softmax.py")) == agent_runs.root / "mine"


def test_a_problem_that_cannot_be_opened_is_told_to_whoever_waits(agent_runs: AgentRuns, tmp_path: Path) -> None:
    agent_runs.root.mkdir()
    (agent_runs.root / "empty.py").write_text("x = 1\n")
    tools = Tools(agent_runs, house(tmp_path))

    async def talk() -> None:
        working = await tools.open_problem("empty.py", None, folder="run", wait_s=0.0)
        assert working["state"] == "working" and working["run"] == "run"
        for _ in range(2):  # again, for whoever missed it
            with pytest.raises(UserError, match="no `Model`"):
                await tools.wait(None, run="run")
        with pytest.raises(UserError, match="no `Model`"):
            await tools.read_problem(run="run")
        with pytest.raises(UserError, match="open one with open_problem"):
            await tools.attempts()

    asyncio.run(talk())
    agent_runs.close()


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "y/" * 2100 + "z", "\ud800", "loop", "a\nb" * 900])
def test_what_can_be_no_place_is_told_in_a_line(agent_runs: AgentRuns, name: str) -> None:
    agent_runs.root.mkdir()
    (agent_runs.root / "loop").symlink_to("loop")
    for act in (agent_runs.inside, agent_runs.open_run):
        with pytest.raises(UserError) as told:
            act(name)
        assert len(str(told.value)) < 600


def test_a_seat_that_was_never_taken_is_taken_by_whoever_comes_next(agent_runs: AgentRuns) -> None:
    """As after a budget that is none: the folder can still be opened."""
    agent_runs.root.mkdir()
    first = agent_runs.run_at(agent_runs.root / "r")
    assert agent_runs.run_at(agent_runs.root / "r") is first and first.new


@pytest.mark.parametrize("given", ["a\0b", "\udc80", ["ok", {"k": "\ud800"}], {"\0": 1}, "x" * (33 << 20)])
def test_what_no_text_file_can_hold_is_refused_before_a_tool_sees_it(given: Any) -> None:
    async def act(value: Any) -> dict[str, Any]:
        raise AssertionError("it should not come here")

    with pytest.raises(ValueError, match="send"):
        asyncio.run(_answering(act, ValueError)(value=given))
