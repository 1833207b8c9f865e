"""What a Program of scores says of masks over positions: which diagonals are visible, the same Program where all of a
tile is, and a factor that scores share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, nan

from ...ir.access import ALL_DIAGONALS, Diagonals
from ...ir.program import Program, Statement

_INVERTED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_BOTH = ("logical_and", "bitwise_and")
_NOT = ("logical_not", "bitwise_not")
_FLOATS = ("f64", "f32", "f16", "bf16")
_NUMBERS: Mapping[str, Callable[..., float]] = {
    "to": float, "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y if y else nan, "maximum": max, "minimum": min,
    "sigmoid": lambda x: 0.0 if x == -inf else 1 / (1 + exp(-max(x, -700.0))),
}  # fmt: skip
# The diagonals on which a condition holds, and those on which it fails, on no others; None where that can't be said.
_Truth = tuple[Diagonals | None, Diagonals | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """row x index of the query + key x index of the key + start."""

    row: int = 0
    key: int = 0
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """Scores on other `diagonals` (key - query) than these are minus infinity. `inner`: the Program where all positions
    are on them. `conditions`: names of truth values, and which of both keeps a score: all that hides any; `clear`: the
    Program where all of them keep it."""

    diagonals: Diagonals
    inner: Program
    conditions: tuple[tuple[str, bool], ...]
    clear: Program


def visible(scores: Program, row: int, *, softmax: bool = True, spares: bool = False) -> Visible:
    """Of scores whose queries are dimension `row` of the domain, and keys the last. Without `softmax` those are hidden
    that come to 0. With `spares` what a mask of 0 and minus infinity is added to counts as a number."""
    made = {item.result: item for item in scores.body if isinstance(item, Statement)}
    lines = _lines(made, row, len(scores.domain) - 1)
    lost = -inf if softmax else 0.0
    found = ALL_DIAGONALS
    gone, cleared = dict[str, str](), dict[str, str]()
    conditions: list[tuple[str, bool]] = []
    chain: list[Statement] = []  # what is made of a value on its way to the score
    name = scores.outputs[0].name
    while (item := made.get(name)) is not None:
        kept, by = None, ("", True)
        if item.op == "where":
            yes, no = item.args[1:]
            if isinstance(yes, str) and _comes_to(no, chain) == lost:
                kept, by = yes, (str(item.args[0]), True)
            elif isinstance(no, str) and _comes_to(yes, chain) == lost:
                kept, by = no, (str(item.args[0]), False)
        elif item.op == "add" and spares and softmax:
            kept, by = _beside_a_mask(made, item)
        if kept is not None:
            where = _truth(made, lines, by[0])[0 if by[1] else 1]
            conditions.append(by)
            cleared[item.result] = kept
            if where is not None:
                found = _meet(found, where)
                gone[item.result] = kept
        elif (kept := _through(item)) is not None:
            chain.append(item)
        else:
            break
        name = kept
    return Visible(
        diagonals=found, inner=without(scores, gone), conditions=tuple(conditions), clear=without(scores, cleared)
    )


def kept(scores: Program, seen: Visible) -> Program | None:
    """Whether a score is kept, as a Program that gives a truth; None where diagonals say all, and where that depends on
    the score itself."""
    if scores.operands and seen.inner.body == seen.clear.body:
        return None
    body = [i for i in scores.body if isinstance(i, Statement)]
    name = ""
    for number, (condition, keeps) in enumerate(seen.conditions):
        if not keeps:
            body.append(Statement(result=f"n{number}", op="logical_not", args=(condition,), dtype="bool"))
            condition = f"n{number}"
        if name:
            body.append(Statement(result=f"k{number}", op="logical_and", args=(name, condition), dtype="bool"))
            condition = f"k{number}"
        name = condition
    (output,) = scores.outputs
    made = without(replace(scores, body=tuple(body), outputs=(replace(output, name=name, dtype="bool"),)), {})
    product = scores.operands[0].name
    return None if any(product in i.args for i in made.body if isinstance(i, Statement)) else made


def _through(item: Statement) -> str | None:
    """The one value of which this is made."""
    values = [a for a in item.args if isinstance(a, str)]
    return values[0] if item.op in _NUMBERS and len(values) == 1 and item.dtype in _FLOATS else None


def _comes_to(number: object, chain: Sequence[Statement]) -> float | None:
    """What a number becomes on its way to the score; None where that can't be said."""
    if isinstance(number, str):
        return None
    made = float(number)  # type: ignore[arg-type]
    for item in reversed(chain):
        args = [made if isinstance(a, str) else float(a) for a in item.args]
        if item.op != "to":
            made = _NUMBERS[item.op](*args)
    return made


