"""The judge in training: which gradients it asks for, what it says of those that are wrong, what it measures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.edges.gpu.machine import threads
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.machine import Machine
from tilewright.facts.outcome import Failure, Timed
from tilewright.facts.problem import Problem
from tilewright.judge.client import CellLimits
from tilewright.judge.evaluate import Judge, JudgeOptions
from tilewright.judge.timing.measure import Effort

pytestmark = pytest.mark.slow

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x, scale):
        y = self.norm(torch.relu(self.linear(x))) * scale
        return {"y": y, "mean": y.square().mean()}

def get_inputs(rows):
    return [torch.randn(rows, 48), torch.rand(32)]

def get_init_inputs(rows):
    return [48]
"""
EFFORT = Effort(tight=0.2, budget_s=0.3, min_rounds=3, max_rounds=6, verified=1, most_calls=10)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    folder = tmp_path_factory.mktemp("training")
    machine = Machine(
        target="cpu", device="any", driver="", torch="", dsl="", processors=threads(),
        cache_bytes=4096, copy_bytes_per_s=1e13, matmul_flops_per_s=(("f32", 1e16),),
    )  # fmt: skip
    problem = Problem(
        name="p", path=str(folder / "p.py"), source=SOURCE, target="cpu", mode="training",
        cases=('{"rows": 400}', '{"rows": 7}'),
    )  # fmt: skip
    with Judge(
        problem, machine=machine, seed=1, workdir=folder, say=print,
        options=JudgeOptions(
            effort=EFFORT, limits=CellLimits(build_s=300.0, call_s=120.0, memory_bytes=3 << 30),
            compile_baseline=False,
        ),
    ) as opened:  # fmt: skip
        facts = opened.open()
        assert [len(f.outputs) for f in facts] == [2 + 2 + 4] * 2
        assert facts[0].graph is not None and set(facts[0].graph.wanted) >= {"x", "scale"}, facts[0].trace_failure
        yield opened


def _judged(judge: Judge, old: str = "", new: str = "") -> Timed | Failure:
    text = SOURCE.replace("class Model(", "class ModelNew(")
    assert old in text
    return judge.evaluate(Candidate(files=(SourceFile(path="model.py", text=text.replace(old, new)),)))


@pytest.mark.measured
def test_an_honest_candidate_is_timed_as_a_whole_and_by_halves(judge: Judge) -> None:
    outcome = _judged(judge, "torch.relu(self.linear(x))", "self.linear(x).clamp(min=0)")
    assert isinstance(outcome, Timed), outcome
    assert {e.output for e in outcome.checked.errors} == set(range(8))
    assert [p.name for p in outcome.phases] == ["forward", "backward"]
    for phase in outcome.phases:
        assert {n for n, _ in phase.times_ns} == {"ours", "eager"} and [n for n, _ in phase.ratios] == ["eager"]
        assert {s.name: len(s.bursts_ns) for s in phase.samples} == dict.fromkeys(("ours", "eager"), EFFORT.min_rounds)
    whole = outcome.time("eager")
    halves = [dict(p.times_ns)["eager"].low for p in outcome.phases]
    assert whole is not None and max(halves) < whole.high
    assert {n for n, _ in outcome.peak_bytes} == {"ours", "eager"}
    assert all(0 < size < 1 << 28 for _, size in outcome.peak_bytes)


@pytest.mark.parametrize(
    ("old", "new", "reason", "words"),
    [
        ("self.linear(x)", "nn.functional.linear(x, self.linear.weight, self.linear.bias.detach())", "no_gradient",
         "the gradient of linear.bias is missing or nought"),
        ("* scale", "* scale.detach()", "no_gradient", "the gradient of input 1 is missing"),
        ('"mean": y.square().mean()', '"mean": y.detach().square().mean()', "no_gradient", "output 0 has no gradient"),
        ("* scale", "* (scale.detach() + 1.001 * (scale - scale.detach()))", "wrong_values", "gradient of input 1: "),
        ("self.norm(torch", "nn.functional.batch_norm(weight=self.norm.weight, bias=self.norm.bias, training=True, "
         "running_mean=None, running_var=None, input=torch", "wrong_state", "norm.running_mean"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(judge: Judge, old: str, new: str, reason: str, words: str) -> None:
    outcome = _judged(judge, old, new)
    assert isinstance(outcome, Failure), "it passed"
    assert outcome.reason == reason and words in outcome.summary, outcome
