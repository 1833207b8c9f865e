"""Attention, as modules write it out and as they call it: what libraries of it are given.

    softmax(query @ key * scale, masked or with something added) @ value        over the last two dimensions

with what transposes the result and copies it, as modules do that put heads side by side again; or a call of torch's
scaled_dot_product_attention without dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilewright.facts.regions import region_of
from tilewright.ir.contraction import contracted
from tilewright.ir.graph import Call, Graph, Node, Ref

from .flow import ValueFlow
from .protocol import LibraryMatch

_PRODUCTS = ("matmul", "bmm")
_RANKS = (3, 4)
_TITLE = "attention"
_DIRECT = "aten.scaled_dot_product_attention.default"
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """What is done to scores: where the tensor is true they become `fill`; without one, the tensor is added. `name` is
    the variable that holds it, of `rank` dimensions."""

    name: str
    fill: float | None
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mask:
    """The same by its node."""

    node: str
    fill: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(LibraryMatch):
    """One attention. `parameters` are the names of the region's inputs, in order: "query", "key", "value", "mask_0" ...

    Query and value are (batch, heads, positions, depth), without heads where `rank` is 3. The key is the same where the
    module calls the library itself (`direct`), else with its last two dimensions transposed. `masks` are in the order
    in which they are applied; in a direct call one without `fill` may also be of booleans, true where scores count.
    `transposed`: the dimensions of the result that change places before it is copied."""

    parameters: tuple[str, ...]
    dtype: str
    rank: int
    depths: tuple[int, int]  # of query and key, and of value
    positions: tuple[int, int]  # of query, and of key and value
    scale: float | None  # None: 1 / sqrt(depth)
    masks: tuple[Mask, ...] = ()
    transposed: tuple[int, int] | None = None
    direct: bool = False
    causal: bool = False
    grouped: bool = False  # several heads of the query share one of key and value

    @property
    def hides(self) -> bool:
        """Whether there is one mask, and it takes scores out altogether."""
        return [mask.fill for mask in self.masks] == [float("-inf")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """What goes into a softmax: query @ key * scale with masks, the first last; `calls`: the operators."""

    query: str
    key: str
    scale: float = 1.0
    masks: tuple[_Mask, ...] = ()
    calls: frozenset[str] = frozenset()


def attentions(graph: Graph) -> tuple[Attention, ...]:
    """Every attention of the graph."""
    flow = _Flow(graph)
    return tuple(found for call in graph.calls for found in (*flow.attention(call), *flow.direct(call)))


class _Flow(ValueFlow):
    """Attention in a graph, along the way of its values."""

    def attention(self, softmax: Call) -> Iterator[Attention]:
        """The attention that this softmax belongs to, if any."""
        scores = self._scores(softmax)
        if scores is None:
            return
        calls = {softmax.name, *scores.calls}
        last = self.only_reader(softmax)
        while last is not None and last.label == "clone":
            calls.add(last.name)
            last = self.only_reader(last)
        value = self._value(last, calls)
        if last is None or value is None:
            return
        calls.add(last.name)
        turns, more = self._turned(last)
        names = {value: "value", scores.key: "key", scores.query: "query"}
        names |= {m.node: f"mask_{i}" for i, m in enumerate(scores.masks)}
        masks = [
            Mask(name=names[m.node], fill=m.fill, rank=len(self.nodes[m.node].shape)) for m in scores.masks[::-1]
        ]  # fmt: skip
        yield from self._placed(
            calls | more, names, scale=float(scores.scale), masks=tuple(masks), transposed=turns
        )  # fmt: skip

    def direct(self, call: Call) -> Iterator[Attention]:
        """A call of torch's own."""
        if call.target != _DIRECT or call.ordered or len(call.results) != 1:
            return
        given: dict[str, Any] = {**dict(zip(_PARAMETERS, call.args, strict=False)), **dict(call.kwargs)}
        tensors = [given["query"], given["key"], given["value"]]
        mask = given.get("attn_mask")
        if not all(isinstance(t, Ref) for t in tensors) or not (mask is None or isinstance(mask, Ref)):
            return
        names = {tensors[2].name: "value", tensors[1].name: "key", tensors[0].name: "query"}
        if mask is not None:
            names[mask.name] = "mask_0"
        yield from self._placed(
            {call.name}, names, scale=given.get("scale"), causal=bool(given.get("is_causal")),
            grouped=bool(given.get("enable_gqa")), direct=True,
            masks=() if mask is None else (Mask(name="mask_0", fill=None, rank=len(self.nodes[mask.name].shape)),),
        )  # fmt: skip

    def _placed(self, calls: set[str], names: dict[str, str], **how: Any) -> Iterator[Attention]:
        """The attention that these operators make, unless something else of them is needed or they take more."""
        try:
            region = region_of(self.graph, frozenset(calls))
        except ValueError:
            return
        apart = 3 + len(how["masks"]) == len(names)  # one tensor for two of them has one name
        if not apart or set(region.inputs) != set(names) or len(region.outputs) != 1:
            return
        query, value = (next(self.nodes[n] for n in names if names[n] == name) for name in ("query", "value"))
        if len(query.shape) in _RANKS:
            yield Attention(
                region, _TITLE, parameters=tuple(names[n] for n in region.inputs), dtype=query.dtype,
                rank=len(query.shape), depths=(query.shape[-1], value.shape[-1]),
                positions=(query.shape[-2], value.shape[-2]), **how,
            )  # fmt: skip

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
        turn = self.only_reader(call)
        if turn is None or turn.label != "transpose" or len(turn.args) != 3:
            return None, set()
        copy = self.only_reader(turn)
        first, second = turn.args[1:]
        if copy is None or copy.label != "clone" or not isinstance(first, int) or not isinstance(second, int):
            return None, set()
        return (first, second), {turn.name, copy.name}
