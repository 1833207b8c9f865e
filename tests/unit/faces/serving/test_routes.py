"""`tilewright serve` over real HTTP with a stand-in for the judge: tickets, verdicts, rewards, streams, limits."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fakes.served import PROBLEM, Served, model, served, toy
from tilewright.client import JudgeRefused, RewardFormula, Submitted
from tilewright.faces.serving.keys import KeyLimits
from tilewright.faces.serving.openapi import ROUTES
from waiting import wait_until

REWARD = Path(__file__).parents[4] / "examples" / "reward" / "reward.py"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, names=("ann", "bob")) as found:
        yield found


def test_a_ticket_comes_to_a_verdict_with_a_reward(house: Served) -> None:
    ann = house.client("ann")
    ticket = ann.submit(toy("right", "m1"))
    assert (ticket.state, ticket.accepted, ticket.reward) == ("queued", None, None)
    found = ann.wait(ticket.id, timeout_s=20)
    assert (found.state, found.accepted, found.told["notes"]) == ("judged", True, ["m1"])
    assert found.told["reward"] == {"value": math.log(2.0), "formula": "log_ratio", "against": "eager", "cap": 3.0}
    best = house.client("ann", RewardFormula(formula="right_log_ratio", against="best"))
    assert best.ticket(ticket.id).reward == 1.0, "torch.compile is faster"
    wrong = ann.wait(ann.submit(toy("wrong")).id, timeout_s=20)
    assert (wrong.accepted, wrong.reward, wrong.told["verdict"]["reason"]) == (False, 0.0, "wrong_values")


def test_a_fault_is_never_scored_and_can_be_submitted_again(house: Served) -> None:
    ann = house.client("ann")
    found = ann.wait(ann.submit(toy("fault")).id, timeout_s=20)
    assert (found.state, found.accepted, found.reward) == ("faulted", None, None)
    assert found.told["fault"] == {"whose": "machine", "text": "too busy to judge"}
    again = ann.submit(toy("fault"))
    assert (again.id, again.state) == (found.id, "queued")


@pytest.mark.parametrize("word", ["ends", "bug"])
def test_a_judge_that_ends_is_begun_once_more_and_then_never(house: Served, word: str) -> None:
    ann = house.client("ann")
    found = ann.wait(ann.submit(toy(word)).id, timeout_s=20)
    assert ann.wait(ann.submit(toy("right")).id, timeout_s=20).accepted, "the others are judged"
    assert (found.state, found.told["attempts"], found.told["fault"]["whose"]) == ("faulted", 2, "project")
    assert len(house.judge.orders) == 3


def test_equal_content_has_one_ticket_of_each_key(house: Served) -> None:
    ann, bob = house.client("ann"), house.client("bob")
    first = ann.submit(toy("right"))
    ann.wait(first.id, timeout_s=20)
    assert ann.submit(toy("right")).id == first.id
    assert house.raw("POST", "/v1/tickets", house.submitted("right"), house.tokens["ann"])[0] == 200
    assert ann.submit(toy("right", repeat=1)).id != first.id
    assert bob.submit(toy("right")).id != first.id


def test_nobody_sees_or_cancels_anothers_ticket(house: Served) -> None:
    ticket = house.client("ann").submit(toy("slow")).id
    bob = house.tokens["bob"]
    none = house.raw("GET", f"/v1/tickets/{'0' * 32}", token=bob)
    assert none[0] == 404 and none[1]["error"] == "unknown_ticket"
    assert house.raw("GET", f"/v1/tickets/{ticket}", token=bob) == none
    assert house.raw("GET", f"/v1/tickets/{ticket}/events", token=bob) == none
    assert house.raw("DELETE", f"/v1/tickets/{ticket}", token=bob) == none
    assert house.raw("GET", f"/v1/tickets?ids={ticket}", token=bob) == (200, {"tickets": []})
    house.judge.go.set()
    assert house.client("ann").wait(ticket, timeout_s=20).accepted


def test_a_stream_tells_state_progress_and_the_end(house: Served) -> None:
    ann = house.client("ann")
    ticket = ann.submit(toy("slow")).id
    events = []
    for name, data in ann.stream(ticket):
        events.append((name, data))
        if data.get("text") == "looking at slow":
            house.judge.go.set()
    names = [name for name, _ in events]
    assert names[-1] == "ended" and events[-1][1]["accepted"] and {"state", "progress"} <= set(names)
    told = [data["text"] for name, data in events if name == "progress"]
    assert told == ["begun, attempt 1", "looking at slow"]


def test_a_cancelled_ticket_ends_at_once_and_its_judge_is_free(house: Served) -> None:
    ann = house.client("ann")
    working, waiting = ann.submit(toy("endless")).id, ann.submit(toy("endless", "2")).id
    wait_until(lambda: ann.ticket(working).state == "judging")
    assert ann.cancel(waiting).state == ann.cancel(working).state == "cancelled"
    assert ann.wait(ann.submit(toy("right")).id, timeout_s=20).accepted
    with pytest.raises(JudgeRefused, match="ended"):
        ann.cancel(ann.submit(toy("right")).id)


def test_a_batch_is_taken_or_refused_one_by_one(house: Served) -> None:
    ann = house.client("ann")
    sent = [toy("right", "a"), Submitted(problem="none", files=model("right")), toy("wrong", "b")]
    first, refused, last = ann.submit_all(sent)
    assert isinstance(refused, JudgeRefused) and refused.reason == "unknown_problem"
    assert not isinstance(first, JudgeRefused) and not isinstance(last, JudgeRefused)
    assert [ann.wait(t.id, timeout_s=20).accepted for t in (first, last)] == [True, False]
    ids = f"{last.id},{first.id}"
    _, found = house.raw("GET", f"/v1/tickets?ids={ids}&formula=right", token=house.tokens["ann"])
    assert [t["reward"]["value"] for t in found["tickets"]] == [0.0, 1.0]


def test_the_highest_priority_is_judged_first(house: Served) -> None:
    ann = house.client("ann")
    held = ann.submit(toy("slow")).id
    wait_until(lambda: ann.ticket(held).state == "judging")
    tickets = [ann.submit(toy("right", str(p), priority=p)).id for p in (0, 5, 3)]
    with pytest.raises(JudgeRefused, match="priority"):
        ann.submit(toy("right", priority=6))
    house.judge.go.set()
    for ticket in tickets:
        ann.wait(ticket, timeout_s=20)
    words = [o.submission.candidate.files[0].text.split(" ")[2].partition("\n")[0] for o in house.judge.orders[1:]]
    assert words == ["5", "3", "0"]


def test_a_posted_problem_is_told_by_its_text(house: Served) -> None:
    ann = house.client("ann")
    found = ann.wait(ann.submit(Submitted(problem="mine", source=PROBLEM, files=model("right"))).id, timeout_s=20)
    order = house.judge.orders[-1]
    assert found.accepted and (order.path, order.submission.problem, order.submission.source) == ("", "mine", PROBLEM)


def test_problems_come_from_roots_only_where_that_is_asked_for(tmp_path: Path) -> None:
    with served(tmp_path, posted=False) as house:
        with pytest.raises(JudgeRefused, match="no_posted_problems"):
            house.client().submit(Submitted(source=PROBLEM, files=model("right")))
        assert house.client().problems() == ["toy"]
        assert house.client().wait(house.client().submit(toy("right")).id, timeout_s=20).accepted


def test_a_problem_that_was_changed_meanwhile_is_not_judged(tmp_path: Path) -> None:
    with served(tmp_path) as house:
        client = house.client()
        held = client.submit(toy("slow")).id
        wait_until(lambda: client.ticket(held).state == "judging")
        ticket = client.submit(toy("right")).id
        (tmp_path / "problems" / "toy.py").write_text(PROBLEM + "\n")
        house.judge.go.set()
        found = client.wait(ticket, timeout_s=20)
        assert (found.state, found.told["fault"]["whose"]) == ("faulted", "problem")
        assert client.wait(client.submit(toy("right")).id, timeout_s=20).accepted, "as it is now, it is another"


def test_rate_queue_and_waiting_requests_are_limited(tmp_path: Path) -> None:
    with served(tmp_path, names=("ann",), limits=KeyLimits(rate=4, queued=2)) as house:
        token = house.tokens["ann"]
        sent = [house.submitted("slow", str(n)) for n in range(6)]
        assert house.raw("POST", "/v1/tickets", sent[0], token)[0] == 202
        wait_until(lambda: dict(house.queue.counts()).get("judging") == 1)
        codes = [house.raw("POST", "/v1/tickets", body, token) for body in sent[1:]]
        assert [c[0] for c in codes] == [202, 202, 429, 429, 429]
        assert [c[1].get("error") for c in codes[2:]] == ["queue_full", "too_many_requests", "too_many_requests"]
        house.judge.go.set()


def test_what_is_waited_for_is_limited_by_key(house: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.faces.serving.routes._MOST_STREAMS", 1)
    ann, bob = house.client("ann"), house.client("bob")
    ticket, other = ann.submit(toy("slow")).id, bob.submit(toy("slow")).id
    first = next(iter(stream := ann.stream(ticket)))
    assert first[0] in ("state", "progress")
    status, told = house.raw("GET", f"/v1/tickets/{ticket}?wait_s=5", token=house.tokens["ann"])
    assert (status, told["error"]) == (429, "too_many_streams")
    assert bob.ticket(other, wait_s=0.1).state == "queued"
    house.judge.go.set()
    assert [name for name, _ in stream][-1] == "ended"


def test_many_clients_get_their_own_results_and_nothing_is_lost(house: Served) -> None:
    def work(name: str) -> None:
        client = house.client(name)
        for n in range(8):
            word = "right" if n % 2 else "wrong"
            got = client.wait(client.submit(toy(word, f"{name}{n}")).id, timeout_s=30)
            found.append((got.told["notes"], got.accepted) == ([f"{name}{n}"], word == "right"))

    found: list[bool] = []
    threads = [threading.Thread(target=work, args=(name,)) for name in ("ann", "bob") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 32


def test_a_server_that_begins_again_goes_on_with_what_waits(tmp_path: Path) -> None:
    with served(tmp_path) as house:
        client = house.client()
        tickets = [client.submit(toy("slow", str(n))).id for n in range(3)]
        wait_until(lambda: client.ticket(tickets[0]).state == "judging")
    with served(tmp_path) as house:
        house.judge.go.set()
        found = [house.client().wait(ticket, timeout_s=20) for ticket in tickets]
        assert [f.told["notes"] for f in found] == [["0"], ["1"], ["2"]]
        assert found[0].told["attempts"] == 1, "what was given back in order counts as no attempt"


def test_status_and_metrics_count_what_was_refused(house: Served) -> None:
    ann = house.client("ann")
    ann.wait(ann.submit(toy("right")).id, timeout_s=20)
    house.raw("GET", "/v1/status")
    assert ann.status()["refusals"] == {"no_token": 1} and ann.status()["tickets"] == {"judged": 1}
    _, metrics = house.raw("GET", "/metrics", token=house.tokens["ann"])
    assert 'tilewright_refusals_total{reason="no_token"} 1' in metrics["text"]
    assert 'tilewright_tickets{state="judged"} 1' in metrics["text"]


def test_the_documents_tell_all_routes_and_ask_for_nothing_from_elsewhere(house: Served) -> None:
    status, schema = house.raw("GET", "/openapi.json")
    assert status == 200 and schema["openapi"] == "3.1.0"
    assert {(m.upper(), p) for p, methods in schema["paths"].items() for m in methods} == {
        (r.method, r.path) for r in ROUTES
    }
    named = json.dumps(schema)
    assert all(ref in schema["components"]["schemas"] for ref in ("PostedSubmission", "PostedBatch", "PostedProblem"))
    assert "$ref" in named and "#/components/schemas/PostedProblem" in named
    _, page = house.raw("GET", "/docs")
    assert all(r.about.split("`")[0].split("'")[0] in page["text"] for r in ROUTES)
    assert "http://" not in page["text"] and "https://" not in page["text"] and "<script" not in page["text"]


@pytest.fixture
def example(house: Served, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """examples/reward/reward.py, with a key for the server."""
    monkeypatch.setenv("JUDGE_URL", house.url)
    monkeypatch.setenv("JUDGE_TOKEN", house.tokens["ann"])
    spec = importlib.util.spec_from_file_location("reward", REWARD)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reward", module)
    spec.loader.exec_module(module)
    return module


def test_the_example_scores_as_verl_and_nemo_gym_call_it(example: ModuleType) -> None:
    right, wrong, fault = (
        f"I think:\n```python\n{model(word)['model.py']}```\n" for word in ("right", "wrong", "fault")
    )
    assert example.compute_score("d", right, "toy") == 1 + math.log(2.0)
    scores = example.compute_scores(["d"] * 3, [wrong, right, "no code"], ["toy"] * 3, [None] * 3)
    assert scores == [0.0, 1 + math.log(2.0), 0.0]
    with pytest.raises(RuntimeError, match=r"1 of 1 could not be judged.*too busy"):
        example.compute_score("d", fault, "toy", {})
    assert asyncio.run(example.verify("toy", right)) == {"reward": 1 + math.log(2.0)}
    masked = asyncio.run(example.verify("none", right))
    assert (masked["mask_sample"], masked["reward"]) == (True, 0.0) and "unknown_problem" in masked["failure_reason"]
