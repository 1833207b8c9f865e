"""Appeals where the budget of all elements takes too long, or does not fit: by some rows, or by none, with a reason."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.load import CodeRaised
from tilewright.judge.candidate_process.subject import CandidateSubject
from tilewright.judge.reference_process import by_rows
from tilewright.judge.reference_process.by_rows import Results, judged_on
from tilewright.judge.reference_process.ensemble import Question
from tilewright.judge.reference_process.reference import Reference
from tilewright.judge.wire.messages import Judgement

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return {}

def get_inputs():
    return [torch.rand(2, 64)]

def get_init_inputs():
    return []
"""
INT8 = "(F.rms_norm(x, (64,)) * 40).round().clamp(-127, 127).to(torch.int8)"
FLOATS = "F.rms_norm(x, (64,)) * 40"
SHORT_S = 0.4  # less than the whole takes on a nominal machine, more than some rows


@pytest.fixture(autouse=True)
def _few_rows() -> Iterator[None]:
    with patch.object(by_rows, "_MOST_ELEMENTS", 1 << 12):
        yield


def _drawn(rows: int = 8192) -> Tensor:
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(3))


def _judgement(expression: str, x: Tensor, got: Tensor, limit_s: float = SHORT_S) -> Judgement:
    source = SOURCE.format(expression)
    reference = Reference("/nowhere/p.py", source, ["{}"], subject=CandidateSubject("cpu"), compiled=False)
    reference.construct(0, seed=1)
    text = values.encode([x], [])
    own, (truth,) = reference.subject.run(text, [x]), reference.double.truth(text, [x], 5)
    question = Question(args=text, inputs=[x], seed=5, limit_s=limit_s)
    return judged_on(reference, question, Results(outputs=(0,), got=(got,), own=(own,), truth=(truth,)))


def _other_order(x: Tensor, expression: str = INT8) -> Tensor:
    normed = x / (x.double().square().mean(1, keepdim=True).float() + torch.finfo(torch.float32).eps).sqrt() * 40
    return normed.round().clamp(-127, 127).to(torch.int8) if expression == INT8 else normed


@pytest.mark.parametrize("expression", [INT8, FLOATS])
def test_honest_results_pass_and_it_is_said_by_how_many_rows(expression: str) -> None:
    x = _drawn()
    found = _judgement(expression, x, _other_order(x, expression))
    assert found.judged[0].right, found.judged[0].why
    assert found.note.startswith("by the budgets of 128 of 8192 rows")
    assert _judgement(expression, x[:256], _other_order(x[:256], expression)).note == "", "all of them take no longer"


@pytest.mark.parametrize("expression", [INT8, FLOATS])
def test_one_element_that_is_off_is_found_among_all(expression: str) -> None:
    x = _drawn()
    got = _other_order(x, expression)
    got[4321, 17] += 1 if expression == INT8 else 1e-3
    assert not _judgement(expression, x, got).judged[0].right


@pytest.mark.parametrize("expression", [INT8, FLOATS])
def test_a_lower_class_is_refused(expression: str) -> None:
    x = _drawn()
    lower = ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    assert not _judgement(expression, x, _other_order(lower, expression)).judged[0].right


@pytest.mark.parametrize(
    ("expression", "limit_s", "why"),
    [
        ("(x - x.mean(0, keepdim=True)).sign()", SHORT_S, "depend on one another"),
        ("x.sum().sign()", 0.01, "no part of its rows"),
    ],
)
def test_where_no_rows_can_be_judged_the_reason_is_told(expression: str, limit_s: float, why: str) -> None:
    x = _drawn()
    got = eval(expression, {"x": x, "F": F, "torch": torch})
    with pytest.raises(CodeRaised, match=f"would take .* s, and .*{why}") as raised:
        _judgement(expression, x, got, limit_s)
    assert raised.value.reason == "no_truth"


def _in_little_memory(queue: multiprocessing.Queue[str]) -> None:
    by_rows._MOST_ELEMENTS = 1 << 12
    torch.set_num_threads(1)
    x = _drawn(1 << 17)
    got = _other_order(x)
    _judgement(INT8, x[:64], got[:64], limit_s=1e9)  # what torch itself takes
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + (450 << 20),) * 2)
    found = _judgement(INT8, x, got, limit_s=1e9)
    queue.put(f"{found.judged[0].right}: {found.note}")


@pytest.mark.thorough
@pytest.mark.slow
def test_where_memory_does_not_suffice() -> None:
    """The truth of 8 million elements fits (64 MB each value), and what an ensemble keeps of them does not."""
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=_in_little_memory, args=(queue,))
    child.start()
    child.join(300)
    assert not queue.empty(), "the child has failed"
    assert queue.get().startswith("True: by the budgets of 128 of 131072 rows")
