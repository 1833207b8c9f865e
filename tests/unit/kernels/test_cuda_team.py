"""A CTA of a team, run step by step without a GPU: what it finds in the slots of its ring, under copies that land as
late as they may, and in which order blocks are read, merged and written."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fakes.control import loop, when
from tilewright.kernels.cuda import planning as plans
from tilewright.kernels.cuda import team as module
from tilewright.kernels.cuda.plan import DEFAULTS, Device
from tilewright.kernels.cuda.planning import make_plan
from tilewright.kernels.cuda.team import TeamCta

from .test_cuda_plan import spec_of


class Recorded(TeamCta):
    """Everything of TeamCta but what a block is made of, and what is done with it: that is written down."""

    def __init__(self, spec, plan, team, chunk):
        self.spec, self.plan, self.space, self.chunks = spec, plan, plan.space, plan.chunks
        self.group_index, self.chunk, self.tensors = team, chunk, {}
        self.slots, self.copies, self.commits = {}, [], []
        self.resident = SimpleNamespace(names=("x",), request=self._copy)
        held = SimpleNamespace(reducer=SimpleNamespace(identity=tuple))
        self.kernel = SimpleNamespace(reducers=[[held.reducer]] * len(spec.sweeps))
        self.events = []

    def _enter(self, turn):
        assert 0 <= turn < self.turns
        self.turn, self.group_index = turn, self.team + turn * self.plan.teams
        self.at, self.rows = SimpleNamespace(hints={}), []

    def _block(self, index, place):
        return SimpleNamespace(indices=[index], steps=[], slots=place)

    def _join(self, blocks):
        return SimpleNamespace(indices=[i for b in blocks for i in b.indices], slots=None)

    def _copy(self, at, steps, slots):
        self.copies.append((slots, (at.group, self.requested)))

    def _request(self, turn, number):
        held = self.plan.held
        self.requested = self.chunk * self.plan.blocks_per_chunk + number % held
        super()._request(turn, number)

    def commit(self):
        for slot, _ in self.copies:
            self.slots[slot] = "on its way"  # from now on, what was there is lost
        self.commits.append(self.copies)
        self.copies = []

    def wait(self, pending):
        landed = len(self.commits) - pending
        for group in self.commits[:landed]:
            self.slots.update(dict(group))
        self.commits = self.commits[landed:] if landed > 0 else self.commits

    def _note(self, what, sweep, block):
        if block.slots is not None:
            assert self.slots[block.slots] == (self.group_index, *block.indices), (what, sweep, block)
        back = -1 if sweep % 2 else 1  # those that are read together are read at once
        self.events += [(what, sweep, self.group_index, i, block.slots is not None) for i in block.indices[::back]]

    def _reducing(self, sweep, helds):
        return lambda block: self._note("merge", sweep, block)

    def _writing(self):
        return lambda block: self._note("write", len(self.spec.sweeps), block)

    def _reduce(self, sweep):
        self._walk(sweep, self._reducing(sweep, []))
        return []

    def _combine(self, sweep, helds):
        self.events.append(("combine", sweep, self.group_index))

    def _tell(self, sweep, mine):
        self.events.append(("tell", sweep, self.group_index))

    def _all_of(self, sweep, mine):
        self.events.append(("hear", sweep, self.group_index))
        return mine

    def _finish(self, sweep, helds):
        pass

    def _write_rows(self):
        pass


@pytest.fixture
def by_hand(monkeypatch):
    """TeamCta's module with Python in place of the DSL; returns what binds a CTA to its copies."""
    arch = SimpleNamespace(sync_threads=lambda: None)
    monkeypatch.setattr(module, "loop", loop)
    monkeypatch.setattr(module, "when", when)
    monkeypatch.setattr(module, "Int32", int)
    monkeypatch.setattr(module, "cutlass", SimpleNamespace(min=min))
    monkeypatch.setattr(module, "cute", SimpleNamespace(arch=arch))
    monkeypatch.setattr(module, "m", SimpleNamespace(both=lambda a, b: a and b))
    monkeypatch.setattr(module, "Held", lambda reducer, lanes: _Held(reducer))
    monkeypatch.setattr(module, "Addresses", lambda space, tensors, group, wide: SimpleNamespace(group=group))

    def bind(cta):
        arch.cp_async_commit_group, arch.cp_async_wait_group = cta.commit, cta.wait

    return bind


