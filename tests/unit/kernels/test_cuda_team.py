"""A CTA of a team, run step by step without a GPU: what it finds in the slots of its ring, under copies that land as
late as they may, and in which order blocks are read, merged and written."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fakes.control import loop, when
from fakes.realisers import gpu
from tilewright.kernels.cuda.rows import planning as plans
from tilewright.kernels.cuda.rows import team as teams
from tilewright.kernels.cuda.rows import team_blocks
from tilewright.kernels.cuda.rows.plan import DEFAULTS
from tilewright.kernels.cuda.rows.planning import make_plan
from tilewright.kernels.cuda.rows.team import TeamCta

from .test_cuda_plan import spec_of


class Recorded(TeamCta):
    """Everything of TeamCta but what a block is made of, and what is done with it: that is written down."""

    def __init__(self, spec, plan, team, chunk):
        self.spec, self.plan, self.space, self.chunks = spec, plan, plan.space, plan.chunks
        self.group_index, self.chunk, self.tensors = team, chunk, {}
        self.slots, self.stays, self.copies, self.commits = {}, {}, [], []
        self.resident = SimpleNamespace(names=("x",), request=self._copy)
        held = SimpleNamespace(reducer=SimpleNamespace(identity=tuple))
        self.kernel = SimpleNamespace(reducers=[[held.reducer]] * len(spec.sweeps))
        self.events = []
        self.at = self._anywhere()

    def _anywhere(self):
        """Where a load tells from which block it is."""
        return SimpleNamespace(hints={}, at_step=lambda name, step: step, load=lambda name, at: SimpleNamespace(of=at))

    def _enter(self, turn):
        assert 0 <= turn < self.turns
        self.turn, self.group_index = turn, self.team + turn * self.plan.teams
        self.at, self.rows = self._anywhere(), []

    def _block(self, index, place):
        return SimpleNamespace(indices=[index], steps=[index], slots=place, held=None, own=None, asked=False)

    def _load_own(self, k, block):
        self.stays[k] = (self.group_index, *block.indices)

    def _registers(self, name):
        return []

    def _join(self, blocks):
        return SimpleNamespace(indices=[i for b in blocks for i in b.indices], slots=None, own=None)

    def _copy(self, at, steps, slots):
        self.copies.append((slots, (at.group, self.requested)))

    def _request(self, turn, number):
        held = self.plan.held
        self.requested = self._index(number % held)
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
        if block.own is not None:
            assert self.stays[block.own] == (self.group_index, *block.indices), (what, sweep, block)
        back = -1 if sweep % 2 else 1  # those that are read together are read at once
        self.events += [(what, sweep, self.group_index, i, block.slots is not None) for i in block.indices[::back]]
        for name in ("w", "b") if what == "write" and self.plan.kept else ():
            assert [found.of for found in self._fetch(block, name)] == block.indices, (name, block)

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

    def copied(source, target):
        target.of = source.of

    fakes = {
        "loop": loop, "when": when, "Int32": int, "cutlass": SimpleNamespace(min=min, max=max),
        "cute": SimpleNamespace(arch=arch, autovec_copy=copied), "m": SimpleNamespace(both=lambda a, b: a and b),
        "Held": lambda reducer, lanes: _Held(reducer),
        "Addresses": lambda space, tensors, group, wide: SimpleNamespace(group=group),
    }  # fmt: skip
    for module in (teams, team_blocks):
        for name in fakes.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, fakes[name])

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
    knobs = DEFAULTS | {"threads": 256, "unroll": unroll, "cta_split": "grid"}
    plan = make_plan(spec, [(width, 1)], [16], knobs, gpu(processors=4))
    assert plan.teams and plan.ahead == (2 if rows == 3 or (share < 0.5 and rows in (23, 37, 41)) else 1)
    assert (plan.early > 0) == (rows == 1 or (share > 0.5 and rows in (23, 37)))
    check(plan, spec, by_hand)


@pytest.mark.parametrize(("width", "early"), [(100000, True), (20484, False)])
def test_what_all_rows_share_is_in_registers_or_was_asked_for(by_hand, monkeypatch, width, early):
    monkeypatch.setattr(plans, "KEPT_BYTES", 0)
    spec = spec_of((9, width), (1,), operands={"x": (9, width), "w": (1, width), "b": (1, width)})
    spec = replace(spec, final=lambda x, w, b, s: (x,))
    knobs = DEFAULTS | {"threads": 256, "unroll": 1, "cta_split": "grid"}
    plan = make_plan(spec, [(width, 1)] * 3, [16] * 3, knobs, gpu(processors=4))
    assert (plan.chunks > 1, plan.early > 0, plan.kept, plan.least_ctas) == (True, early, ("w",), 2)
    check(plan, spec, by_hand)


def check(plan, spec, by_hand):
    rows, sweeps = spec.domain[0], len(spec.sweeps)
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
    knobs = DEFAULTS | {"threads": 256, "cta_split": "grid"}
    plan = make_plan(spec, [(65536, 1)], [16], knobs, gpu(processors=4))
    cta = Recorded(spec, plan, 0, 0)
    monkeypatch.setattr(Recorded, "wait", lambda self, pending: None)
    by_hand(cta)
    with pytest.raises((AssertionError, KeyError)):
        cta.run()
