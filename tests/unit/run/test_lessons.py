"""What is distilled of a run, and what the next one is shown of it: on this machine, with this toolchain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fakes.asked import START, asking, ran, whole
from fakes.facts import MACHINE, PROBLEM
from tilewright.facts.dialogue import ModelChoice
from tilewright.facts.problem import TensorSpec
from tilewright.facts.run import Limits, Request, SearchContext
from tilewright.facts.tools import NAMES
from tilewright.facts.version import VERSION
from tilewright.run.lessons import learnt, offered, shape_class
from tilewright.search.retrieve import lessons as memory


def request(strategy: str = "cutegen", *, name: str = "new", **changes: object) -> Request:
    wanted = Request(run="r2", problem=replace(PROBLEM, name=name), strategy=strategy, seed=0, budget_s=9.0)
    return replace(wanted, model=ModelChoice(name="scripted:x"), **changes)


def fresh() -> SearchContext:
    return asking()


def kept(tmp_path: Path) -> Path:
    """The lessons of a run with a gain, a loss, a refusal, and a step that is neither."""
    replies = [whole("ns 500", "fuse the softmax"), whole("ns 900", "split rows"), whole("bad hung", "prefetch tiles"),
               whole("bad hung 2", "again"), whole("ns 499", "no change")]  # fmt: skip
    _, events = ran(tmp_path / "a.db", "cutegen", replies, on=asking(start=START, limits=Limits(calls=5)))
    assert not memory.remember(tmp_path / "lessons", "r1", learnt(fresh(), events))
    return tmp_path / "lessons"


def test_gains_losses_and_refusals_are_distilled_with_their_effect(tmp_path: Path) -> None:
    found = memory.entries(kept(tmp_path), MACHINE, tilewright=VERSION)
    effects = {lesson.text: round(lesson.effect, 2) for lesson in found}
    assert effects["fuse the softmax"] == 2.0 and effects["split rows"] == 0.56
    assert effects["prefetch tiles: hung"] == 0.0 and not any("no change" in text for text in effects)
    assert found[0].line == "fuse the softmax (2.00x as fast as before it; toy, f32[4,8])"


def test_the_next_run_is_shown_them_where_they_hold(tmp_path: Path) -> None:
    folder = kept(tmp_path)
    shown = offered(fresh(), request(), folder=folder).lessons
    assert any("fuse the softmax (2.00x" in line for line in shown) and any("refused by the judge" in x for x in shown)
    assert offered(fresh(), request(name="toy"), folder=folder).lessons == ()  # its own are no lessons
    assert offered(fresh(), request(without=("lessons",)), folder=folder).lessons == ()
    assert offered(fresh(), request("best_of_n"), folder=folder).lessons == ()  # a control
    elsewhere = replace(fresh(), machine=replace(MACHINE, driver="other"))
    assert offered(elsewhere, request(), folder=folder).lessons == ()  # they expire with the toolchain
    assert offered(replace(fresh(), edition=1), request(), folder=folder).lessons == ()
    (folder / "r1.json").write_text("torn")
    assert offered(fresh(), request(), folder=folder).lessons == ()


def test_tools_are_offered_where_they_were_asked_for(tmp_path: Path) -> None:
    assert offered(fresh(), request(), folder=tmp_path).tools == ()
    assert offered(fresh(), request(tools=True), folder=tmp_path).tools == NAMES
    assert offered(fresh(), request("agent"), folder=tmp_path).tools == NAMES
    assert offered(fresh(), request(tools=True, without=("tools",)), folder=tmp_path).tools == ()
    assert offered(fresh(), request("cutegen_paper", tools=True), folder=tmp_path).tools == ()


def test_shapes_of_a_class_differ_by_less_than_a_factor_of_two() -> None:
    spec = TensorSpec(shape=(1000, 64), stride=(64, 1), dtype="f32")
    assert shape_class((spec,)) == "f32[512,64]" == shape_class((replace(spec, shape=(600, 127)),))
    assert shape_class(()) == "no inputs"
