"""The table of routes, as an OpenAPI document and as a page that asks for nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ...facts.version import VERSION
from .bodies import PostedBatch, PostedSubmission, RewardOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRoute:
    """`act` names the method that answers; `answers`: what each status means."""

    method: str
    path: str
    act: str
    about: str
    body: type[BaseModel] | None = None
    query: tuple[tuple[str, str], ...] = ()
    answers: Mapping[str, str]


_REWARD = (
    ("formula", "log_ratio (default), right_log_ratio, ratio or right"),
    ("against", "eager (default), compile, or best: the better of both"),
    ("cap", "the most that a reward can be, 3 by default"),
)
_WAIT = ("wait_s", "wait so many seconds for the end, 60 at most")
_REFUSED = {
    "400": "malformed, or names that can be none", "401": "no token, or a wrong one", "403": "not allowed to this key",
    "413": "too large", "429": "too many: the text says of what", "503": "the queue is down; ask again",
}  # fmt: skip
_READ = {"404": "none of yours"}

ROUTES = (
    ServedRoute(method="POST", path="/v1/tickets", act="submit", body=PostedSubmission, query=_REWARD,
                about="Submit a candidate. Equal content of the same key gets the same ticket.",
                answers={"202": "the ticket, which waits now", "200": "the ticket that this content has already",
                         "404": "unknown problem"} | _REFUSED),
    ServedRoute(method="GET", path="/v1/tickets/{ticket}", act="ticket", query=(*_REWARD, _WAIT),
                about="A ticket: its state, and when it has ended the verdict with its reward, or the fault.",
                answers={"200": "the ticket"} | _READ),
    ServedRoute(method="GET", path="/v1/tickets/{ticket}/events", act="events", query=_REWARD,
                about="Server-sent events: `state`, `progress` (with ids, so that a client can go on), and `ended`.",
                answers={"200": "the stream"} | _READ),
    ServedRoute(method="DELETE", path="/v1/tickets/{ticket}", act="cancel",
                about="Cancel a ticket; a judgement that goes on is ended.",
                answers={"200": "the ticket, cancelled", "409": "it has ended already"} | _READ),
    ServedRoute(method="GET", path="/v1/tickets", act="tickets", query=(("ids", "tickets, by commas"), *_REWARD),
                about="Many tickets at once; those that are not yours are left out.", answers={"200": "the tickets"}),
    ServedRoute(method="POST", path="/v1/batches", act="batch", body=PostedBatch, query=_REWARD,
                about="Submit many candidates; each is taken or refused by itself.",
                answers={"202": "a ticket or an error for each, in their order"} | _REFUSED),
    ServedRoute(method="GET", path="/v1/problems", act="problems", about="The problems that are known by name.",
                answers={"200": "their names"}),
    ServedRoute(method="GET", path="/v1/status", act="status", about="Tickets by state, and refusals by reason.",
                answers={"200": "the counts"}),
    ServedRoute(method="GET", path="/metrics", act="metrics", about="Counts and times for Prometheus.",
                answers={"200": "text"}),
    ServedRoute(method="GET", path="/healthz", act="healthz", about="Whether the server lives; no token.",
                answers={"200": "ok"}),
    ServedRoute(method="GET", path="/openapi.json", act="schema", about="This as an OpenAPI document; no token.",
                answers={"200": "the document"}),
    ServedRoute(method="GET", path="/docs", act="docs", about="This page; no token.", answers={"200": "the page"}),
)  # fmt: skip


@cache
def schema() -> dict[str, Any]:
    """The OpenAPI document."""
    models: list[type[BaseModel]] = [PostedSubmission, PostedBatch, RewardOptions]
    _, found = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0", "info": {"title": "Tilewright's judge", "version": VERSION}, "paths": paths,
        "components": {
            "schemas": found["$defs"], "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }  # fmt: skip


def _operation(route: ServedRoute) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "required": name == "ids", "description": about, "schema": {"type": "string"}}
        for name, about in route.query
    ]
    if "{ticket}" in route.path:
        parameters.append({"name": "ticket", "in": "path", "required": True, "schema": {"type": "string"}})
    told: dict[str, Any] = {
        "operationId": route.act, "summary": route.about, "parameters": parameters,
        "responses": {status: {"description": text} for status, text in route.answers.items()},
    }  # fmt: skip
    if route.body is not None:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.body.__name__}"}}}
        told["requestBody"] = {"required": True, "content": content}
    return told


@cache
def page() -> str:
    """The same for people."""
    pages = Environment(loader=PackageLoader("tilewright.faces.serving", "."), autoescape=True)
    return pages.get_template("openapi.html.jinja").render(
        routes=ROUTES, version=VERSION, schemas=schema()["components"]["schemas"]
    )
