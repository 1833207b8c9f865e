"""A case as one CUDA graph: after calls that run as they are it is replayed, on others' arguments and the module's own
buffers, for as long as these stay where they are; results are their caller's own. The graphs are fakes on a CPU."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fakes.composed import case, composed, load, matched, same
from fakes.cuda_graphs import FakeGraph, cuda_graphs
from tilewright.facts.pattern import CUDA_GRAPH, INDUCTOR, Choice
from tilewright.facts.space import point
from tilewright.kernels import graphed as graphed_module
from tilewright.kernels.graphed import Graphed

__all__ = ["cuda_graphs", "load"]
pytestmark = pytest.mark.filterwarnings("ignore")


class Counts(nn.Module):
    """Batch norm's way: a buffer is written in place at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("calls", torch.zeros(4))
        self.runs = 0
        self._tilewright_guard = SimpleNamespace(seen=object())

    def forward(self, x: Tensor, *more: Any, **named: Any) -> Any:
        self.runs += 1
        return self.body(x, *more, **named)

    def body(self, x: Tensor, scale: float = 1.0) -> Any:
        made = (x * self.weight).sum(0) * scale
        self.calls.add_(made)
        return made


def graphed(counts: dict[str, int]) -> Graphed:
    def refused(why: str) -> None:
        counts[why] = counts.get(why, 0) + 1

    return Graphed(Counts.forward, ("weight", "calls"), refused=refused)


def test_after_two_calls_it_is_recorded_and_replayed_with_the_modules_own_buffers(cuda_graphs: list[FakeGraph]) -> None:
    counts: dict[str, int] = {}
    run, mine = graphed(counts), Counts()
    theirs = copy.deepcopy(mine)
    held = []
    for number in range(6):
        x = torch.randn(3, 4)
        held.append((run(mine, x), theirs.body(x)))
        torch.testing.assert_close(mine.calls, theirs.calls), number
    for made, wanted in held:  # what is held is not written over
        torch.testing.assert_close(made, wanted)
    assert ([g.replays for g in cuda_graphs], mine.runs, counts) == ([1, 1, 2], 5, {})
    del held, made
    mine.weight.add_(1)  # in place: where it lies it is read
    theirs.weight.add_(1)
    torch.testing.assert_close(run(mine, x), theirs.body(x))
    assert mine.runs == 5


