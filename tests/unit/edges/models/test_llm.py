"""Models that need no network, and the names by which all are opened."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.prompts import ask
from tilewright.edges.models import named, open_model
from tilewright.edges.models.cassette import Cassette
from tilewright.edges.models.direct import Passing, RetryPolicy, patiently
from tilewright.edges.models.mailbox import Mailbox
from tilewright.edges.models.named import ModelEnsemble
from tilewright.edges.models.scripted import Scripted, scripted_reply
from tilewright.facts.dialogue import Message, ModelChoice, Reply, Sampling, ToolAnswer, Usage
from tilewright.facts.errors import ModelOut, Pending, UserError
from tilewright.facts.move import Ask
from tilewright.facts.tools import NAMES


class Gone:
    def announce(self, asks: object) -> None: ...

    def ask(self, ask: Ask) -> Reply:
        raise ModelOut("gone fishing")


def letters(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"*.{kind}.md"))


def opened(name: str, *, base_url: str = "", key: str | None = "k") -> object:
    return open_model(ModelChoice(name=name, base_url=base_url), run="r", keys=lambda names: key, wait=False)


# ---------------------------------------------------------------- mailbox


def test_in_a_mailbox_a_call_is_a_file_and_its_answer_too(tmp_path: Path) -> None:
    box = Mailbox(tmp_path, run="run1", wait=False)
    offered = replace(ask(turn=3), prompt=replace(ask().prompt, tools=NAMES))
    with pytest.raises(Pending):
        box.ask(offered)
    (prompt,) = letters(tmp_path, "prompt")
    calls = tmp_path / prompt.name.replace(".prompt.md", ".calls.json")
    assert (
        f"`{calls.name}`" in prompt.read_text() and "- `tensor`: Look at what a candidate returns" in prompt.read_text()
    )
    calls.write_text('[{"tool": "search", "arguments": {"query": "softmax"}}]\n')
    with pytest.raises(Pending):  # half written
        box.ask(offered)
    calls.write_text('[{"tool": "search", "arguments": {"query": "softmax"}}, {"tool": 3}]\nEND OF REPLY\n')
    reply = box.ask(offered)
    assert [(c.tool, c.arguments) for c in reply.calls] == [("search", '{"query": "softmax"}'), ("3", "{}")]
    answers = (ToolAnswer(id="1", tool="search", text="a note"), ToolAnswer(id="2", tool="3", text="no such"))
    told = (Message(role="model", text="", calls=reply.calls), Message(role="user", text="Go on.", answers=answers))
    after = replace(offered, turn=4, prompt=replace(offered.prompt, messages=(*offered.prompt.messages, *told)))
    with pytest.raises(Pending):
        box.ask(after)
    (answered,) = letters(tmp_path, "answers")
    assert answered.name == prompt.name.replace(".prompt.", ".answers.")
    text = answered.read_text()
    assert "`search` answers:\n\n```\na note" in text and "run1-0004-" in text and "Go on." in text
    assert "Called `search` with" in letters(tmp_path, "prompt")[1].read_text()  # the next letter is whole, too
    next_reply = tmp_path / letters(tmp_path, "prompt")[1].name.replace(".prompt.", ".reply.")
    next_reply.write_text("Done.\nEND OF REPLY\n")
    assert box.ask(after).text == "Done."


def test_calls_that_cannot_be_read_are_told_to_their_writer(tmp_path: Path) -> None:
    box = Mailbox(tmp_path, run="run1", wait=False)
    offered = replace(ask(), prompt=replace(ask().prompt, tools=NAMES))
    with pytest.raises(Pending):
        box.ask(offered)
    (prompt,) = letters(tmp_path, "prompt")
    (tmp_path / prompt.name.replace(".prompt.md", ".calls.json")).write_text("[{'tool'\nEND OF REPLY\n")
    (call,) = box.ask(offered).calls
    assert call.tool.startswith("(no JSON: ")


def test_a_script_may_call_tools(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps([[{"tool": "run", "arguments": {}}], "text"]))
    model = opened(f"scripted:{path}")
    assert [c.tool for c in model.ask(ask(turn=0)).calls] == ["run"] and model.ask(ask(turn=1)).text == "text"  # type: ignore[attr-defined]


def test_a_mailbox_posts_whole_prompts_and_waits_outside(tmp_path: Path) -> None:
    box = Mailbox(tmp_path / "box", run="run1", wait=False)
    for _ in range(2):  # a second call posts nothing new
        with pytest.raises(Pending, match="turn 3"):
            box.ask(ask(turn=3))
    (prompt,) = letters(tmp_path / "box", "prompt")
    assert prompt.name.startswith("run1-0003-")
    text = prompt.read_text()
    assert "Be brief." in text and "Faster, please." in text
    assert prompt.name.replace(".prompt.", ".reply.") in text and "END OF REPLY" in text
    assert [p for p in (tmp_path / "box").iterdir() if p != prompt] == []  # nothing half-written is left


@pytest.mark.parametrize(
    "text",
    ["", "Half a th", "Whole?\nEND OF REPLY\nno, more", "not on a line of its own END OF REPLY", "Caf\udcc3"],
    ids=["empty", "half", "goes on", "in a line", "half a letter"],
)
def test_a_reply_that_is_not_whole_is_not_there(tmp_path: Path, text: str) -> None:
    box = Mailbox(tmp_path, run="r", wait=False)
    with pytest.raises(Pending):
        box.ask(ask())
    reply = Path(str(letters(tmp_path, "prompt")[0]).replace(".prompt.", ".reply."))
    reply.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(Pending):
        box.ask(ask())
    reply.write_text("Caf\u00e9\r\n\r\nEND OF REPLY\r\n", newline="")
    assert box.ask(ask()) == Reply(text="Caf\u00e9", finish="stop", model="mailbox")


def test_replies_of_others_duplicates_and_stale_ones_are_not_looked_at(tmp_path: Path) -> None:
    mine, other = Mailbox(tmp_path, run="mine", wait=False), Mailbox(tmp_path, run="other", wait=False)
    mine.announce([ask(0), ask(1)])
    other.announce([ask(0)])
    mine.announce([ask(0, text="An older prompt.")])
    posted = letters(tmp_path, "prompt")
    assert len(posted) == 4
    wanted = next(p for p in posted if p.name.startswith("mine-0000") and ask(0).prompt.digest in p.name)
    for prompt in posted:
        if prompt != wanted:
            Path(str(prompt).replace(".prompt.", ".reply.")).write_text("wrong\nEND OF REPLY\n")
    Path(str(wanted).replace(".prompt.", ".reply (1).")).write_text("a copy\nEND OF REPLY\n")
    with pytest.raises(Pending):
        mine.ask(ask(0))
    Path(str(wanted).replace(".prompt.", ".reply.")).write_text("right\nEND OF REPLY\n")
    assert mine.ask(ask(0)).text == "right"


def test_a_reply_may_say_what_it_cost(tmp_path: Path) -> None:
    box = Mailbox(tmp_path, run="r", wait=False)
    box.announce([ask()])
    reply = Path(str(letters(tmp_path, "prompt")[0]).replace(".prompt.", ".reply."))
    head = "---\nmodel: big\ninput_tokens: 12\noutput_tokens: 5\nprice_usd: 0.25\nfinish: length\n---\n"
    reply.write_text(f"{head}---\nA rule above.\nEND OF REPLY\n")
    assert box.ask(ask()) == Reply(
        text="---\nA rule above.", finish="length", model="big", price_usd=0.25,
        usage=Usage(input_tokens=12, output_tokens=5),
    )  # fmt: skip
    reply.write_text("---\ninput_tokens: many\noutput_tokens: 5\n---\nx\nEND OF REPLY\n")
    with pytest.raises(UserError, match=r"reply\.md: its head"):
        box.ask(ask())


def test_a_mailbox_that_waits_sees_the_reply_come(tmp_path: Path) -> None:
    slept = 0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += 1
        if slept == 3:
            prompt = letters(tmp_path, "prompt")[0]
            Path(str(prompt).replace(".prompt.", ".reply.")).write_text("here\nEND OF REPLY")

    assert Mailbox(tmp_path, run="r", sleep=sleep).ask(ask()).text == "here"
    assert slept == 3


# ---------------------------------------------------------------- cassette, script, ensemble


def test_a_cassette_plays_back_what_it_recorded_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tape.jsonl"
    replies = [
        scripted_reply("one", usage=Usage(input_tokens=1, output_tokens=2), price_usd=0.5),
        scripted_reply("two", finish="length"),
    ]
    recording = Cassette(path, inner=Scripted(replies))
    assert [recording.ask(ask(0)), recording.ask(ask(1)), recording.ask(ask(0))] == [*replies, replies[0]]
    assert len(path.read_text().splitlines()) == 2  # what is there is not asked again
    assert [Cassette(path).ask(ask(turn)) for turn in (1, 0)] == replies[::-1]
    with pytest.raises(UserError, match="no reply to turn 2"):
        Cassette(path).ask(ask(2))
    with pytest.raises(UserError, match="no reply to turn 0"):
        Cassette(path).ask(ask(0, text="Another prompt."))
    with pytest.raises(UserError, match="no such file"):
        Cassette(tmp_path / "nothing")


def test_a_cassette_survives_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "tape"
    script = Scripted([scripted_reply("one"), scripted_reply("two")])
    Cassette(path, inner=script).ask(ask(0))
    path.write_bytes(path.read_bytes() + b'{"key": "1-')
    again = Cassette(path, inner=script)
    again.ask(ask(1))
    assert [Cassette(path).ask(ask(turn)).text for turn in (0, 1)] == ["one", "two"]
    path.write_text('{"key": "a", "reply": {"$": "Nobody"}}\n')
    with pytest.raises(UserError, match="line 1"):
        Cassette(path)


def test_a_script_is_read_by_turns(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(["one", "two"]))
    model = opened(f"scripted:{path}")
    assert [model.ask(ask(turn)).text for turn in (1, 0)] == ["two", "one"]
    with pytest.raises(UserError, match="turn 2 has no reply"):
        model.ask(ask(2))
    for wrong in ("[1]", "{}", "no json"):
        path.write_text(wrong)
        with pytest.raises(UserError, match="list of texts"):
            opened(f"scripted:{path}")


def test_an_ensemble_takes_turns_and_stands_in_for_the_absent() -> None:
    a, b = (Scripted([scripted_reply(f"{name}{n}") for n in range(4)]) for name in "ab")
    assert [ModelEnsemble([a, b]).ask(ask(turn)).text for turn in range(4)] == ["a0", "b1", "a2", "b3"]
    assert [ModelEnsemble([a, Gone()]).ask(ask(turn)).text for turn in range(2)] == ["a0", "a1"]
    drawn = replace(ask(0), sampling=Sampling(member=5))  # a strategy draws one, modulo their number
    assert (ModelEnsemble([a, b]).ask(drawn).text, ModelEnsemble([a, Gone()]).ask(drawn).text) == ("b0", "a0")
    with pytest.raises(ModelOut, match="gone fishing; gone fishing"):
        ModelEnsemble([Gone(), Gone()]).ask(ask())


def test_an_ensemble_of_mailboxes_posts_each_prompt_in_its_own_folder(tmp_path: Path) -> None:
    model = opened(f"ensemble:mailbox:{tmp_path / 'a'},mailbox:{tmp_path / 'b'}")
    model.announce([ask(0), ask(1), ask(2)])
    assert (len(letters(tmp_path / "a", "prompt")), len(letters(tmp_path / "b", "prompt"))) == (2, 1)


# ---------------------------------------------------------------- names, keys, patience


@pytest.mark.parametrize(
    ("name", "base_url", "key", "says"),
    [
        ("gpt-4o", "", "k", "write PROVIDER:NAME"),
        ("nobody:x", "", "k", "unknown provider; known are openai, anthropic, google, deepseek"),
        ("openai-compatible:x", "", "k", "--base-url"),
        ("anthropic:x", "", None, "set ANTHROPIC_API_KEY, or keep it in the keyring"),
        ("openai:x", "https://me:secret@host/v1", "k", "must hold no password"),
        ("openai:x", "https://host/v1?key=secret", "k", "must hold no password"),
        ("cassette:nowhere.jsonl", "", "k", "no such file"),
    ],
)
def test_a_name_that_cannot_be_used_is_said_so(name: str, base_url: str, key: str | None, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        opened(name, base_url=base_url, key=key)
    assert "secret" not in str(caught.value)


def test_what_is_not_installed_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "_WANTED", ("surely_not_installed.deep",))
    with pytest.raises(UserError, match=r"surely_not_installed.deep is not installed; pip install 'tilewright\[llm\]'"):
        opened("anthropic:x")


def test_each_provider_names_the_variables_of_its_key() -> None:
    asked: list[tuple[str, ...]] = []
    with pytest.raises(UserError, match="GOOGLE_API_KEY"):
        open_model(ModelChoice(name="google:x"), run="r", keys=lambda names: asked.append(names))
    assert asked == [("GOOGLE_API_KEY", "GEMINI_API_KEY")]


def test_waits_are_bounded_and_only_what_passes_is_tried_again() -> None:
    patience = RetryPolicy(first_wait_s=2.0, longest_wait_s=10.0)
    assert all(patience.wait_s(tried, random.Random(1)) <= 12.5 for tried in range(1, 50))

    def never(tried: int) -> int:
        raise KeyError(tried)

    with pytest.raises(KeyError):
        patiently(never, patience=patience, dice=random.Random(0), sleep=lambda s: None)
    slept: list[float] = []

    def third(tried: int) -> int:
        if tried < 3:
            raise Passing("not yet", retry_after_s=0.0 if tried == 1 else None)
        return tried

    assert patiently(third, patience=patience, dice=random.Random(0), sleep=slept.append) == 3
    assert slept[0] == 0.0 and 3.0 <= slept[1] <= 5.0


def test_prompts_are_known_by_all_of_their_text() -> None:
    prompt = ask().prompt
    assert prompt.digest == ask(turn=5).prompt.digest
    assert len({prompt.digest, replace(prompt, system="").digest, ask(text="Slower.").prompt.digest}) == 3
