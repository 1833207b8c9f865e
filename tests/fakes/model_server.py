"""A server on this machine that speaks the wires of OpenAI, Anthropic and Gemini, with faults by order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXT = "Hello, tile.\nAnd more."
CALL = ("search", '{"query": "online softmax"}')  # what "calls" has the model call


@dataclass
class Server:
    """`faults` are used up one a request: "429", "500", "cut", "stall", "malformed", "unended", "length", "empty",
    "uncounted", "slow",
    "calls" (of a tool), "401:..."; after them all goes well. `seen` holds each request's path, headers and body."""

    url: str = ""
    faults: list[str] = field(default_factory=list)
    seen: list[tuple[str, dict[str, str], dict]] = field(default_factory=list)
    model: str = ""


def _openai(fault: str, model: str) -> list[str]:
    def chunk(delta: dict, finish: str | None = None) -> dict:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices}

    texts = [] if fault == "empty" else ["Hello, ", "tile.\n", "And more."]
    events = [chunk({"role": "assistant", "content": t}) for t in texts]
    if fault == "calls":
        call = {"index": 0, "id": "call_1", "type": "function"}
        events.append(chunk({"tool_calls": [call | {"function": {"name": CALL[0], "arguments": CALL[1][:9]}}]}))
        events.append(chunk({"tool_calls": [{"index": 0, "function": {"arguments": CALL[1][9:]}}]}))
    if fault != "unended":
        events.append(chunk({}, {"length": "length", "calls": "tool_calls"}.get(fault, "stop")))
    if fault not in ("uncounted", "unended"):
        counted = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
        events.append({**chunk({}), "choices": [], "usage": counted})
    return [f"data: {json.dumps(e)}\n\n" for e in events] + ["data: [DONE]\n\n"] * (fault != "unended")


def _anthropic(fault: str, model: str) -> list[str]:
    counted = fault != "uncounted"
    message = {
        "id": "m", "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 1000 if counted else 0, "output_tokens": 0},
    }  # fmt: skip
    texts = [] if fault == "empty" else ["Hello, ", "tile.\n", "And more."]
    events: list[dict] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}} for t in texts),
        {"type": "content_block_stop", "index": 0},
    ]
    if fault == "calls":
        block = {"type": "tool_use", "id": "call_1", "name": CALL[0], "input": {}}
        events += [
            {"type": "content_block_start", "index": 1, "content_block": block},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": CALL[1]}},
            {"type": "content_block_stop", "index": 1},
        ]
    if fault != "unended":
        reason = {"length": "max_tokens", "calls": "tool_use"}.get(fault, "end_turn")
        delta = {"stop_reason": reason, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 500 if counted else 0}})
        events.append({"type": "message_stop"})
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events]


def _google(fault: str, model: str) -> list[str]:
    def chunk(text: str, finish: str | None = None) -> dict:
        candidate: dict = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
        if finish and fault == "calls":
            called = {"functionCall": {"id": "call_1", "name": CALL[0], "args": json.loads(CALL[1])}}
            candidate["content"]["parts"].append(called)
        if finish:
            candidate["finishReason"] = finish
        counts = {"promptTokenCount": 1000, "candidatesTokenCount": 500, "totalTokenCount": 1500}
        return {"candidates": [candidate], "modelVersion": model} | (
            {"usageMetadata": counts} if finish and fault != "uncounted" else {}
        )

    texts = ["", ""] if fault == "empty" else ["Hello, tile.\n", "And more."]
    finish = None if fault == "unended" else "MAX_TOKENS" if fault == "length" else "STOP"
    return [f"data: {json.dumps(c)}\n\n" for c in (chunk(texts[0]), chunk(texts[1], finish))]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HTTP

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def do_POST(self) -> None:
        told = self.server.told
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        told.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        fault = told.faults.pop(0) if told.faults else ""
        if fault[:3].isdigit():
            self._refuse(int(fault[:3]), fault[4:])
            return
        model = told.model or body.get("model", "") or self.path.rpartition("/")[2].partition(":")[0]
        wire = _anthropic if "/messages" in self.path else _google if "generateContent" in self.path.replace(
            "streamG", "g"
        ) else _openai  # fmt: skip
        self._stream(wire(fault, model), fault)

    def _refuse(self, status: int, detail: str) -> None:
        answer = json.dumps({"error": {"type": "fault", "message": f"made to fail {detail}"}}).encode()
        self.send_response(status)
        if status == 429:
            self.send_header("retry-after", detail or "7")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _stream(self, events: list[str], fault: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for index, event in enumerate(events):
            if fault == "malformed" and index == 1:
                event = event.replace("{", "{{", 1)
            if fault == "cut" and index == 1:
                return
            if fault in ("slow", "stall") and index == 1:
                time.sleep(0.2 if fault == "slow" else 1.5)
            data = event.encode()
            try:
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            except OSError:  # the client has given up
                return
        with suppress(OSError):
            self.wfile.write(b"0\r\n\r\n")


class _HTTP(ThreadingHTTPServer):
    daemon_threads = True
    told: Server


@contextmanager
def model_server() -> Iterator[Server]:
    http = _HTTP(("127.0.0.1", 0), _Handler)
    http.told = Server(url=f"http://127.0.0.1:{http.server_port}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield http.told
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
