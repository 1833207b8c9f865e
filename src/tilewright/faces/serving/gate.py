"""The gate: what is asked of every request before anything of its content is looked at."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import re
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...facts.errors import UserError
from .counts import Counts
from .keys import KeyFile, KeyHolder

Scope = MutableMapping[str, Any]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]

OPEN = ("/healthz", "/docs", "/openapi.json")  # say nothing of anybody's
PAGES = "/site"  # for browsers, which send a token as the password that they ask for
_BODY_S = 30.0  # for a body to arrive
_DRAIN_S, _MOST_DRAINED = 1.0, 64 << 20
_MOST_METHOD = ("GET", "POST", "DELETE", "HEAD")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::[0-9]{1,5})?")


class Refusal(Exception):
    """A request that is not served: its HTTP status, a slug and a sentence. `retry_s`: when it may be worth a try;
    `asks`: how whoever asked is to say who it is."""

    def __init__(self, status: int, reason: str, text: str, *, retry_s: int = 0, asks: str = "Bearer") -> None:
        super().__init__(text)
        self.status, self.reason, self.retry_s, self.asks = status, reason, retry_s, asks

    @property
    def line(self) -> bytes:
        return json.dumps({"error": self.reason, "text": str(self)}).encode() + b"\n"

    @property
    def headers(self) -> dict[str, str]:
        found = {"content-type": "application/json"}
        found |= {"www-authenticate": self.asks} if self.status == 401 else {}
        return found | ({"retry-after": str(self.retry_s)} if self.retry_s else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class GateTerms:
    """`hosts`: the names under which clients may ask; `keys` of None: everybody who comes is `everybody`."""

    hosts: frozenset[str]
    keys: KeyFile | None
    everybody: KeyHolder
    most_bytes: int


@dataclass(slots=True)
class SubmissionRates:
    """How many submissions each holder may still make: `rate` a minute, as many at once."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)

    def spend(self, holder: KeyHolder, count: int) -> None:
        """Raises Refusal where there are not so many left."""
        now, rate = time.monotonic(), holder.limits.rate
        with self._lock:
            left, at = self._left.get(holder.name, (float(rate), now))
            left = min(float(rate), left + (now - at) * rate / 60.0)
            fits = count <= left
            self._left[holder.name] = (left - count if fits else left, now)
        if not fits:
            retry_s = math.ceil(60 * (count - left) / max(rate, 1))
            raise Refusal(429, "too_many_requests", f"{rate} submissions a minute", retry_s=retry_s)


class HttpGate:
    """The application, for requests that come under a known name, from no other origin, with a token where one is
    wanted, and with a body of the right kind and size. `scope["state"]` has the `holder` and the `body` then."""

    def __init__(self, app: Asgi, terms: GateTerms, counts: Counts) -> None:
        self._app, self._terms, self._counts = app, terms, counts

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        started, told = time.monotonic(), _Told(send)
        try:
            headers = _headers(scope)
            self._require_name(headers)
            if scope["path"] not in OPEN:
                scope.setdefault("state", {})["holder"] = self._holder(headers, scope["path"])
                if scope["method"] not in _MOST_METHOD:
                    raise Refusal(405, "wrong_method", f"{scope['method'][:20]} is not served")
                if scope["method"] == "POST":
                    scope["state"]["body"] = await self._body(headers, receive)
            await self._app(scope, receive, told)
        except Refusal as refusal:
            await _drain(scope, receive)
            await self._refuse(refusal, told)
        finally:
            waited = bool(scope.get("state", {}).get("waited"))
            self._counts.request(
                scope["method"] if scope["method"] in _MOST_METHOD else "other", told.status,
                None if waited else time.monotonic() - started,
            )  # fmt: skip

    async def _refuse(self, refusal: Refusal, told: _Told) -> None:
        self._counts.refusal(refusal.reason)
        if not told.status:
            headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
            headers.append((b"connection", b"close"))  # what is left of the body is not read
            await told({"type": "http.response.start", "status": refusal.status, "headers": headers})
            await told({"type": "http.response.body", "body": refusal.line})

    def _require_name(self, headers: dict[bytes, bytes]) -> None:
        """A page that has its own name resolve to this address asks under its own name, and its browser says so."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        named = _HOST.fullmatch(host)
        if named is None or named[1].strip("[]") not in self._terms.hosts:
            raise Refusal(421, "other_host", "this server is asked under another name; --name allows one")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() not in (f"http://{host}", f"https://{host}"):
            raise Refusal(403, "other_origin", "requests of pages from elsewhere are not served")
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            raise Refusal(403, "other_origin", "requests of pages from elsewhere are not served")

    def _holder(self, headers: dict[bytes, bytes], path: str) -> KeyHolder:
        if self._terms.keys is None:
            return self._terms.everybody
        kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        scheme, asks = "bearer", "Bearer"
        if path == PAGES or path.startswith(f"{PAGES}/"):
            scheme, asks = "basic", 'Basic realm="tilewright: any name, and a token as the password"'
            token = _password(token) if kind.lower() == "basic" else ""
        if kind.lower() != scheme or not token.strip():
            raise Refusal(401, "no_token", f"send a token: Authorization: {asks.split()[0]} TOKEN", asks=asks)
        try:
            holder = self._terms.keys.holder(token.strip())
        except UserError as error:  # whoever changed the file can mend it
            raise Refusal(503, "keys_unreadable", str(error).partition(":")[2].strip(), retry_s=5) from None
        if holder is None:
            raise Refusal(401, "wrong_token", "this token is of no key", asks=asks)
        return holder

    async def _body(self, headers: dict[bytes, bytes], receive: Any) -> bytes:
        if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            raise Refusal(415, "wrong_type", "send JSON: Content-Type: application/json")
        if b"transfer-encoding" in headers and b"content-length" in headers:
            raise Refusal(400, "malformed", "two lengths of one body")
        if b"content-encoding" in headers:
            raise Refusal(415, "wrong_type", "send JSON as it is, without Content-Encoding")
        most = self._terms.most_bytes
        said = headers.get(b"content-length", b"0")
        if not said.isdigit() or len(said) > 18 or int(said) > most:
            raise Refusal(413, "too_large", f"a body has {most} bytes at most")
        found = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "gone", "the body did not come to its end")
                    found += message.get("body", b"")
                    if len(found) > most:
                        raise Refusal(413, "too_large", f"a body has {most} bytes at most")
                    if not message.get("more_body"):
                        return bytes(found)
        except TimeoutError:
            raise Refusal(408, "too_slow", f"a body must arrive within {_BODY_S:g} s") from None


def _password(credentials: str) -> str:
    """Of `name:password` in base64; "" where it is none."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


async def _drain(scope: Scope, receive: Any) -> None:
    """Throw away what is left of a body, if that is little and comes soon: who still sends does not read an answer."""
    left = _MOST_DRAINED
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            while scope["method"] not in ("GET", "HEAD", "DELETE") and left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """Those that count here are allowed once: two of them could be read in two ways."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in found and name in (b"host", b"origin", b"authorization", b"content-length", b"content-type"):
            raise Refusal(400, "malformed", f"two headers {name.decode('latin-1')}")
        found[name] = value
    return found


class _Told:
    """What was answered."""

    def __init__(self, send: Any) -> None:
        self._send, self.status = send, 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            headers += [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
        await self._send(message)
