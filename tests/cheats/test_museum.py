"""The adversarial corpus: every cheat is refused with a reason that names what was seen, every honest look-alike
passes; and every cheat gets through when the guards that it names are switched off.

`make test` has one exhibit of each class, `make museum` has all of them; the proofs run by `make
adversarial corpus-proof`. All that were selected are judged in one tour, by several judges side by side; each test
then looks at what was said of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from guards import GUARDS
from museum import BUSY, NOTHING, Exhibit, Shown, exhibits, of_every_run, parts_for, tour_in_parts

pytestmark = pytest.mark.slow
Tour = Callable[[str, bool], Mapping[str, Shown]]


def _parameters(chosen: Mapping[str, list[Exhibit]]) -> list[object]:
    marks = {"cpu": (), "cuda": (pytest.mark.gpu,)}
    often = {target: of_every_run(exhibits(target)) for target in chosen}
    return [
        pytest.param(
            e, target, id=f"{e.path.stem}-{target}",
            marks=(*marks[target], *(() if e.name in often[target] else (pytest.mark.thorough,))),
        )
        for target, found in chosen.items()
        for e in found
    ]  # fmt: skip


def _memory(name: str) -> list[object]:
    return _parameters({t: [e for e in exhibits(t) if e.memory == name] for t in ("cpu", "cuda")})


def _provable() -> list[object]:
    return _parameters({t: [e for e in exhibits(t) if e.guards and NOTHING not in e.guards] for t in ("cpu", "cuda")})


@pytest.fixture(scope="session")
def tour(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tour:
    """What was said of the selected exhibits of a target: guarded, or each without its guards."""
    selected: dict[tuple[str, bool], list[Exhibit]] = {}
    for item in request.session.items:
        call = getattr(item, "callspec", None)
        if item.path.parent == Path(__file__).parent and call is not None and "exhibit" in call.params:
            key = call.params["target"], item.originalname == "test_cheat_passes_without_its_guards"  # type: ignore[attr-defined]
            selected.setdefault(key, []).append(call.params["exhibit"])

    @cache
    def taken(target: str, unguarded: bool) -> Mapping[str, Shown]:
        chosen, folder = selected[target, unguarded], tmp_path_factory.mktemp("museum")
        return tour_in_parts(chosen, target, folder, parts=parts_for(target), unguarded=unguarded)

    return taken


def _said_of(exhibit: Exhibit, shown: Mapping[str, Shown]) -> Shown:
    """What was said, if others left enough of the machine to say anything."""
    said = shown[exhibit.name]
    if said.reason == BUSY:
        pytest.skip(said.summary)
    return said


@pytest.mark.parametrize(("exhibit", "target"), _memory("refused"))
def test_cheat_is_refused(exhibit: Exhibit, target: str, tour: Tour) -> None:
    shown = _said_of(exhibit, tour(target, False))
    assert not shown.accepted, "it passed"
    assert shown.reason in exhibit.reasons, f"{shown.reason}: {shown.summary}\n{shown.excerpt}"
    assert shown.summary
    assert len(shown.excerpt.encode()) <= 4096


@pytest.mark.parametrize(("exhibit", "target"), _memory("honest"))
def test_honest_one_passes(exhibit: Exhibit, target: str, tour: Tour) -> None:
    shown = _said_of(exhibit, tour(target, False))
    assert shown.accepted, f"{shown.reason}: {shown.summary}\n{shown.excerpt}"


@pytest.mark.proof
@pytest.mark.parametrize(("exhibit", "target"), _provable())
def test_cheat_passes_without_its_guards(exhibit: Exhibit, target: str, tour: Tour) -> None:
    shown = _said_of(exhibit, tour(target, True))
    assert set(exhibit.guards) <= set(GUARDS)
    assert shown.accepted, f"something else refuses it: {shown.reason}: {shown.summary}\n{shown.excerpt}"
