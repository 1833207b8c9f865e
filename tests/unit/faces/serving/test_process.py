"""A judging process as the pool sees it: what it says, and its end, its silence and its nonsense."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tilewright.faces.serving.process import JudgeEnded, JudgingProcess, Unwanted
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.run import Timing
from tilewright.facts.ticket import JudgingOrder, JudgingTerms, Submission, TicketFault, TicketVerdict

SCRIPT = """
import os, sys, time
from tilewright.facts import codec
from tilewright.facts.run import Timing
from tilewright.facts.ticket import *
codec.read(sys.stdin.readline(), JudgingTerms)
for count, line in enumerate(sys.stdin):
    word = codec.read(line, JudgingOrder).submission.candidate.files[0].text
    say = lambda fact: print(codec.dumps(fact), flush=True)
    say(JudgingProgress(text=f"{os.getpid()} {count}"))
    if word == "ends":
        os._exit(0)
    if word == "hangs":
        time.sleep(600)
    if word == "nonsense":
        print("hello", flush=True)
    if word == "other fact":
        say(Timing())
    say(TicketVerdict(accepted=True, lows=(("eager", 2.0),), claimed=(), shown=word))
"""
TERMS = JudgingTerms(target="cpu", timing=Timing(), seed=0, cache="")


@pytest.fixture
def process() -> Iterator[JudgingProcess]:
    command = (sys.executable, "-c", SCRIPT)
    with closing(JudgingProcess(TERMS, environment={}, command=command)) as found:
        yield found


def asked(
    process: JudgingProcess, word: str, *, limit_s: float = 60.0, wanted_s: float = 60.0
) -> tuple[object, list[str]]:
    files = (SourceFile(path="model.py", text=word),)
    submission = Submission(problem="p", source="", version="", candidate=Candidate(files=files))
    said: list[str] = []
    ends_s = time.monotonic() + wanted_s
    outcome = process.judge(
        JudgingOrder(path="", submission=submission), say=said.append, limit_s=limit_s,
        wanted=lambda: time.monotonic() < ends_s,
    )  # fmt: skip
    return outcome, said


def test_one_process_serves_order_after_order(process: JudgingProcess) -> None:
    (first, said), (second, again) = asked(process, "a"), asked(process, "b")
    assert (
        isinstance(first, TicketVerdict)
        and isinstance(second, TicketVerdict)
        and (first.shown, second.shown) == ("a", "b")
    )
    assert [text.split()[1] for text in (*said, *again)] == ["0", "1"] and said[0].split()[0] == again[0].split()[0]


@pytest.mark.parametrize("word", ["ends", "nonsense", "other fact"])
def test_an_end_or_nonsense_is_an_error_and_the_next_order_has_a_new_process(
    process: JudgingProcess, word: str
) -> None:
    with pytest.raises(JudgeEnded):
        asked(process, word)
    outcome, said = asked(process, "right")
    assert isinstance(outcome, TicketVerdict) and said[0].endswith(" 0")


def test_what_takes_too_long_or_is_not_wanted_any_more_is_ended(process: JudgingProcess) -> None:
    for end in ("limit", "unwanted"):
        _, said = asked(process, "right")
        pid = said[0].split()[0]
        if end == "limit":
            outcome, _ = asked(process, "hangs", limit_s=0.2)
            assert isinstance(outcome, TicketFault) and "within 0.2 s" in outcome.text
        else:
            with pytest.raises(Unwanted):
                asked(process, "hangs", wanted_s=0.2)
        assert not Path("/proc", pid).exists()
