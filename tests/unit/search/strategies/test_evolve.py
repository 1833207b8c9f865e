"""Generations, prompt by prompt: a script for the model, and a judge that reads what a candidate claims of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from fakes.asked import START, asking, at, judge, prompts, ran, shape, text_of, whole
from tilewright.edges.ledger import Ledger
from tilewright.edges.models.scripted import Scripted, scripted_reply
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import Pending, UserError
from tilewright.facts.move import Ask, Event, Move, Outcome, Stop, Try
from tilewright.facts.outcome import Interval, Timed
from tilewright.facts.run import Limits
from tilewright.run.drive import drive
from tilewright.run.optimize import require_parts
from tilewright.search.strategies import STRATEGIES
from tilewright.search.strategies.archive import Archive, Member, distance, member
from tilewright.search.strategies.asking import Passed
from tilewright.search.strategies.evolve import PARTS
from tilewright.search.strategies.lessons import read_review
from tilewright.search.strategies.verdicts import read_risk, read_risks

REVIEW = """LESSONS:
- vectors of 32 bytes paid 1.3x
- half precision is refused

RECOMMENDATIONS:
1. split slow_loop over threads
2. fuse the scale
3. prefetch
"""


def but(*parts: str) -> tuple[str, ...]:
    """Everything off but these."""
    return tuple(p for p in PARTS if p not in parts)


def kinds(events: Sequence[Event]) -> list[str]:
    """What each prompt wants, by generation and slot."""
    return [e.move.why.removeprefix("generation ") for e in events if isinstance(e.move, Ask)]


def test_a_module_is_translated_and_what_is_refused_is_mended_until_one_passes(tmp_path: Path) -> None:
    first = [whole("bad crashed 1", "one"), whole("bad wrong_values 2", "two"), "Nothing.", whole("bad hung 4", "four")]
    second = [whole(f"bad crashed again {n}", f"mend {n}") for n in range(3)] + [whole("ns 500", "at last")]
    on = asking(limits=Limits(calls=8), without=but("repair"))
    stop, events = ran(tmp_path / "run.db", "evolve", [*first, *second], on=on)
    assert shape(events) == "aaaa" + "xxx" + "aaaa" + "xxxt" + "."
    assert kinds(events) == [f"1.{n}: write" for n in range(1, 5)] + [
        "2.1: mend",
        "2.2: mend",
        "2.3: mend",
        "2.4: write",
    ]
    assert text_of(stop) == "class ModelNew: 'ns 500'\n"
    asked = prompts(events)
    assert "bad crashed 1" in asked[4] and "line 7: oh" in asked[4] and "First diagnose" in asked[4]
    assert "no use: " in asked[7] and "one (predicted" in asked[7]


def test_a_version_is_mended_so_often_and_each_time_told_what_was_in_vain(tmp_path: Path) -> None:
    on = asking(limits=Limits(calls=99), without=but("repair"))
    replies = [whole(f"bad crashed {n}", f"idea {n}") for n in range(24)]
    _, events = ran(tmp_path / "run.db", "evolve", replies, on=on)
    rounds = [k.partition(": ")[2] for k in kinds(events)]
    assert rounds == ["write"] * 4 + ["mend"] * 16 + ["write"] * 4  # and six generations have brought nothing
    told = prompts(events)
    assert "in vain" not in told[4] and "idea 4: it was refused at check: crashed" in told[8]
    assert told[16].count("it was refused at check") == 3


def test_generations_come_from_the_fastest_with_others_beside_them(tmp_path: Path) -> None:
    replies = [whole(f"ns {ns} {'abcd'[n] * 3} kernel {n}", f"idea {n}") for n, ns in enumerate((800, 400, 600, 900))]
    replies += [whole(f"ns {ns} v {ns}", f"second {n}") for n, ns in enumerate((390, 300, 500, 450))]
    on = asking(limits=Limits(calls=8), without=but("context", "recombination"))
    stop, events = ran(tmp_path / "run.db", "evolve", replies, on=on)
    assert shape(events) == "aaaatttt" * 2 + "."
    assert text_of(stop) == "class ModelNew: 'ns 300 v 300'\n"
    assert kinds(events)[4:] == ["2.1: change", "2.2: change", "2.3: change", "2.4: join"]
    changed, joined = prompts(events)[4], prompts(events)[7]
    assert "The kernel to change" in changed and changed.count("was judged right") == 2
    assert "The first of two kernels" in joined and "Recombine" in joined and "The second kernel (idea" in joined
    assert "idea 1 (predicted: 2x, fewer bytes): 0.4 us, the fastest so far" in changed  # measured feedback
    assert changed.count("measured: ours") == 2


def test_parts_are_switched_off_one_by_one(tmp_path: Path) -> None:
    replies = [whole(f"ns {900 - 60 * n} kernel {'x ' * n}{n}", f"idea {n}") for n in range(5)]
    replies += [whole(f"ns {590 - 10 * n} y {n} {'z' * n}", f"more {n}") for n in range(9)]
    seen: dict[str, tuple[str, list[str], list[Ask]]] = {}
    for part in ("", *PARTS):
        on = asking(start=START, limits=Limits(calls=10), without=(part,) if part else ())
        _, events = ran(
            tmp_path / f"{part}.db", "evolve", [*replies[:4], REVIEW, *replies[4:8], REVIEW, *replies[8:]], on=on
        )
        seen[part] = shape(events), prompts(events), [e.move for e in events if isinstance(e.move, Ask)]
    whole_run, texts, asks = seen[""]
    assert whole_run.startswith("ti" + "aaaaa" + "vvvv" + "tttt") and asks[4].why == "generation 1: review"
    assert "slow_loop (own): 80% of the time" in texts[4] and "exactly three" in texts[4]
    assert "vectors of 32 bytes paid" in texts[5]  # carried on
    assert len({(a.sampling.temperature, a.sampling.effort, a.sampling.member) for a in asks[:4]}) > 1
    assert asks[4].sampling.member is None  # a review is the user's own settings
    assert not seen["library"][0].startswith("t")
    assert "v" not in seen["verifiers"][0]
    assert "i" not in seen["profile"][0] and "A profile of one call" not in "".join(seen["profile"][1])
    assert (
        "Write LESSONS" not in "".join(t for t in seen["summary"][1])
        and "Write RECOMMENDATIONS alone" in seen["summary"][1][4]
    )
    assert all(a.sampling.temperature is None for a in seen["sampling"][2])
    assert "was judged right" in "".join(texts) and "was judged right" not in "".join(seen["context"][1])
    assert any(a.why.endswith("join") for a in asks) and not any(
        a.why.endswith("join") for a in seen["recombination"][2]
    )
    assert all(a.why.partition(": ")[2] != "write" for a in seen["islands"][2])  # one population, the library's
    assert "It must differ in kind" in "".join(seen["parallel"][1]) and "It must differ" not in "".join(texts)
    assert "- idea 0" in seen["parallel"][1][2]  # a sequence that is told of what came before


def test_what_a_tool_proves_wrong_is_mended_and_not_judged_and_the_suspected_come_last(tmp_path: Path) -> None:
    first = [whole("proof ns 100"), whole("smells ns 700"), whole("ns 600"), whole("ns 650")]
    second = [whole("ns 500", "mended"), *(whole(f"ns {690 - n} other {n}") for n in range(3))]
    on = asking(limits=Limits(calls=8), without=but("verifiers", "repair"))
    stop, events = ran(tmp_path / "run.db", "evolve", [*first, *second], on=on)
    assert shape(events) == "aaaavvvvttt" + "aaaavvvvtttt."
    tried = [
        e.move.what.files[0].text for e in events if isinstance(e.move, Try) and isinstance(e.move.what, Candidate)
    ]
    assert "smells" in tried[2] and not any("proof" in text for text in tried)
    assert kinds(events)[4] == "2.1: mend" and "Refused at verify: compile: line 7" in prompts(events)[4]
    assert text_of(stop) == "class ModelNew: 'ns 500'\n"


def test_as_published_a_model_ranks_and_the_likeliest_are_judged(tmp_path: Path) -> None:
    proposals = [whole(f"ns {900 - 10 * n} kernel {n}", f"idea {n}") for n in range(8)]
    risks = [
        f"COMPILE: 0.{n}, whatever\nMEMORY: {n}%\nNUMERICS: 0\nSPECIFICATION: 0.0" for n in (9, 8, 7, 6, 1, 2, 3, 4)
    ]
    on = asking(start=START, limits=Limits(calls=16), without=("verifiers", "profile", "summary"))
    _, events = ran(tmp_path / "run.db", "evolve_paper", [*proposals, *risks], on=on)
    assert shape(events) == "a" * 16 + "tttt."  # nothing of the library's
    assert kinds(events)[8] == "1.1: verdict" and "The replacement to verify (idea 0)" in prompts(events)[8]
    tried = [e.move.why for e in events if isinstance(e.move, Try)]
    assert tried == [f"generation 1.{n + 1}: idea {n}" for n in (4, 5, 6, 7)]
    _, events = ran(tmp_path / "b.db", "evolve_paper", proposals, on=replace(on, without=PARTS, limits=Limits(calls=8)))
    assert "verdict" not in " ".join(kinds(events)) and shape(events).startswith("aaaaaaaatttt")


def test_a_models_verdict_is_read_as_far_as_it_goes() -> None:
    assert read_risks("COMPILE: 0.1, fine\n- **Memory**: 40 %\nNUMERICS: unlikely\nSPECIFICATION: 7") == {
        "compile": 0.1, "memory": 0.4,
    }  # fmt: skip
    assert read_risk("COMPILE: 0.5\nMEMORY: 0.5") == 0.75 and read_risk("It looks fine.") == 0.5


def test_a_generation_is_one_round_trip_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    replies = [whole(f"ns {900 - 60 * n} k {'x ' * n}", f"idea {n}") for n in range(4)] + [REVIEW]
    replies += [whole(f"ns {500 - 30 * n} l {'y ' * n}", f"more {n}") for n in range(4)] + [REVIEW]
    on = asking(start=START, limits=Limits(calls=10))
    first = ran(tmp_path / "whole.db", "evolve", replies, on=on)

    def never(move: Move) -> Outcome:
        raise AssertionError("judged again")

    assert ran(tmp_path / "whole.db", "evolve", [], on=on, judge=never) == first
    assert ran(tmp_path / "again.db", "evolve", replies, on=on)[0] == first[0]
    script, posted, rounds = Scripted([scripted_reply(r) for r in replies]), set[int](), 0

    def by_request(move: Move) -> Outcome:
        """A reply is there for whatever was posted before this visit."""
        if not isinstance(move, Ask):
            return judge(move)
        if move.turn not in answered:
            raise Pending("not yet")
        return script.ask(move)

    while True:
        answered = set(posted)
        with Ledger(tmp_path / "box.db") as ledger:
            try:
                stop = drive(
                    STRATEGIES["evolve"](on), ledger=ledger, perform=by_request, watch=lambda e: None,
                    announce=lambda moves: posted.update(m.turn for m in moves if isinstance(m, Ask)),
                )  # fmt: skip
                break
            except Pending:
                rounds += 1
    assert (rounds, stop) == (2, first[0])  # two generations


def test_it_ends_on_the_floor_and_where_nothing_helps(tmp_path: Path) -> None:
    near = lambda move: at(52.0) if not isinstance(move, Ask) and "Inspect" not in type(move).__name__ else judge(move)  # noqa: E731
    stop, _ = ran(tmp_path / "a.db", "evolve", [], on=asking(start=START), judge=near)
    assert stop.why.startswith("at 96% of the floor")
    stop, events = ran(tmp_path / "b.db", "evolve", [whole("ns 500")] * 90, on=asking(without=but("repair")))
    assert "6 generations in a row brought nothing" in stop.why
    assert shape(events) == "aaaat" + "aaaa" * 6 + "."  # letter for letter: not judged again


def test_a_part_that_no_strategy_has_is_the_users_mistake() -> None:
    require_parts("evolve", ("islands",))
    with pytest.raises(UserError, match="no such part; it has library, repair, islands"):
        require_parts("evolve", ("isles",))
    with pytest.raises(UserError, match="no parts"):
        require_parts("oneshot", ("islands",))


# ---------------------------------------------------------------- the archive


def kernel(ns: float, text: str) -> Member:
    files = (SourceFile(path="model.py", text=text),)
    return member(Passed(candidate=Candidate(files=files), timed=at(ns)), idea=text[:9], born=1)


def test_distance_is_of_words_and_not_of_comments() -> None:
    one = kernel(1, "for i in range(n): y[i] = x[i] * 2  # twice")
    assert distance(one, kernel(1, "for i in range(n): y[i] = x[i] * 2  // otherwise")) == 0
    near, far = kernel(1, "for i in range(n): y[i] = x[i] * 3"), kernel(1, "torch.mul(x, 2, out=y).sum(dim=-1)")
    assert 0 < distance(one, near) < 0.5 < distance(one, far) == 1


def test_an_island_keeps_the_fastest_and_what_is_unlike_them() -> None:
    texts = ["a b c d e f g h", "a b c d e f g i", "a b c d e f j i", "q r s t u v w x"]
    for novelty, left in ((True, {"a b c d e", "q r s t u"}), (False, {"a b c d e"})):
        archive = Archive(1, size=2, novelty=novelty)
        for ns, text in zip((400, 410, 420, 600), texts, strict=True):
            archive.admit(kernel(ns, text), 0)
        assert {m.idea for m in archive} == left and min(m.passed.ns for m in archive) == 400
    archive = Archive(1, size=2, novelty=True)
    assert archive.admit(kernel(400, "a b c d"), 0) and not archive.admit(kernel(500, "a b c d # c"), 0)
    assert archive.admit(kernel(300, "a b c d # d"), 0) and [m.passed.ns for m in archive] == [300]


def test_parents_are_drawn_by_speed_and_by_novelty_and_the_fastest_travel() -> None:
    archive = Archive(2, size=4, novelty=False)
    for ns, text in ((400, "a b c d e"), (800, "q r s t u")):
        archive.admit(kernel(ns, text), 0)
    dice = Random(1)
    drawn = [archive.parent(0, dice).passed.ns for _ in range(200)]
    assert 5 < drawn.count(800) < 30  # 1 in 17
    spread = Archive(1, size=4, novelty=True)
    for one in archive:
        spread.admit(one, 0)
    assert [spread.parent(0, dice).passed.ns for _ in range(200)].count(800) > 30  # what has no children has its turn
    archive.migrate()
    assert [[m.passed.ns for m in island] for island in archive.islands] == [[400, 800], [400]]
    assert [m.passed.ns for m in archive.company(archive.islands[1][0], 2)] == [800]


def test_a_review_is_read_as_far_as_it_goes() -> None:
    review = read_review(REVIEW + "4. and more\n")
    assert review.lessons == ("vectors of 32 bytes paid 1.3x", "half precision is refused")
    assert review.recommendations == ("split slow_loop over threads", "fuse the scale", "prefetch")
    assert read_review("## RECOMMENDATIONS\n1) unroll").recommendations == ("unroll",)
    assert read_review("I don't know.").lessons == ()


def test_what_is_faster_than_eager_beyond_noise_overtakes_what_is_not_known_to_be(tmp_path: Path) -> None:
    """On a disturbed machine an interval is wide: it must not stand in the way of a later, clear gain."""

    def noisy(move: Move) -> Outcome:
        found = judge(move)
        if isinstance(found, Timed) and found.times_ns[0][1].mid == 800:
            ratios = tuple((name, Interval(low=0.1, mid=1.2, high=12.0)) for name, _ in found.ratios)
            return replace(found, ratios=ratios)
        return found

    on = asking(start=None, limits=Limits(calls=2))
    stop, _ = ran(tmp_path / "run.db", "evolve", [whole("ns 800"), whole("ns 300")], on=on, judge=noisy)
    assert isinstance(stop, Stop) and isinstance(stop.best, Candidate) and "ns 300" in stop.best.files[0].text
