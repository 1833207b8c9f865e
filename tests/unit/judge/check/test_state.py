"""What a candidate shares of the state that calls move, and what it must then move alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.facts.problem import TensorSpec
from tilewright.judge.check import state
from tilewright.judge.wire import messages as wire

SPEC = TensorSpec(shape=(3,), stride=(1,), dtype="f32")
CALLS = wire.Attribute(name="calls", text="0")


def _named(*names: str, hidden: bool = False) -> tuple[wire.NamedSpec, ...]:
    return tuple(wire.NamedSpec(name=n, spec=SPEC, hidden=hidden) for n in names)


def _shared(
    shown: tuple[str, ...],
    hidden: tuple[str, ...] = (),
    attributes: tuple[wire.Attribute, ...] = (),
    shows: bool = True,
) -> state.Shared:
    described: Any = SimpleNamespace(
        state=_named("weight", "mean") + _named("cache", hidden=True), mutated_state=("mean", "cache"),
        attributes=(CALLS,), shows_attributes=shows,
    )  # fmt: skip
    built = wire.Constructed(
        state=_named(*shown), training=True, hidden=_named(*hidden, hidden=True), attributes=attributes
    )
    return state.shared_with(described, built)


def test_all_of_it() -> None:
    found = _shared(("weight", "mean"), ("cache",), (CALLS,))
    assert found.whole and found.moved == ("mean", "cache") and found.attributes == ("calls",) and not found.lacking


def test_a_cache_and_a_count_that_are_not_there() -> None:
    found = _shared(("weight", "mean"), (), (wire.Attribute(name="calls", text=""),))
    assert found.whole and found.moved == ("mean",) and found.lacking == ("cache", "calls") and found.lacks_what_shows
    assert not _shared(("weight", "mean"), (), (), shows=False).lacks_what_shows


def test_a_checkpoint_may_show_a_cache_and_must_show_what_the_references_does() -> None:
    assert _shared(("weight", "mean", "cache")).moved == ("mean", "cache")
    assert not _shared(("weight",), ("mean", "cache")).whole
    assert not _shared(("weight", "mean", "more")).whole


def test_counts_are_compared_where_the_reference_left_one() -> None:
    left = (wire.Attribute(name="calls", text="1"), wire.Attribute(name="x", text=""))
    memory: Any = SimpleNamespace(state=SimpleNamespace(left_attributes=left))
    assert state.miscounted(memory, (wire.Attribute(name="calls", text="1"), wire.Attribute(name="x", text="7"))) == ""
    assert state.miscounted(memory, (wire.Attribute(name="calls", text="0"),)) == "calls is 0, not 1"
    assert "no plain value" in state.miscounted(memory, (wire.Attribute(name="calls", text=""),))
