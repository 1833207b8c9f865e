"""Packed journals (benchmarks/journals.py): what is packed replays to the same end; those that are kept all replay."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from fakes.asked import START, asking, ran, sampled, whole
from fakes.facts import PROBLEM
from tilewright.edges.ledger import Ledger
from tilewright.edges.models.scripted import scripted_reply
from tilewright.facts import codec
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.dialogue import ToolAnswer, ToolCall
from tilewright.facts.move import Ask, CallTool, Move, Outcome, Stop
from tilewright.facts.run import Limits, Request
from tilewright.facts.tools import NAMES
from tilewright.report import summary
from tilewright.run.drive import JournalMismatch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KEPT = sorted((BENCHMARKS / "journals").glob("*/*.jsonl.xz"))
LIBRARY = SourceFile(path="tilewright_kernels/rows.py", text="# the library's\n")
SECRET = "class Model:\n    'not ours'\n"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("journals", BENCHMARKS / "journals.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_packed_is_small_holds_no_source_and_replays_to_the_same_end(
    script: ModuleType, tmp_path: Path
) -> None:
    problem = replace(PROBLEM, source=SECRET)
    start = Candidate(files=(*START.files, SourceFile(path="original.py", text=SECRET), LIBRARY))
    on = asking(problem=problem, start=start, limits=Limits(calls=3), strategy="cutegen")
    journal = tmp_path / "toy" / "run.db"
    journal.parent.mkdir()
    replies = [whole("ns 800"), whole("bad hung"), whole("ns 500")]
    stop, events = ran(journal, "cutegen", replies, on=on, judge=sampled)
    with Ledger(journal) as ledger:
        ledger.write(Request(run=on.run, problem=problem, strategy="cutegen", seed=0, budget_s=on.budget_s))
        ledger.write(on)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "toy.py").write_text(SECRET)
    file = script.pack(journal, tmp_path / "kept", [tmp_path / "hidden" / "toy.py"])
    found = script.unpacked(file)
    text = "".join(codec.dumps(fact) for fact in (*found[:2], *found[2]))
    assert (
        "the library's" not in text
        and "not ours'" not in text
        and json.dumps(SECRET.strip())[1:-1] in journal_text(events)
    )
    assert len(journal_text(found[2])) < len(journal_text(events)) / 2 and "# toy.py, which is not ours" in text
    assert script.replayed(found).why == stop.why and len(found[2]) == len(events)
    request, context, kept = found
    with pytest.raises(JournalMismatch):
        script.replayed((request, replace(context, start=START), kept))
    assert script.replayed((request, context, kept[:-2])) is None
    assert not any(isinstance(e.move, Ask) and e.move.prompt.messages for e in kept)


def test_a_packed_run_with_tools_replays(script: ModuleType, tmp_path: Path) -> None:
    """Its prompts that bring answers stay known as such without their words: they are no calls of the budget."""
    calls = tuple(ToolCall(id="1", tool="search", arguments='{"query": "x"}') for _ in range(2))
    on = asking(start=START, limits=Limits(calls=2), strategy="agent", tools=NAMES)
    journal = tmp_path / "toy" / "run.db"
    journal.parent.mkdir()

    def judged(move: Move) -> Outcome:
        return ToolAnswer(text="found") if isinstance(move, CallTool) else sampled(move)

    replies = [scripted_reply("", calls=calls), whole("ns 800"), whole("ns 500")]
    stop, events = ran(journal, "agent", replies, on=on, judge=judged)
    with Ledger(journal) as ledger:
        ledger.write(Request(run=on.run, problem=PROBLEM, strategy="agent", seed=0, budget_s=on.budget_s))
        ledger.write(on)
    assert sum(isinstance(e.move, CallTool) for e in events) == 2
    assert script.replayed(script.unpacked(script.pack(journal, tmp_path / "kept"))).why == stop.why


def journal_text(events: tuple[object, ...]) -> str:
    return "".join(codec.dumps(event) for event in events)


@pytest.mark.parametrize("file", KEPT, ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_kept_journals_replay(script: ModuleType, file: Path) -> None:
    request, context, events = script.unpacked(file)
    assert script.replayed((request, context, events)) == (
        events[-1].move if isinstance(events[-1].move, Stop) else None
    )


def test_what_each_pattern_of_a_block_is_worth_and_what_stood_there_instead(script: ModuleType) -> None:
    """A layer norm that is left out of a product's way in stands before the same product: nothing of what that is worth
    against torch's."""
    _, context, events = script.unpacked(
        BENCHMARKS / "journals" / "fact" / "earlier" / "44_minigpt_block_h200.jsonl.xz"
    )
    worth = {w["pattern"]: w for w in summary(context, events, candidate_dir="")["attribution"]}
    instead = {name: w["instead"] for name, w in worth.items()}
    assert instead["fused_6"] == ["fused_0", "fused_5"] and instead["fused_9"] == ["fused_1", "fused_8"]
    assert instead["fused_11"] == ["fused_3"] and instead["fused_7"] == instead["fused_10"] == []
    assert 1.005 < worth["fused_6"]["without"]["mid"] < 1.015 and 1.57 < worth["fused_11"]["without"]["mid"] < 1.59