def _beside_a_mask(made: Mapping[str, Statement], item: Statement) -> tuple[str | None, tuple[str, bool]]:
    """Of a sum one term of which is 0, or minus infinity, by a condition: the other term, the condition, and which of
    its values keeps that."""
    for mask, other in (item.args, item.args[::-1]):
        choice = made.get(mask) if isinstance(mask, str) else None
        while choice is not None and choice.op == "to":
            choice = made.get(str(choice.args[0]))
        if choice is not None and choice.op == "where" and set(choice.args[1:]) == {0, -inf} and isinstance(other, str):
            return other, (str(choice.args[0]), choice.args[1] == 0)
    return None, ("", True)


def _passes(item: Statement) -> bool:
    """Whether minus infinity, and nothing else, gives minus infinity."""
    if item.op == "to" and item.dtype in _FLOATS:
        return isinstance(item.args[0], str)
    scaled = item.op in ("mul", "div") and isinstance(item.args[0], str)
    return scaled and isinstance(item.args[1], int | float) and 0 < item.args[1] < inf


def without(program: Program, gone: Mapping[str, str]) -> Program:
    """The Program in which each of these results is the value that it names, and what nobody reads then is left out."""

    def now(name: str) -> str:
        while name in gone:
            name = gone[name]
        return name

    body = [
        replace(i, args=tuple(now(a) if isinstance(a, str) else a for a in i.args))
        for i in program.body
        if isinstance(i, Statement) and i.result not in gone
    ]
    outputs = tuple(replace(o, name=now(o.name)) for o in program.outputs)
    wanted = {o.name for o in outputs}
    kept: list[Statement] = []
    for item in reversed(body):
        if item.result in wanted:
            kept.append(item)
            wanted.update(a for a in item.args if isinstance(a, str))
    return replace(program, body=tuple(reversed(kept)), outputs=outputs)


def scaled(scores: Program, row: int) -> tuple[float, Program]:
    """The positive number that the product is multiplied with before all else, where what follows only chooses between
    that and minus infinity; and the Program without it. 1 where it has none."""
    made = {item.result: item for item in scores.body if isinstance(item, Statement)}
    product = scores.operands[0].name
    name = scores.outputs[0].name
    gone: dict[str, str] = {}
    factor = 1.0
    while name != product:
        item = made.get(name)
        if item is None:
            return 1.0, scores
        if item.op == "where" and -inf in item.args[1:]:
            kept = next((a for a in item.args[1:] if isinstance(a, str)), None)
        elif _passes(item):
            kept = str(item.args[0])
            gone[item.result] = kept
            if item.op != "to":
                number = float(item.args[1])
                factor *= number if item.op == "mul" else 1 / number
        else:
            kept = None
        if kept is None:
            return 1.0, scores
        name = kept
    reads = [a for i in made.values() for a in i.args if a == product or a in gone]
    return (factor, without(scores, gone)) if len(reads) == len(set(reads)) else (1.0, scores)


def _lines(made: Mapping[str, Statement], row: int, key: int) -> dict[str, _Line]:
    """The values that are linear in both positions."""
    found: dict[str, _Line] = {}

    def of(arg: object) -> _Line | None:
        if isinstance(arg, str):
            return found.get(arg)
        return _Line(start=arg) if isinstance(arg, int) and not isinstance(arg, bool) else None

    for name, item in made.items():
        line = None
        if item.op == "index":
            line = {row: _Line(row=1), key: _Line(key=1)}.get(int(item.args[0]))
        elif item.op in ("add", "sub") and item.dtype in ("i32", "i64"):
            one, other = map(of, item.args)
            if one is not None and other is not None:
                sign = 1 if item.op == "add" else -1
                line = _Line(row=one.row + sign * other.row, key=one.key + sign * other.key,
                             start=one.start + sign * other.start)  # fmt: skip
        elif item.op == "to" and item.dtype in ("i32", "i64"):
            line = of(item.args[0])
        if line is not None:
            found[name] = line
    return found


