"""A training step in a cell: what it gives gradients of, how it takes them, and how far they move with last bits."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tilewright.judge.candidate_process.load import CodeRaised
from tilewright.judge.candidate_process.step import TrainingStep, tensors_of
from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.reference_process import families, jitter
from tilewright.judge.reference_process.describing import describe
from tilewright.judge.reference_process.learn import learn
from tilewright.judge.reference_process.reference import Reference
from tilewright.judge.wire.messages import Gradients

ONE_INPUT = '[{"$":"tensor","v":0}]'
OF_X_AND_W = Gradients(outputs=(0,), inputs=(0,), parameters=("w",))
SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, 3)
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x, places):
        y = torch.relu(self.norm(self.linear(x)) * self.frozen)
        return {"y": y, "at": y.argmax(-1), "picked": y[places]}

def get_inputs(n=8):
    return [torch.randn(5, n), torch.tensor([1, 3])]

def get_init_inputs(n=8):
    return [n]
"""


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> Any:
        return x * self.w


def _step(module: nn.Module, gradients: Gradients = OF_X_AND_W) -> TrainingStep:
    return TrainingStep(module, module, ONE_INPUT, [torch.tensor([1.0, 10.0]), torch.tensor([5.0, 7.0])], gradients)


def _opened(source: str = SOURCE) -> Reference:
    reference = Reference("/nowhere/problem.py", source, ["{}"], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=3)
    return reference


# ---- a step


def test_a_step_gives_results_and_gradients_from_a_cleared_grad() -> None:
    step = _step(Scale())
    for _ in range(2):
        result, (of_x, of_w) = step.readied("whole")()
        assert result.tolist() == [2.0, 30.0]
        assert of_x.tolist() == [10.0, 21.0] and of_w.tolist() == [5.0, 70.0]


def test_the_backward_alone_runs_on_a_forward_that_was_made_before() -> None:
    calls: list[int] = []
    module = Scale()
    module.register_forward_hook(lambda *_: calls.append(1))
    ready = _step(module).readied("backward")
    assert calls == [1]
    _, (_, of_w) = ready()
    assert calls == [1] and of_w.tolist() == [5.0, 70.0]


def test_gradients_that_are_missing_are_zeros() -> None:
    class Forgets(Scale):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.w.detach()

    assert _step(Forgets()).readied("whole")()[1][1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("forward", "reason", "words"),
    [
        (lambda self, x: (x * self.w).detach(), "no_gradient", "output 0 has no gradient"),
        (lambda self, x: (x * self.w).sum(), "wrong_shape", r"output 0 has shape \(\), not \(2,\)"),
    ],
)
def test_results_that_no_upstream_gradient_fits(forward: Any, reason: str, words: str) -> None:
    module = type("Other", (Scale,), {"forward": forward})()
    with pytest.raises(CodeRaised, match=words) as caught:
        _step(module).readied("whole")()
    assert caught.value.reason == reason


def test_a_parameter_of_another_name_is_named() -> None:
    with pytest.raises(CodeRaised, match="no parameter 'v'") as caught:
        _step(Scale(), Gradients(outputs=(0,), inputs=(0,), parameters=("v",)))
    assert caught.value.reason == "no_gradient"


def test_a_result_with_too_few_tensors_is_left_to_the_judge() -> None:
    result, (of_x, _) = _step(Scale(), Gradients(outputs=(1,), inputs=(0,), parameters=("w",))).readied("whole")()
    assert result.tolist() == [2.0, 30.0] and of_x.tolist() == [0.0, 0.0]


def test_sparse_gradients_are_made_dense() -> None:
    module = nn.Embedding(4, 2, sparse=True)
    gradients = Gradients(outputs=(0,), inputs=(), parameters=("weight",))
    step = TrainingStep(module, module, ONE_INPUT, [torch.tensor([1, 1]), torch.ones(2, 2)], gradients)
    _, (of_weight,) = step.readied("whole")()
    assert of_weight.layout == torch.strided and of_weight[1].tolist() == [2.0, 2.0]


