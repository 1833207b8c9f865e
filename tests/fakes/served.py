"""A served judge in this process, over real HTTP: its queue, pool, gate and routes are the real ones, and what judges
is a stand-in that says of a candidate what its text asks for."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from tilewright.client import JudgeClient, RewardFormula, Submitted
from tilewright.edges.queue import TicketQueue
from tilewright.faces.listening import opened_socket
from tilewright.faces.serving.counts import Counts
from tilewright.faces.serving.gate import GateTerms, HttpGate
from tilewright.faces.serving.keys import KeyFile, KeyHolder, KeyLimits, add_key
from tilewright.faces.serving.pool import JudgePool, PoolTerms, ProgressBoard
from tilewright.faces.serving.process import JudgeEnded, Unwanted
from tilewright.faces.serving.roots import ProblemRoots
from tilewright.faces.serving.routes import Desk, application
from tilewright.faces.serving.server import settings_of
from tilewright.facts.ticket import JudgingOrder, TicketFault, TicketVerdict
from tilewright.report.site import LiveSite

PROBLEM = "class Model: ...\n\n\ndef get_inputs(): ...\n\n\ndef get_init_inputs(): ...\n"


def model(word: str, marker: str = "") -> dict[str, str]:
    """Files of a candidate; the stand-in does what the word says, and its verdict holds the marker."""
    return {"model.py": f"# {word} {marker}\nclass ModelNew: ...\n"}


class StandInJudge:
    """Accepts `right`, refuses `wrong`, works on `slow` until it is let go, and on `endless` for ever; its process
    `ends` with a candidate of that word, a `bug` is ours, and a `fault` the machine's."""

    def __init__(self, go: threading.Event) -> None:
        self.go = go
        self.orders: list[JudgingOrder] = []

    def judge(
        self, order: JudgingOrder, *, say: Callable[[str], None], wanted: Callable[[], bool], limit_s: float
    ) -> TicketVerdict | TicketFault:
        self.orders.append(order)
        word, marker = order.submission.candidate.files[0].text.partition("\n")[0].split(" ")[1:3]
        say(f"looking at {word}")
        while word == "endless" or (word == "slow" and not self.go.is_set()):
            if not wanted():
                raise Unwanted
            time.sleep(0.01)
        if word == "ends":
            raise JudgeEnded("its process ended")
        if word == "bug":
            raise ZeroDivisionError
        if word == "fault":
            return TicketFault(whose="machine", text="too busy to judge")
        accepted = word != "wrong"
        shown = {
            "verdict": {"accepted": accepted, "reason": "faster" if accepted else "wrong_values", "summary": word},
            "notes": [marker],
        }
        if not accepted:
            return TicketVerdict(accepted=False, lows=(), claimed=(), shown=json.dumps(shown))
        lows = (("eager", 2.0), ("compile", 0.9))
        return TicketVerdict(accepted=True, lows=lows, claimed=("eager",), shown=json.dumps(shown))

    def close(self) -> None: ...


@dataclass(kw_only=True)
class Served:
    """`url` and what stands behind it. `tokens` by name; empty where none are needed."""

    url: str
    queue: TicketQueue
    judge: StandInJudge
    tokens: dict[str, str]
    counts: Counts = field(default_factory=Counts)

    def client(self, name: str = "", rule: RewardFormula | None = None) -> JudgeClient:
        token = self.tokens.get(name, "")
        return JudgeClient(self.url, token=token, patience_s=1.0, **({"rule": rule} if rule else {}))

    def raw(
        self, method: str, path: str, body: bytes | None = None, token: str = "", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a request with just these headers (`_` for `-`) beside a JSON body's."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        sent = {"Content-Type": "application/json"} if body is not None else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent |= {"Authorization": f"Bearer {token}"} if token else {}
        with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as connection:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else {"text": text.decode()}

    def submitted(self, word: str, marker: str = "", **changes: Any) -> bytes:
        return json.dumps({"problem": "toy", "files": model(word, marker)} | changes).encode()


@contextmanager
def served(
    folder: Path, *, names: tuple[str, ...] = (), limits: KeyLimits | None = None, posted: bool = True,
    most_bytes: int = 100_000, judges: int = 1, site: tuple[Path, ...] = (),
) -> Iterator[Served]:  # fmt: skip
    """A server with the problem `toy`, and a key for each of the names. Its queue lies in the folder, as does that of a
    server which begins there again."""
    limits = limits or KeyLimits(rate=10_000, queued=1000)
    (folder / "problems").mkdir(exist_ok=True)
    (folder / "problems" / "toy.py").write_text(PROBLEM)
    keys = folder / "keys"
    tokens = {name: add_key(keys, name) for name in names}
    roots, counts, board = ProblemRoots([folder / "problems"]), Counts(), ProgressBoard()
    judge = StandInJudge(threading.Event())
    with (
        closing(TicketQueue(str(folder / "queue.db"), server="test")) as queue,
        closing(JudgePool(queue, [judge] * judges, PoolTerms(limit_s=60.0, kept_s=1e6), path_of=roots.path_of,
                          say=lambda text: None, board=board)) as pool,
        opened_socket("127.0.0.1", 0, of="--port") as listening,
    ):  # fmt: skip
        desk = Desk(
            queue=queue, board=board, roots=roots, counts=counts, posted_problems=posted, judges=judges,
            site=LiveSite(site) if site else None,
        )  # fmt: skip
        terms = GateTerms(
            hosts=frozenset({"127.0.0.1", "judge.lan"}), keys=KeyFile(keys, limits) if names else None,
            everybody=KeyHolder(name="local", digest="", limits=limits), most_bytes=most_bytes,
        )  # fmt: skip
        server = uvicorn.Server(settings_of(HttpGate(application(desk), terms, counts)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        pool.start()
        thread.start()
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            yield Served(url=url, queue=queue, judge=judge, tokens=tokens, counts=counts)
        finally:
            server.should_exit = True
            thread.join()


def toy(word: str, marker: str = "", **changes: Any) -> Submitted:
    return Submitted(problem="toy", files=model(word, marker), **changes)
