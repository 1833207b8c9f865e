"""CTAs that stay on the chip and take long rows in turn, each row by a team, while the next one is on its way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass
from cutlass import Int32, cute

from ..common.control import loop, when
from ..common.operands import shared_operands
from ..common.spec import reads
from .combine import Held, Mailboxes, combine_rows
from .team_blocks import TeamBlocks


class TeamCta(TeamBlocks):
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

    def run(self) -> None:
        plan = self.plan
        self.team = self.group_index
        self.turns = (Int32(self.space.groups + plan.teams - 1) - self.team) // plan.teams
        self.mine = [Held(reducer, 1) for reducer in self.kernel.reducers[0]]  # of the turn that is merged
        loop(Int32(0), Int32(plan.slots), lambda number: self._request(Int32(0), number))
        self.lasting = {}
        self.asked = {}
        self.own = {name: self._registers(name) for name in self.resident.names if plan.own}
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

    def _keep(self) -> None:
        """Load what stays in registers, and what the first block that is written needs beside it."""
        plan = self.plan
        for name in plan.kept:
            self.lasting[name] = [self._load(name, k) for k in range(plan.held)]
        names = [
            n for n in shared_operands(self.spec, self.space) if n not in plan.kept and n in reads(self.spec.final)
        ]
        self.asked = {name: self._load(name, 0) for name in names}

    def _ask(self, k: Any) -> None:
        """For what block k needs when it is written, in this turn or the next: to all rows it is the same."""
        for name, fragments in self.asked.items():
            for fragment, loaded in zip(fragments, self._load(name, k % self.plan.held), strict=True):
                cute.autovec_copy(loaded, fragment)

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
