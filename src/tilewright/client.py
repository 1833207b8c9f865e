"""A client of `tilewright serve`, of the standard library alone.

judge = JudgeClient("http://127.0.0.1:8765", token=os.environ.get("JUDGE_TOKEN", ""))
ticket = judge.submit(Submitted(problem="softmax", files={"model.py": text}))
found = judge.wait(ticket.id)        # found.accepted, found.reward, found.told["verdict"]["summary"]
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

_POLL_S = 20.0  # that the server is asked to wait in one request
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_AGAIN = (429, 502, 503, 504)


class JudgeRefused(Exception):
    """The server does not serve a request; `reason` is its slug, as docs/serve.md lists them."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.status, self.reason = status, reason


class JudgeUnreachable(ConnectionError):
    """The server did not answer for as long as the client's patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A candidate for a problem: `problem` by its name under the server's roots, or by the text of its file in
    `source`. `files`: texts by name, with a class ModelNew in `model.py`. Equal content has one ticket; another
    `repeat` has it judged again."""

    problem: str = "problem"
    files: Mapping[str, str]
    source: str = ""
    mode: Literal["inference", "training"] | None = None
    precision: Literal["reference", "tf32", "bf16", "fp16"] = "reference"
    priority: int = 0
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFormula:
    """How the server makes a reward of a verdict (docs/serve.md)."""

    formula: Literal["log_ratio", "right_log_ratio", "ratio", "right"] = "log_ratio"
    against: Literal["eager", "compile", "best"] = "eager"
    cap: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTicket:
    """A ticket as the server tells of it. `accepted` and `reward` are None until it is judged; a ticket that ended
    without a verdict never has them. `told`: all that was told."""

    id: str
    state: Literal["queued", "judging", "judged", "faulted", "cancelled"]
    told: Mapping[str, Any]

    @property
    def ended(self) -> bool:
        return self.state in ("judged", "faulted", "cancelled")

    @property
    def accepted(self) -> bool | None:
        return self.told.get("accepted")

    @property
    def reward(self) -> float | None:
        found = self.told.get("reward")
        return None if found is None else found["value"]


