"""CTAs that stay on the chip and take long rows in turn, each row by a team, while the next one is on its way."""

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
from ..common.spec import reads
from .combine import Held, Mailboxes, combine_rows
from .cta import Block, Cta
from .ring import Ring

PASSING = 4  # vectors of what is not held that a thread has under way


def transposed(lo: Any, hi: Any, body: Callable[[Any], None], *, back: bool) -> None:
    """body(i) for i in [lo, hi), from the back if so asked."""
    loop(lo, hi, lambda i: body(lo + hi - 1 - i if back else i))


class TeamCta(Cta):
    """One of `plan.chunks` CTAs of a team, which takes every `plan.teams`-th group.

        a chunk of a row    | held blocks ... | others, if the ring is too small |
        the ring            | block 0 | 1 | 2 | of the turn in hand | next turn's 0 | 1 ->

    The last sweep writes a held block, has the slot filled anew with what comes `plan.slots` blocks later, and merges
    the one that comes `plan.lead` blocks later, which has come meanwhile. So loads and stores go on side by side. Where
    the ring holds two chunks and more, that is a block of the turn after the next, and nobody waits for what the team
    tells; else it is one of the next turn, which is told `plan.early` blocks before this one is written. What of a
    chunk finds no room there stays in registers, `plan.own` blocks; the rest is read by each sweep, there and back, and
    the L2 is told to keep it, and to let go first of whatever else passes through it.

    Operands that all rows share, `plan.kept`, stay in registers: a thread has the same positions of every row. Of
    others it asks for the next block's while this one is merged."""

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

    def run(self) -> None:
        plan = self.plan
        self.team = self.group_index
        self.turns = (Int32(self.space.groups + plan.teams - 1) - self.team) // plan.teams
        self.mine = [Held(reducer, 1) for reducer in self.kernel.reducers[0]]  # of the turn that is merged
        loop(Int32(0), Int32(plan.slots), lambda number: self._request(Int32(0), number))
        self.lasting: dict[str, list[list[Any]]] = {}  # of what stays in registers: fragments, [block][step]
        self.asked: dict[str, list[Any]] = {}  # of the block that is written next
        self.own = {name: self._registers(name) for name in self.resident.names if plan.own}  # of the turn in hand
        if plan.kept:
            self._keep()
        self._begin(0, plan.held)
        if plan.ahead == 2 or plan.early:
            when(self.turns > 1, lambda: self._begin(1, plan.early or plan.held))
        loop(Int32(0), self.turns, self._turn)

    def _turn(self, turn: Any) -> None:
        self._enter(turn)
        for sweep in range(len(self.spec.sweeps)):
            mine = self._reduce(sweep) if sweep else self.mine
            if sweep:
                self._tell(sweep, mine)
            self._finish(sweep, self._all_of(sweep, mine))
        self._write_rows()
        self._write_and_merge(self._context, turn)

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
        """What is read or written once makes way in the L2 for what shall stay there. Nothing is said where nothing
        shall: it costs softmax over 393216 3% (H200, 2026-11-22)."""
        if not self._crowded:
            return {}
        found = {f"out_{name}": "first" for name in self.spec.element_outputs}
        found |= {o.name: "first" for o in self.spec.element_operands if o.shape == self.spec.domain}
        return found | dict.fromkeys(shared_operands(self.spec, self.space), "last")

    def _write_and_merge(self, now: tuple[Any, ...], turn: Any) -> None:
        """The last sweep of this turn, and the first of later ones, if they follow."""
        plan, last = self.plan, len(self.spec.sweeps)
        write, merge, middle = self._writing(), self._reducing(0, self.mine), plan.held - plan.early

        def both(lo: int, hi: int, later: tuple[Any, ...], shift: int, follows: Any) -> None:
            def one(k: Any) -> None:
                self._resume(now)
                self._visit(k, write, asked=True)
                self._request(self.turn, k + plan.slots)
                self._ask(k + 1)
                cute.arch.cp_async_wait_group(plan.slots - plan.lead)
                self._resume(later)
                when(follows, lambda: self._visit(k + shift, merge))

            self._over_held(lo, hi, one)

        def begin() -> None:
            self._walk_others(0, merge)
            self._tell_first_sweep()

        follows = turn + plan.ahead < self.turns
        later = self._later(turn + plan.ahead)
        if not plan.early:
            self._forget()
        parts: list[Callable[[], None]] = [lambda: both(0, middle, later, plan.early, follows)]
        parts.insert(1 - last % 2, lambda: self._walk_others(last, write))
        for part in parts:
            self._resume(now)
            part()
        if self.chunks == 1:
            cute.arch.sync_threads()  # boards are free again
        self._resume(later)
        when(follows, begin)
        if plan.early:
            self._forget()
            both(middle, plan.held, self._later(turn + 2), -middle, turn + 2 < self.turns)

    def _later(self, turn: Any) -> tuple[Any, ...]:
        """The context of this turn; where there is none, of the last."""
        self._enter(cutlass.min(turn, self.turns - 1))
        return self._context

    def _forget(self) -> None:
        """Nothing is merged yet."""
        for held in self.mine:
            held[0] = held.reducer.identity()

    def _begin(self, turn: int, blocks: int) -> None:
        """The first sweep over so many blocks of a turn that no other came before."""
        if turn:
            cute.arch.sync_threads()  # boards are free again
        self._enter(Int32(turn))
        self._forget()
        merge = self._reducing(0, self.mine)
        cute.arch.cp_async_wait_group(self.plan.slots - turn * self.plan.held - blocks)
        self._over_held(0, blocks, lambda k: self._visit(k, merge))
        if blocks == self.plan.held:
            self._walk_others(0, merge)
            self._tell_first_sweep()

    # ---- what all rows share ---------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Load what stays in registers, and what the first block that is written needs beside it."""
        plan = self.plan
        for name in plan.kept:
            self.lasting[name] = [self._load(name, k) for k in range(plan.held)]
        names = [
            n for n in shared_operands(self.spec, self.space) if n not in plan.kept and n in reads(self.spec.final)
        ]
        self.asked = {name: self._load(name, 0) for name in names}

    def _registers(self, name: str) -> list[list[Any]]:
        """Fragments, [block][step], of what of a row stays in registers."""
        kind, lanes = self.tensors[name].element_type, (self.space.vector,)
        return [[cute.make_rmem_tensor(lanes, kind) for _ in range(self.plan.unroll)] for _ in range(self.plan.own)]

    def _load(self, name: str, k: int) -> list[Any]:
        """Of held block k, or of the row's last."""
        block = self._block(self._nearest(k), None)
        return [self.at.load(name, self.at.at_step(name, step)) for step in block.steps]

    def _ask(self, k: Any) -> None:
        """For what block k needs when it is written, in this turn or the next: to all rows it is the same."""
        for name, fragments in self.asked.items():
            for fragment, loaded in zip(fragments, self._load(name, k % self.plan.held), strict=True):
                cute.autovec_copy(loaded, fragment)

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
            lambda: self._over_held(0, self.plan.held, lambda k: self._visit(k, body)),
            lambda: self._walk_others(sweep, body),
        ]
        for part in parts if sweep % 2 == 0 else reversed(parts):
            part()

    def _index(self, k: Any) -> Any:
        """Of the chunk's block k, in the row."""
        return self.chunk * self.plan.blocks_per_chunk + k

    def _nearest(self, k: Any) -> Any:
        """The same of a block that may not be there."""
        return cutlass.min(self._index(k), Int32(self.plan.blocks - 1))

    def _end_of_chunk(self) -> Any:
        return cutlass.min(self._index(self.plan.blocks_per_chunk), Int32(self.plan.blocks))

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

    def _load_own(self, k: int, block: Block) -> None:
        for name, fragments in self.own.items():
            for step, fragment in zip(block.steps, fragments[k], strict=True):
                cute.autovec_copy(self.at.load(name, self.at.at_step(name, step)), fragment)

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
