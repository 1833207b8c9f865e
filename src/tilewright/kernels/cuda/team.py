"""CTAs that stay on the chip and take long rows in turn, each row by a team, while the next one is on its way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
from cutlass import Int32, cute

from . import math as m
from .addresses import Addresses
from .combine import Held, Mailboxes, combine_rows
from .control import loop, when
from .cta import Block, Cta
from .operands import resident_operands, shared_operands
from .ring import Ring

PASSING = 4  # vectors of what is not held that a thread has under way


def turned(lo: Any, hi: Any, body: Callable[[Any], None], *, back: bool) -> None:
    """body(i) for i in [lo, hi), from the back if so asked."""
    loop(lo, hi, lambda i: body(lo + hi - 1 - i if back else i))


class TeamCta(Cta):
    """One of `plan.chunks` CTAs of a team, which takes every `plan.teams`-th group.

        a chunk of a row    | held blocks ... | others, if the ring is too small |
        the ring            | block 0 | 1 | 2 | of the turn in hand | next turn's 0 | 1 ->

    The last sweep writes a held block, has the slot filled anew with what comes `plan.slots` blocks later, and merges
    a later turn's block of the same number, which has come meanwhile. So loads and stores go on side by side. Where the
    ring holds two chunks and more, the later turn is the one after the next, and nobody waits for what the team tells;
    else it is the next. What of a chunk is not held is read by each sweep, there and back; the L2 is told to keep it,
    and to let go first of whatever else passes through it."""

    def _residence(self, allocator: Any, thread: Any) -> Ring:
        names = resident_operands(self.spec, self.space)
        return Ring(self.plan, names=names, dtypes=self.dtypes, allocator=allocator, thread=thread)

    def run(self) -> None:
        self.team = self.group_index
        self.turns = (Int32(self.space.groups + self.plan.teams - 1) - self.team) // self.plan.teams
        self.mine = [Held(reducer, 1) for reducer in self.kernel.reducers[0]]  # of the turn that comes next
        loop(Int32(0), Int32(self.plan.slots), lambda number: self._request(Int32(0), number))
        self._begin(0)
        if self.plan.ahead == 2:
            when(self.turns > 1, lambda: self._begin(1))
        loop(Int32(0), self.turns, self._turn)

    def _turn(self, turn: Any) -> None:
        self._enter(turn)
        for sweep in range(len(self.spec.sweeps)):
            mine = self._reduce(sweep) if sweep else self.mine
            if sweep:
                self._tell(sweep, mine)
            self._finish(sweep, self._all_of(sweep, mine))
        self._write_rows()
        now = self._context
        later = turn + self.plan.ahead
        self._enter(cutlass.min(later, self.turns - 1))
        self._write_and_merge(now, self._context, follows=later < self.turns)

    # ---- one turn, and the next ------------------------------------------------------------------------------------

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
        """What is read or written once makes way in the L2; what all rows read shall stay there."""
        found = {f"out_{name}": "first" for name in self.spec.element_outputs}
        found |= {o.name: "first" for o in self.spec.element_operands if o.shape == self.spec.domain}
        return found | dict.fromkeys(shared_operands(self.spec, self.space), "last")

    def _write_and_merge(self, now: tuple[Any, ...], later: tuple[Any, ...], *, follows: Any) -> None:
        """The last sweep of this turn, and the first of a later one, if it follows."""
        plan, last = self.plan, len(self.spec.sweeps)
        write, merge = self._writing(), self._merging()

        def both(k: Any) -> None:
            self._resume(now)
            self._visit(k, write)
            self._request(self.turn, k + plan.slots)
            cute.arch.cp_async_wait_group(plan.slots - plan.ahead * plan.held)
            self._resume(later)
            when(follows, lambda: self._visit(k, merge))

        def begin() -> None:
            self._walk_others(0, merge)
            self._tell_first_sweep()

        parts: list[Callable[[], None]] = [lambda: loop(Int32(0), Int32(plan.held), both)]
        parts.insert(1 - last % 2, lambda: self._walk_others(last, write))
        for part in parts:
            self._resume(now)
            part()
        if self.chunks == 1:
            cute.arch.sync_threads()  # boards are free again
        self._resume(later)
        when(follows, begin)

    def _merging(self) -> Callable[[Block], None]:
        """What the first sweep of a turn does with a block; nothing is merged yet."""
        for held in self.mine:
            held[0] = held.reducer.identity()
        return self._reducing(0, self.mine)

    def _begin(self, turn: int) -> None:
        """The first sweep of a turn that no other came before."""
        self._enter(Int32(turn))
        merge = self._merging()
        cute.arch.cp_async_wait_group(self.plan.slots - (turn + 1) * self.plan.held)
        loop(Int32(0), Int32(self.plan.held), lambda k: self._visit(k, merge))
        self._walk_others(0, merge)
        self._tell_first_sweep()

    # ---- the team --------------------------------------------------------------------------------------------------

    def _tell_first_sweep(self) -> None:
        self._combine(0, self.mine)
        self._tell(0, self.mine)

    def _tell(self, sweep: int, mine: list[Held]) -> None:
        if self.chunks == 1:
            return
        where = {"team": self.team, "turn": self.turn, "chunk": self.chunk}

        def put() -> None:
            for held, boxes in zip(mine, self.kernel.mailboxes[sweep], strict=True):
                boxes.put(self.work, held[0], **where)

        when(self.member == 0, put)

    def _all_of(self, sweep: int, mine: list[Held]) -> list[Held]:
        """The states of the whole row: thread i gets chunk i's, and waits for it."""
        if self.chunks == 1:
            return mine
        threads = self.plan.threads
        helds = [Held(r, 1) for r in self.kernel.reducers[sweep]]
        for held, boxes in zip(helds, self.kernel.mailboxes[sweep], strict=True):
            for first in range(0, self.chunks, threads):
                chunk = self.member + first
                when(chunk < self.chunks, partial(self._get, held, boxes, chunk))
        combine_rows(helds, self.boards[sweep], group=1, member=self.member, group_threads=threads)
        return helds

    def _get(self, held: Held, boxes: Mailboxes, chunk: Any) -> None:
        held.merge(0, boxes.get(self.work, team=self.team, turn=self.turn, chunk=chunk))

    # ---- blocks ----------------------------------------------------------------------------------------------------

    def _walk(self, sweep: int, body: Callable[[Block], None]) -> None:
        """A sweep between the first and the last. What is not held is read last by one and first by the next."""
        parts = [
            lambda: loop(Int32(0), Int32(self.plan.held), lambda k: self._visit(k, body)),
            lambda: self._walk_others(sweep, body),
        ]
        for part in parts if sweep % 2 == 0 else reversed(parts):
            part()

    def _end_of_chunk(self) -> Any:
        per_chunk = self.plan.blocks_per_chunk
        return cutlass.min((self.chunk + 1) * per_chunk, Int32(self.plan.blocks))

    def _walk_others(self, sweep: int, body: Callable[[Block], None]) -> None:
        plan = self.plan
        if plan.blocks_per_chunk == plan.held:
            return
        self.at.hints.update(dict.fromkeys(self.resident.names, "first" if sweep == len(self.spec.sweeps) else "last"))
        lo, hi = self.chunk * plan.blocks_per_chunk + plan.held, self._end_of_chunk()
        several = max(PASSING // plan.unroll, 1)
        pieces = (hi - lo) // several

        def together(number: Any) -> None:
            body(self._join([self._block(lo + number * several + i, None) for i in range(several)]))

        def alone(index: Any) -> None:
            body(self._block(index, None))

        parts = [partial(turned, Int32(0), pieces, together, back=sweep % 2 == 1)]
        if several > 1:
            parts.append(partial(turned, lo + pieces * several, hi, alone, back=sweep % 2 == 1))
        for part in parts if sweep % 2 == 0 else reversed(parts):
            part()

    def _join(self, blocks: list[Block]) -> Block:
        """One block of several, so that all their loads are on their way together."""
        steps, valid = [s for b in blocks for s in b.steps], [v for b in blocks for v in b.valid]
        return Block(steps, valid, [], blocks[0].by_element)

    def _visit(self, k: Any, body: Callable[[Block], None]) -> None:
        """body(the held block k), if there is one."""
        index = self.chunk * self.plan.blocks_per_chunk + k
        place = (self.turn * self.plan.held + k) % self.plan.slots
        when(index < self._end_of_chunk(), lambda: body(self._block(index, place)))

    def _block(self, index: Any, place: Any) -> Block:
        """Block `index` of the row; `place`: where it lies in the ring, None: nowhere."""
        block = self._make_block(index, index, masked=self.plan.blocks > self.plan.full_blocks)
        block.slots = [] if place is None else [place * self.plan.unroll + u for u in range(self.plan.unroll)]
        return block

    def _request(self, turn: Any, number: Any) -> None:
        """Copy the held block `number`, counted from this turn's first, if there is one; a commit group in any case."""
        plan = self.plan
        turn, k = turn + number // plan.held, number % plan.held
        index = self.chunk * plan.blocks_per_chunk + k

        def copy() -> None:
            at = Addresses(self.space, self.tensors, self.team + turn * plan.teams, wide=plan.wide)
            block = self._block(index, (turn * plan.held + k) % plan.slots)
            self.resident.request(at, block.steps, block.slots)

        when(m.both(turn < self.turns, index < plan.blocks), copy)
        cute.arch.cp_async_commit_group()
