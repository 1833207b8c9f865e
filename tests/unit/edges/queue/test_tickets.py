"""The queue of the served judge, in SQLite and in a real PostgreSQL where one is installed: nothing is lost, nothing
is done by two, and a ticket is begun at most twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tilewright.edges.queue import QueueDown, QueueFull, TicketQueue
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.ticket import Submission, TicketFault, TicketVerdict

JUDGED = TicketVerdict(accepted=True, lows=(("eager", 1.5),), claimed=("eager",), shown="{}")
Queues = Callable[..., TicketQueue]


def programs() -> Path | None:
    """The folder of PostgreSQL's programs."""
    found = [Path(p).parent for p in (shutil.which("initdb"),) if p]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of its own, on a socket in a folder of its own."""
    pytest.importorskip("psycopg")
    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed")
    place = Path("/tmp") / f"tilewright-pg-{os.getpid()}"  # a socket's path is short
    place.mkdir(mode=0o700)
    other = {"user": "postgres"} if os.getuid() == 0 else {}
    if other:
        shutil.chown(place, "postgres")

    def run(*command: object) -> None:
        subprocess.run(list(map(str, command)), check=True, capture_output=True, cwd=place, timeout=120, **other)  # type: ignore[call-overload]

    try:
        run(folder / "initdb", "-D", place / "data", "-A", "trust", "-U", "tester", "--no-sync")
        flags = f"-c listen_addresses='' -k {place} -c fsync=off"
        run(folder / "pg_ctl", "-D", place / "data", "-w", "-l", place / "log", "-o", flags, "start")
        yield f"postgresql://tester@/postgres?host={place}"
    finally:
        if (place / "data" / "postmaster.pid").exists():
            run(folder / "pg_ctl", "-D", place / "data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(place, ignore_errors=True)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def queues(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Queues]:
    """Makes queues over one database, each for a server of its own."""
    url = str(tmp_path / "queue.db")
    if request.param == "postgresql":
        import psycopg

        url = request.getfixturevalue("postgres")
        with psycopg.connect(url) as db:
            db.execute("DROP TABLE IF EXISTS ticket")
    made: list[TicketQueue] = []

    def queue(server: str = "one") -> TicketQueue:
        made.append(TicketQueue(url, server=server, clock=clock))
        return made[-1]

    yield queue
    for one in made:
        one.close()


def submission(text: str, problem: str = "toy") -> Submission:
    candidate = Candidate(files=(SourceFile(path="model.py", text=text),))
    return Submission(problem=problem, source="", version="", candidate=candidate)


def put(queue: TicketQueue, text: str, *, owner: str = "ann", priority: int = 0, problem: str = "toy") -> str:
    return queue.submit(submission(text, problem), owner=owner, priority=priority, most_queued=100)[0].id


def taken(queue: TicketQueue, prefers: str = "") -> str:
    found = queue.take(prefers)
    return "" if found is None else found.submission.candidate.files[0].text


def test_what_is_submitted_comes_back_with_what_came_of_it(queues: Queues, clock: Clock) -> None:
    queue = queues()
    ticket = put(queue, "a 'quoted' \N{SNOWMAN} ? %s text")
    clock.now = 1001.0
    work = queue.take()
    assert work is not None and (work.id, work.attempts) == (ticket, 1)
    assert work.submission == submission("a 'quoted' \N{SNOWMAN} ? %s text")
    assert queue.end(ticket, JUDGED)
    (found,) = queue.tickets((ticket,), owner="ann")
    assert (found.state, found.outcome, found.taken_s, found.submitted_s) == ("judged", JUDGED, 1001.0, 1000.0)
    assert queue.counts() == (("judged", 1),) and queue.take() is None


def test_equal_content_is_one_ticket_of_its_owner(queues: Queues) -> None:
    queue = queues()
    first, second = put(queue, "a"), put(queue, "a", owner="bob")
    assert put(queue, "a") == first != second and put(queue, "b") != first
    assert put(queue, "a", problem="other") != first
    assert [t.id for t in queue.tickets((second, first, "none"), owner="ann")] == [first]


def test_order_is_priority_then_open_problem_then_who_waited_longest(queues: Queues, clock: Clock) -> None:
    queue = queues()
    for n in range(3):
        put(queue, f"ann{n}")
    put(queue, "bob0", owner="bob")
    put(queue, "carl", owner="carl", problem="other")
    put(queue, "high", priority=2)
    order = []
    for _ in range(4):
        clock.now += 1
        order.append(taken(queue))
    assert order == ["high", "bob0", "carl", "ann0"], "ann was served last, so that the others come first"
    put(queue, "same", owner="carl", problem="other")
    assert taken(queue, submission("", "other").about) == "same"


def test_an_owner_has_only_so_many_waiting(queues: Queues) -> None:
    queue = queues()
    for n in range(2):
        queue.submit(submission(str(n)), owner="ann", priority=0, most_queued=2)
    with pytest.raises(QueueFull):
        queue.submit(submission("2"), owner="ann", priority=0, most_queued=2)
    queue.submit(submission("1"), owner="ann", priority=0, most_queued=2)
    queue.submit(submission("2"), owner="bob", priority=0, most_queued=2)
    queue.take()
    queue.submit(submission("2"), owner="ann", priority=0, most_queued=2)


def test_a_cancelled_ticket_is_judged_by_nobody_until_it_is_submitted_again(queues: Queues) -> None:
    queue = queues()
    ticket = put(queue, "a")
    assert queue.cancel(ticket, owner="bob") is None
    assert taken(queue) == "a" and queue.keep({ticket}) == {ticket}
    found = queue.cancel(ticket, owner="ann")
    assert found is not None and found.state == "cancelled" and queue.keep({ticket}) == frozenset()
    assert not queue.end(ticket, JUDGED)
    assert put(queue, "a") == ticket and taken(queue) == "a" and queue.end(ticket, JUDGED)
    ended = queue.cancel(ticket, owner="ann")
    assert ended is not None and ended.state == "judged"


def test_what_a_dead_server_had_is_done_by_another_once_more_and_then_given_up(queues: Queues, clock: Clock) -> None:
    one, two = queues("one"), queues("two")
    ticket = put(one, "a")
    assert taken(one) == "a"
    clock.now += 20
    one.keep({ticket})
    clock.now += 20
    two.recover()
    assert taken(two) == "", "the first server still lives"
    clock.now += 20
    two.recover()
    assert taken(two) == "a" and not one.end(ticket, JUDGED)
    clock.now += 40
    one.recover()
    (found,) = one.tickets((ticket,), owner="ann")
    assert found.state == "faulted" and isinstance(found.outcome, TicketFault) and found.attempts == 2
    assert put(one, "a") == ticket and taken(one) == "a" and one.end(ticket, JUDGED)


def test_a_lease_that_nobody_prolongs_is_over(queues: Queues, clock: Clock) -> None:
    queue = queues()
    one, other = put(queue, "a"), put(queue, "b")
    assert taken(queue) == "a" and taken(queue) == "b"
    for _ in range(4):
        clock.now += 9
        assert queue.keep({one, "none"}) == {one}
        queue.recover()
    assert [t.state for t in queue.tickets((one, other), owner="ann")] == ["judging", "queued"]


def test_a_record_of_another_version_holds_up_nobody(queues: Queues) -> None:
    queue = queues()
    strange = put(queue, "strange", priority=1)
    put(queue, "right")
    with queue._database.transaction() as run:
        run("UPDATE ticket SET submission = ? WHERE id = ?", '{"$": "Submission", "shape": 3}', strange)
    assert taken(queue) == "" and taken(queue) == "right"
    (found,) = queue.tickets((strange,), owner="ann")
    assert isinstance(found.outcome, TicketFault) and "can't read" in found.outcome.text


def test_a_server_that_begins_again_has_its_own_tickets_at_once(queues: Queues) -> None:
    one = queues("one")
    put(one, "a")
    assert taken(one) == "a"
    one.recover()
    assert taken(one) == ""
    one.recover(started=True)
    assert taken(one) == "a"


def test_what_is_given_back_in_order_counts_as_no_attempt(queues: Queues) -> None:
    queue = queues()
    ticket = put(queue, "a")
    for begun, attempts in ((False, 1), (True, 1), (True, 2)):
        work = queue.take()
        assert work is not None and work.attempts == attempts
        queue.give_back(ticket, begun=begun)
    assert queue.tickets((ticket,), owner="ann")[0].state == "faulted"


def test_what_ended_long_ago_is_forgotten(queues: Queues, clock: Clock) -> None:
    queue = queues()
    old, waiting = put(queue, "old"), put(queue, "waiting")
    queue.take()
    queue.end(old, JUDGED)
    clock.now += 100
    queue.prune(older_s=200)
    assert len(queue.tickets((old, waiting), owner="ann")) == 2
    queue.prune(older_s=50)
    assert [t.id for t in queue.tickets((old, waiting), owner="ann")] == [waiting]


def test_many_who_take_never_take_the_same(queues: Queues) -> None:
    servers = [queues(f"server{n}") for n in range(3)]
    tickets = {put(servers[n % 3], str(n)) for n in range(30)}
    found: list[str] = []

    def work(queue: TicketQueue) -> None:
        while (got := queue.take()) is not None:
            assert queue.end(got.id, JUDGED)
            found.append(got.id)

    threads = [threading.Thread(target=work, args=(queue,)) for queue in servers * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(tickets)


def test_a_process_that_is_killed_loses_nothing_that_it_handed_out(tmp_path: Path) -> None:
    code = f"""
