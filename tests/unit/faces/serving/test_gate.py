"""What strangers and hostile clients send to `tilewright serve`: refused in one line with a reason, and counted."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fakes.served import Served, model, served
from tilewright.faces.serving.bodies import PostedSubmission, posted, submission_of
from tilewright.faces.serving.gate import Refusal
from tilewright.faces.serving.roots import ProblemRoots


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served"), names=("ann", "bob"), most_bytes=20_000) as found:
        yield found


def refused(house: Served, found: tuple[int, dict[str, str]]) -> tuple[int, str]:
    """Status and reason, when the refusal was counted under that reason."""
    status, told = found
    assert set(told) == {"error", "text"} and told["text"], told
    assert dict(house.counts.refusals())[told["error"]] > 0
    return status, told["error"]


def test_without_a_token_or_with_a_wrong_one_nothing_is_served(house: Served) -> None:
    ann = house.tokens["ann"]
    assert refused(house, house.raw("GET", "/v1/problems")) == (401, "no_token")
    for wrong in ("x", ann[:-1], ann + "x", ann.swapcase()):
        assert refused(house, house.raw("GET", "/v1/problems", token=wrong)) == (401, "wrong_token")
    assert refused(house, house.raw("GET", "/v1/problems", Authorization=f"Basic {ann}")) == (401, "no_token")
    assert house.raw("GET", "/v1/problems", token=ann)[0] == 200
    assert house.raw("GET", "/healthz") == (200, {"text": "ok\n"})


def test_while_the_file_of_keys_is_spoilt_nothing_is_served(tmp_path: Path) -> None:
    with served(tmp_path, names=("ann",)) as house:
        ann, keys = house.tokens["ann"], tmp_path / "keys"
        keys.chmod(0o644)
        keys.write_text(keys.read_text() + "\n")
        assert refused(house, house.raw("GET", "/v1/problems", token=ann)) == (503, "keys_unreadable")
        keys.chmod(0o600)
        assert house.raw("GET", "/v1/problems", token=ann)[0] == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Host": "evil.example"}, (421, "other_host")),
        ({"Host": "127.0.0.1.evil.example"}, (421, "other_host")),
        ({"Host": ""}, (421, "other_host")),
        ({"Host": "127.0.0.1@evil.example"}, (421, "other_host")),
        ({"Origin": "http://evil.example"}, (403, "other_origin")),
        ({"Origin": "null"}, (403, "other_origin")),
        ({"Sec_Fetch_Site": "cross-site"}, (403, "other_origin")),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, (421, "other_host")),
    ],
)
def test_pages_from_elsewhere_are_refused_even_with_a_token(
    house: Served, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    assert refused(house, house.raw("GET", "/v1/problems", token=house.tokens["ann"], **headers)) == expected


def test_the_servers_own_names_are_served(house: Served) -> None:
    ann = house.tokens["ann"]
    assert house.raw("GET", "/v1/problems", token=ann, Host="judge.lan:8765")[0] == 200
    assert house.raw("GET", "/v1/problems", token=ann, Host="judge.lan", Origin="http://judge.lan")[0] == 200


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, "malformed")),
        (b"{", (400, "malformed")),
        (b"[]", (400, "malformed")),
        (b"\xff\xfe", (400, "malformed")),
        (b'{"problem": "toy", "files": {"model.py": NaN}}', (400, "malformed")),
        (b'{"problem": "toy", "problem": "toy", "files": {"model.py": "class ModelNew: 1"}}', (400, "malformed")),
        (b"[" * 5000 + b"]" * 5000, (400, "too_deep")),
        (b'{"problem": "toy", "files": {"model.py": ' + b'{"a":' * 20 + b"1" + b"}" * 20 + b"}}", (400, "too_deep")),
        (b'{"problem": "toy", "files": {"a.py": "class ModelNew: 1"}}', (400, "wrong_candidate")),
        (b'{"problem": "toy", "files": {"model.py": "pass"}}', (400, "wrong_candidate")),
        (b'{"problem": "toy", "files": {"model.py": "class ModelNew: \\ud800"}}', (400, "wrong_candidate")),
        (b'{"problem": "toy", "files": {"model.py": 1}}', (400, "malformed")),
        (b'{"problem": "toy", "files": {}}', (400, "malformed")),
        (b'{"problem": "toy", "files": {"model.py": "class ModelNew: 1"}, "admin": true}', (400, "malformed")),
        (b'{"problem": "toy", "files": {"model.py": "class ModelNew: 1"}, "priority": "9"}', (400, "malformed")),
        (b'{"problem": "../toy", "files": {"model.py": "class ModelNew: 1"}}', (404, "unknown_problem")),
        (b'{"problem": "/etc/passwd", "files": {"model.py": "class ModelNew: 1"}}', (404, "unknown_problem")),
        (b'{"problem": {"source": "x", "name": "../x"}, "files": {"model.py": "ModelNew"}}', (400, "malformed")),
        (b'{"problem": "toy", "files": {"model.py": "class ModelNew: ' + b"x" * 20_000 + b'"}}', (413, "too_large")),
    ],
)  # fmt: skip
def test_bodies_that_are_none_are_refused(house: Served, body: bytes, expected: tuple[int, str]) -> None:
    before = dict(house.queue.counts())
    assert refused(house, house.raw("POST", "/v1/tickets", body, house.tokens["ann"])) == expected
    assert dict(house.queue.counts()) == before


@pytest.mark.parametrize(
    "name",
    ["../x.py", "/etc/cron.d/x", "a/../../x.py", "..", ".hidden", "a//b.py", "a/./b", "x\\y.py", "C:x", "a\0b",
     "-rf.py", "x/", "é.py", "a\nb.py", "a" * 130, "/".join("abcdefgh" * 100)],
)  # fmt: skip
def test_no_name_of_a_file_leads_out_of_the_candidates_folder(house: Served, name: str) -> None:
    body = json.dumps({"problem": "toy", "files": model("right") | {name: "x"}}).encode()
    status, reason = refused(house, house.raw("POST", "/v1/tickets", body, house.tokens["ann"]))
    assert status == 400 and reason in ("wrong_file_name", "wrong_candidate")


def test_too_many_files_are_refused(house: Served) -> None:
    files = model("right") | {f"f{n}.py": "" for n in range(64)}
    body = json.dumps({"problem": "toy", "files": files}).encode()
    assert refused(house, house.raw("POST", "/v1/tickets", body, house.tokens["ann"])) == (400, "malformed")


def test_other_methods_types_and_encodings_are_refused(house: Served) -> None:
    ann, body = house.tokens["ann"], house.submitted("right")
    assert refused(house, house.raw("PUT", "/v1/tickets", body, ann)) == (405, "wrong_method")
    assert refused(house, house.raw("OPTIONS", "/v1/tickets", token=ann)) == (405, "wrong_method")
    assert refused(house, house.raw("POST", "/v1/problems", body, ann)) == (405, "wrong_method")
    assert refused(house, house.raw("GET", "/v2", token=ann)) == (404, "not_found")
    assert refused(house, house.raw("GET", "/v1/tickets/../../etc/passwd", token=ann)) == (404, "not_found")
    assert refused(house, house.raw("GET", "/v1/tickets/%2e%2e", token=ann)) == (404, "unknown_ticket")
    for kind in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded"):
        sent = house.raw("POST", "/v1/tickets", body, ann, Content_Type=kind)
        assert refused(house, sent) == (415, "wrong_type")
    assert refused(house, house.raw("POST", "/v1/tickets", body, ann, Content_Encoding="gzip")) == (415, "wrong_type")


@pytest.mark.parametrize("query", ["formula=eval", "cap=-1", "cap=nan", "cap=inf", "cap=1e99", "against=mine"])
def test_rewards_by_no_known_rule_are_refused(house: Served, query: str) -> None:
    sent = house.raw("GET", f"/v1/tickets/{'0' * 32}?{query}", token=house.tokens["ann"])
    assert refused(house, sent) == (400, "malformed")


def said(house: Served, *pieces: bytes) -> bytes:
    """What the server answers to these bytes as they are."""
    host, _, port = house.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for piece in pieces:
            connection.sendall(piece)
        found = b""
        while more := connection.recv(65536):
            found += more
            if b"\r\n\r\n" in found and b'"text"' in found:
                break
        return found


def test_a_body_in_chunks_is_counted_as_it_comes(house: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.faces.serving.gate._DRAIN_S", 0.05)
    token = house.tokens["ann"].encode()
    head = b"POST /v1/tickets HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += b"Authorization: Bearer " + token + b"\r\n"
    chunk = b"2000\r\n" + b"[" * 0x2000 + b"\r\n"
    assert b"413" in said(house, head + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk, chunk)
    assert b"400" in said(house, head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert b"413" in said(house, head + b"Content-Length: 99999999999999999999\r\n\r\n")
    assert b"400" in said(house, head + b"Host: evil.example\r\nContent-Length: 2\r\n\r\n{}")
    assert b"400" in said(house, b"GET / HTTP/1.1\r\n\r\n")
    assert b" 400 " in said(house, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"x" * 60_000)


def test_a_body_that_does_not_come_is_given_up(house: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.faces.serving.gate._BODY_S", 0.2)
    monkeypatch.setattr("tilewright.faces.serving.gate._DRAIN_S", 0.05)
    token = house.tokens["ann"].encode()
    head = b"POST /v1/tickets HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"
    found = said(house, head + b"Authorization: Bearer " + token + b"\r\n\r\n{")
    assert b"408" in found and b"too_slow" in found


JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["toy", "model.py"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["problem", "files", "model.py", "priority", "mode", "name"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(JSONS.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60))
@example(b'{"problem":"toy","files":{"model.py":"\\ud800"}}')
def test_whatever_is_sent_is_a_submission_or_a_refusal(body: bytes) -> None:
    try:
        sent = posted(body, PostedSubmission)
        submission_of(sent, ProblemRoots([]), posted_problems=True)
    except Refusal as refusal:
        told = json.loads(refusal.line)
        assert refusal.status in (400, 404) and set(told) == {"error", "text"} and refusal.line.count(b"\n") == 1