class _Held(dict):
    def __init__(self, reducer):
        self.reducer = reducer


@pytest.mark.parametrize(("sweeps", "share"), [(1, 0.43), (2, 0.43), (1, 0.72), (2, 0.72)])
@pytest.mark.parametrize(("rows", "width", "unroll"), [
    (70, 4096, 2),  # a CTA a row, several rows in a ring
    (37, 65536, 2), (23, 50000, 1), (41, 30004, 4),  # teams
    (9, 2**19, 2), (5, 2**18 + 4, 8),  # more than fits
    (1, 100000, 2), (3, 20000, 1),  # few rows
])  # fmt: skip
def test_every_block_is_found_where_it_was_copied_to(by_hand, monkeypatch, rows, width, unroll, sweeps, share):
    monkeypatch.setattr(plans, "HELD_SHARE", share)  # 0.72: less than two rows in a ring
    spec = spec_of((rows, width), (1,))
    spec = replace(spec, sweeps=spec.sweeps * sweeps)
    knobs = DEFAULTS | {"threads": 256, "unroll": unroll, "spread": "grid"}
    plan = make_plan(spec, [(width, 1)], [16], knobs, Device(processors=4, arch="sm_90a"))
    assert plan.teams and plan.ahead == (2 if rows == 3 or (share < 0.5 and rows in (23, 37, 41)) else 1)
    seen: Counter[tuple[object, ...]] = Counter()
    for team in range(plan.teams):
        for chunk in range(plan.chunks):
            cta = Recorded(spec, plan, team, chunk)
            by_hand(cta)
            cta.run()
            cta.wait(0)
            seen.update((sweep, row, index) for what, sweep, row, index, _ in blocks_of(cta.events))
            heard = [event for event in cta.events if event[0] in ("tell", "hear", "combine")]
            for sweep in range(sweeps):
                order = [e[0] for e in heard if e[1] == sweep and e[2] == team]
                assert order == (["combine"] if sweep == 0 else []) + ["tell", "hear"]
            check_order(cta.events, sweeps)
    every = {(s, r, i) for s in range(sweeps + 1) for r in range(rows) for i in range(plan.blocks)}
    assert seen == Counter(every), "each block in each sweep, once"


def blocks_of(events):
    return [event for event in events if event[0] in ("merge", "write")]


def check_order(events, sweeps):
    """No sweep over a row begins before the team was heard of the last one; what is not held is read there and back."""
    for row in {event[2] for event in events}:
        mine = [event for event in events if event[2] == row]
        for sweep in range(sweeps):
            told = mine.index(("hear", sweep, row))
            before, after = blocks_of(mine[:told]), blocks_of(mine[told:])
            assert all(e[1] <= sweep for e in before) and all(e[1] > sweep for e in after)
        for sweep in range(sweeps + 1):
            passing = [e[3] for e in blocks_of(mine) if e[1] == sweep and not e[4]]
            assert passing == sorted(passing, reverse=sweep % 2 == 1)


def test_a_copy_that_is_not_waited_for_is_missed(by_hand, monkeypatch):
    """The check itself: without waiting, a block is not there."""
    spec = spec_of((37, 65536), (1,))
    knobs = DEFAULTS | {"threads": 256, "spread": "grid"}
    plan = make_plan(spec, [(65536, 1)], [16], knobs, Device(processors=4, arch="sm_90a"))
    cta = Recorded(spec, plan, 0, 0)
    monkeypatch.setattr(Recorded, "wait", lambda self, pending: None)
    by_hand(cta)
    with pytest.raises((AssertionError, KeyError)):
        cta.run()
