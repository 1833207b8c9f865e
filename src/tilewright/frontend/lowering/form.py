"""A value as a product of two factors plus what is added, and what views, windows and sums of it are of the factors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from string import ascii_letters

from tilewright.ir.access import Position
from tilewright.ir.graph import Node

from .lower import Builder, Expr


class Stuck(Exception):
    """Something stands between that is not linear, or mixes what must stay apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A value as scale * left @ right + addends, in the sense of an einsum. `left_letters`, `right_letters` and
    `letters` name dimensions ("": of size 1, which nothing varies along); addends broadcast to the value's shape and
    have its rank. `flops`: of all products on the way."""

    left: Expr
    right: Expr
    left_letters: str
    right_letters: str
    letters: tuple[str, ...]
    shape: tuple[int, ...]
    scale: float
    addends: tuple[Expr | float, ...]
    flops: int

    def only(self, letters: str) -> str:
        """Which factor alone has all of these letters: "left", "right" or ""."""
        if all(c in self.right_letters and c not in self.left_letters for c in letters):
            return "right"
        return "left" if all(c in self.left_letters and c not in self.right_letters for c in letters) else ""

    def factor(self, side: str) -> tuple[Expr, str]:
        return (self.left, self.left_letters) if side == "left" else (self.right, self.right_letters)

    def having(self, side: str, factor: Expr, letters: str) -> Form:
        """The same with another factor on that side."""
        if side == "left":
            return replace(self, left=factor, left_letters=letters)
        return replace(self, right=factor, right_letters=letters)

    @property
    def sizes(self) -> dict[str, int]:
        left, right = (
            zip(self.left_letters, self.left.shape, strict=True),
            zip(self.right_letters, self.right.shape, strict=True),
        )
        return dict((*left, *right))

    @property
    def product_flops(self) -> int:
        return 2 * prod(self.sizes.values())

    def new_letters(self, count: int) -> str:
        free = (c for c in ascii_letters if c not in self.left_letters + self.right_letters)
        return "".join(next(free) for _ in range(count))

    # What views and windows make of it: each raises Stuck where they mix dimensions of both factors.

    def permuted(self, node: Node) -> Form:
        return replace(
            self, letters=tuple(self.letters[d] for d in node.dims), shape=node.shape,
            addends=tuple(a.permute(node.dims) if isinstance(a, Expr) else a for a in self.addends),
        )  # fmt: skip

    def reshaped(self, node: Node) -> Form:
        form = self
        runs = list(groups(form.shape, node.shape))
        letters: list[str] = []
        for before, after in runs:
            old = "".join(form.letters[i] for i in before)
            wide = [i for i in after if node.shape[i] > 1]
            new = old
            if len(old) != 1 or len(wide) != 1:
                new = form.new_letters(len(wide)) if old else ""
                for side in form._having(old):
                    form = form._regrouped(side, old, new, tuple(node.shape[i] for i in wide))
            given = iter(new)
            letters += [next(given) if node.shape[i] > 1 else "" for i in after]
        addends = tuple(reshaped_addend(a, form.shape, node.shape, runs) for a in form.addends)
        return replace(form, letters=tuple(letters), shape=node.shape, addends=addends)

    def _having(self, letters: str) -> tuple[str, ...]:
        """The factors that have all of these letters, where none has some of them: one, or of a batch both."""
        side = self.only(letters)
        if letters and not side and not all(c in self.left_letters and c in self.right_letters for c in letters):
            raise Stuck
        return () if not letters else (side,) if side else ("left", "right")

    def _regrouped(self, side: str, old: str, new: str, sizes: tuple[int, ...]) -> Form:
        """The factor with letters `old` as one run that is divided into `new`."""
        factor, letters = self.factor(side)
        first = min(letters.index(c) for c in old)
        rest = [c for c in letters if c not in old]
        ahead = [c for c in letters[:first] if c not in old]
        order = [*ahead, *old, *rest[len(ahead) :]]
        moved = factor.permute([letters.index(c) for c in order])
        at = len(ahead)
        shape = (*moved.shape[:at], *sizes, *moved.shape[at + len(old) :])
        return self.having(side, moved.reshape(shape), "".join((*ahead, *new, *rest[len(ahead) :])))

    def loaded(self, node: Node) -> Form:
        """Read at windows that lie inside."""
        form = self
        if len(node.args) != 1 or any(p.value for p in node.at):
            raise Stuck
        if any(not p.surely_inside(size, node.shape) for p, size in zip(node.at, form.shape, strict=True)):
            raise Stuck
        moving = [tuple((d, s) for d, s in p.steps if node.shape[d] > 1) for p in node.at]
        covered = [d for steps in moving for d, _ in steps]
        if sorted(covered) != [d for d, size in enumerate(node.shape) if size > 1]:
            raise Stuck
        letters = [""] * len(node.shape)
        before = form.letters
        for letter, position, steps, size in zip(before, node.at, moving, self.shape, strict=True):
            if not letter:
                continue
            if steps and (position.start, steps[0][1], len(steps)) == (0, 1, 1) and node.shape[steps[0][0]] == size:
                letters[steps[0][0]] = letter
                continue
            side = form.only(letter)
            if not side or not steps:
                raise Stuck
            new = form.new_letters(len(steps))
            walk = [(node.shape[d], step) for d, step in steps]
            form = form._windowed(side, letter, new, position.start, walk)
            for c, (d, _) in zip(new, steps, strict=True):
                letters[d] = c
        addends = tuple(_loaded_addend(a, node) for a in form.addends)
        return replace(form, letters=tuple(letters), shape=node.shape, addends=addends)

    def _windowed(self, side: str, letter: str, new: str, start: int, walk: Sequence[tuple[int, int]]) -> Form:
        """The factor with windows along one of its letters: (size, step) of each of the new ones."""
        factor, letters = self.factor(side)
        at, count = letters.index(letter), len(walk)
        sizes = [size for size, _ in walk]
        shape = (*factor.shape[:at], *sizes, *factor.shape[at + 1 :])
        dense = [prod(sizes[i + 1 :]) for i in range(count)]
        if start == 0 and prod(sizes) == factor.shape[at] and [step for _, step in walk] == dense:
            made = factor.reshape(shape)
        else:
            places = [Position(steps=((d if d < at else d + count - 1, 1),)) for d in range(len(letters))]
            places[at] = Position(start=start, steps=tuple((at + i, step) for i, (_, step) in enumerate(walk)))
            made = self.left.builder.load(factor, shape, places)
        return self.having(side, made, letters[:at] + new + letters[at + 1 :])


def groups(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of dimensions of one shape and of another that have as many elements, as short as can be."""
    i = j = 0
    while i < len(before) or j < len(after):
        first, second = [i] if i < len(before) else [], [j] if j < len(after) else []
        i, j = i + len(first), j + len(second)
        sizes = prod(before[d] for d in first), prod(after[d] for d in second)
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                first.append(i)
                i += 1
            else:
                second.append(j)
                j += 1
            sizes = prod(before[d] for d in first), prod(after[d] for d in second)
        yield first, second


