"""What a reference cell knows: work, inputs by seed and family, perturbed state, truth, and whose fault is what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tilewright.judge.candidate_process.load import CodeRaised, is_out_of_memory, last_line
from tilewright.judge.candidate_process.subject import CandidateSubject, poisoned
from tilewright.judge.reference_process import families, work
from tilewright.judge.reference_process.describing import describe, traced
from tilewright.judge.reference_process.problem import load_problem
from tilewright.judge.reference_process.reference import Reference
from tilewright.judge.reference_process.truths import write_in_parts
from tilewright.judge.wire.messages import Truth

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n, p=0.0):
        super().__init__()
        self.linear = nn.Linear(n, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(p)

    def forward(self, x, mask):
        return self.drop(self.norm(self.linear(x))).masked_fill(mask, 0.0)

def get_inputs(n=8):
    return [torch.rand(5, n), torch.rand(5, 3) > 0.5]

def get_init_inputs(n=8, p=0.0):
    return {"n": n, "p": p}
"""


def _open(source: str = SOURCE, case: str = "{}") -> Reference:
    reference = Reference("/nowhere/problem.py", source, [case], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=3)
    return reference


def test_description_of_a_case() -> None:
    found = describe(_open(), 1, trace=False)
    assert [(s.shape, s.dtype) for s in found.inputs] == [((5, 8), "f32"), ((5, 3), "bool")]
    assert found.outputs[0].spec.shape == (5, 3) and found.outputs[0].aliases_input == -1
    assert set(found.mutated_state) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert not found.random
    assert found.work.matmul_flops == 2 * 5 * 8 * 3 and found.work.conv_flops == 0
    assert found.work.bytes_written == 5 * 3 * 4


def test_dropout_is_seen_to_be_random() -> None:
    source = SOURCE.replace("def get_init_inputs(n=8, p=0.0)", "def get_init_inputs(n=8, p=0.5)")
    assert describe(_open(source), 1, trace=False).random


def test_inputs_depend_on_the_seed_alone() -> None:
    reference = _open()
    first, again, other = (reference.inputs(s, "own")[1][0] for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_truth_is_the_float64_module() -> None:
    reference = _open()
    text, inputs = reference.inputs(1, "own")
    (truth,) = reference.double.truth(text, inputs, 0)
    assert truth.dtype == torch.float64
    result = reference.subject.run(text, inputs)
    torch.testing.assert_close(result.double(), truth, rtol=1e-5, atol=1e-5)
    assert not torch.equal(result.double(), truth)


def test_truth_in_parts_equals_the_whole_where_rows_are_independent() -> None:
    source = SOURCE.replace("self.norm(self.linear(x))", "self.linear(x)")
    reference = _open(source)
    reference.subject.built.eval()
    text, inputs = reference.inputs(1, "own")
    (whole,) = reference.double.truth(text, inputs, 0)
    parts = torch.empty_like(whole)
    write_in_parts(reference, Truth(args=text, inputs=(), outputs=(), seed=0), inputs, [parts], parts=2)
    torch.testing.assert_close(parts, whole, rtol=1e-14, atol=1e-14)


def test_redraw_moves_ones_and_zeros_and_keeps_variances_positive() -> None:
    reference = _open()
    module = reference.subject.built
    before = {k: v.clone() for k, v in module.state_dict().items()}
    reference.state.redraw(5)
    after = module.state_dict()
    for name in ("linear.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"):
        assert not torch.equal(before[name], after[name]), name
    assert bool((after["norm.running_var"] > 0).all())
    assert len(set(after["norm.weight"].tolist())) == 3


@pytest.mark.parametrize(
    ("source", "reason", "words"),
    [
        ("def (", "not_python", "not Python"),
        ("x = 1", "no_entry", "no Model"),
        ("raise ValueError('boom')", "raised", "boom"),
    ],
)
def test_faults_of_the_file(source: str, reason: str, words: str) -> None:
    with pytest.raises(CodeRaised, match=words) as caught:
        load_problem("/nowhere/problem.py", source)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("return self.drop", "return 3 * x.shape[0] or self.drop", "not a tensor"),
        ("return self.drop", "x.add_(1); return self.drop", "changes its tensor input 0"),
        ("def forward(self, x, mask)", "def forward(self, x)", "forward raised"),
        ("return [torch.rand(5, n), torch.rand(5, 3) > 0.5]", "return 3", "get_inputs returns a int"),
        ("return [torch.rand(5, n), torch.rand(5, 3) > 0.5]", "return [object()]", "builtins.object"),
    ],
)
def test_faults_of_the_module(old: str, new: str, words: str) -> None:
    with pytest.raises(CodeRaised, match=words):
        describe(_open(SOURCE.replace(old, new)), 1, trace=False)


