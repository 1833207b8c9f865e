"""Where no skeleton of ours takes a part whole, the best library call is a realisation like any other: attention by
torch's scaled_dot_product_attention, of whose backends torch takes the fastest that can do it.

    softmax(query @ key * scale, masked or with something added) @ value        over the last two dimensions

with what turns the result around and copies it, as modules do that put heads side by side again. What torch gives may
lie otherwise in memory than a product does: it is copied where it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from tilewright.facts.candidate import LIBRARY, Candidate, SourceFile
from tilewright.facts.pattern import Choice, Recipe, Region, Written
from tilewright.facts.regions import region_of
from tilewright.ir.contraction import contracted
from tilewright.ir.graph import Call, Graph, Node, Ref

TITLE = "attention by torch's scaled_dot_product_attention"
_PRODUCTS = ("matmul", "bmm")
_RANKS = (3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mask:
    """What is done to scores: where the node is true they become `fill`; without one, the node is added."""

    node: str
    fill: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """What goes into a softmax: query @ key * scale with masks, the first last; `calls`: the operators."""

    query: str
    key: str
    scale: float = 1.0
    masks: tuple[_Mask, ...] = ()
    calls: frozenset[str] = frozenset()


def libraries(graph: Graph) -> Recipe:
    """A choice for each part of the graph that a library call makes, by the names `library_0`, ...; equal ones are one,
    at several regions."""
    flow = _Flow(graph)
    found: dict[str, list[Region]] = {}
    for call in graph.calls:
        for text, region in flow.attention(call):
            found.setdefault(text, []).append(region)
    shapes = {n.name: (n.shape, n.dtype, n.order) for n in graph.nodes}
    choices: list[Choice] = []
    for text, regions in found.items():
        alike: dict[tuple[Any, ...], list[Region]] = {}
        for region in regions:
            alike.setdefault(tuple(shapes[n] for n in (*region.inputs, *region.outputs)), []).append(region)
        for same in alike.values():
            candidate = Candidate(files=(SourceFile(path="model.py", text=text),), language=LIBRARY)
            written = Written(title=TITLE, candidate=candidate, regions=tuple(same))
            choices.append(Choice(pattern=f"library_{len(choices)}", point=(), written=written))
    return tuple(choices)


class _Flow:
    """Who makes and who reads each value of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = {n.name: n for n in graph.nodes}
        self.makers = {c.results[0]: c for c in graph.calls if len(c.results) == 1 and c.results[0]}
        self.readers: dict[str, list[Call]] = {}
        for call in graph.calls:
            for name in dict.fromkeys(call.sources):
                self.readers.setdefault(name, []).append(call)
        self.kept = {*graph.outputs, *(u.value for u in graph.updates)}

    def attention(self, softmax: Call) -> Iterator[tuple[str, Region]]:
        """The text of the call, and where it stands, if this softmax is attention's."""
        scores = self._scores(softmax)
        if scores is None:
            return
        calls = {softmax.name, *scores.calls}
        last = self._only_reader(softmax)
        while last is not None and last.label == "clone":
            calls.add(last.name)
            last = self._only_reader(last)
        value = self._value(last, calls)
        if last is None or value is None:
            return
        calls.add(last.name)
        turns, more = self._turned(last)
        try:
            region = region_of(self.graph, frozenset(calls | more))
        except ValueError:
            return
        text = self._text(scores, value, region, turns)
        if text and len(region.outputs) == 1:
            yield text, region

    def _only_reader(self, call: Call) -> Call | None:
        (name,) = call.results
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.kept else None

    def _scores(self, softmax: Call) -> _Scores | None:
        if softmax.label != "softmax" or len(softmax.results) != 1 or not isinstance(softmax.args[0], Ref):
            return None
        node = self.nodes[softmax.args[0].name]
        dim = softmax.args[1] if len(softmax.args) > 1 else None
        plain = node.dtype == self.nodes[softmax.results[0]].dtype and len(node.shape) in _RANKS
        return self._back(node) if plain and dim in (-1, len(node.shape) - 1) else None

    def _back(self, node: Node) -> _Scores | None:
        """The scores that this value is; nobody else may read what is between."""
        call = self.makers.get(node.name)
        if call is None or call.ordered or len(self.readers[node.name]) != 1 or node.name in self.kept:
            return None
        if call.label in _PRODUCTS:
            return self._product(call)
        named = dict(call.kwargs)
        first, *others = call.args
        if named or not isinstance(first, Ref) or len(others) not in (1, 2) or self._another(first, node):
            return self._back_of_sum(call, node) if not named else None
        found = self._back(self.nodes[first.name])
        if found is None:
            return None
        found = replace(found, calls=found.calls | {call.name})
        second = others[0]
        if call.label in ("mul", "div") and isinstance(second, int | float) and second > 0 and len(others) == 1:
            factor = second if call.label == "mul" else 1 / second
            endless = all(m.fill == float("-inf") for m in found.masks)
            return replace(found, scale=found.scale * factor) if endless else None
        if call.label == "masked_fill" and isinstance(second, Ref) and isinstance(others[-1], int | float):
            return replace(found, masks=(_Mask(node=second.name, fill=float(others[-1])), *found.masks))
        if call.label == "add" and isinstance(second, Ref) and len(others) == 1:
            return replace(found, masks=(_Mask(node=second.name, fill=None), *found.masks))
        return None

    def _another(self, first: Ref, node: Node) -> bool:
        """Whether the first argument can't be the scores, by its shape."""
        return self.nodes[first.name].shape != node.shape or self.nodes[first.name].dtype != node.dtype

    def _back_of_sum(self, call: Call, node: Node) -> _Scores | None:
        """The same of something added to the scores, in this order."""
        if call.label != "add" or len(call.args) != 2 or not all(isinstance(a, Ref) for a in call.args):
            return None
        mask, scores = call.args
        assert isinstance(mask, Ref) and isinstance(scores, Ref)
        if self._another(scores, node):
            return None
        found = self._back(self.nodes[scores.name])
        if found is None:
            return None
        more = (_Mask(node=mask.name, fill=None), *found.masks)
        return replace(found, masks=more, calls=found.calls | {call.name})

    def _product(self, call: Call) -> _Scores | None:
        found = contracted(call, self.nodes)
        if found is None or len(found.left.shape) not in _RANKS or found.added or found.alpha != 1.0:
            return None
        return _Scores(query=found.left.name, key=found.right.name, calls=frozenset({call.name}))

    def _value(self, call: Call | None, calls: set[str]) -> str | None:
        """What attention's weights are multiplied with."""
        if call is None or call.label not in _PRODUCTS:
            return None
        found = contracted(call, self.nodes)
        made = self.makers.get(found.left.name) if found is not None else None
        return found.right.name if found is not None and made is not None and made.name in calls else None

    def _turned(self, call: Call) -> tuple[tuple[int, int] | None, set[str]]:
        """The dimensions of the result that change places before it is copied, and the operators of that."""
        turn = self._only_reader(call)
        if turn is None or turn.label != "transpose" or len(turn.args) != 3:
            return None, set()
        copy = self._only_reader(turn)
        first, second = turn.args[1:]
        if copy is None or copy.label != "clone" or not isinstance(first, int) or not isinstance(second, int):
            return None, set()
        return (first, second), {turn.name, copy.name}

    def _text(self, scores: _Scores, value: str, region: Region, turns: tuple[int, int] | None) -> str:
        """The candidate; "" where it takes what is no input of the region."""
        names = {value: "value", scores.key: "key", scores.query: "query"}
        names |= {m.node: f"mask_{i}" for i, m in enumerate(scores.masks)}
        if set(region.inputs) != set(names):
            return ""
        rank = len(self.nodes[scores.query].shape)
        masks = [
            {"name": names[m.node], "fill": m.fill, "flat": len(self.nodes[m.node].shape) == 3}
            for m in scores.masks[::-1]
        ]
        return _template().render(
            title=TITLE, parameters=", ".join(names[n] for n in region.inputs), masks=masks, flat=rank == 3,
            endless=len(masks) == 1 and masks[0]["fill"] == float("-inf"), scale=repr(float(scores.scale)),
            turns=turns,
        )  # fmt: skip


@cache
def _template() -> jinja2.Template:
    text = files(__package__).joinpath("library.py.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.from_string(text)
