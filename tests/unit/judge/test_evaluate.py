"""The Judge as a whole, on the CPU: facts, verdicts, tuning, and whose fault is whose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fakes.facts import context
from tilewright.edges.gpu.machine import threads
from tilewright.edges.ledger import Ledger
from tilewright.edges.models.scripted import Scripted, scripted_reply
from tilewright.facts.candidate import Candidate, SourceFile
from tilewright.facts.errors import HarnessError, UserError
from tilewright.facts.machine import Machine
from tilewright.facts.move import Ask, Inspect, Move, Outcome, Try, Verify
from tilewright.facts.outcome import Failure, Timed, Tuned
from tilewright.facts.problem import Problem
from tilewright.facts.run import Limits
from tilewright.facts.space import point
from tilewright.judge.client import CellLimits as CellLimits
from tilewright.judge.evaluate import Judge, JudgeOptions
from tilewright.judge.timing.measure import Effort
from tilewright.judge.verify import VerifiedSubject, verified
from tilewright.run.drive import drive
from tilewright.search.strategies.evolve import evolve

pytestmark = pytest.mark.slow

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return torch.softmax(x * self.weight, -1), x.argmax(-1)

def get_inputs(rows=64, width=100):
    return [torch.rand(rows, width)]

def get_init_inputs(rows=64, width=100):
    return [width]
"""
CASES = ('{"rows": 64, "width": 100}', '{"rows": 3, "width": 17}')
NEW = """
import time

import torch
from torch import nn

STEPS = 0

def configure(pattern, *, mode):
    global STEPS
    if pattern != "fused_0":
        raise KeyError(pattern)
    STEPS = mode

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if STEPS == 3:
            import os
            os._exit(1)
        if STEPS == 2:
            return torch.zeros_like(x), x.argmax(-1)
        time.sleep(0.1 * STEPS)
        return torch.softmax(x * self.weight, -1), x.argmax(-1)
"""
EFFORT = Effort(tight=0.2, budget_s=0.3, min_rounds=3, max_rounds=6, verified=1, most_calls=10)


def _machine(copy_bytes_per_s: float = 1e12) -> Machine:
    return Machine(
        target="cpu", device="any", driver="", torch="", dsl="", processors=threads(),
        cache_bytes=4096, copy_bytes_per_s=copy_bytes_per_s, matmul_flops_per_s=(("f32", 1e15),),
    )  # fmt: skip


def _judge(
    folder: Path, source: str = SOURCE, *, cases: tuple[str, ...] = CASES, machine: Machine | None = None
) -> Judge:
    problem = Problem(name="p", path=str(folder / "p.py"), source=source, target="cpu", cases=cases)
    return Judge(
        problem, machine=machine or _machine(), seed=1, workdir=folder, say=print,
        options=JudgeOptions(
            effort=EFFORT, limits=CellLimits(build_s=300.0, call_s=120.0, memory_bytes=3 << 30),
            compile_baseline=False,
        ),
    )  # fmt: skip


