"""facts.codec: every fact survives the way to JSON and back; nothing else gets in."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import random
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import tilewright.facts
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.codec import dumps, from_plain, loads, read, to_plain
from tilewright.facts.move import Event, Stop, Tune
from tilewright.facts.outcome import Failure, PointTime, Station
from tilewright.facts.pattern import Choice, Pattern
from tilewright.facts.space import Space, point
from tilewright.ir.access import each_of
from tilewright.ir.graph import Code, Ref
from tilewright.ir.matrices import Matrices, matrices_of
from tilewright.ir.program import Operand, Program
from tilewright.ir.schedule import Pass, RankSchedule, ScanSchedule, Schedule
from tilewright.ir.validation import validate


def fact_classes() -> list[type]:
    names = [m.name for m in pkgutil.iter_modules(tilewright.facts.__path__)]
    modules = [importlib.import_module(f"tilewright.facts.{name}") for name in names]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__
    ]


FACTS = fact_classes()
NEVER_KEPT = (
    "contraction",
    "device",
    "older",
    "rule",
    "spent",
    "time_budget",
    "tools",
)  # modules whose facts are computed anew
DERIVED = {Pass, RankSchedule, ScanSchedule, Schedule} | {f for f in FACTS if f.__module__.endswith(NEVER_KEPT)}
SCALARS: dict[type, tuple[Any, ...]] = {
    int: (0, 1, -7, 2**62),
    float: (0.0, -0.0, 1.5, 1e-300, float("inf")),
    bool: (True, False),
    str: ("", "x", 'a "quoted"\nline', "λ → 0", "$", "\x00"),
    type(None): (None,),
}


def draw(hint: Any, dice: random.Random) -> Any:
    """A random value of this type; tuples are short, unions fair."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return dice.choice((None, 3, "y", (1, ()), Ref(name="n"), Code(text="torch.float32")))
    if hint in SCALARS:
        return dice.choice(SCALARS[hint])
    if origin is Literal:
        return dice.choice(arguments)
    if origin in (Union, UnionType):
        return draw(dice.choice(arguments), dice)
    if origin is tuple and arguments[-1:] == (...,):
        return tuple(draw(arguments[0], dice) for _ in range(dice.randrange(3)))
    if origin is tuple:
        return tuple(draw(a, dice) for a in arguments)
    hints = get_type_hints(hint)
    return hint(**{f.name: draw(hints[f.name], dice) for f in dataclasses.fields(hint)})


@pytest.mark.parametrize("fact", FACTS, ids=lambda f: f.__name__)
def test_facts_are_frozen_values_with_slots_and_keyword_fields(fact: type) -> None:
    parameters: Any = vars(fact)["__dataclass_params__"]
    assert parameters.frozen and "__slots__" in vars(fact)
    assert all(f.kw_only for f in dataclasses.fields(fact))


def test_names_are_unique_since_they_are_the_tags() -> None:
    assert len({f.__name__ for f in FACTS}) == len(FACTS)


@pytest.mark.parametrize("fact", [f for f in FACTS if f not in DERIVED], ids=lambda f: f.__name__)
def test_every_fact_survives_the_round_trip(fact: type) -> None:
    dice = random.Random(fact.__name__)
    values = [draw(fact, dice) for _ in range(50)]
    assert len({repr(v) for v in values}) > 1
    for value in values:
        again = loads(dumps(value))
        assert again == value and repr(again) == repr(value)
        assert read(dumps(value), fact) == value


def test_the_text_is_what_journals_hold() -> None:
    """Pinned: a change of this text makes old journals unreadable."""
    event = Event(
        seq=3,
        move=Tune(recipe=(Choice(pattern="fused_0", point=point(vec=4, bulk=True)),), pattern="fused_0", points=()),
        outcome=Failure(stage="tune", reason="hung", summary="no answer in 5 s"),
        wall_s=5.5,
        held=(Station(name="tuning", seconds=4.5),),
    )
    assert json.loads(dumps(event)) == {
        "$": "Event",
        "seq": 3,
        "move": {
            "$": "Tune",
            "recipe": [{"$": "Choice", "pattern": "fused_0", "point": [["bulk", True], ["vec", 4]], "written": None}],
            "pattern": "fused_0",
            "points": [],
        },
        "outcome": {"$": "Failure", "stage": "tune", "reason": "hung", "summary": "no answer in 5 s", "excerpt": ""},
        "wall_s": 5.5,
        "held": [{"$": "Station", "name": "tuning", "seconds": 4.5, "parts": []}],
    }


def test_a_union_member_comes_back_as_itself() -> None:
    whole = Stop(best=Candidate(files=(SourceFile(path="model.py", text="x = 1\n"),)), why="won")
    recipe = Stop(best=(Choice(pattern="fused_0", point=()),), why="won")
    assert [type(loads(dumps(s)).best) for s in (whole, recipe)] == [Candidate, tuple]


@pytest.mark.parametrize("value", [object(), {"a": 1}, {1, 2}, b"bytes", 1j])
def test_what_is_no_fact_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="not a fact"):
        to_plain(value)


