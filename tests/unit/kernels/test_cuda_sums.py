"""A thread of rows whose columns are summed, run step by step without a GPU: what it finds in its ring, under copies
that land as late as they may."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest

from fakes.control import loop, when
from fakes.realisers import gpu
from tilewright.kernels.cuda.rows import sums as module
from tilewright.kernels.cuda.rows.plan import DEFAULTS
from tilewright.kernels.cuda.rows.planning import make_plan
from tilewright.kernels.cuda.rows.sums import SumsCta

from .test_cuda_plan import summed


class Recorded(SumsCta):
    """Everything of SumsCta but what is done with vectors: where each is found is held against where it should be."""

    def __init__(self, spec, plan, part, member, chunk=0):
        self.spec, self.plan, self.space, self.tensors = spec, plan, plan.space, {}
        self.chunk, self.member, self.group, self.chunks, self.cells = chunk, member, 0, plan.chunks, 0
        each, more = divmod(plan.space.groups, plan.parts)
        self.first_row, end = (p * each + p * more // plan.parts for p in (part, part + 1))
        self.count, self.turns, self.uneven, self.present = end - self.first_row, each + (more > 0), more > 0, None
        self.group_index, self.at = self.first_row, None
        self.slots, self.copies, self.commits, self.seen = {}, [], [], Counter()
        self.resident = SimpleNamespace(request=self._copy)
        self.exchange = None
        if plan.chunks > 1:
            self.told = []
            self.exchange = SimpleNamespace(
                open=lambda thread: None, ready=lambda: None,
                combine=lambda sweep, helds, rank, thread, turn: self.told.append((turn, sweep)),
            )  # fmt: skip

    def _copy(self, at, steps, slots):
        self.copies += [(slot, (at.group, step)) for slot, step in zip(slots, steps, strict=True)]

    def commit(self):
        for slot, _ in self.copies:
            self.slots[slot] = "on its way"  # from now on, what was there is lost
        self.commits.append(self.copies)
        self.copies = []

    def wait(self, pending):
        landed = max(len(self.commits) - pending, 0)
        for group in self.commits[:landed]:
            self.slots.update(dict(group))
        self.commits = self.commits[landed:]

    def _make_block(self, index, first, masked):
        steps = [self._nearest(u) for u in range(self.plan.unroll)]
        return SimpleNamespace(steps=steps, valid=[None] * len(steps))

    def _look(self, sweep, block):
        for step, slot in zip(block.steps, block.slots, strict=True):
            if self.alive is None or self.alive:
                assert self.slots[slot] == (self.group_index, step), (sweep, self.turn)
                self.seen[sweep, self.group_index, step] += 1

    def _reduce(self, sweep):
        self._walk(sweep, lambda block: self._look(sweep, block))
        return []

    def _write_elements(self):
        last = len(self.spec.sweeps)
        self._walk(last, lambda block: self._look(last, block))

    def _addresses(self):
        return SimpleNamespace(group=self.group_index)

    def _load_lasting(self):
        return {}

    def _nothing(self, *_):
        pass

    _new_rows = _load_rows = _compute_rows = _finish = _write_rows = _write_totals = _nothing


@pytest.fixture
def by_hand(monkeypatch):
    """SumsCta's module with Python in place of the DSL; returns what binds a thread to its copies."""
    arch = SimpleNamespace(sync_threads=lambda: None)
    totals = SimpleNamespace(fill=lambda value: None)
    monkeypatch.setattr(module, "loop", loop)
    monkeypatch.setattr(module, "when", when)
    monkeypatch.setattr(module, "Int32", int)
    monkeypatch.setattr(module, "cutlass", SimpleNamespace(min=min))
    monkeypatch.setattr(module, "cute", SimpleNamespace(arch=arch, make_rmem_tensor=lambda shape, kind: totals))
    monkeypatch.setattr(module, "Addresses", lambda space, tensors, group, wide: SimpleNamespace(group=group))

    def bind(cta):
        arch.cp_async_commit_group, arch.cp_async_wait_group = cta.commit, cta.wait

    return bind


def plan_of(spec, slots=None):
    width = spec.domain[1]
    plan = make_plan(spec, [(width, 1)] * 3, [16] * 3, DEFAULTS, gpu())
    return replace(plan, slots=slots) if slots else plan


@pytest.mark.parametrize("sweeps", [0, 1, 2])
@pytest.mark.parametrize(("rows", "width", "parts", "slots"), [
    (70, 4096, 8, None), (71, 1001 * 4, 9, None), (5, 1024, 5, None),  # three rows in a ring; one row a part
    (40, 4096, 3, 4), (41, 4096, 3, 5), (42, 4096, 3, 6), (43, 4096, 2, 11),  # a row and less than three
    (24, 16384, 2, None), (25, 40000, 4, None),  # clusters
])  # fmt: skip
def test_every_vector_is_found_where_it_was_copied_to(by_hand, rows, width, parts, slots, sweeps):
    spec = summed(rows, width, parts)
    spec = replace(spec, sweeps=spec.sweeps * sweeps)
    plan = plan_of(spec, slots)
    seen: Counter[tuple[int, int]] = Counter()
    for part, chunk in product(range(parts), range(plan.chunks)):
        for member in (0, plan.group_threads - 1):
            cta = Recorded(spec, plan, part, member, chunk)
            by_hand(cta)
            cta.run()
            assert plan.chunks == 1 or cta.told == list(product(range(cta.turns), range(sweeps)))
            beyond = {step for (_, _, step), count in cta.seen.items() if count > 1}
            assert beyond <= {plan.space.steps - 1}, "which stands for all steps beyond the row"
            seen.update({(sweep, row) for sweep, row, _ in cta.seen})
            assert not cta.copies
    assert seen == Counter({(sweep, row): 2 * plan.chunks for sweep in range(sweeps + 1) for row in range(rows)})


@pytest.mark.parametrize("wait", [lambda self, pending: None, lambda self, pending: Recorded.wait(self, pending + 1)])
def test_a_copy_that_is_not_waited_for_is_missed(by_hand, monkeypatch, wait):
    """The check itself: a thread that waits for nothing, or for one copy less, does not find its vector."""
    spec = summed(40, 4096, 4)
    cta = Recorded(spec, plan_of(spec), 0, 0)
    by_hand(cta)
    monkeypatch.setattr(module.cute.arch, "cp_async_wait_group", lambda pending: wait(cta, pending))
    with pytest.raises((AssertionError, KeyError)):
        cta.run()
