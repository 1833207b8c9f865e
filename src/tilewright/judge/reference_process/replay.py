"""A graph run statement by statement, as torch would run it, each timed on the values that it really gets.

One round evicts the caches, times the module itself, evicts them again, and times the statements in their order: each
finds in the caches what those before it left there. On a GPU the device is kept busy while a batch of statements is
launched, so that launches are not timed.
"""

from __future__ import annotations

import ast
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from ...facts.discovery import CallTime
from ...facts.problem import Work
from ..candidate_process import values
from ..candidate_process.load import blaming
from ..candidate_process.state import named_state
from ..candidate_process.subject import CandidateSubject
from ..candidate_process.timing import Flush
from ..memory import driver
from ..wire.replays import Observe, Replay, Replayed, StatementOfGraph
from . import work

_clock = time.perf_counter_ns
_BATCH = 128  # timed statements that are launched before a GPU may begin: its queue holds about a thousand kernels
_CYCLES_A_NS = 2.0
_SPARE = 1.5  # launches take so many times as long as in the round before
_LONGEST_DELAY_NS = 2e8
_DTYPES = ("f64", "f32", "bf16", "f16")


def replayed(request: Replay, *, subject: CandidateSubject, inputs: Sequence[Tensor]) -> Replayed:
    """The fastest of the rounds, of the module, of each call and of what the clock itself takes, which is no call's:
    others on the machine only ever add. The module's state is moved by as many calls. Raises CodeRaised where the
    module or one of its operators does."""
    runner = _Runner(request, subject, inputs)
    with subject.grad_mode(), _calm():
        works, statements = runner.works(), runner.statements()
        deadline = time.monotonic() + request.budget_s
        runner.round(), runner.round()  # warm, and know what launches take
        rounds: list[_Round] = []
        while not rounds or (len(rounds) < request.most_rounds and time.monotonic() < deadline):
            rounds.append(runner.round())
    clock_ns = min(r.clock_ns for r in rounds)
    times = {call: min(r.calls[call] for r in rounds) for call in works}
    return Replayed(
        calls=tuple(
            CallTime(call=call, ns=max(0.0, times[call] - clock_ns * statements[call]), work=found)
            for call, found in works.items()
        ),
        module_ns=min(r.module_ns for r in rounds), rounds=len(rounds),
    )  # fmt: skip


@contextmanager
def _calm() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class _Round:
    module_ns: float
    clock_ns: float  # of a statement that does nothing
    calls: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReplayLine:
    """A statement, compiled, and the names that it gives values."""

    call: str
    code: CodeType
    writes: tuple[str, ...]


class _Runner:
    """The statements of one graph, and the clock of one device."""

    def __init__(self, request: Replay, subject: CandidateSubject, inputs: Sequence[Tensor]) -> None:
        self._lines = [line_of(step) for step in request.steps]
        self._module = subject.bound(request.args, inputs)()
        self._own = (*inputs, *named_state(subject.built).values())
        self._given = names_given(request, subject, inputs)
        self._flush = Flush(request.flush_bytes, subject.device) if request.flush_bytes else _nothing
        self._clock = _Gpu() if subject.device == "cuda" else _Cpu()
        self._nothing = line_of(StatementOfGraph(call="", text="pass"))

    def works(self) -> dict[str, Work]:
        """What each call has to do at least; the first run of all."""
        found: dict[str, list[Work]] = {}
        names = dict(self._given)
        for line in self._lines:
            if not line.call:
                exec(line.code, names)
                continue
            operands = [*self._own, *(v for v in names.values() if isinstance(v, Tensor))]
            with blaming("raised", f"{line.call} raised when it was run by itself"):
                seen = work.measure(lambda line=line: self._run(line, names), operands, _tensors)
            found.setdefault(line.call, []).append(seen.work)
        return {call: _sum(works) for call, works in found.items()}

    def statements(self) -> Counter[str]:
        """Of each call how many are timed."""
        return Counter(line.call for line in self._lines)

    def _run(self, line: ReplayLine, names: dict[str, Any]) -> list[Any]:
        exec(line.code, names)
        return [names[name] for name in line.writes]

    def round(self) -> _Round:
        self._flush()
        (module_ns,) = self._clock.times("module", [self._module])
        self._flush()
        names = dict(self._given)
        times: dict[str, float] = {}
        for number, batch in enumerate(_batches([self._nothing, *self._lines])):
            calls = [self._made(line, names) for line in batch]
            for line, ns in zip(batch, self._clock.times(str(number), calls), strict=True):
                times[line.call if line is not self._nothing else "nothing"] = ns + times.get(line.call, 0.0)
        return _Round(module_ns, times.pop("nothing"), {call: ns for call, ns in times.items() if call})

    def _made(self, line: ReplayLine, names: dict[str, Any]) -> Callable[[], None]:
        return lambda: exec(line.code, names)


def _batches(lines: Sequence[ReplayLine]) -> Iterator[Sequence[ReplayLine]]:
    for start in range(0, len(lines), _BATCH):
        yield lines[start : start + _BATCH]


class _Cpu:
    """The monotonic clock."""

    def times(self, batch: str, calls: Sequence[Callable[[], Any]]) -> list[float]:
        found = []
        for call in calls:
            start = _clock()
            call()
            found.append(float(_clock() - start))
        return found


class _Gpu:
    """Events around every call, while the device waits until the batch is launched."""

    def __init__(self) -> None:
        self._events = driver.Events(2 * _BATCH)
        self._launched_ns: dict[str, float] = {}

    def times(self, batch: str, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """`batch` names what was launched before in the same way."""
        driver.synchronize()
        start = _clock()
        delay_ns = min(_LONGEST_DELAY_NS, _SPARE * self._launched_ns.get(batch, 0.0))
        torch.cuda._sleep(int(_CYCLES_A_NS * delay_ns))
        for i, call in enumerate(calls):
            self._events.record(2 * i)
            call()
            self._events.record(2 * i + 1)
        self._launched_ns[batch] = float(_clock() - start)
        driver.synchronize()
        return [self._events.elapsed_ns(2 * i, 2 * i + 1) for i in range(len(calls))]


def names_given(request: Replay | Observe, subject: CandidateSubject, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """What the statements may name before the first of them."""
    given = values.bound(subject.built, values.decode(request.args, inputs))
    arguments = dict(zip(request.parameters, given.args, strict=True))
    return {"torch": torch, "self": subject.built, **arguments, **given.keywords}


def _nothing() -> None:
    return


def line_of(step: StatementOfGraph) -> ReplayLine:
    tree = ast.parse(step.text)
    assigned = [target for item in tree.body if isinstance(item, ast.Assign) for target in item.targets]
    names = [n.id for target in assigned for n in ast.walk(target) if isinstance(n, ast.Name)]
    return ReplayLine(step.call, compile(tree, "<graph>", "exec"), tuple(names))


def _tensors(found: Sequence[Any]) -> list[Tensor]:
    return [v for v in found if isinstance(v, Tensor)]


def _sum(works: Sequence[Work]) -> Work:
    """Of a call that is run part by part."""
    return Work(
        bytes_read=sum(w.bytes_read for w in works), bytes_written=sum(w.bytes_written for w in works),
        matmul_flops=sum(w.matmul_flops for w in works), conv_flops=sum(w.conv_flops for w in works),
        dtype=min((w.dtype for w in works), key=_DTYPES.index),
    )  # fmt: skip
