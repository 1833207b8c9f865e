"""Tools between two submissions, on a scripted model: what is carried out, what the model hears, what ends it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.asked import START, asking, judge, prompts, ran, shape, text_of, whole
from tilewright.edges.models.scripted import scripted_reply
from tilewright.facts.candidate import SourceFile
from tilewright.facts.dialogue import Reply, ToolAnswer, ToolCall, Usage
from tilewright.facts.move import Ask, CallTool, Event, Move, Outcome, Try
from tilewright.facts.run import Limits, SearchContext
from tilewright.facts.spent import Spent
from tilewright.facts.tools import MOST_CALLS, NAMES, TOOLS
from tilewright.run.drive import JournalMismatch

NO_PLACE = "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE"
USAGE = Usage(input_tokens=90, output_tokens=10)


def calls(*made: tuple[str, dict[str, object]], text: str = "") -> Reply:
    written = tuple(
        ToolCall(id=f"c{n}", tool=tool, arguments=json.dumps(given)) for n, (tool, given) in enumerate(made)
    )
    return scripted_reply(text, calls=written, usage=USAGE, price_usd=0.1)


def asks_of(events: Sequence[Event]) -> list[Ask]:
    return [e.move for e in events if isinstance(e.move, Ask)]


def judged(move: Move) -> Outcome:
    if isinstance(move, CallTool):
        return ToolAnswer(tool=move.tool, text=f"{move.tool} says {len(move.candidates)} {move.text}")
    return judge(move)


def on(**changes: object) -> SearchContext:
    return asking(**{"tools": NAMES, "start": START, "limits": Limits(calls=1), **changes})  # type: ignore[arg-type]


def test_a_reply_that_calls_tools_hears_their_answers_and_goes_on(tmp_path: Path) -> None:
    edit = whole("ns 500")
    replies = [
        calls(("search", {"query": "softmax"}), ("run", {"edits": edit}), text="let me see"),
        calls(("time", {"variants": [whole("ns 400"), whole("ns 450")]})),
        whole("ns 500"),
    ]
    stop, events = ran(tmp_path / "a.db", "cutegen", replies, on=on(), judge=judged)
    assert shape(events) == "tauuauat."
    used = [e.move for e in events if isinstance(e.move, CallTool)]
    assert [(u.tool, len(u.candidates)) for u in used] == [("search", 0), ("run", 1), ("time", 3)]
    assert used[2].candidates[0] == START and "ns 400" in used[2].candidates[1].files[0].text
    asks = asks_of(events)
    assert [m.role for m in asks[2].prompt.messages] == ["user", "model", "user", "model", "user"]
    assert [a.text for a in asks[1].prompt.messages[2].answers] == ["search says 0 softmax", "run says 1 "]
    assert asks[1].prompt.messages[1].text == "let me see" and asks[1].prompt.messages[1].calls[1].tool == "run"
    assert asks[0].prompt.tools == NAMES and "compile, run, time" in asks[0].prompt.system
    assert text_of(stop) == "class ModelNew: 'ns 500'\n"
    spent = Spent()
    for event in events:
        spent = spent.after(event)
    assert (spent.calls, spent.tokens) == (1, 200 + 1000)  # answers are no call of their own, their tokens count


def test_a_run_with_tools_is_replayed_from_its_journal(tmp_path: Path) -> None:
    replies = [calls(("profile", {})), calls(("tensor", {"at": "0: 3"})), whole("ns 500")]
    first = ran(tmp_path / "a.db", "cutegen", replies, on=on(), judge=judged)

    def never(move: Move) -> Outcome:
        raise AssertionError("carried out again")

    assert ran(tmp_path / "a.db", "cutegen", [], on=on(), judge=never) == first
    with pytest.raises(JournalMismatch):
        other = replace(START, files=(SourceFile(path="model.py", text="class ModelNew: 'ns 1'"),))
        ran(tmp_path / "a.db", "cutegen", [], on=on(start=other), judge=never)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("melt", {}), "there is no tool 'melt'"), (("search", {}), "it needs query"),
        (("run", {"edits": "nothing of use"}), "holds no edit"),
        (("time", {"variants": "x"}), "a list of texts"),
        (("time", {"variants": [NO_PLACE]}), "variant 1: in model.py: no such SEARCH"),
    ],
    ids=["no such tool", "lacks", "no edit", "no list", "no place"],
)  # fmt: skip
def test_a_call_that_means_nothing_is_answered_and_nothing_is_run(
    tmp_path: Path, call: tuple[str, dict[str, object]], said: str
) -> None:
    stop, events = ran(tmp_path / "a.db", "cutegen", [calls(call), whole("ns 500")], on=on(), judge=judged)
    assert shape(events) == "taat." and stop.best is not None
    asks = asks_of(events)
    assert said in asks[1].prompt.messages[-1].answers[0].text


def test_arguments_that_are_no_json_are_told(tmp_path: Path) -> None:
    broken = scripted_reply("", calls=(ToolCall(id="1", tool="run", arguments="{"),))
    _, events = ran(tmp_path / "a.db", "cutegen", [broken, whole("ns 500")], on=on(), judge=judged)
    assert "no JSON" in asks_of(events)[1].prompt.messages[-1].answers[0].text


def test_calls_are_bounded_in_number_and_in_time(tmp_path: Path) -> None:
    many = [calls(("search", {"query": f"q{n}"})) for n in range(30)]
    _, events = ran(tmp_path / "a.db", "cutegen", [*many[: MOST_CALLS + 2], whole("ns 500")], on=on(), judge=judged)
    assert sum(isinstance(e.move, CallTool) for e in events) == MOST_CALLS
    told = [e.move.prompt.messages[-1] for e in events if isinstance(e.move, Ask) and e.move.prompt.brings_answers]
    assert "reply now" in told[MOST_CALLS - 1].text and "are the most" in told[MOST_CALLS].answers[0].text
    # No time is left for tools: nothing is carried out, and the model is told so.
    spent = on(limits=Limits(calls=1, tries=1))
    _, events = ran(tmp_path / "b.db", "cutegen", [many[0], whole("ns 500")], on=spent, judge=judged)
    assert not any(isinstance(e.move, CallTool) for e in events)


def test_without_tools_a_reply_that_calls_some_is_of_no_use(tmp_path: Path) -> None:
    replies = [calls(("search", {"query": "x"})), whole("ns 500")]
    _, events = ran(tmp_path / "a.db", "cutegen", replies, on=on(tools=(), limits=Limits(calls=2)), judge=judged)
    assert shape(events) == "taat." and "tools" not in asks_of(events)[0].prompt.system


def test_several_candidates_in_a_reply_are_judged_together_and_the_fastest_counts(tmp_path: Path) -> None:
    reply = "Three ways.\n=== CANDIDATE 1\n" + whole("ns 700", "one") + "\n=== CANDIDATE 2\n" + whole("bad hung", "two")
    reply += "\n=== CANDIDATE 3\n" + whole("ns 400", "three")
    two = on(limits=Limits(calls=2))
    stop, events = ran(tmp_path / "a.db", "cutegen", [reply, whole("ns 300")], on=two, judge=judged)
    assert shape(events) == "tatxtat=." and text_of(stop) == "class ModelNew: 'ns 300'\n"
    asked = prompts(events)[1]
    assert "'ns 400'" in asked and "one: 0.7 us, beside three" in asked and "two: refused: hung" in asked
    both_bad = "=== CANDIDATE 1\n" + whole("bad hung") + "\n=== CANDIDATE 2\n" + whole("bad crashed")
    _, events = ran(tmp_path / "b.db", "cutegen", [both_bad, whole("ns 500")], on=two, judge=judged)
    assert shape(events) == "taxxat."  # the first is mended


def test_evolve_with_tools_goes_on_in_each_dialogue_that_calls_some(tmp_path: Path) -> None:
    replies = [whole("ns 800"), calls(("run", {})), whole("ns 700"), whole("ns 600"), whole("ns 500")]
    _, events = ran(tmp_path / "a.db", "evolve", replies, on=on(limits=Limits(calls=4)), judge=judged)
    assert "u" in shape(events) and sum(isinstance(e.move, Try) for e in events) == 5


def test_the_table_of_tools_is_whole() -> None:
    assert NAMES == ("compile", "run", "time", "code", "profile", "tensor", "search", "read")
    assert all(len(tool.about) > 40 and tool.about.endswith(".") for tool in TOOLS)


# ---------------------------------------------------------------- strategy "agent"


def test_an_agent_hears_each_verdict_mends_what_was_refused_and_stops_by_itself(tmp_path: Path) -> None:
    replies = [
        calls(("profile", {})), whole("bad hung", "first"), whole("ns 500", "mended"), whole("ns 900", "worse"),
        "STOP: it is at the limit of memory",
    ]  # fmt: skip
    stop, events = ran(tmp_path / "a.db", "agent", replies, on=on(limits=Limits()), judge=judged)
    assert shape(events) == "tauaxatata."
    asked = prompts(events)
    assert "turn by turn" in asked[0] and "ns 1000" in asked[0]
    assert "Refused at check: hung" in asked[2] and "Your next edits are of this refused version" in asked[2]
    assert "mended (predicted" in asked[3] and "best so far, and your next edits are of it" in asked[3]
    assert "taken back (slower, 0.556x" in asked[4] and "class ModelNew: 'ns 500'" in asked[4]
    assert "the model stops: it is at the limit of memory" in stop.why and text_of(stop) == "class ModelNew: 'ns 500'\n"
    asks = asks_of(events)
    assert len(asks[-1].prompt.messages) == 9  # one dialogue


def test_an_agents_edits_are_of_what_it_was_shown_last(tmp_path: Path) -> None:
    def edit(old: str, new: str) -> str:
        return f"IDEA: {new}\nFILE: model.py\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"

    replies = [
        edit("class ModelNew: 'ns 1000'", "class ModelNew: 'bad hung'"),
        edit("class ModelNew: 'bad hung'", "class ModelNew: 'ns 700'"), "What now?",
        edit("class ModelNew: 'ns 700'", "class ModelNew: 'ns 600'"), "STOP: enough",
    ]  # fmt: skip
    stop, events = ran(tmp_path / "a.db", "agent", replies, on=on(limits=Limits()), judge=judged)
    assert shape(events) == "taxataata=." and text_of(stop) == "class ModelNew: 'ns 600'\n"
    assert "Nothing was judged" in prompts(events)[3]


def test_a_dialogue_that_grows_too_long_begins_anew_from_the_best(tmp_path: Path) -> None:
    long = "x" * 70_000
    replies = [whole(f"ns {ns}") + long for ns in (900, 800, 500)]
    _, events = ran(tmp_path / "a.db", "agent", replies, on=on(limits=Limits(calls=3)), judge=judged)
    asks = asks_of(events)
    assert [len(a.prompt.messages) for a in asks] == [1, 3, 1]
    assert "What was tried" in asks[2].prompt.messages[0].text and "ns 800" in asks[2].prompt.messages[0].text
