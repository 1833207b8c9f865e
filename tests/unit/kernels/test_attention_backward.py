"""The skeletons of attention's gradients without a GPU: their barriers, what each CTA visits and writes, and the sums
that come of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.kernels.cuda.attention.shape import BatchStep, Diagonals, Layers
from tilewright.kernels.cuda.attention_backward import kernel as kernel_module
from tilewright.kernels.cuda.attention_backward.kernel import GradientKernel, _Place
from tilewright.kernels.cuda.attention_backward.roles import (
    OWN,
    GradientPoint,
    Role,
    VisitProtocol,
    make_point,
    roles_of,
)
from tilewright.kernels.cuda.attention_backward.shape import GradientShape

# ---- barriers


class Barrier:
    """An mbarrier: waiting for a parity passes while the phase in progress has the other one."""

    def __init__(self, count: int) -> None:
        self.count, self.missing, self.phase = count, count, 0

    def arrive(self) -> None:
        assert self.missing > 0
        self.missing -= 1
        if self.missing == 0:
            self.phase, self.missing = self.phase + 1, self.count

    def passes(self, parity: int) -> bool:
        return self.phase % 2 != parity


class Agent:
    """What a warp that loads, or a warpgroup, does in order."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []

    def wait(self, barrier: int, parity: int) -> None:
        self.steps.append(("wait", barrier, parity))

    def own(self, barrier: int) -> None:
        self.steps.append(("load", "own", 0, barrier))

    def visit(self, turn: int, stage: int, barrier: int) -> None:
        self.steps.append(("load", stage, turn, barrier))

    def free(self, barrier: int) -> None:
        self.steps.append(("arrive", barrier))

    def begin(self, stage: int) -> None:
        self.steps.append(("read", stage, "scores"))

    def settle(self) -> None:
        self.steps.append(("settle",))

    def map(self, turn: int) -> None:
        self.steps.append(("map", turn))

    def begin_results(self, stage: int) -> None:
        self.steps.append(("read", stage, "results"))


def plainly(first: int, last: int, body: Any) -> None:
    for i in range(first, last):
        body(i)


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_nobody_waits_for_ever_and_every_product_finds_its_tiles(stages: int, groups: int, holds: bool) -> None:
    protocol = VisitProtocol(stages=stages, holds=holds)
    for turns, seed in itertools.product((0, 1, 2, 7), range(4)):
        random = np.random.default_rng(seed)
        barriers = [Barrier(n) for n in protocol.arrivals(groups)]
        agents = [Agent() for _ in range(groups + 1)]
        protocol.load(agents[0], turns, plainly)
        for agent in agents[1:]:
            protocol.multiply(agent, turns, plainly)
        held: dict[Any, Any] = {}
        coming: list[tuple[Any, int, int]] = []
        reading: list[list[tuple[Any, Any]]] = [[] for _ in agents]
        mapped = [0] * len(agents)
        while coming or any(agent.steps for agent in agents):
            able = [
                i for i, a in enumerate(agents)
                if a.steps and (a.steps[0][0] != "wait" or barriers[a.steps[0][1]].passes(a.steps[0][2]))
            ]  # fmt: skip
            if coming and (not able or random.random() < 0.3):
                place, what, barrier = coming.pop(random.integers(len(coming)))
                held[place] = what
                barriers[barrier].arrive()
                continue
            assert able, "nobody can go on"
            i = int(random.choice(able))
            step = agents[i].steps.pop(0)
            if step[0] == "load":
                assert all(place != step[1] for work in reading for place, _ in work), "written while it is read"
                held[step[1]] = None
                coming.append(step[1:])
            elif step[0] == "arrive":
                assert not reading[i], "freed before it was read"
                barriers[step[1]].arrive()
            elif step[0] == "read":
                assert held[step[1]] == mapped[i] - (step[2] == "results")
                assert not holds or held["own"] == 0
                reading[i].append((step[1], held[step[1]]))
            elif step[0] == "settle":
                assert all(held[place] == what for place, what in reading[i]), "changed while it was read"
                reading[i].clear()
            elif step[0] == "map":
                assert step[1] == mapped[i] and not reading[i]
                mapped[i] += 1
        assert mapped[1:] == [turns] * groups and OWN == 0


# ---- what is visited, and what comes of it


