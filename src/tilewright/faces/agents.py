"""The MCP server: a coding agent's tools over stdio or HTTP, by the official SDK (modelcontextprotocol.io)."""

from __future__ import annotations

import functools
import hmac
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..facts.errors import HarnessError, TilewrightError, UserError
from ..facts.tools import NAMES, spec_of
from ..facts.version import VERSION
from . import config
from .agent_runs import AgentRuns, Told
from .listening import LOCAL, opened_socket, url_of
from .looking import LookingTools
from .tools import GUIDE, House, Tools

if TYPE_CHECKING:
    from mcp.server import MCPServer

TOKEN = "TILEWRIGHT_MCP_TOKEN"
PATH = "/mcp"
_GRACE_S = 2
_LONGEST = 4000  # characters of an error
_MOST_CHARACTERS = 32 << 20  # of what a call brings
_OVER = (
    " `files`, `path` and `base` say of what, as of submit (base alone: an attempt, or the library's). It books its "
    "time on the run, and counts as no try."
)
_READS = ("read_problem", "read_skeletons", "attempts", "attempt", "wait")
_WORKS = ("open_problem", "submit", "profile", "tune", "finish")

Scope = MutableMapping[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]


def serve(http: str, *, root: Path, runs: Path, house: House) -> None:
    """Serve over stdio, or at the address that `http` names, until the client or a signal ends it."""
    if not root.is_dir():
        raise UserError(f"--root {root}: no such folder")
    agent_runs = AgentRuns(root, runs)
    if http:
        host, port = config.address(http)
        serve_http(agent_runs, house, host=host, port=port, token=config.agents_token())
    else:
        serve_stdio(agent_runs, house)


def serve_stdio(agent_runs: AgentRuns, house: House) -> None:
    """Serve the one client that holds our stdin and stdout, until it closes them."""
    server = _server(Tools(agent_runs, house))
    if sys.stdin.isatty():
        print(
            "a coding agent starts this command by itself and speaks to it (docs/mcp.md); Ctrl-C ends", file=sys.stderr
        )
    try:
        server.run("stdio")
    finally:
        agent_runs.close()


def serve_http(agent_runs: AgentRuns, house: House, *, host: str, port: int, token: str | None) -> None:
    """Serve clients at http://HOST:PORT/mcp until a signal; port 0 takes a free one. With `token` each request must
    bear it. Raises UserError where the address can't be had, or lies open without a token."""
    if host not in LOCAL and not token:
        raise UserError(
            f"--http {host}:{port}: whoever reaches this address could have code run here; set {TOKEN} to a secret "
            "that clients must send (Authorization: Bearer ...), or serve 127.0.0.1"
        )
    server = _server(Tools(agent_runs, house))
    import uvicorn

    with opened_socket(host, port, of="--http") as listening:
        app = server.streamable_http_app(streamable_http_path=PATH, host=host)
        guarded = _guarded(app, token) if token else app
        settings = uvicorn.Config(guarded, log_level="warning", timeout_graceful_shutdown=_GRACE_S)
        print(f"listening on {url_of(host, listening)}{PATH}", file=sys.stderr, flush=True)
        try:
            uvicorn.Server(settings).run(sockets=[listening])
        finally:
            agent_runs.close()


def _server(tools: Tools) -> MCPServer[Any]:
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.server.mcpserver.tools import Tool
        from mcp_types import ToolAnnotations
    except ImportError as error:
        raise UserError(f"`tilewright mcp` needs the MCP SDK ({error}): pip install 'tilewright[mcp]'") from error

    def tool(name: str, *, reads: bool) -> Tool:
        asked = _answering(getattr(tools, name), ToolError)
        hints = ToolAnnotations(read_only_hint=reads, destructive_hint=False, open_world_hint=False)
        waits = "ctx" in getattr(tools, name).__annotations__
        return Tool.from_function(asked, name=name, annotations=hints, context_kwarg="ctx" if waits else None)

    looking = LookingTools(tools.desk)

    def look(name: str) -> Tool:
        spec = spec_of(name)
        assert spec is not None
        asked = _answering(getattr(looking, name), ToolError)
        hints = ToolAnnotations(read_only_hint=not spec.of_a_candidate, destructive_hint=False, open_world_hint=False)
        about = spec.about + (_OVER if spec.of_a_candidate else "")
        return Tool.from_function(asked, name=name, description=about, annotations=hints, context_kwarg="ctx")

    made = [look(name) for name in NAMES if name != "profile"]  # which is an attempt's, above
    made += [tool(name, reads=True) for name in _READS] + [tool(name, reads=False) for name in _WORKS]
    return MCPServer("tilewright", instructions=GUIDE, version=VERSION, tools=made, log_level="WARNING")


def _answering(act: Callable[..., Awaitable[Told]], error_of: type[Exception]) -> Callable[..., Awaitable[Told]]:
    """The tool, with what goes wrong told to the agent: whose fault it is, and the way out."""

    @functools.wraps(act)
    async def asked(*args: Any, **given: Any) -> Told:
        try:
            _require_text((args, given))
            return await act(*args, **given)
        except UserError as error:
            raise error_of(str(error)[:_LONGEST]) from error
        except (TilewrightError, OSError) as error:
            kind = "Tilewright or the machine failed" if isinstance(error, HarnessError) else "the machine failed"
            raise error_of(
                f"{kind}, and nothing was booked on you: {error}; try again, and if it stays, have the user run "
                "`tilewright doctor`. Open the same folder to go on: all that was told is kept"
            ) from error

    return asked


def _require_text(given: Any) -> None:
    """Raise UserError where what a client sent holds a text that nothing here can keep or show."""
    texts: list[str] = []
    todo = [given]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            todo += value
    if sum(map(len, texts)) > _MOST_CHARACTERS:
        raise UserError(f"more than {_MOST_CHARACTERS >> 20} million characters in one call; send less")
    for text in texts:
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            raise UserError(f"{text[:60]!r}: holds a NUL, or half a letter (a surrogate); send text")


def _guarded(app: Asgi, token: str) -> Asgi:
    """The application, for those who bear the token."""
    wanted = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Any, send: Any) -> None:
        sent = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] != "http" or hmac.compare_digest(sent, wanted):
            await app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": f"send {TOKEN} as a bearer token\n".encode()})

    return guarded