def test_unknown_tags_and_fields_are_refused() -> None:
    with pytest.raises(KeyError):
        from_plain({"$": "NoSuchFact"})
    with pytest.raises(TypeError):
        from_plain({"$": "SourceFile", "path": "model.py", "texts": ""})


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "3", "null", '{"path":"a","text":"b"}', '{"$":["x"]}', '{"$":"Choice","pattern":"f","point":[]}',
        '{"$":"SourceFile","path":"a","text":3}', '{"$":"SourceFile","path":"a","text":null}',
        '{"$":"SourceFile","path":"a"}',
    ],
)  # fmt: skip
def test_foreign_text_is_read_as_what_is_wanted_or_not_at_all(text: str) -> None:
    with pytest.raises(ValueError):
        read(text, SourceFile)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"$":"PointTime","point":[["vec",4]],"time_ns":null}', True),
        ('{"$":"PointTime","point":[["vec",4]],"time_ns":{"$":"Interval","low":1,"mid":2.5,"high":3}}', True),
        ('{"$":"PointTime","point":[["vec",4]],"time_ns":{"$":"Interval","low":1,"mid":"2.5","high":3}}', False),
        ('{"$":"PointTime","point":[["vec",4]],"time_ns":{"$":"Choice","pattern":"f","point":[]}}', False),
        ('{"$":"PointTime","point":[["vec",4.5]],"time_ns":null}', False),
        ('{"$":"PointTime","point":[["vec",4,5]],"time_ns":null}', False),
        ('{"$":"PointTime","point":"vec","time_ns":null}', False),
    ],
)
def test_what_is_read_fits_its_fields_down_to_the_last(text: str, fits: bool) -> None:
    try:
        assert isinstance(read(text, PointTime), PointTime) and fits
    except ValueError:
        assert not fits


def test_names_of_the_journals_before_are_read() -> None:
    bind = '{"$":"Bind","node":"x","split":[2],"order":[0],"part":null}'
    site = f'{{"$":"Site","nodes":["y"],"operands":[{bind}],"outputs":[],"spared":[]}}'
    found = loads(site)
    assert type(found).__name__ == "Match" and loads(dumps(found)) == found
    setting = loads('[["residence","shared"],["spread","grid"],["threads",256]]')
    assert setting == point(row_storage="shared", cta_split="grid", threads=256)
    knob = loads('{"$":"Knob","name":"spread","values":["auto"],"about":"a"}')
    assert knob.name == "cta_split"


def test_products_of_the_journals_before_are_contractions() -> None:
    """Their factors by name, with batches, diagonals and groups of rows; and what was broadcast over parts of rows."""

    def operand(name: str, *shape: int, dtype: str = "f32", indexed: bool = True, each: tuple[int, ...] = ()) -> str:
        fields = {"name": name, "dtype": dtype, "shape": shape, "indexed": indexed, "order": [], "each": each}
        return json.dumps({"$": "Operand", **fields})

    def program(domain: list[int], operands: list[str], **product: object) -> Program:
        item = {"$": "Product", "result": "y", "left": "a", "right": "b", "dtype": "f32", "prologues": [], **product}
        rest = {"domain": domain, "reduced": [], "outputs": [], "body": [item]}
        whole = {"$": "Program", **rest, "operands": [json.loads(o) for o in operands]}
        found = loads(json.dumps(whole))
        validate(found)
        assert isinstance(found, Program) and loads(dumps(found)) == found
        return found

    grouped = program([8, 5, 7], [operand("a", 8, 5, 4), operand("b", 2, 4, 7)], rounded=True, each=[1, 4],
                      zeros=[[None, 0], [None, None]], wanted=[-1, None])  # fmt: skip
    assert grouped.product is not None and grouped.product.allow_tf32 and grouped.product.over == (4,)
    assert matrices_of(grouped, grouped.product) == Matrices(
        zeros=((None, 0), (None, None)), wanted=(-1, None), each=(1, 4)
    )
    ragged = program([9, 7], [operand("a", 9, 4), operand("b", 3, 4, 7), operand("e", 3, dtype="i32")], ends="e")
    assert ragged.product is not None and matrices_of(ragged, ragged.product) == Matrices(ends="e")
    beside = operand("t", 3, 7, indexed=False, each=(2, 1))
    spread = program([6, 7], [operand("a", 6, 4), operand("b", 4, 7), beside])
    assert [each_of(o.at) for o in spread.operands] == [(), (), (2, 1)] and spread.operands[0].at == ()


@pytest.mark.parametrize(
    ("kind", "dtype", "guess"),
    [("product", "f16", True), ("product", "f32", False), ("convolution", "f32", True), ("scan", "bf16", False)],
)
def test_spaces_of_the_journals_before_are_guesses_by_kind(kind: str, dtype: str, guess: bool) -> None:
    operand = Operand(name="a", dtype=dtype, shape=(4, 4))
    program = Program(domain=(4, 4), reduced=(), operands=(operand,), body=(), outputs=())
    pattern = Pattern(id="fused_0", title="", kind=kind, nodes=(), program=program, space=Space(knobs=(), points=((),)))
    tree = to_plain(pattern)
    assert from_plain(tree) == pattern
    del tree["space"]["guess"]
    assert from_plain(tree).space.guess == guess