class _Asks(torch.autograd.Function):
    """Two outputs, and a note of what its backward is given."""

    seen: ClassVar[list[Any]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        _Asks.seen.append("forward")
        return x * 2.0, x * 3.0

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> torch.Tensor:
        _Asks.seen.append((None if first is None else first.stride(), None if second is None else second.stride()))
        return (0.0 if first is None else 2.0 * first) + (0.0 if second is None else 3.0 * second)


class _Two(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return _Asks.apply(x)


@pytest.mark.parametrize(
    ("first", "second", "given"),
    [
        (torch.arange(6.0).view(2, 3), torch.zeros(2, 3), ((1, 2), None)),
        (torch.zeros(2, 3), torch.ones(2, 3), (None, (0, 0))),
        (torch.zeros(2, 3), torch.zeros(2, 3), ((3, 1), (3, 1))),
    ],
)
def test_a_step_that_is_disturbed_has_the_same_gradients(first: torch.Tensor, second: torch.Tensor, given: Any) -> None:
    gradients = Gradients(outputs=(0, 1), inputs=(0,), parameters=())
    module, x = _Two(), torch.randn(2, 3)
    step = TrainingStep(module, module, ONE_INPUT, [x, first, second], gradients)
    step.disturb(TrainingStep(module, module, ONE_INPUT, [x + 1, first, second], gradients).forward)
    _Asks.seen.clear()
    (one, _), (gradient,) = step()
    assert torch.equal(one, 2.0 * x) and torch.equal(gradient, 2.0 * first + 3.0 * second)
    assert _Asks.seen == [*["forward"] * 5, given] * 2


def test_gradients_of_a_step_that_is_disturbed_are_added_to_what_is_there() -> None:
    module, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    gradients = Gradients(outputs=(0,), inputs=(0,), parameters=("weight",))
    upstream = torch.randn(4, 2)
    step = TrainingStep(module, module, ONE_INPUT, [x, upstream], gradients)
    _, usual = step()
    step.clear()
    step.disturb(TrainingStep(module, module, ONE_INPUT, [x + 1, upstream], gradients).forward)
    assert all(torch.equal(a, b) for a, b in zip(step()[1], usual, strict=True))

    def puts(weight: torch.Tensor) -> None:
        weight.grad = usual[1].clone()

    step.clear()
    module.weight.register_post_accumulate_grad_hook(puts)
    assert torch.equal(step()[1][1], usual[1] / 2)


def test_tensors_come_in_the_order_of_sorted_keys() -> None:
    a, b, c = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    assert [t.numel() for t in tensors_of({"z": [a, None], "b": (b, {"q": c})})] == [2, 3, 1]


# ---- what a module gives gradients of


def test_floating_inputs_and_trained_parameters_have_gradients() -> None:
    found = describe(_opened(), 1, trace=False, training=True)
    assert found.gradients == Gradients(
        outputs=(1, 2), inputs=(0,), parameters=("linear.weight", "linear.bias", "norm.weight", "norm.bias")
    )
    assert [s.shape for s in found.inputs] == [(5, 8), (2,), (2, 3), (5, 3)]  # two upstream gradients come last
    assert [found.title(i) for i in range(2, 5)] == ["output 2", "gradient of input 0", "gradient of linear.weight"]
    assert found.mutated_state == ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    assert found.work.matmul_flops == 3 * 2 * 5 * 8 * 3  # one product forward, two backward


def test_marked_inputs_alone_have_gradients() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a * b

    args = '[{"$":"tensor","v":0},{"$":"tensor","v":1}]'
    inputs = [torch.ones(2), torch.ones(2)]
    assert learn(Two(), args, inputs, ())[0].inputs == (0, 1)
    assert learn(Two(), args, inputs, (1,))[0].inputs == (1,)


def test_a_module_without_gradients_is_the_users_mistake() -> None:
    source = SOURCE.replace('return {"y"', 'y = y.detach()\n        return {"y"')
    with pytest.raises(CodeRaised, match="judge it with --mode inference"):
        describe(_opened(source), 1, trace=False, training=True)


# ---- truth and slack


def test_the_truth_of_a_step_is_in_float64() -> None:
    reference = _opened()
    found = describe(reference, 1, trace=False, training=True)
    text, inputs = reference.all_inputs(2)
    truth = reference.double.truth(text, inputs, seed=5)
    assert len(truth) == len(found.outputs) == 8
    assert {t.dtype for t in truth} == {torch.float64, torch.int64}
    own = [t.detach() for t in tensors_of(reference.subject.run(text, inputs))]
    assert all(torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5) for a, b in zip(own, truth, strict=True))


def _slack(source: str, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    reference = _opened(source)
    reference.subject.gradients, like = learn(reference.subject.built, ONE_INPUT, inputs, ())
    given = [*inputs, *families.upstream(like, "ones", 1)]
    own = [t.detach() for t in tensors_of(reference.subject.run(ONE_INPUT, given))]
    return reference.double.slack(ONE_INPUT, given, own, reference.double.truth(ONE_INPUT, given, 1), 1)


FUNCTION = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {}
def get_inputs(): ...
def get_init_inputs(): return []
"""


def test_slack_is_large_where_a_gradient_jumps_and_small_elsewhere() -> None:
    (slack,) = _slack(FUNCTION.format("torch.relu(x)"), [torch.tensor([-1.0, 1e-9, 1.0, 2.0])])
    assert slack[1] > 0.9  # nought or one
    assert slack[[0, 2, 3]].max() < 1e-5
    (slack,) = _slack(FUNCTION.format("x.amax()"), [torch.tensor([1.0, 5.0, 5.0])])
    assert slack[0] == 0 and slack[1:].min() > 0.4
    (slack,) = _slack(FUNCTION.format("x * x"), [torch.tensor([1.0, 5.0])])
    assert slack.max() < 2e-4 and slack.min() > 0


def test_jitter_is_at_least_the_last_bits_and_follows_the_references_own_error() -> None:
    truth = [torch.ones(100, dtype=torch.float64)]
    assert jitter.share([torch.ones(100)], truth) == 8 * torch.finfo(torch.float32).eps
    assert jitter.share([torch.full((100,), 1.0003)], truth) == pytest.approx(6e-4, rel=0.01)
    assert jitter.share([torch.full((100,), 1.5)], truth) == 2.0**-9
    assert jitter.share([torch.ones(100).bfloat16()], truth) == torch.finfo(torch.bfloat16).eps


def test_what_is_not_finite_does_not_move() -> None:
    source = torch.Generator().manual_seed(1)
    given = torch.tensor([0.0, 1.0, float("-inf"), float("nan")], dtype=torch.float64)
    moved = jitter.moved(given, jitter.Jitter(amount=1e-3), source)
    assert moved[2] == given[2] and bool(moved[3].isnan())
    assert 0 < abs(moved[0]) < 1e-4 and 0 < abs(moved[1] - 1) < 1e-2
    places = torch.tensor([3, 4])
    assert jitter.moved(places, jitter.Jitter(amount=1e-3), source) is places


# ---- upstream gradients


def test_upstream_gradients_of_each_kind() -> None:
    like = [torch.empty(300, 10), torch.empty((), dtype=torch.float64), torch.empty(4, dtype=torch.complex64)]
    ones, scalar, _ = families.upstream(like, "ones", 1)
    assert bool((ones == 1).all()) and scalar.item() == 1
    sparse, alone, _ = families.upstream(like, "sparse", 1)
    assert 0 < int((sparse != 0).sum()) < 100 and alone.item() != 0
    normal, other, complexes = families.upstream(like, "normal", 1)
    assert abs(float(normal.std()) - 1) < 0.1 and other.dtype == torch.float64 and complexes.dtype == torch.complex64
    assert not torch.equal(normal, families.upstream(like, "normal", 2)[0])
    assert families.upstream([torch.empty(0)], "sparse", 1)[0].shape == (0,)