@pytest.fixture
def on_numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel's arithmetic of places on Python's integers."""
    arithmetic = SimpleNamespace(
        smaller=min, larger=max, both=lambda a, b: a and b, select=lambda c, yes, no: yes if c else no
    )
    monkeypatch.setattr(kernel_module, "Int32", int)
    monkeypatch.setattr(kernel_module, "m", arithmetic)
    yield


def shape_of(
    domain: tuple[int, ...], depth: int = 16, columns: int = 16, *, shared: tuple[int, ...] = (),
    visible: Diagonals = (None, None),
) -> GradientShape:  # fmt: skip
    batch = range(len(domain) - 2)
    whole = Layers(batch=tuple(BatchStep(dim=d, each=1, size=domain[d]) for d in batch), at=len(batch))
    own = tuple(BatchStep(dim=d, each=1, size=domain[d]) for d in batch if d not in shared)
    part = Layers(batch=own, at=len(own))
    return GradientShape(domain=domain, depth=depth, columns=columns, query=whole, key=part, value=part, upstream=whole,
                         shared=shared, visible=visible)  # fmt: skip


def kernel_of(shape: GradientShape, point: GradientPoint, role: Role) -> GradientKernel:
    return GradientKernel(shape, point, role, None, dtypes=("bf16", "bf16"), strides=[()] * 4)  # type: ignore[arg-type]


CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], Diagonals], ...] = (
    ((2, 3, 70, 101), (), (None, None)), ((2, 3, 130, 65), (1,), (None, None)), ((3, 100, 100), (), (None, 0)),
    ((2, 2, 90, 140), (0,), (-20, 5)), ((1, 200, 64), (), (None, -70)), ((64, 64), (), (3, None)),
)  # fmt: skip


@pytest.mark.usefixtures("on_numbers")
@pytest.mark.parametrize(("domain", "shared", "visible"), CASES)
@pytest.mark.parametrize("groups", [1, 2])
def test_every_result_is_one_ctas_and_sums_all_that_is_visible(
    domain: tuple[int, ...], shared: tuple[int, ...], visible: Diagonals, groups: int
) -> None:
    shape = shape_of(domain, shared=shared, visible=visible)
    further = ((), tuple(range(len(domain) - 2))[:1])
    point = make_point(shape, {"groups": groups, "tile_n": 32, "stages": 2}, further)
    random = np.random.default_rng(1)
    apart = np.arange(domain[-1])[None, :] - np.arange(domain[-2])[:, None]
    low, high = (-math.inf if visible[0] is None else visible[0]), (math.inf if visible[1] is None else visible[1])
    scored = random.standard_normal(domain) * ((apart >= low) & (apart <= high))
    factors = {False: random.standard_normal(domain[-1]), True: random.standard_normal(domain[-2])}
    for role in roles_of(shape, point, further):
        kernel = kernel_of(shape, point, role)
        own = np.swapaxes(scored, -1, -2) if role.by_keys else scored
        kept = tuple(domain[d] for d in kernel.kept)
        made = np.full((*kept, own.shape[-2], *(() if kernel.holds else own.shape[-1:])), np.nan)
        for number in range(kernel.work):
            place = _Place(kernel, number)
            rows = slice(place.tile * point.tile_m, (place.tile + 1) * point.tile_m)
            layer = tuple(place.indices[d] for d in kernel.kept)
            columns = slice(None) if kernel.holds else slice(place.column_tile * 32, place.column_tile * 32 + 32)
            target = made[(*layer, rows)] if kernel.holds else made[(*layer, rows, columns)]
            assert np.isnan(target).all(), "written twice"
            total = np.zeros(target.shape)
            for turn in range(place.turns):
                tile, indices = place.visit(turn)
                found = own[(*(indices[d] for d in range(len(domain) - 2)), rows, slice(tile * 32, tile * 32 + 32))]
                total += found @ factors[role.by_keys][tile * 32 : tile * 32 + 32] if kernel.holds else found
            target[...] = total
        want = own.sum(role.summed)
        np.testing.assert_allclose(made, want @ factors[role.by_keys] if kernel.holds else want, atol=1e-9)


def test_wide_heads_have_keys_and_values_apart() -> None:
    knobs = {"groups": 2, "tile_n": 32, "stages": 1}
    narrow, wide = shape_of((2, 128, 128), 64, 64), shape_of((2, 128, 128), 256, 256)
    assert [r.name for r in roles_of(narrow, make_point(narrow, knobs, ()), ())] == ["queries", "keys"]
    assert [r.name for r in roles_of(wide, make_point(wide, knobs, ()), ())] == ["queries", "keys", "values"]


@pytest.mark.parametrize(
    ("knobs", "depth"),
    [
        ({"tile_n": 40}, 64),
        ({"groups": 3, "tile_n": 128}, 128),
        ({"stages": 3, "tile_n": 128}, 256),
        ({"speed": 1}, 64),
    ],
)
def test_settings_that_do_not_fit_are_refused(knobs: dict[str, Any], depth: int) -> None:
    with pytest.raises(ValueError, match=r"knob|fit"):
        make_point(shape_of((2, 128, 128), depth, depth), {"groups": 2, "tile_n": 64, "stages": 2} | knobs, ())
