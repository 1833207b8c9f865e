"""benchmarks/precision_sweep: a thinned sweep is right throughout; it goes on where it was stopped and says what is
wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.precision_sweep import candidates, table  # noqa: E402
from benchmarks.precision_sweep.cells import KINDS, SHAPES, VARIATIONS, Cell, cells  # noqa: E402
from benchmarks.precision_sweep.judge import Bench  # noqa: E402
from benchmarks.precision_sweep.run import Results, Tally, Task, carry_out, run, tasks  # noqa: E402

from tilewright.judge.check.plan import Trial as Planned  # noqa: E402

pytestmark = pytest.mark.each(3)

# Each kind and each variation of the smallest size at least once, and some of the next.
THIN = [Cell(kind, 64, tuple(VARIATIONS)[i % 5]) for i, kind in enumerate(KINDS)]
THIN += [Cell(kind, 64, tuple(VARIATIONS)[(i + 2) % 5]) for i, kind in enumerate(KINDS)]
THIN += [Cell("compare", 4096, "squares"), Cell("round", 4096, "norm")]


@pytest.mark.parametrize("cell", THIN, ids=lambda c: c.name)
def test_no_dishonest_candidate_is_accepted_and_no_honest_one_refused(cell: Cell) -> None:
    tally = run(Task(cell, (5,), "cpu"))
    assert tally.wrong() == {}, tally.words


def test_all_is_swept() -> None:
    assert len(cells()) == len(KINDS) * len(VARIATIONS) * len(SHAPES) == 120


def test_candidates_are_what_they_are_called() -> None:
    """Honest orders are off by fp32's last bits, TF32 by its own, and a term short by a term."""
    draws = torch.Generator().manual_seed(3)
    x, weight = (torch.randn(shape, generator=draws) for shape in ((32, 64), (64, 48)))
    cell = Cell("fake quantisation", 64, "plain")
    given = candidates.Given(x, torch.ones(32, 48) > 0, weight, torch.ones(48), torch.zeros(32, 48))
    truth = x.double() @ weight.double()
    made = {n: c(_Bare(cell), given) for n, c in {**candidates.HONEST, **candidates.DISHONEST}.items()}  # type: ignore[arg-type]
    off = {n: float((y.double() - truth).norm() / truth.norm()) for n, y in made.items()}
    assert max(off[n] for n in candidates.HONEST) < 5e-7
    assert 1e-4 < off["TF32"] < 5e-4 and 1e-4 < off["fp16"] < 5e-4 and 1e-3 < off["bf16"] < 5e-3
    assert 0.05 < off["a term short"] < 0.3 and 0.05 < off["a column short"] < 0.3 and off["constant"] == 1.0


class _Bare:
    """A cell that leaves the product as it is."""

    kind, variation, size = "round", "plain", 64

    def __init__(self, _: Cell) -> None:
        return

    def made_of(self, h: torch.Tensor, *_: object) -> torch.Tensor:
        return h


def test_time_is_over_and_what_is_left_is_told() -> None:
    results = Results(None, {})
    left = tasks([THIN[0], THIN[1]], results, seeds=1, device="cpu", beside_turns=False)
    assert carry_out(left, results, jobs=1, budget_s=0.0) == 0 and results.tallies == {}
    assert carry_out(left[:1], results, jobs=2, budget_s=60.0) == 1 and len(results.tallies) == 1


def test_the_module_and_its_own_order_agree() -> None:
    for cell in THIN[:8]:
        bench = Bench(cell.problem, "cpu")
        trial = bench.trial(Planned(case=0, family="own", seed=4, redraw=0, draws=5))
        assert trial is not None and trial.verdict(bench.run(trial.inputs)).accepted


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    path, head = tmp_path / "found.json", {"commit": "a", "device": "any"}
    results = Results(path, head)
    cell = Cell("compare", 64, "plain")
    assert [len(t.seeds) for t in tasks([cell], results, seeds=45, device="cpu", beside_turns=True)] == [20, 20, 5]
    results.add(cell, Tally(seeds=[0, 2], accepted=dict.fromkeys(candidates.HONEST, 2) | {"TF32": 1}))
    again = Results(path, head)
    assert '"seeds":2,"done":"0-0,2-2"' in path.read_text()
    assert again.missing(cell, 4) == (1, 3) and Results(path, {"commit": "b"}).missing(cell, 4) == (0, 1, 2, 3)
    assert table.wrong(again.tallies) == 1 and again.tallies[cell.name].wrong() == {"TF32": 1}
    assert "TF32: accepted 1 times of 2" in table.summary(again.tallies)