def test_work_counts_a_gather_by_what_it_fetches() -> None:
    table, index = torch.rand(1000, 4), torch.tensor([1, 2])
    found = work.measure(lambda: nn.functional.embedding(index, table), [table, index], lambda r: [r]).work
    assert found.bytes_read == 2 * 4 * 4 + 2 * 8
    assert found.bytes_written == 2 * 4 * 4


def test_work_splits_products_from_convolutions() -> None:
    x, w = torch.rand(1, 2, 8, 8), torch.rand(3, 2, 3, 3)
    found = work.measure(lambda: nn.functional.conv2d(x, w), [x, w], lambda r: [r]).work
    assert found.conv_flops == 2 * 3 * 6 * 6 * 2 * 9 and found.matmul_flops == 0


@pytest.mark.parametrize("family", [f for f in families.FAMILIES if f != families.SPECIALS])
def test_families_are_finite_repeatable_and_leave_masks(family: str) -> None:
    own = torch.zeros(200, 3)
    own[0] = float("-inf")
    a, b, c = (families.redistribute(own, family, s) for s in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert bool(torch.isfinite(a[1:]).all()) and bool((a[0] == float("-inf")).all())


def test_poisoned_memory_reads_as_nan() -> None:
    with poisoned("cpu", (4000,)):
        inside = torch.empty(1000)
        assert bool(inside.isnan().all())
    assert not bool(torch.empty(1000).isnan().all())


def test_lack_of_memory_is_told_in_a_line() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has 3 GiB free. See the docs.")
    assert is_out_of_memory(error)
    assert last_line(error) == "CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has 3 GiB free"
    assert last_line(ValueError("one. two. three. four. five")) == "one. two. three. four. five"


@pytest.mark.parametrize(
    ("call", "terms"),
    [
        (lambda x: x @ x.T, 30), (lambda x: x.sum(), 600), (lambda x: x.mean(0), 20), (lambda x: x.softmax(0), 20),
        (lambda x: x.cumsum(1), 30), (lambda x: nn.functional.layer_norm(x, (30,)), 30), (lambda x: x * 2, 1),
        (lambda x: nn.functional.conv1d(x[None], x[:6, None, :3].repeat(1, 20, 1)), 60), (lambda x: x[0], 1),
        (lambda x: nn.functional.embedding(torch.tensor([1]), x), 1),
    ],
)  # fmt: skip
def test_the_longest_sum(call: Callable[[torch.Tensor], torch.Tensor], terms: int) -> None:
    x = torch.rand(20, 30)
    assert work.measure(lambda: call(x), [x], lambda r: [r]).longest_sum == terms


def test_a_graph_can_be_asked_for_by_itself() -> None:
    """Of what the arguments hold nothing is looked at."""
    reference = _open()
    found = describe(reference, 1, trace=False)
    assert found.graph == ""
    again = traced(reference, found.args, found.inputs)
    assert again.graph == describe(reference, 1, trace=True).graph != "" and again.failure == ""


MOVING = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(6, 4), persistent=False)
        self.register_buffer("table", torch.ones(4), persistent=False)
        self.hidden = torch.zeros(4)
        self.calls, self.name, self.kept = 0, "x", [1]

    def forward(self, x):
        self.cache[self.calls % 6] = x[0]
        self.hidden = self.hidden + x[1]
        self.calls += 1
        self.kept.append(self.calls)
        return self.linear(x) * SHOWN + self.cache.sum() + self.hidden * self.table

def get_inputs():
    return [torch.rand(3, 4)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("shown", "shows"), [("self.calls", True), ("1.0", False)])
def test_what_calls_move_beside_the_state_is_described_and_put_back(shown: str, shows: bool) -> None:
    reference = _open(MOVING.replace("SHOWN", shown))
    found = describe(reference, 1, trace=False)
    assert set(found.mutated_state) == {"cache", "hidden"}
    assert {s.name for s in found.state if s.hidden} == {"cache", "hidden"}
    assert {a.name: a.text for a in found.attributes} == {"calls": "0", "kept": "[1]"}
    assert found.shows_attributes is shows
    assert not found.random, "it is no chance that a second call gives something else"
    module = reference.subject.built
    assert (module.calls, module.kept, float(module.hidden.sum())) == (0, [1], 0.0)


def test_truth_starts_from_the_state_each_time() -> None:
    reference = _open(MOVING.replace("SHOWN", "self.calls"))
    describe(reference, 1, trace=False)
    text, inputs = reference.inputs(2, "own")
    truths = [reference.double.truth(text, inputs, 0, buffers=("cache", "hidden")) for _ in range(2)]
    assert all(map(torch.equal, *truths))
    assert torch.equal(truths[0][2], inputs[0][1].double())
