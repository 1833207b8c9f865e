"""A bundle: what is half written, damaged, copied, stale or strange does no harm; what is whole comes back whole."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.facts import MACHINE, PROBLEM, context, pattern, timed
from tilewright.edges.bundle import Bundle, name_of
from tilewright.facts import codec
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import UserError
from tilewright.facts.move import Try
from tilewright.facts.order import Answer, Job, Order
from tilewright.facts.run import Request
from tilewright.facts.version import VERSION

REQUEST = Request(run="0123456789ab", problem=PROBLEM, strategy="oneshot", seed=0, budget_s=9.0)
OPENING = Order(request=REQUEST, number=0, job=None)
TRY = Try(what=Candidate(files=(SourceFile(path="model.py", text="λ = 1\n"),)), why="first")
ORDER = Order(request=REQUEST, number=2, job=Job(context=context(pattern("fused_0")), move=TRY))


def answer(ratio: float = 2.0) -> Answer:
    return Answer(what=timed(ratio), wall_s=1.5, held=(), machine=MACHINE.key, version=VERSION)


def waiting(bundle: Bundle) -> tuple[tuple[Order, ...], list[str]]:
    said: list[str] = []
    return bundle.waiting(said.append), said


def sealed(place: Path, body: str, version: str = VERSION) -> str:
    """As somebody would write it who knows how."""
    digest = hashlib.sha256(place.name.encode() + b"\n" + body.encode()).hexdigest()
    return f"tilewright {version} {digest}\n{body}"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle(tmp_path / "box")


def test_orders_and_answers_come_back_as_they_were_and_what_is_answered_waits_no_more(bundle: Bundle) -> None:
    assert waiting(bundle) == ((), []) and bundle.answer(ORDER) is None
    assert bundle.post(ORDER) and bundle.post(OPENING) and not bundle.post(ORDER)
    assert waiting(bundle) == ((OPENING, ORDER), [])
    bundle.reply(ORDER, answer())
    assert bundle.answer(ORDER) == answer()
    assert waiting(bundle) == ((OPENING,), [])


def test_a_file_counts_for_nothing_until_it_is_whole(bundle: Bundle) -> None:
    """Cut off after any number of bytes, or with one of them changed."""
    bundle.post(ORDER)
    bundle.reply(ORDER, answer())
    (order,) = (bundle.folder / "orders").iterdir()
    place = bundle.place_of_answer(ORDER)
    whole = place.read_bytes()
    for cut in range(0, len(whole), 3):
        place.write_bytes(whole[:cut])
        assert bundle.answer(ORDER) is None, cut
    for at in range(len("tilewright "), len(whole), 13):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = bundle.answer(ORDER)
        assert found is None or (at < whole.index(b"\n") and found == answer()), at  # the writer's version is unsealed
    place.write_bytes(whole)
    assert bundle.answer(ORDER) == answer()
    place.unlink()
    text = order.read_bytes()
    order.write_bytes(text[: len(text) // 2])
    assert waiting(bundle) == (
        (),
        [f"{order.name}: not whole; it may still be on its way, or is a copy under another name"],
    )
    assert bundle.post(ORDER)  # it is put there anew
    assert order.read_bytes() == text


def test_copies_and_answers_to_other_orders_do_no_harm(bundle: Bundle) -> None:
    bundle.post(ORDER)
    (order,) = (bundle.folder / "orders").iterdir()
    shutil.copy(order, order.with_name("copy of it.order"))
    (order.parent / f".{order.name}.77.new").write_text("left behind by a kill")
    again = replace(ORDER, attempt=1)
    bundle.reply(again, answer(9.0))
    shutil.copy(bundle.place_of_answer(again), bundle.place_of_answer(ORDER))  # under a name that is not its own
    assert bundle.answer(ORDER) is None
    orders, said = waiting(bundle)
    assert orders == (ORDER,) and len(said) == 1 and "a copy under another name" in said[0]


def test_withdrawn_is_what_was_taken_of_this_run(bundle: Bundle) -> None:
    other = replace(OPENING, request=replace(REQUEST, run="ba9876543210"))
    for order in (OPENING, ORDER, other):
        bundle.post(order)
        bundle.reply(order, answer())
    bundle.withdraw(REQUEST.run, before=2)
    left = sorted(f.stem for f in bundle.folder.rglob("*") if f.is_file())
    assert left == sorted([name_of(ORDER), name_of(other)] * 2)


def test_what_is_whole_and_can_not_be_read_is_told_of(bundle: Bundle) -> None:
    """Of another version, or no answer at all; never a class that is no fact, nor a field of another type."""
    bundle.reply(ORDER, answer())
    place = bundle.place_of_answer(ORDER)
    plain = codec.dumps(answer())
    for body in ("[]", '{"$":"Popen","args":"ls"}', codec.dumps(ORDER), plain.replace('"wall_s":1.5', '"wall_s":"1.5"'),
                 plain.replace('"floor_ns":50.0', '"floor_ns":null'), "[" * 100_000):  # fmt: skip
        assert body != plain
        place.write_text(sealed(place, body, version="9.9"))
        with pytest.raises(UserError, match=r"Tilewright 9\.9 wrote it, this is .*: use one version on both machines"):
            bundle.answer(ORDER)


@pytest.mark.parametrize("run", ["../../../x", "ba9876543210"])
def test_an_order_that_is_not_named_after_itself_is_left(bundle: Bundle, run: str) -> None:
    """What it names would else be the place of its answer."""
    strange = replace(OPENING, request=replace(REQUEST, run=run))
    place = bundle.folder / "orders" / f"{name_of(OPENING)}.order"
    place.parent.mkdir(parents=True)
    place.write_text(sealed(place, codec.dumps(strange)))
    assert waiting(bundle) == ((), [f"{place.name}: is not named after what it holds"])


def test_one_at_a_time_is_at_a_piece_of_work(bundle: Bundle) -> None:
    with bundle.claimed("this") as ours, bundle.claimed("this") as again, bundle.claimed("that") as other:
        assert (ours, again, other) == (True, False, True)
    with bundle.claimed("this") as ours:
        assert ours


@pytest.mark.parametrize("kind", ["orders", "answers"])
def test_what_is_no_file_is_told_of_and_stops_nobody(bundle: Bundle, kind: str) -> None:
    """A folder, a pipe or a loop named like an order, or like the answer to one; the other order is served."""
    bundle.post(OPENING)
    other = replace(REQUEST, run="ba9876543210")
    places = [Order(request=replace(other, seed=seed), number=0, job=None) for seed in range(4)]
    for order in places:
        bundle.post(order)
    suffix = {"orders": "order", "answers": "answer"}[kind]
    (bundle.folder / kind).mkdir(exist_ok=True)
    names = [bundle.folder / kind / f"{name_of(order)}.{suffix}" for order in places]
    for name in names:
        name.unlink(missing_ok=True)
    names[0].mkdir()
    os.mkfifo(names[1])
    names[2].symlink_to(names[2].name)
    names[3].symlink_to("/dev/zero")
    found, said = waiting(bundle)
    assert found == (OPENING,) and len(said) == 4
    assert all(line.count("remove it") == 1 and "\n" not in line for line in said)
    (bundle.folder / "orders" / "0123456789ab-0001-0123456789abcdee.order").mkdir()
    assert bundle.answered(REQUEST.run, numbers=range(9)) == ()
    bundle.withdraw(other.run, before=5)


@pytest.mark.parametrize("body", ["[" * 5000, "{}", "7", '{"$": "Order"}', '{"$": []}', '{"$": "Order", "new": 1}',
                                  "NaN", '"\\ud800"', "9" * 5000])  # fmt: skip
def test_a_whole_order_of_another_make_is_told_of_and_left_out(bundle: Bundle, body: str) -> None:
    bundle.post(OPENING)
    place = bundle.folder / "orders" / "0123456789ab-0001-0123456789abcdef.order"
    place.write_text(sealed(place, body, version="99.0"))
    found, said = waiting(bundle)
    assert found == (OPENING,) and len(said) == 1 and "Tilewright 99.0 wrote it" in said[0] and len(said[0]) < 600