def test_results_are_handed_out_where_they_lie_until_somebody_holds_a_part_of_them(
    cuda_graphs: list[FakeGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, mine, x = graphed({}), Counts(), torch.randn(3, 4)
    made, places = None, []
    for _ in range(12):  # as in a loop: the last result is held while the next is made
        made = run(mine, x)
        places.append(made.data_ptr())
    assert len(set(places[2:])) == 2 and len(cuda_graphs) == 2
    part = made[1:]
    del made
    before = part.clone()
    others = {run(mine, torch.randn(3, 4)).data_ptr() for _ in range(4)}
    assert part.data_ptr() - 4 not in others and len(others) == 1
    torch.testing.assert_close(part, before)
    monkeypatch.setattr(graphed_module, "_holders", None)  # where torch does not tell, results are copied
    run = graphed({})
    held = [run(mine, x) for _ in range(5)]
    assert len(cuda_graphs) == 3 and len({t.data_ptr() for t in held}) == 5


def test_what_cannot_be_recorded_a_second_time_runs_as_it_is(cuda_graphs: list[FakeGraph]) -> None:
    counts: dict[str, int] = {}
    run, mine = graphed(counts), Counts()
    held = [run(mine, torch.randn(3, 4)) for _ in range(3)]
    FakeGraph.fails = "out of memory"
    x = torch.randn(3, 4)
    theirs = copy.deepcopy(mine)
    torch.testing.assert_close(run(mine, x), theirs.body(x))
    assert counts == {"it can't be recorded as a CUDA graph: out of memory": 1}
    del held
    torch.testing.assert_close(run(mine, x), theirs.body(x))
    assert cuda_graphs[0].replays == 2


def test_other_modules_strides_and_numbers_have_graphs_of_their_own(cuda_graphs: list[FakeGraph]) -> None:
    counts: dict[str, int] = {}
    run, one, other = graphed(counts), Counts(), Counts()
    x, turned = torch.randn(3, 4), torch.randn(4, 3).t()
    for module, args in ((one, (x,)), (other, (x,)), (one, (turned,)), (one, (x, 2.0))):
        for _ in range(4):
            torch.testing.assert_close(run(module, *args), copy.deepcopy(module).body(*args))
    assert [g.replays for g in cuda_graphs] == [2, 2, 2, 2]
    run(one, torch.randn(5, 4)), run(one, torch.randn(6, 4))
    assert counts == {"arguments lie in more ways in memory than there are CUDA graphs": 1}
    del module, one, other
    assert len(run._modules) == 0, "a graph goes with its module"


@pytest.mark.parametrize("how", ["data", "replaced", "guard", "settings"])
def test_what_moves_is_recorded_anew(how: str, cuda_graphs: list[FakeGraph], monkeypatch: pytest.MonkeyPatch) -> None:
    run, mine, x = graphed({}), Counts(), torch.randn(3, 4)
    for _ in range(4):
        run(mine, x)
    if how == "data":
        mine.weight.data = torch.randn(4)
    elif how == "replaced":
        mine.weight = nn.Parameter(torch.randn(4), requires_grad=False)
    elif how == "guard":
        mine._tilewright_guard = SimpleNamespace(seen=object())
    else:
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    for _ in range(4):
        torch.testing.assert_close(run(mine, x), copy.deepcopy(mine).body(x))
    assert [g.replays for g in cuda_graphs] == [2, 2] and mine.runs == 6


def test_parameters_that_move_again_and_again_run_without(cuda_graphs: list[FakeGraph]) -> None:
    counts: dict[str, int] = {}
    run, mine, x = graphed(counts), Counts(), torch.randn(3, 4)
    for _ in range(9):
        mine.weight.data = torch.randn(4)
        for _ in range(3):
            run(mine, x)
    assert len(cuda_graphs) == 8 and counts == {"parameters were moved too often for a CUDA graph": 3}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (lambda self, x: x[0], "a result shares memory with an argument, a parameter or another result"),
        (lambda self, x: self.weight[:2], "a result shares memory with an argument, a parameter or another result"),
        (lambda self, x: (y := x + 1, y[0]), "a result shares memory with an argument, a parameter or another result"),
    ],
)
def test_results_that_share_memory_are_not_replayed(body: Any, why: str, cuda_graphs: list[FakeGraph]) -> None:
    counts: dict[str, int] = {}
    mine, x = Counts(), torch.randn(3, 4)
    mine.body = lambda x: body(mine, x)  # type: ignore[method-assign]
    run = graphed(counts)
    results = [run(mine, x) for _ in range(5)]
    same(results[-1], body(mine, x))
    assert counts == {f"it can't be recorded as a CUDA graph: {why}": 3} and len(cuda_graphs) == 1


def test_what_the_driver_refuses_is_counted_and_not_tried_again(cuda_graphs: list[FakeGraph]) -> None:
    counts: dict[str, int] = {}
    FakeGraph.fails = "operation not permitted\nwhen stream is capturing"
    run, mine, x = graphed(counts), Counts(), torch.randn(3, 4)
    for _ in range(4):
        run(mine, x)
    (why,) = counts
    assert why.endswith("operation not permitted when stream is capturing") and len(cuda_graphs) == 1


def test_while_somebody_records_it_runs_as_it_is(cuda_graphs: list[FakeGraph], monkeypatch: pytest.MonkeyPatch) -> None:
    run, mine, x = graphed({}), Counts(), torch.randn(3, 4)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(5):
        run(mine, x)
    assert mine.runs == 5 and cuda_graphs == []