def _truth(made: Mapping[str, Statement], lines: Mapping[str, _Line], name: str) -> _Truth:
    """Where a condition holds and where it fails."""
    item = made.get(name)
    if item is None:
        return None, None
    if item.op in _BOTH:
        one, other = (_truth(made, lines, str(a))[0] for a in item.args)
        return (None if one is None or other is None else _meet(one, other)), None
    if item.op in _NOT:
        return _truth(made, lines, str(item.args[0]))[::-1]
    if item.op == "where" and item.dtype == "bool" and not any(isinstance(a, str) for a in item.args[1:]):
        found = _truth(made, lines, str(item.args[0]))
        return found if item.args[1] and not item.args[2] else found[::-1]
    if item.op == "to" and item.dtype == "bool":
        return _truth(made, lines, str(item.args[0]))
    if item.op in ("eq", "ne") and isinstance(item.args[0], str) and not isinstance(item.args[1], str):
        return _chosen(made, lines, item)
    if item.op not in _INVERTED:
        return None, None
    one_line, other_line = (_line(lines, a) for a in item.args)
    return _compared(item.op, one_line, other_line), _compared(_INVERTED[item.op], one_line, other_line)


def _chosen(made: Mapping[str, Statement], lines: Mapping[str, _Line], item: Statement) -> _Truth:
    """The same where a choice between two numbers is compared with a number."""
    choice = made.get(str(item.args[0]))
    while choice is not None and choice.op == "to":
        choice = made.get(str(choice.args[0]))
    if choice is None or choice.op != "where" or any(isinstance(a, str) for a in choice.args[1:]):
        return None, None
    holds = [(a == item.args[1]) == (item.op == "eq") for a in choice.args[1:]]
    found = _truth(made, lines, str(choice.args[0]))
    return (None, None) if holds[0] == holds[1] else found if holds[0] else found[::-1]


def _line(lines: Mapping[str, _Line], arg: object) -> _Line | None:
    if isinstance(arg, str):
        return lines.get(arg)
    return _Line(start=arg) if isinstance(arg, int) else None


def _compared(op: str, one: _Line | None, other: _Line | None) -> Diagonals | None:
    """Where one compares so with the other."""
    if one is None or other is None:
        return None
    row, key, start = one.row - other.row, one.key - other.key, one.start - other.start
    if (row, key) not in ((1, -1), (-1, 1)):
        return None
    # key (key - row) + start compares so with 0
    bounds = {"le": (None, -start), "lt": (None, -start - 1), "ge": (-start, None), "gt": (-start + 1, None)}[op]
    if key == 1:
        return bounds
    low, high = bounds
    return None if high is None else -high, None if low is None else -low


def _meet(one: Diagonals, other: Diagonals) -> Diagonals:
    lows = [x for x in (one[0], other[0]) if x is not None]
    highs = [x for x in (one[1], other[1]) if x is not None]
    return max(lows, default=None), min(highs, default=None)


def settled(program: Program, row: int, diagonals: Diagonals) -> Program:
    """The Program where all positions are on these diagonals: what conditions on positions choose there is chosen."""
    made = {item.result: item for item in program.body if isinstance(item, Statement)}
    lines = _lines(made, row, len(program.domain) - 1)
    gone: dict[str, str] = {}
    for item in made.values():
        if item.op == "where":
            sides = zip(_truth(made, lines, str(item.args[0])), item.args[1:], strict=True)
            chosen = [arg for found, arg in sides if found is not None and _meet(found, diagonals) == diagonals]
            if chosen and isinstance(chosen[0], str):
                gone[item.result] = chosen[0]
    return without(program, gone)