def _candidate(text: str = NEW) -> Candidate:
    return Candidate(files=(SourceFile(path="model.py", text=text),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("judge")


@pytest.fixture(scope="module")
def judge(folder: Path) -> Iterator[Judge]:
    with _judge(folder) as opened:
        facts = opened.open()
        assert [f.inputs[0].shape for f in facts] == [(64, 100), (3, 17)]
        assert [o.dtype for o in facts[0].outputs] == ["f32", "i64"]
        assert facts[0].graph is not None, facts[0].trace_failure
        yield opened
    assert list(folder.iterdir()) == []  # cells leave nothing behind


@pytest.mark.measured
def test_an_honest_candidate_is_timed(judge: Judge) -> None:
    outcome = judge.evaluate(_candidate())
    assert isinstance(outcome, Timed), outcome
    assert {e.case for e in outcome.checked.errors} == {0, 1}
    assert {"own", "normal", "integers"} <= {e.family for e in outcome.checked.errors}
    assert {n for n, _ in outcome.times_ns} == {"ours", "eager", "eager_again", "ours_warm", "eager_warm"}
    assert [n for n, _ in outcome.ratios] == ["eager", "eager_warm", "aa"]
    assert outcome.bytes_moved == 64 * 100 * 4 * 2 + 100 * 4 + 64 * 8


@pytest.mark.measured
def test_the_verdict_says_whose_code_the_time_is_spent_in(judge: Judge) -> None:
    """This one works outside torch's operators for 20 ms and leaves the rest to torch."""
    text = NEW.replace("0.1 * STEPS", "0.02") + "\nimport sys\n\nWHERE = sys._getframe().f_back\n"
    outcome = judge.evaluate(_candidate(text), foreign=True)
    assert isinstance(outcome, Timed), outcome
    assert {who for who, _ in outcome.checked.time_shares} == {"own", "torch"}
    assert sum(share for _, share in outcome.checked.time_shares) == pytest.approx(1.0)
    assert outcome.checked.own_share is not None
    assert 0.0 < outcome.checked.own_share < 1.0
    assert any(note.startswith("static detector: FRAME_WALK_ACCESS") for note in outcome.checked.notes), "told only"


@pytest.mark.measured
def test_points_are_tuned_and_bad_ones_recorded(judge: Judge) -> None:
    points = [point(mode=m) for m in (1, 0, 2, 3)]
    outcome = judge.tune(_candidate(), "fused_0", points)
    assert isinstance(outcome, Tuned), outcome
    slow, fast, wrong, dead = outcome.points
    assert slow.time_ns is not None and fast.time_ns is not None and fast.time_ns.mid < slow.time_ns.mid
    assert wrong.time_ns is None and "wrong_values" in wrong.failure
    assert dead.time_ns is None and "crashed" in dead.failure


def test_what_was_compiled_ahead_lies_beside_the_candidate_as_a_copy(judge: Judge, tmp_path: Path) -> None:
    library = tmp_path / "fused_0-0123.so"
    library.write_text("as it was built")
    look = """
from pathlib import Path
LIBRARY = Path(__file__).parent / "build" / "fused_0-0123.so"
assert LIBRARY.read_text() == "as it was built"
LIBRARY.write_text("spoilt")
"""
    outcome = judge.tune(_candidate(look + NEW), "fused_0", [point(mode=0)], compiled=[library])
    assert isinstance(outcome, Tuned) and outcome.points[0].time_ns is not None, outcome
    assert library.read_text() == "as it was built"
    late = "Path(__file__).with_name('build').joinpath('late.so').write_text('')\n"
    said: list[str] = []
    judge.opened.say = said.append
    assert isinstance(judge.tune(_candidate(look + late + NEW), "fused_0", [point(mode=0)], compiled=[library]), Tuned)
    assert said == ["1 kernel(s) had to be compiled while the device was held"]


def _written(result: str) -> str:
    text = NEW[: NEW.index("        if STEPS == 3")] + f"        {result}\n"
    return f"IDEA: an idea\nFILE: model.py\n```python\n{text}\n```\n"


@pytest.mark.measured
def test_generations_are_verified_judged_and_profiled(judge: Judge, tmp_path: Path) -> None:
    """A whole run of `evolve`: one is refused, one proven wrong before; the right one is profiled."""
    right = "return torch.softmax(x * self.weight, -1), x.argmax(-1)"
    replies = [
        _written("return torch.softmax(x, -1) + 0.5, x.argmax(-1)"), _written("return torch.soft(x), x"),
        _written(right), "Nothing.", "LESSONS:\n- none",
    ]  # fmt: skip
    cases = tuple(case.facts for case in judge.opened.cases)
    on = replace(
        context(), cases=cases, problem=judge.opened.problem, strategy="evolve", model="m", limits=Limits(calls=5)
    )
    on = replace(on, without=("islands",), machine=_machine())
    subject = VerifiedSubject(problem=on.problem, cases=cases, device="any")
    script = Scripted([scripted_reply(text) for text in replies])

    def perform(move: Move) -> Outcome:
        match move:
            case Ask():
                return script.ask(move)
            case Verify():
                return verified(move.what, subject)
            case Inspect():
                return judge.inspect(move.what if isinstance(move.what, Candidate) else None)
        assert isinstance(move, Try) and isinstance(move.what, Candidate)
        return judge.evaluate(move.what)

    with Ledger(tmp_path / "run.db") as ledger:
        drive(evolve(on), ledger=ledger, perform=perform, watch=lambda event: None)
        told = [(type(e.move).__name__, type(e.outcome).__name__) for e in ledger.events()]
    seen = [pair for pair in told if pair[0] != "Ask"]
    tries = [("Try", "Failure"), ("Try", "Timed")]
    assert seen[:6] == [*[("Verify", "Verified")] * 3, *tries, ("Inspect", "Inspected")], told


def test_an_unknown_pattern_fails_at_every_point(judge: Judge) -> None:
    outcome = judge.tune(_candidate(), "fused_9", [point(mode=0)])
    assert isinstance(outcome, Tuned) and "fused_9" in outcome.points[0].failure


VIEWS = SOURCE.replace("x.argmax(-1)", "x.t(), x[:, :8]")


@pytest.mark.thorough
@pytest.mark.few(0)
@pytest.mark.measured
@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_a_view_of_an_input_may_change_with_it(tmp_path: Path, keeps: bool) -> None:
    """As the module's own result does: what the judge puts into the input shows there. A buffer is no view."""
    new = NEW.replace("x.argmax(-1)", "x.t(), x[:, :8]")
    if keeps:
        kept = "self.kept = getattr(self, 'kept', x[:, :8].clone()).copy_(x[:, :8])"
        new = new.replace("        time.sleep(0.1 * STEPS)", f"        {kept}").replace(
            "x.t(), x[:, :8]", "x.t(), self.kept"
        )
    with _judge(tmp_path, VIEWS, cases=CASES[:1]) as judge:
        judge.open()
        outcome = judge.evaluate(_candidate(new))
    assert isinstance(outcome, Failure if keeps else Timed), outcome
    if isinstance(outcome, Failure):
        assert (outcome.reason, "output 2 of an earlier call" in outcome.summary) == ("result_changes", True)


@pytest.mark.thorough
def test_an_impossible_time_is_implausible(tmp_path: Path) -> None:
    with _judge(tmp_path, cases=CASES[:1], machine=_machine(copy_bytes_per_s=1e3)) as slow_machine:
        slow_machine.open()
        outcome = slow_machine.evaluate(_candidate())
    assert isinstance(outcome, Failure) and outcome.reason == "implausible"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("import torch\n", "import torch !\n", "not Python"),
        ("class Model(", "class Other(", "no Model"),
        ("def get_inputs(rows=64, width=100)", "def get_inputs()", "get_inputs raised: TypeError"),
        ("return torch.softmax", "raise ValueError('boom')\n        return torch.softmax", r"boom \(line 11 of p.py\)"),
        ("return [width]", "return [width, width]", "constructor raised: TypeError"),
        (", x.argmax(-1)", ", 3", r"returns an int at \[1\], which is not a tensor, .* return tensors or None"),
    ],
)
def test_the_users_mistakes_are_one_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    with _judge(tmp_path, SOURCE.replace(old, new)) as judge, pytest.raises(UserError, match=words) as caught:
        judge.open()
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_cuda_that_is_absent_is_the_users_mistake(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    problem = Problem(name="p", path="p.py", source=SOURCE, target="cuda")
    with (
        Judge(problem, machine=_machine(), seed=1, workdir=tmp_path, say=print) as judge,
        pytest.raises(UserError, match="no CUDA device"),
    ):
        judge.open()


def test_the_death_of_the_reference_is_ours(tmp_path: Path) -> None:
    source = SOURCE.replace("return torch.softmax", "import os; os._exit(9)\n        return torch.softmax")
    with _judge(tmp_path, source) as judge, pytest.raises(HarnessError, match="exit code 9"):
        judge.open()


def test_a_closed_judge_says_so(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="not open"):
        _judge(tmp_path).opened.reference  # noqa: B018
