"""In which order a thread that gathers asks for a tile's elements and writes them, a step of K after the other.

Where it has registers for it, a thread asks for what comes next before it waits for what it asked for: else it waits
through a memory latency in every step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cutlass import Float32, Int32, cute

from ..common.control import loop, when
from .gather import Gather
from .shape import ATOM, DEPTH, GROUP, ConvShape
from .tiles import ConvPoint

AT_ONCE = 4  # groups that a thread asks for together
FEW_REGISTERS = 90  # of a thread that gathers: too few to ask ahead


class TileFilling:
    """`begin(step)`: waits until the step's stage is free; `put(step, q, values)`: writes a group there; `end(step)`:
    tells that it is full. A thread has one pixel; where there are more threads than pixels, a part of each step."""

    def __init__(
        self, shape: ConvShape, point: ConvPoint, gather: Gather, *, begin: Callable[..., None],
        put: Callable[..., None], end: Callable[..., None],
    ) -> None:  # fmt: skip
        self.shape, self.gather = shape, gather
        self.begin, self.put, self.end = begin, put, end
        self.parts = point.producers // point.pixels
        self.ahead = point.registers[0] > FEW_REGISTERS
        self.at_once = AT_ONCE // point.planes if self.ahead else AT_ONCE

    def run(self, part: Any, pixel: Any) -> None:
        """All steps."""
        if not self.shape.natural:
            self._in_turn(part, pixel)
            return
        for number in range(self.parts):
            body = partial(self._written_out, number, pixel)
            body() if self.parts == 1 else when(part == number, body)

    def _batches(self, step: int) -> list[range]:
        """The groups of a step that a thread of the first part reads, as many together as are asked for at once."""
        short = self.shape.tail and step == self.shape.steps - 1
        each = (self.shape.tail if short else DEPTH // ATOM) * (ATOM // GROUP) // self.parts
        return [range(i, min(i + self.at_once, each)) for i in range(0, each, self.at_once)]

    def _written_out(self, part: int, pixel: Any) -> None:
        """Steps whose numbers are constants of the code, by the threads of a part."""
        todo = []
        for step in range(self.shape.steps):
            batches = self._batches(step)
            first = part * batches[-1].stop
            todo += [(step, [first + q for q in some], some is batches[-1]) for some in batches]
        asked: list[list[Any]] = []
        for number, (step, some, last) in enumerate(todo):
            for of_step, own, _ in todo[len(asked) : number + 1 + self.ahead]:
                asked.append([self.gather.natural(of_step * (DEPTH // GROUP) + q, pixel) for q in own])
            if number == 0 or todo[number - 1][2]:
                self.begin(step)
            for q, values in zip(some, asked[number], strict=True):
                self.put(step, q, values)
            if last:
                self.end(step)

    def _in_turn(self, part: Any, pixel: Any) -> None:
        """Steps of groups of neighbouring channels, by all threads alike; all but the last, which may be shorter, are
        of kind 0."""
        tail, item = self.shape.tail, self.gather.item
        whole, words = self.shape.steps - (tail > 0), GROUP * item // 4
        held = cute.make_rmem_tensor((self.at_once * words,), Float32 if item == 4 else Int32)

        def group(kind: int, q: int) -> Any:
            return q if self.parts == 1 else part * self._batches(kind)[-1].stop + q

        def ask(step: Any, kind: int, some: range) -> None:
            for i, q in enumerate(some):
                for j, value in enumerate(self.gather.blocked(step * (DEPTH // GROUP) + group(kind, q), pixel)):
                    held[i * words + j] = value

        def one(step: Any, *, kind: int = 0, after: int | None = 0) -> None:
            batches = self._batches(kind)
            for number, some in enumerate(batches):
                if not self.ahead:
                    ask(step, kind, some)
                found = [[held[i * words + j] for j in range(words)] for i in range(len(some))]
                if self.ahead and number + 1 < len(batches):
                    ask(step, kind, batches[number + 1])
                elif self.ahead and after is not None:
                    ask(step + 1, after, self._batches(after)[0])
                if number == 0:
                    self.begin(step)
                for q, values in zip(some, found, strict=True):
                    self.put(step, group(kind, q), values)
            self.end(step)

        if self.ahead:
            ask(Int32(0), 0, self._batches(0)[0])
        if whole:
            loop(Int32(0), Int32(whole - 1), one)
            one(Int32(whole - 1), after=self.shape.steps - 1 if tail else None)
        if tail:
            one(Int32(whole), kind=whole, after=None)
