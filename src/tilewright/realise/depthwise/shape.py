"""What of a Program is a depthwise convolution: sums over windows of one operand's channels, times another's weights,
with what comes before it point by point, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from ...ir.program import Load, Operand, Plain, Program, Reduction, Statement
from ...ir.schedule import schedule
from ..rows.over_windows import over_windows

MOST_TAPS = 128  # of a result: what a kernel does with one window is written out
MOST_MULTIPLIER = 4
_FLOATS = ("f32", "f16", "bf16")
MOST_REACH = 64  # positions from a window's first to its last, down and along


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseParts:
    """`value` and `weight`: the names of what is multiplied, the first read of `source`, the second of `weights`."""

    source: str
    weights: str
    value: str
    weight: str
    before: tuple[Plain, ...]
    factor: tuple[Statement, ...]


def depthwise(program: Program) -> DepthwiseParts | str:
    """Or why the program is none."""
    if program.product or program.scan or program.ranked or program.sums or len(program.loads) != 1:
        return "no sum over windows of one operand"
    cut, (load,) = schedule(program), program.loads
    reductions = [item for item in program.body if isinstance(item, Reduction)]
    if len(reductions) != 1 or reductions[0].op != "sum" or cut.element_outputs or load.args:
        return "no sum over windows of one operand"
    made: dict[str, Plain] = {item.result: item for item in program.body if isinstance(item, Statement | Load)}
    product = made.get(reductions[0].arg)
    if not isinstance(product, Statement) or (product.op, product.dtype) != ("mul", "f32"):
        return "no sum of products in f32"
    operands = {o.name: o for o in program.operands}
    for value, weight in (product.args, product.args[::-1]):
        if not isinstance(value, str) or not isinstance(weight, str):
            continue
        before, factor = (_behind(name, made) for name in (value, weight))
        read = _read(factor, weight, operands)
        if load in before and load not in factor and len(read) == 1 and not read[0].indexed:
            found = DepthwiseParts(source=load.source, weights=read[0].name, value=value, weight=weight, before=before,
                              factor=tuple(f for f in factor if isinstance(f, Statement)))  # fmt: skip
            return _lack(program, load, found, operands) or found
    return "no product of windows and weights"


def _behind(name: str, made: Mapping[str, Plain]) -> tuple[Plain, ...]:
    """What must be computed for a value, in order."""
    found: dict[str, Plain] = {}
    todo = [name]
    while todo:
        item = made.get(todo.pop())
        if item is not None and item.result not in found:
            found[item.result] = item
            todo += [a for a in item.args if isinstance(a, str)]
    return tuple(item for item in made.values() if item.result in found)


def _read(items: Iterable[Plain], name: str, operands: Mapping[str, Operand]) -> list[Operand]:
    names = {name, *(a for item in items for a in item.args if isinstance(a, str))}
    names |= {item.source for item in items if isinstance(item, Load)}
    return [operands[n] for n in operands if n in names]


def _lack(program: Program, load: Load, found: DepthwiseParts, operands: Mapping[str, Operand]) -> str:
    """What keeps a depthwise convolution from a kernel of its own; "" where nothing does."""
    source, reduced = operands[found.source], set(program.reduced)
    image, channel, *windows = ([d for d, _ in p.steps if program.domain[d] > 1] for p in load.at)
    if not 1 <= len(windows) <= 2 or len(image) > 1 or len(channel) != 1:
        return "windows over other dimensions than rows and columns of an image's channels"
    along = [[d for d in window if d not in reduced] for window in windows]
    kept = [d for d in range(len(program.domain)) if d not in reduced and program.domain[d] > 1]
    order = [*image, *channel, *(d for window in along for d in window)]
    others = [d for d in kept if d not in order]
    order[len(image) + 1 : len(image) + 1] = others
    last = [*image, *(d for window in along for d in window), *channel]
    if kept not in (order, last) or len(others) > 1 or not along[-1]:
        return "results that lie in another order than image, channel, row, column"
    if prod(program.domain[d] for d in others) > MOST_MULTIPLIER:
        return f"more than {MOST_MULTIPLIER} results of a channel"
    if program.inner_size > MOST_TAPS or any(step < 1 for p in load.at for _, step in p.steps):
        return f"windows of more than {MOST_TAPS} elements"
    if any(step * (program.domain[d] - 1) >= MOST_REACH for p in load.at for d, step in p.steps if d in reduced):
        return f"windows that reach over more than {MOST_REACH} positions"
    if source.dtype not in _FLOATS:
        return f"convolution in {source.dtype}"
    weights, beside = operands[found.weights], {*channel, *others, *reduced}
    if any(size > 1 and d not in beside for d, size in enumerate(weights.shape)):
        return "weights that differ between positions"
    planes = {*image, *channel}
    for operand in _read(found.before, found.value, operands):
        apart = not operand.indexed and any(size > 1 and d not in planes for d, size in enumerate(operand.shape))
        if apart or operand.dtype not in _FLOATS:
            return "something beside the image comes into what is convolved"
    if any(item.op == "index" or item.dtype not in (*_FLOATS, "bool") for item in found.before):
        return "whole numbers come into what is convolved"
    return "" if over_windows(_unweighted(program, found)) else "something that is not 0 lies around the image"


def _unweighted(program: Program, found: DepthwiseParts) -> Program:
    """The same without weights: sums over windows."""
    body = tuple(replace(i, arg=found.value) if isinstance(i, Reduction) else i for i in program.body)
    return replace(program, body=body)
