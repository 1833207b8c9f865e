"""A Graph: what one case of a module computes, as traced; small, typed and made of values only.

It has two levels. *Calls* are what the module's author wrote, as torch's own operators (`aten.layer_norm.default`):
how a part is run when it is left to torch. *Nodes* are values; where a call is understood, they spell it out in the
vocabulary of `facts.program`, and each remembers the call that it came from. A matcher reads nodes, a composer both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from .access import Position
from .program import DTYPE_BYTES, Literal

# Views that only rename index positions; a fused kernel reads and writes through them at no cost.
VIEWS = frozenset({"reshape", "permute", "expand"})
# Where values come from.
SOURCES = frozenset({"input", "state", "constant"})
# How targets of calls begin that exist while a module is traced alone: their nodes say all.
TRACED = "tilewright_trace."


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A node's value, inside a template."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A torch object that has no JSON form, as the expression that makes it: "torch.float32"."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    """A container of templates. `keys` is empty but for kind "dict"."""

    kind: str  # "tuple", "list", "dict", or the constructor of a named one: "torch.return_types.max"
    items: tuple[Any, ...]
    keys: tuple[str | int, ...] = ()


# None, a scalar, a string, a Ref, a Code or a Struct of templates.
Template = None | Literal | str | Ref | Code | Struct


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One tensor value.

    `op` is a name of facts.program.POINTWISE, REDUCTIONS or SCANS; one of VIEWS; "slice" (`dims` = dimension, start,
    length); "flip" (over `dims`); "load" (of the first argument `at` these positions in terms of this node's
    dimensions, the second argument, if there is one, where they lie outside; see program.Load); "inside" (of the load
    that it reads: `at` is the same, `dims` the shape of the load's source);
    "input", "state", "constant" (`path` says which); or "call" (result `item` of the call `origin`).
    Pointwise nodes broadcast as torch does, and their tensor arguments have the dtypes that the operation wants.
    Reductions take one argument and drop the dimensions `dims`; of two results, `item` says which. RANKED ones take a
    number, too, and keep as many elements of the dimension. Scans take theirs,
    broadcast, along the dimension `dims`, then two literals: is it reversed, is it exclusive (see program.Scan). `dims`
    is the order for "permute" and the dimension for "index".

    `order` is how torch lays the value out in memory: its dimensions, outermost first; empty: row-major.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    args: tuple[str | Literal, ...] = ()  # names of nodes, or literals
    dims: tuple[int, ...] = ()
    at: tuple[Position, ...] = ()  # of a load: where each dimension of its source is read; values are names of nodes
    item: int = 0
    path: str = ""  # of a state: attribute path; of an input: its name; of a constant: JSON of device and flat values
    origin: str = ""  # name of the Call that this node is part of
    order: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES.get(self.dtype, 8)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the nodes that this one reads directly (empty for calls: see Call.sources)."""
        return (*(a for a in self.args if isinstance(a, str)), *(p.value for p in self.at if p.value))

    @property
    def fill(self) -> Literal | None:
        """Of a load: what is read outside of its source."""
        value = self.args[1] if len(self.args) > 1 else None
        assert not isinstance(value, str)
        return value

    def renamed(self, names: Mapping[str, str]) -> Node:
        """The same over other nodes, where `names` has others."""
        args = tuple(names.get(a, a) if isinstance(a, str) else a for a in self.args)
        return replace(self, args=args, at=tuple(replace(p, value=names.get(p.value, p.value)) for p in self.at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One torch operator, functional: `results[i]` is the node that holds its i-th result ("": unused or no tensor)."""

    name: str
    target: str  # "aten.layer_norm.default"
    args: tuple[Template, ...]
    kwargs: tuple[tuple[str, Template], ...] = ()
    results: tuple[str, ...]
    single: bool = True  # returns one tensor, not a sequence of them
    view: bool = False  # moves no data: its result shares its argument's memory
    ordered: bool = False  # draws random numbers or has another effect: never dropped, never moved past its like

    @property
    def label(self) -> str:
        """The operator's short name: "layer_norm"."""
        return self.target.split(".")[-2 if self.target.count(".") > 1 else -1].strip("_")

    @property
    def sources(self) -> tuple[str, ...]:
        return refs((*self.args, *(value for _, value in self.kwargs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """After the forward pass the input or state `target` holds `value`; both are names of nodes."""

    target: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes stand in an order in which they can be computed; `outputs` are the tensors in `result`, in order."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    calls: tuple[Call, ...] = ()
    arguments: tuple[Template, ...] = ()  # the positional arguments: Refs to inputs, literals, Structs of both
    keywords: tuple[tuple[str, Template], ...] = ()
    result: Template = None
    updates: tuple[Update, ...] = ()
    training: bool | None = None  # the train flag under which this holds; None: under both
    # Nodes whose first dimension may have any size from 2 on, all the same; (): that can't be said of this module.
    free: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()  # in training: the inputs and states whose gradients are asked for
    sparing: bool = False  # by declared algebra: what a product's factors have zeros for need not be multiplied


def refs(template: Any) -> tuple[str, ...]:
    """Names of the nodes in a template (or a tuple of templates), in order, with repetitions."""
    if isinstance(template, Ref):
        return (template.name,)
    items = template.items if isinstance(template, Struct) else template if isinstance(template, tuple) else ()
    return tuple(name for item in items for name in refs(item))


def channels_last(rank: int) -> tuple[int, ...]:
    """`Node.order` of a value of so many dimensions whose second, the channels, is the innermost."""
    return (0, *range(2, rank), 1)
