"""200 submissions to `tilewright serve` by 20 clients, six of them hostile, with a kill -9 and a new start in between.

    python -m benchmarks.serving [--seconds 1500] [--kill-after 20] [--json benchmarks/results/cpu/serving.json]

A small problem, judged on the CPU by the real judge, over loopback. 14 honest clients submit ten candidates each: one
right, three wrong by a factor that is theirs alone, and each of these again, which is answered from the ticket that it
has. The hostile ones send requests without a token, from other origins, too large, malformed, with names that lead out
of a folder; candidates that hang, kill, read the queue or call the server; and ask for others' tickets. Exit code 1
where anything was lost, served to another, or not refused.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilewright.client import JudgeClient
from tilewright.faces.serving.keys import add_key

from ..results import about, write
from .candidates import PROBLEM, hostile, right
from .clients import Tally, honest, judged, raw, refused

HONEST = 14
HOSTILE = ("stranger", "page", "flood", "garbler", "wrecker", "thief")
JSON = {"Content-Type": "application/json"}


@contextmanager
def serving(folder: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [
        sys.executable, "-m", "tilewright", "serve", "--port", str(port), "--root", "problems", "--state", "state",
        "--keys", "keys", "--target", "cpu", "--timing", "0.2s", "--no-compile", "--most-bytes", "100000",
        "--problems-from-roots-only",
    ]  # fmt: skip
    log = (folder / "log").open("a")
    with (
        log,
        subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as server,
    ):
        assert server.stderr is not None
        said = ""
        for said in server.stderr:
            log.write(said)
            if found := re.search(r"listening on (http://\S+)", said):
                break
        else:
            raise RuntimeError(f"the server did not start: {said}")
        follower = threading.Thread(target=shutil.copyfileobj, args=(server.stderr, log), daemon=True)
        follower.start()
        try:
            yield server, found[1]
        finally:
            server.terminate()
            server.wait(timeout=120)
            follower.join()


def stranger(tally: Tally, token: str) -> None:
    body = json.dumps({"problem": "cosines", "files": {"model.py": right("stranger")}}).encode()
    for k in range(10):
        bad = ("", "Bearer x", f"Bearer {token[:-2]}", "Basic YTpi", f"Token {token}")[k % 5]
        headers = JSON | ({"Authorization": bad} if bad else {})
        refused(tally, raw(tally, "POST", "/v1/tickets", body, headers), reasons=("no_token", "wrong_token"))


def page(tally: Tally, token: str) -> None:
    body = json.dumps({"problem": "cosines", "files": {"model.py": right("page")}}).encode()
    own = JSON | {"Authorization": f"Bearer {token}"}
    for k in range(10):
        more = (
            {"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example", "Origin": "http://evil.example"},
        )[k % 5]  # fmt: skip
        found = raw(tally, "POST", "/v1/tickets", body, own | more)
        refused(tally, found, reasons=("other_origin", "other_host"))


def flood(tally: Tally, token: str) -> None:
    own = JSON | {"Authorization": f"Bearer {token}"}
    large = json.dumps({"problem": "cosines", "files": {"model.py": "class ModelNew: ...\n" + "#" * 200_000}}).encode()
    for k in range(10):
        body = (large, b"[" * 90_000, b'{"a":' * 15_000, b'"' + b"\\" * 90_000, large * 5)[k % 5]
        found = raw(tally, "POST", "/v1/tickets", body, own)
        refused(tally, found, reasons=("too_large", "too_deep", "malformed"))


def garbler(tally: Tally, token: str) -> None:
    own = JSON | {"Authorization": f"Bearer {token}"}
    files = {"model.py": right("garbler")}
    sent: list[Any] = [
        {"problem": "cosines", "files": files | {"../../evil.py": "x"}}, {"problem": "../cosines", "files": files},
        {"problem": "cosines", "files": files | {"/etc/cron.d/evil": "x"}}, {"problem": "cosines", "files": {}},
        {"problem": {"name": "../x", "source": "x"}, "files": files}, {"problem": "/etc/passwd", "files": files},
        {"problem": "cosines", "files": files, "owner": "client-0"}, [], None,
        {"problem": "cosines", "files": files | {"a\0b": "x"}},
    ]  # fmt: skip
    reasons = ("wrong_file_name", "unknown_problem", "malformed")
    for value in sent:
        body = b'{"problem": ' if value is None else json.dumps(value).encode()
        refused(tally, raw(tally, "POST", "/v1/tickets", body, own), reasons=reasons)


def wrecker(tally: Tally, token: str, state: Path) -> None:
    client = JudgeClient(tally.url, token=token, patience_s=0.0)
    port = tally.url.rpartition(":")[2]
    told = hostile(state)
    for k in range(10):
        name, (text, reasons) = list(told.items())[k % len(told)]
        ticket = judged(tally, client, "wrecker", text.replace("PORT", port))
        if ticket is not None:
            reason = ticket.told["verdict"]["reason"]
            tally.ended(f"hostile refused, {reason}", ticket)
            tally.expect(ticket.accepted is False and reason in reasons, f"{name}: {ticket.told['verdict']}")


def thief(tally: Tally, token: str) -> None:
    own = {"Authorization": f"Bearer {token}"}
    for k in range(10):
        while not tally.tickets and time.monotonic() < tally.ends_s:
            time.sleep(0.1)
        with tally.lock:
            ticket = list(tally.tickets)[-1 - k % len(tally.tickets)]
        ways = (("GET", f"/v1/tickets/{ticket}"), ("DELETE", f"/v1/tickets/{ticket}"),
                ("GET", f"/v1/tickets/{ticket}/events"), ("GET", f"/v1/tickets/{ticket}?wait_s=1"))  # fmt: skip
        refused(tally, raw(tally, *ways[k % 4], None, own), reasons=("unknown_ticket",))
        _, found = raw(tally, "GET", f"/v1/tickets?ids={ticket}", None, own)
        tally.expect(found == {"tickets": []}, f"the thief was told {found}")
        time.sleep(1.0)


def quantiles(times_s: list[float]) -> dict[str, float]:
    ordered = sorted(times_s)

    def at(share: float) -> float:
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"requests": len(ordered), "p50_ms": at(0.5), "p99_ms": at(0.99), "most_ms": at(1.0)}


def loaded(folder: Path, seconds: float, kill_after: int) -> dict[str, Any]:
    (folder / "problems").mkdir()
    (folder / "problems" / "cosines.py").write_text(PROBLEM)
    names = [*(f"client-{n}" for n in range(HONEST)), *HOSTILE]
    tokens = {name: add_key(folder / "keys", name) for name in names}
    tally = Tally(url="", ends_s=time.monotonic() + seconds)
    acts: list[tuple[Any, ...]] = [(honest, f"client-{n}", tokens[f"client-{n}"], n) for n in range(HONEST)]
    acts += [(act, tokens[act.__name__]) for act in (stranger, page, flood, garbler, thief)]
    acts += [(wrecker, tokens["wrecker"], folder / "state")]
    threads = [threading.Thread(target=act, args=(tally, *rest), daemon=True) for act, *rest in acts]
    started = time.monotonic()
    counted: Counter[str] = Counter()

    def count(url: str) -> dict[str, int]:
        told = JudgeClient(url, token=tokens["thief"]).status()
        counted.update(told["refusals"])
        return dict(told["tickets"])

    with serving(folder, 0) as (server, tally.url):
        for thread in threads:
            thread.start()
        while sum(tally.outcomes.values()) < kill_after and time.monotonic() < tally.ends_s:
            time.sleep(0.2)
        before = count(tally.url)
        server.send_signal(signal.SIGKILL)
        server.wait()
        killed = time.monotonic()
    with serving(folder, int(tally.url.rpartition(":")[2])) as (server, url):
        away_s = time.monotonic() - killed
        for thread in threads:
            thread.join(max(0.0, tally.ends_s - time.monotonic()) + 30.0)
        tally.expect(not any(thread.is_alive() for thread in threads), "clients still wait")
        after = count(url)
    return described(tally, counted, before, after) | {
        "seconds": time.monotonic() - started, "away_s": away_s, "killed_after": kill_after,
    }  # fmt: skip


def described(tally: Tally, counted: Counter[str], before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
    """The result; adds to `wrongs` what the totals show."""
    tally.expect(after == {"judged": len(tally.tickets)}, f"promised {len(tally.tickets)}, the queue has {after}")
    refusals = sum(tally.refusals.values())  # the counts of the instant before the kill are lost
    tally.expect(sum(counted.values()) >= 0.9 * refusals, f"{refusals} refusals, of which were counted {counted}")
    return {
        "clients": HONEST + len(HOSTILE), "hostile_clients": len(HOSTILE), "submissions": tally.submissions,
        "tickets": len(tally.tickets), "answered_from_a_ticket": tally.submissions - len(tally.tickets) -
        sum(tally.refusals.values()), "tickets_at_the_kill": before, "tickets_at_the_end": after,
        "outcomes": dict(tally.outcomes), "tickets_begun_twice": len(tally.begun_twice), "faults": dict(tally.faults),
        "refused_requests": dict(tally.refusals), "refusals_counted_by_the_server": dict(counted),
        "requests_that_met_no_server": tally.away,
        "latency": {kind: quantiles(t) for kind, t in sorted(tally.times_s.items())}
        | {"all": quantiles([t for times in tally.times_s.values() for t in times])},
        "wrong": tally.wrongs,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1500.0)
    parser.add_argument("--kill-after", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    command = f"python -m benchmarks.serving --seconds {given.seconds:g} --kill-after {given.kill_after}"
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        found = loaded(Path(folder), given.seconds, given.kill_after)
        log = (Path(folder) / "log").read_text()
    write(given.json, about(command) | found)
    print(json.dumps(found, indent=1))
    if found["wrong"]:
        print(log[-4000:], file=sys.stderr)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
