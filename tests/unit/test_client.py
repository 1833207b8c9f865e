"""tilewright.client: a server that is away for a while is waited for, and refusals come as they are."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tilewright.client import JudgeClient, JudgeRefused, JudgeUnreachable, Submitted


class Away(BaseHTTPRequestHandler):
    """Answers with what `script` gives next: a status and a body; None: the connection breaks."""

    script: list[tuple[int, bytes] | None] = []  # noqa: RUF012
    seen: list[tuple[str, str]] = []  # noqa: RUF012

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        Away.seen.append((self.path, self.headers.get("Last-Event-ID", "")))
        told = Away.script.pop(0)
        if told is None:
            self.connection.close()
            return
        self.send_response(told[0])
        self.end_headers()
        self.wfile.write(told[1])

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def client() -> Any:
    Away.seen.clear()
    with HTTPServer(("127.0.0.1", 0), Away) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield JudgeClient(f"http://127.0.0.1:{server.server_port}", patience_s=5.0)
        server.shutdown()


TICKET = b'{"ticket": "t1", "state": "queued"}'


def test_what_can_not_be_asked_is_asked_again(client: JudgeClient) -> None:
    busy = b'{"error": "queue_down", "text": "later"}'
    Away.script[:] = [None, (503, busy), (429, busy), (202, TICKET)]
    assert client.submit(Submitted(files={"model.py": "x"})).id == "t1"
    assert len(Away.seen) == 4


def test_a_refusal_is_told_at_once(client: JudgeClient) -> None:
    Away.script[:] = [(404, b'{"error": "unknown_ticket", "text": "no such ticket of yours"}'), (400, b"<html>")]
    with pytest.raises(JudgeRefused, match="no such ticket") as refused:
        client.ticket("t1")
    assert (refused.value.status, refused.value.reason) == (404, "unknown_ticket")
    with pytest.raises(JudgeRefused, match="<html>"):
        client.cancel("t1")


def test_a_stream_that_breaks_goes_on_behind_the_last_event(client: JudgeClient) -> None:
    first = b'id: 7\nevent: progress\ndata: {"text": "built"}\n\n: it goes on\n\nevent: progr'
    last = b'id: 8\nevent: progress\ndata: {"text": "right"}\n\nevent: ended\ndata: {"state": "judged"}\n\n'
    Away.script[:] = [(200, first), None, (200, last)]
    events = list(client.stream("t1"))
    assert [name for name, _ in events] == ["progress", "progress", "ended"] and events[-1][1]["state"] == "judged"
    assert [last for _, last in Away.seen] == ["0", "7", "7"]


def test_patience_ends(client: JudgeClient) -> None:
    gone = JudgeClient("http://127.0.0.1:9", patience_s=0.3)
    started = time.monotonic()
    with pytest.raises(JudgeUnreachable):
        gone.problems()
    assert time.monotonic() - started < 30
    Away.script[:] = [(200, TICKET)] * 2
    with pytest.raises(TimeoutError):
        client.wait("t1", timeout_s=0.0)
    with pytest.raises(ValueError, match="not a URL"):
        JudgeClient("judge.lan:8765")


def test_it_needs_nothing_but_the_standard_library() -> None:
    code = "import sys; before = {*sys.modules}; import tilewright.client; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    brought = {name.partition(".")[0] for name in done.stdout.split()}
    assert "tilewright" in brought and brought - sys.stdlib_module_names == {"tilewright"}