def _loaded_addend(addend: Expr | float, node: Node) -> Expr | float:
    if not isinstance(addend, Expr):
        return addend
    at = [p if size > 1 else Position() for p, size in zip(node.at, addend.shape, strict=True)]
    varying = {d for p in at for d, _ in p.steps}
    shape = tuple(size if d in varying else 1 for d, size in enumerate(node.shape))
    return addend.builder.load(addend, shape, at)


def reshaped_addend(
    addend: Expr | float, before: Sequence[int], after: Sequence[int], runs: Sequence[tuple[list[int], list[int]]]
) -> Expr | float:  # fmt: skip
    if not isinstance(addend, Expr):
        return addend
    whole = list(addend.shape)
    shape = [1] * len(after)
    for old, new in runs:
        if any(addend.shape[d] > 1 for d in old):
            for d in old:
                whole[d] = before[d]
            for d in new:
                shape[d] = after[d]
    return addend.expand(tuple(whole)).reshape(tuple(shape))


def aligned(builder: Builder, node: Node, shape: tuple[int, ...]) -> Expr:
    """The node with as many dimensions as `shape`, to which it broadcasts; else Stuck."""
    if len(node.shape) > len(shape):
        raise Stuck
    given = (*(1 for _ in range(len(shape) - len(node.shape))), *node.shape)
    if any(s not in (1, size) for s, size in zip(given, shape, strict=True)):
        raise Stuck
    return Expr(builder, node).reshape(given)


def spread(value: Expr, letters: Sequence[str], onto: str) -> Expr:
    """A value with these letters, of which it varies along some, to broadcast against `onto`."""
    varying = [i for i, size in enumerate(value.shape) if size > 1]
    order = sorted(varying, key=lambda i: onto.index(letters[i]))
    rest = [i for i in range(len(value.shape)) if i not in varying]
    sizes = {letters[i]: value.shape[i] for i in varying}
    return value.permute((*rest, *order)).reshape(tuple(sizes.get(c, 1) for c in onto))
