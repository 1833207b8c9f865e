"""Audits of small problems: those on which a score means nothing are found out, and sound ones are left in peace."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from fakes.cell import InProcessCell
from tilewright.facts.audit import Figures, Finding
from tilewright.facts.machine import Machine
from tilewright.facts.problem import Problem
from tilewright.judge.audit import findings
from tilewright.judge.audits import figures_of
from tilewright.judge.check import metric
from tilewright.judge.check.check import Check, Findings
from tilewright.judge.check.plan import Trial
from tilewright.judge.client import CellLimits
from tilewright.judge.memory.case_memory import CaseMemory
from tilewright.judge.memory.places import CaseMemorySizes
from tilewright.judge.wire import messages as wire

pytestmark = pytest.mark.slow

MACHINE = Machine(
    target="cpu", device="test", driver="", torch="", dsl="", processors=1, cache_bytes=1 << 20,
    copy_bytes_per_s=1e8, matmul_flops_per_s=(("f32", 1e8),),
)  # fmt: skip

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {args}):
        return {result}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors on a busy machine: waiting for a second thread takes longer than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def opened(
    result: str, *, init: str = "pass", args: str = "x", inputs: str = "torch.rand(16, 12)"
) -> tuple[Problem, InProcessCell]:
    """A problem whose module returns `result`, and a cell that has loaded it."""
    source = HEAD.format(init=init, args=args, result=result, inputs=inputs)
    problem = Problem(name="small", path="/nowhere/small.py", source=source, target="cpu")
    cell = InProcessCell()
    cell.do(wire.LoadProblem(path=problem.path, source=source, cases=problem.cases, compiled=False))
    return problem, cell


def audited(result: str, **parts: str) -> tuple[Figures, dict[str, Finding]]:
    """Figures and findings by reason, of a module that returns `result`; the parts are those of `opened`."""
    problem, cell = opened(result, **parts)
    figures = figures_of(problem, machine=MACHINE, reference=cell, rng=random.Random(3))
    return figures, {f"{f.severity} {f.reason}": f for f in findings(figures, "cpu")}


def grave(found: dict[str, Finding]) -> dict[str, tuple[str, ...]]:
    """What is void or weak, with the names that it holds; the time of a busy test machine says nothing."""
    return {
        reason: f.names for reason, f in found.items() if f.severity != "note" and f.reason != "absurd_baseline"
    }  # fmt: skip


# ---- tasks on which a score means nothing


def test_a_row_maximum_less_its_own_mean_is_zero() -> None:
    """The mean is taken over the one element that the maximum left."""
    code = "F.silu((m := self.lin(x).amax(1, keepdim=True)) - m.mean(1, keepdim=True))"
    _, found = audited(code, init="self.lin = nn.Linear(12, 9)")
    assert found["void constant"].summary.startswith("zeros are accepted")
    assert not found["void constant"].mended
    assert found["void main_work_cancels"].names == ("linear (0)",)
    assert "void ignores_inputs" in found
    assert found["weak ignores_state"].names == ("lin.weight", "lin.bias")


def test_the_mean_of_a_normalised_tensor_is_noise() -> None:
    code = "self.norm(self.lin(x).unflatten(1, (8, 4))).mean((1, 2))"
    init = "self.lin = nn.Linear(12, 32); self.norm = nn.GroupNorm(2, 8)"
    figures, found = audited(code, init=init)
    assert found["void noise"].figure > 1.0 and figures.exact
    assert found["void constant"].mended, "other weights of the norm do away with it"
    assert "linear (0)" in found["weak main_work_cancels"].names


def test_without_the_mean_the_same_is_sound() -> None:
    code = "self.norm(self.lin(x).unflatten(1, (8, 4)))"
    init = "self.lin = nn.Linear(12, 32); self.norm = nn.GroupNorm(2, 8)"
    assert grave(audited(code, init=init)[1]) == {}


def test_clamping_to_nothing() -> None:
    _, found = audited("self.lin(x).clamp(max=0.0).clamp(min=0.0)", init="self.lin = nn.Linear(12, 9)")
    assert {"void constant", "void ignores_inputs", "void main_work_cancels"} <= set(found)


def test_a_softmax_over_one_element_is_one() -> None:
    _, found = audited("torch.softmax(self.lin(x), 1)", init="self.lin = nn.Linear(12, 1)")
    assert found["void constant"].summary.startswith("one constant is accepted")


def test_relu_of_positive_inputs_copies_them() -> None:
    _, found = audited("torch.relu(x)")
    assert found["void copies_input"].names == ("input 0",) and found["void copies_input"].mended
    assert grave(audited("torch.relu(x)", inputs="torch.randn(16, 12)")[1]) == {}


def test_a_saturated_sigmoid() -> None:
    _, found = audited("torch.sigmoid(self.lin(x) + 40)", init="self.lin = nn.Linear(12, 9)")
    assert "void constant" in found


def test_one_of_two_outputs_is_constant() -> None:
    _, found = audited("(self.lin(x), torch.relu(-x))", init="self.lin = nn.Linear(12, 9)")
    assert found["weak constant"].names == ("output 1",)
    assert "void constant" not in found


# ---- tasks of which a part can be left out


def test_a_bias_before_batch_norm_and_a_parameter_that_nothing_reads() -> None:
    init = "self.lin = nn.Linear(12, 9); self.bn = nn.BatchNorm1d(9); self.spare = nn.Parameter(torch.randn(9))"
    _, found = audited("self.bn(self.lin(x))", init=init)
    assert found["weak ignores_state"].names == ("spare", "lin.bias")


def test_reductions_over_one_element_are_idle() -> None:
    _, found = audited("x.sum(1, keepdim=True).amax(1, keepdim=True).logsumexp(1, keepdim=True)")
    assert grave(found) == {"weak idle_operation": ("amax (1)", "logsumexp (2)")}


def test_an_input_that_is_not_read() -> None:
    inputs = "torch.rand(16, 12), torch.rand(16, 12), torch.randint(0, 9, (16,))"
    _, found = audited("x * 2 + 0 * y", args="x, y, index", inputs=inputs)
    assert found["weak ignores_input"].names == ("input 1", "input 2")


def test_a_result_that_saturates_and_one_inside_a_tolerance() -> None:
    _, found = audited("torch.cumprod(x, 0)", inputs="torch.rand(20000, 2)")
    assert found["weak saturated"].figure > 0.98
    _, found = audited("torch.softmax(x, 1)", inputs="torch.rand(4, 30000)")
    assert found["weak inside_tolerance"].names == ("zeros", "constant", "previous")
    assert found["weak inside_tolerance"].threshold == 1e-4


def test_a_random_module() -> None:
    assert "weak random" in audited("F.dropout(x, 0.5, self.training)")[1]


# ---- sound tasks, which look like weak ones


def test_identity_weights_zero_biases_masks_and_indices_are_no_fault() -> None:
    init = (
        "self.table = nn.Embedding(30, 12); self.scale = nn.Parameter(torch.ones(12)); "
        "self.bias = nn.Parameter(torch.zeros(12)); self.drop = nn.Dropout(0.3); self.eval(); "
        "self.register_buffer('steps', torch.tensor(0)); self.register_buffer('order', torch.arange(12))"
    )
    inputs = "torch.randn(16, 12), torch.rand(16, 12) > 0.5, torch.randint(0, 30, (16,))"
    code = "self.drop((x + self.table(index)).masked_fill(mask, 0.1) * self.scale + self.bias)[:, self.order]"
    _, found = audited(code, init=init, args="x, mask, index", inputs=inputs)
    assert grave(found) == {}
    assert found["note idle_operation"].mended


def test_losses_batch_norm_and_exact_results_are_no_fault() -> None:
    two = {"args": "x, y", "inputs": "9 * torch.rand(()) * torch.randn(16, 12), torch.randn(16, 12)"}
    assert grave(audited("((x - y) ** 2).mean()", **two)[1]) == {}
    assert grave(audited("F.smooth_l1_loss(x, y)", **two)[1]) == {}
    assert grave(audited("x @ y.T", **two)[1]) == {}
    assert grave(audited("self.bn(x)", init="self.bn = nn.BatchNorm1d(12)")[1]) == {}
    assert grave(audited("(x.argmax(1), x > 0.5)")[1]) == {}


def test_in_place_operations_are_ablated_too() -> None:
    assert grave(audited("self.lin(x).mul_(3).relu_().add_(1)", init="self.lin = nn.Linear(12, 9)")[1]) == {}
    _, found = audited("self.lin(x).relu_().relu_()", init="self.lin = nn.Linear(12, 9)")
    assert grave(found) == {"weak idle_operation": ("relu_ (1)", "relu_ (2)")}, "either will do"


# ---- streams, shapes, time


def test_one_stream_for_inputs_and_weights() -> None:
    figures, found = audited("self.lin(x)", init="self.lin = nn.Linear(12, 9)")
    assert figures.stream > 0.99 and "note shared_stream" in found
    other = "torch.rand(16, 12, generator=torch.Generator().manual_seed(torch.initial_seed() + 1))"
    figures, found = audited("self.lin(x)", init="self.lin = nn.Linear(12, 9)", inputs=other)
    assert figures.stream < 0.4 and "note shared_stream" not in found


def test_one_distribution() -> None:
    assert "note one_distribution" in audited("x.exp()", inputs="torch.rand(160, 120)")[1]
    assert "note one_distribution" not in audited("x.exp()", inputs="torch.rand(160, 120) * torch.rand(())")[1]


def test_what_there_was_no_time_for_is_counted() -> None:
    problem, cell = opened("torch.relu(x)", inputs="torch.rand(4, 4)")
    figures = figures_of(problem, machine=MACHINE, reference=cell, rng=random.Random(3), budget_s=0.0)
    assert figures.degenerate_solutions == () and figures.unmeasured == 8


@pytest.mark.parametrize("seed", [1, 2])
def test_the_state_is_as_before_after_each_trial(seed: int) -> None:
    """Else what one trial moved would show in the next."""
    first, _ = audited("self.bn(self.lin(x))", init="self.lin = nn.Linear(12, 9); self.bn = nn.BatchNorm1d(9)")
    bias = next(s for s in first.degenerate_solutions if s.kind == "state" and s.name == "lin.bias")
    assert bias.share <= 1.0, "the weight's perturbation, tried before, is undone"


def test_a_long_sum_is_allowed_what_the_judge_allows_it() -> None:
    """The spare parameter moves a sum of 50 000 terms by some 1e-5: beyond the floor of a short sum, within that of a
    long one. The judge's own comparison takes it, by the budget of each element, since it is far from the reference."""
    init = "self.spare = nn.Parameter(torch.ones(1))"
    problem, cell = opened("x.sum(1) * (1 + 2e-4 * self.spare)", init=init, inputs="torch.rand(4, 50000)")
    figures = figures_of(problem, machine=MACHINE, reference=cell, rng=random.Random(3))
    degenerate_solution = next(s for s in figures.degenerate_solutions if s.name == "spare")
    assert 2e-6 < degenerate_solution.norm < 4e-5 and degenerate_solution.passes

    described = cell.ask(wire.Describe(seed=1, trace=False), wire.Described, limit_s=60.0)
    sizes = CaseMemorySizes(pool=1, slots=0, results=1)
    with CaseMemory(described, device="cpu", reference=cell, limits=CellLimits(), sizes=sizes) as memory:
        check = Check(memory, cell, case=0, precision="reference", findings=Findings())
        memory.sets.draw(0, family="own", seed=2)
        memory.truths.run(0, seed=3)
        memory.results(0)[0].copy_(memory.truths.own()[0] * (1 + degenerate_solution.norm))
        trial = Trial(case=0, family="own", seed=2, redraw=0, draws=3)
        check.usable(trial, True)
        check.compare(trial, 0)
    judged = check.findings.errors[-1]
    assert judged.share <= 1.0 and judged.norm == pytest.approx(degenerate_solution.norm, rel=0.02)
    allowed, _ = metric.allowance(torch.float32, check.findings.own[0, "own", 0], length=described.longest_sum)
    assert degenerate_solution.share == pytest.approx(degenerate_solution.norm / allowed, rel=0.02)
