"""The blocks of a chunk that a team's CTA has: in the ring, in registers, or read again by each sweep (see `team`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
from cutlass import Int32, cute

from ..common import math as m
from ..common.addresses import Addresses
from ..common.control import loop, when
from ..common.operands import resident_operands, shared_operands
from .cta import Block, Cta
from .ring import Ring

PASSING = 4  # vectors of what is not held that a thread has under way


def transposed(lo: Any, hi: Any, body: Callable[[Any], None], *, back: bool) -> None:
    """body(i) for i in [lo, hi), from the back if so asked."""
    loop(lo, hi, lambda i: body(lo + hi - 1 - i if back else i))


class TeamRing(Cta):
    """Where the blocks of a chunk are: in the ring, in registers, or in memory."""

    team: Any
    turns: Any
    lasting: dict[str, list[list[Any]]]  # of what stays in registers: fragments, [block][step]
    asked: dict[str, list[Any]]  # of the block that is written next
    own: dict[str, list[list[Any]]]  # of the turn in hand

    def _row_storage(self, allocator: Any, thread: Any) -> Ring:
        names = resident_operands(self.spec, self.space)
        return Ring(
            self.plan, names=names, dtypes=self.dtypes, allocator=allocator, thread=thread, hinted=self._crowded
        )  # fmt: skip

    @property
    def _crowded(self) -> bool:
        """Whether something is to stay in the L2: what is not held of a row, or what all rows read."""
        again = [name for name in shared_operands(self.spec, self.space) if name not in self.plan.kept]
        return bool(again) or self.plan.blocks_per_chunk > self.plan.held + self.plan.own

    def _index(self, k: Any) -> Any:
        """Of the chunk's block k, in the row."""
        return self.chunk * self.plan.blocks_per_chunk + k

    def _nearest(self, k: Any) -> Any:
        """The same of a block that may not be there."""
        return cutlass.min(self._index(k), Int32(self.plan.blocks - 1))

    def _end_of_chunk(self) -> Any:
        return cutlass.min(self._index(self.plan.blocks_per_chunk), Int32(self.plan.blocks))

    def _block(self, index: Any, place: Any) -> Block:
        """Block `index` of the row; `place`: where it lies in the ring, None: nowhere."""
        block = self._make_block(index, index, masked=self.plan.blocks > self.plan.full_blocks)
        block.slots = [] if place is None else [place * self.plan.unroll + u for u in range(self.plan.unroll)]
        return block

    def _request(self, turn: Any, number: Any) -> None:
        """Copy the held block `number`, counted from this turn's first, if there is one; a commit group in any case."""
        plan = self.plan
        turn, k = turn + number // plan.held, number % plan.held

        def copy() -> None:
            at = Addresses(self.space, self.tensors, self.team + turn * plan.teams, wide=plan.wide)
            block = self._block(self._index(k), (turn * plan.held + k) % plan.slots)
            self.resident.request(at, block.steps, block.slots)

        when(m.both(turn < self.turns, self._index(k) < plan.blocks), copy)
        cute.arch.cp_async_commit_group()

    def _registers(self, name: str) -> list[list[Any]]:
        """Fragments, [block][step], of what of a row stays in registers."""
        kind, lanes = self.tensors[name].element_type, (self.space.vector,)
        return [[cute.make_rmem_tensor(lanes, kind) for _ in range(self.plan.unroll)] for _ in range(self.plan.own)]

    def _load_own(self, k: int, block: Block) -> None:
        for name, fragments in self.own.items():
            for step, fragment in zip(block.steps, fragments[k], strict=True):
                cute.autovec_copy(self.at.load(name, self.at.at_step(name, step)), fragment)

    def _load(self, name: str, k: int) -> list[Any]:
        """Of held block k, or of the row's last."""
        block = self._block(self._nearest(k), None)
        return [self.at.load(name, self.at.at_step(name, step)) for step in block.steps]

    def _fetch(self, block: Block, name: str) -> list[Any]:
        if block.held is not None and name in self.lasting:
            return self.lasting[name][block.held]
        if block.own is not None and name in self.own:
            return self.own[name][block.own]
        return self.asked[name] if block.asked and name in self.asked else super()._fetch(block, name)

    def _over_held(self, lo: int, hi: int, body: Callable[[Any], None]) -> None:
        """body(k) for these held blocks; written out, where registers have numbers of their own."""
        if not self.plan.kept:
            loop(Int32(lo), Int32(hi), body)
            return
        for k in range(lo, hi):
            body(k)