def test_graphs_of_inference_mode_serve_outside_of_it_and_the_other_way_round(cuda_graphs: list[FakeGraph]) -> None:
    run, mine, x = graphed({}), Counts(), torch.randn(3, 4)
    for _ in range(2):
        with torch.inference_mode():
            for _ in range(3):
                made = run(mine, x)
        made = run(mine, x)
        assert not made.is_inference() and not made.isnan().any()
    assert len(cuda_graphs) == 2


SOURCE = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, width=17):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x, y):
        b = self.norm(self.net(x))
        return {"d": F.softmax(b + y, -1), "sums": [b.sum(0), (b * y).sum(1)]}
"""


def test_a_composed_module_is_guarded_and_replayed_with_batch_norms_buffers(
    load: Any, cuda_graphs: list[FakeGraph]
) -> None:
    x, y = torch.randn(33, 17), torch.randn(33, 17)
    cases = [case(SOURCE, (x, y))]
    by = Choice(pattern=INDUCTOR, point=point(mode=CUDA_GRAPH))
    made = composed(SOURCE, cases, (by,), matched(cases))
    text = next(f.text for f in made.files if f.path == "model.py")
    assert "all of it as one CUDA graph" in text
    files = [
        type(f)(path=f.path, text=f.text.replace('device="cpu", counts', 'device="cuda", counts')) for f in made.files
    ]  # fmt: skip
    model = load(type(made)(files=tuple(files)))
    torch.manual_seed(1)
    ours = model.ModelNew()
    torch.manual_seed(1)
    theirs = model.Model()
    with torch.no_grad():
        for _ in range(5):
            x, y = torch.randn(33, 17), torch.randn(33, 17)
            same(ours(x, y), theirs(x, y))
        same(ours.state_dict(), theirs.state_dict())
        assert [g.replays for g in cuda_graphs] == [3] and model.FALLBACKS == {}
        ours.net[0] = copy.deepcopy(ours.net[0])  # another layer of the same kind: its own weights
        theirs.net[0] = copy.deepcopy(theirs.net[0])
        for module in (ours, theirs):
            module.net[0].weight.data.mul_(2)
        for _ in range(4):
            same(ours(x, y), theirs(x, y))
        assert model.FALLBACKS == {}
        same(ours(x[:5], y[:5]), theirs(x[:5], y[:5]))
    assert list(model.FALLBACKS) == ["no case has this signature"]
    given = x.clone().requires_grad_()
    ours(given, y)["d"].sum().backward()
    assert given.grad is not None and "a gradient is wanted" in model.FALLBACKS
    with pytest.raises(ValueError, match="wants guarded cases"):
        load(composed(SOURCE, cases, (by,), matched(cases)))


@pytest.mark.parametrize("kind", [tuple, list])
def test_several_results_are_each_their_callers_own(kind: Any, cuda_graphs: list[FakeGraph]) -> None:
    mine = Counts()
    mine.body = lambda x: kind((x + 1, x * mine.weight))  # type: ignore[method-assign]
    run, given = graphed({}), [torch.randn(3, 4) for _ in range(5)]
    results = [run(mine, x) for x in given]
    for x, made in zip(given, results, strict=True):
        assert type(made) is kind
        same(made, kind((x + 1, x * mine.weight)))
    assert [g.replays for g in cuda_graphs] == [1, 1, 1]


def test_addresses_are_compared_in_one_call_where_torch_has_it(
    cuda_graphs: list[FakeGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def equal(tensors: list[Tensor], places: list[int], every: list[int]) -> bool:
        asked.append(len(every))
        return all(tensors[i].data_ptr() == places[i] for i in every)

    monkeypatch.setattr(graphed_module, "_at_once", equal)
    run, mine, x = graphed({}), Counts(), torch.randn(3, 4)
    for _ in range(4):
        run(mine, x)
    mine.weight.data = torch.randn(4)
    for _ in range(4):
        torch.testing.assert_close(run(mine, x), copy.deepcopy(mine).body(x))
    assert [g.replays for g in cuda_graphs] == [2, 2] and asked == [2] * 7