import os, sys
from tests_queue import put
from tilewright.edges.queue import TicketQueue
queue = TicketQueue({str(tmp_path / "queue.db")!r}, server="one")
for n in range(20):
    print(put(queue, str(n)), flush=True)
os.kill(os.getpid(), 9)
"""
    (tmp_path / "tests_queue.py").write_text(Path(__file__).read_text())
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    tickets = done.stdout.split()
    assert done.returncode == -9 and len(tickets) == 20, done.stderr
    with closing(TicketQueue(str(tmp_path / "queue.db"), server="one")) as queue:
        assert [t.id for t in queue.tickets(tickets, owner="ann")] == tickets
        assert taken(queue) == "0"


def test_a_database_that_can_not_be_used_is_told_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with closing(TicketQueue(str(folder / "queue.db"), server="one")) as queue:
        ticket = put(queue, "a")
        with queue._database.transaction() as run, pytest.raises(QueueDown):
            raise QueueDown("as if")
        with pytest.raises(QueueDown, match="can't be used"), queue._database.transaction() as run:
            run("SELECT nonsense")
        assert queue.tickets((ticket,), owner="ann")[0].state == "queued"
    with pytest.raises(QueueDown):
        TicketQueue(str(tmp_path / "none" / "queue.db"), server="one")


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    with closing(TicketQueue(str(tmp_path / "queue.db"), server="one")):
        assert (tmp_path / "queue.db").stat().st_mode & 0o077 == 0