class JudgeClient:
    """Any thread may use it. A request that can't be made is made again for `patience_s` seconds, since the server may
    be starting: what was submitted then has the ticket that it had. Raises JudgeRefused and JudgeUnreachable."""

    def __init__(
        self, url: str, *, token: str = "", rule: RewardFormula = RewardFormula(), timeout_s: float = 90.0,
        patience_s: float = 60.0,
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r}: not a URL such as http://127.0.0.1:8765")
        self._https, self._place = parts.scheme == "https", (parts.hostname, parts.port)
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._rule, self._timeout_s, self._patience_s = asdict(rule), timeout_s, patience_s

    def submit(self, wanted: Submitted) -> ServedTicket:
        return _ticket(self._asked("POST", "/v1/tickets", self._rule, _body(wanted)))

    def submit_all(self, wanted: Sequence[Submitted]) -> list[ServedTicket | JudgeRefused]:
        """A ticket or a refusal for each, in their order, by one request."""
        told = self._asked("POST", "/v1/batches", self._rule, {"submissions": [_body(one) for one in wanted]})
        return [
            JudgeRefused(400, one["error"], one["text"]) if "error" in one else _ticket(one) for one in told["tickets"]
        ]

    def ticket(self, ticket: str, *, wait_s: float = 0.0) -> ServedTicket:
        """As it is now; with `wait_s` (60 at most) when it has ended, or after so long."""
        return _ticket(self._asked("GET", f"/v1/tickets/{ticket}", self._rule | {"wait_s": f"{wait_s:g}"}))

    def wait(self, ticket: str, *, timeout_s: float = 3600.0) -> ServedTicket:
        """When it has ended; TimeoutError where that takes longer."""
        ends_s = time.monotonic() + timeout_s
        while True:
            left_s = ends_s - time.monotonic()
            found = self.ticket(ticket, wait_s=max(0.0, min(_POLL_S, left_s)))
            if found.ended:
                return found
            if left_s <= 0:
                raise TimeoutError(f"ticket {ticket} is {found.state} after {timeout_s:g} s")

    def stream(self, ticket: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Events as the server sends them: ("state", ...), ("progress", {"text": ...}), and last ("ended", all that is
        told of the ticket). Where the connection breaks, it goes on behind the last event."""
        last, ends_s = "0", time.monotonic() + self._patience_s
        while time.monotonic() < ends_s:
            try:
                with _Answer(self, "GET", f"/v1/tickets/{ticket}/events", self._rule, last=last) as answer:
                    for name, data, number in _events(answer):
                        last, ends_s = number or last, time.monotonic() + self._patience_s
                        yield name, data
                        if name == "ended":
                            return
            except (OSError, HTTPException):
                pass
            time.sleep(_PAUSE_S)
        raise JudgeUnreachable(f"the stream of {ticket} broke, and the server did not come back")

    def cancel(self, ticket: str) -> ServedTicket:
        return _ticket(self._asked("DELETE", f"/v1/tickets/{ticket}", {}))

    def problems(self) -> list[str]:
        """The problems that the server knows by name."""
        found: list[str] = self._asked("GET", "/v1/problems", {})["problems"]
        return found

    def status(self) -> Mapping[str, Any]:
        """How many tickets are in each state, and how many requests were refused, by reason."""
        found: Mapping[str, Any] = self._asked("GET", "/v1/status", {})
        return found

    def _asked(self, method: str, path: str, query: Mapping[str, Any], body: Any = None) -> Any:
        ends_s, pause_s = time.monotonic() + self._patience_s, _PAUSE_S
        while True:
            try:
                with _Answer(self, method, path, query, body=body) as answer:
                    return json.loads(answer.read())
            except JudgeRefused as refused:
                if refused.status not in _AGAIN or time.monotonic() > ends_s:
                    raise
            except (OSError, HTTPException, ValueError) as error:
                if time.monotonic() > ends_s:
                    raise JudgeUnreachable(f"{method} {path}: {error}") from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _connection(self) -> HTTPConnection:
        host, port = self._place
        kind = HTTPSConnection if self._https else HTTPConnection
        return kind(host, port, timeout=self._timeout_s)


class _Answer:
    """One request, and what is answered; raises JudgeRefused where that is a refusal."""

    def __init__(
        self, client: JudgeClient, method: str, path: str, query: Mapping[str, Any], *, body: Any = None, last: str = ""
    ) -> None:  # fmt: skip
        self._connection = client._connection()
        self._answer: HTTPResponse | None = None
        self._asked = (method, f"{client._prefix}{path}{'?' if query else ''}{urlencode(query)}")
        self._body = None if body is None else json.dumps(body).encode()
        self._headers = client._headers | ({"Last-Event-ID": last} if last else {})

    def __enter__(self) -> HTTPResponse:
        try:
            self._connection.request(*self._asked, body=self._body, headers=self._headers)
            if self._connection.sock is not None:
                self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._answer = self._connection.getresponse()
            if self._answer.status >= 400:
                raise _refused(self._answer)
            return self._answer
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._answer is not None:
            self._answer.close()
        self._connection.close()


def _refused(answer: HTTPResponse) -> JudgeRefused:
    text = answer.read(10_000).decode(errors="replace")
    try:
        told = json.loads(text)
        return JudgeRefused(answer.status, str(told["error"]), str(told["text"]))
    except (ValueError, KeyError, TypeError):
        return JudgeRefused(answer.status, "unknown", text[:200])


def _events(answer: HTTPResponse) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    fields: dict[str, str] = {}
    for raw in answer:
        line = raw.decode().rstrip("\r\n")
        if not line and "data" in fields:
            yield fields.get("event", "message"), json.loads(fields["data"]), fields.get("id", "")
        if not line:
            fields = {}
        else:
            name, _, value = line.partition(": ")
            fields |= {name: value} if name else {}


def _body(wanted: Submitted) -> dict[str, Any]:
    told = {name: value for name, value in asdict(wanted).items() if name != "source"}
    return told | ({"problem": {"name": wanted.problem, "source": wanted.source}} if wanted.source else {})


def _ticket(told: Mapping[str, Any]) -> ServedTicket:
    return ServedTicket(id=told["ticket"], state=told["state"], told=told)