class TeamBlocks(TeamRing):
    """Sweeps over a chunk's blocks, of the turn in hand."""

    def _enter(self, turn: Any) -> None:
        """From here on, this thread works for this turn's group."""
        self.turn = turn
        self.group_index = self.team + turn * self.plan.teams
        self.at = self._addresses()
        self.at.hints = self._hints()
        self.rows = self._new_rows()
        self._load_rows()
        self._compute_rows(self.spec.head)

    @property
    def _context(self) -> tuple[Any, ...]:
        return self.turn, self.group_index, self.at, self.rows

    def _resume(self, context: tuple[Any, ...]) -> None:
        self.turn, self.group_index, self.at, self.rows = context

    def _hints(self) -> dict[str, str]:
        """What is read or written once makes way in the L2 for what shall stay there. Nothing is said where nothing
        shall: it costs softmax over 393216 3% (H200, 2026-11-22)."""
        if not self._crowded:
            return {}
        found = {f"out_{name}": "first" for name in self.spec.element_outputs}
        found |= {o.name: "first" for o in self.spec.element_operands if o.shape == self.spec.domain}
        return found | dict.fromkeys(shared_operands(self.spec, self.space), "last")

    def _walk(self, sweep: int, body: Callable[[Block], None]) -> None:
        """A sweep between the first and the last. What is not held is read last by one and first by the next."""
        parts = [
            lambda: self._over_held(0, self.plan.held, lambda k: self._visit(k, body)),
            lambda: self._walk_others(sweep, body),
        ]
        for part in parts if sweep % 2 == 0 else reversed(parts):
            part()

    def _walk_others(self, sweep: int, body: Callable[[Block], None]) -> None:
        """What is not held in the ring: first what stays in registers, then what is read again; or back."""
        if self.plan.blocks_per_chunk > self.plan.held:
            parts = [self._walk_own, self._walk_passing]
            for part in parts if sweep % 2 == 0 else reversed(parts):
                part(sweep, body)

    def _walk_own(self, sweep: int, body: Callable[[Block], None]) -> None:
        plan = self.plan
        if sweep == 0:
            self.at.hints.update(dict.fromkeys(self.resident.names if self._crowded else (), "first"))
            for k in range(plan.own):
                self._load_own(k, self._block(self._nearest(plan.held + k), None))
        for k in range(plan.own)[:: -1 if sweep % 2 else 1]:
            block = self._block(self._index(plan.held + k), None)
            block.own = k
            when(self._index(plan.held + k) < self._end_of_chunk(), partial(body, block))

    def _walk_passing(self, sweep: int, body: Callable[[Block], None]) -> None:
        plan = self.plan
        self.at.hints.update(dict.fromkeys(self.resident.names, "first" if sweep == len(self.spec.sweeps) else "last"))
        lo, hi = self._index(plan.held + plan.own), self._end_of_chunk()
        several = max(PASSING // plan.unroll, 1)
        pieces = cutlass.max(hi - lo, Int32(0)) // several

        def together(number: Any) -> None:
            body(self._join([self._block(lo + number * several + i, None) for i in range(several)]))

        def alone(index: Any) -> None:
            body(self._block(index, None))

        parts = [partial(transposed, Int32(0), pieces, together, back=sweep % 2 == 1)]
        if several > 1:
            parts.append(partial(transposed, lo + pieces * several, hi, alone, back=sweep % 2 == 1))
        for part in parts if sweep % 2 == 0 else reversed(parts):
            part()

    def _join(self, blocks: list[Block]) -> Block:
        """One block of several, so that all their loads are on their way together."""
        steps, valid = [s for b in blocks for s in b.steps], [v for b in blocks for v in b.valid]
        return Block(steps, valid, [], blocks[0].by_element)

    def _visit(self, k: Any, body: Callable[[Block], None], *, asked: bool = False) -> None:
        """body(the held block k), if there is one. `asked`: of what was asked for, this is the block."""
        place = (self.turn * self.plan.held + k) % self.plan.slots
        block = self._block(self._index(k), place)
        block.held, block.asked = (k if self.plan.kept else None), asked
        when(self._index(k) < self._end_of_chunk(), lambda: body(block))
