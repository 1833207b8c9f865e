"""Who is measured on a task, and how: eager, torch.compile, libraries, and ours at the points proposed first.

A task is a problem file. On a GPU a sample is one CUDA graph of calls, each on weights of its own where weights are
most of what is read, so that none lies in a cache; steps of training are called. Calls take random turns with cold
caches. The best point of each subject is chosen by the first half of the rounds; times are medians of the
second half.
"""

from __future__ import annotations

import copy
import fcntl
import importlib.util
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tilewright.edges.gpu.machine import identity, machine
from tilewright.faces import config
from tilewright.faces.live import fallbacks, replacement
from tilewright.facts.candidate import Candidate
from tilewright.facts.device import Device
from tilewright.facts.devices import DEVICES, device_of
from tilewright.facts.pattern import Choice, Pattern, Recipe, without_idle
from tilewright.facts.problem import Target, Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.rewrite.algebra import rewritten
from tilewright.frontend.trace import trace, trace_training
from tilewright.ir.graph import Graph
from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.step import TrainingStep, tensors_of
from tilewright.judge.reference_process.learn import learn
from tilewright.realise.compose import compose
from tilewright.run.ahead import compiled_ahead
from tilewright.run.matching import found_patterns
from tilewright.run.optimize import write_candidate

COLD_BYTES, MOST_COPIES = 160 << 20, 16  # of weights that pass between two uses of one
SAMPLE_US = 150.0  # about as long is a sample
FLUSH_ELEMENTS = 64 << 20  # of fp32: several times the last-level cache
AHEAD_CYCLES, STEP_CYCLES = 300_000, 2_000_000  # of the GPU's clock, in which the host launches a sample
NO_WORK = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
Call = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A problem file's text. `step`: of training, forward and backward. `apart`: ours without the pattern of the most
    nodes is measured, too; `algebra`: ours after declared algebra. `library`: the operation's name in `libraries`."""

    name: str
    source: str
    step: bool = False
    apart: bool = False
    algebra: bool = False
    library: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a task is measured. `at`: settings of knobs, in the place of what is proposed for products."""

    target: Target = "cuda"
    points: int = 3
    rounds: int = 12
    at: str = ""
    without: tuple[str, ...] = ()
    jobs: int = 2

    @property
    def device(self) -> Device:
        """This machine's; where it has no GPU and one is asked for, an H200, for which kernels only compile then."""
        here = self.target == "cpu" or torch.cuda.is_available()
        return device_of(identity(self.target)) if here else DEVICES["h200"]


# ---- a task's module, and ours


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{abs(hash(path))}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def opened(task: Task, target: str, folder: Path) -> tuple[nn.Module, list[Any]]:
    """The module of the file's first case and its inputs on this device, or on "meta"."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "problem.py").write_text(task.source)
    torch.manual_seed(0)
    with torch.device(target):
        problem = imported(folder / "problem.py")
        cases: Any = (getattr(problem, "CPU_CASES", None) if target == "cpu" else None) or getattr(
            problem, "CASES", ({},)
        )
        return problem.Model(*problem.get_init_inputs(**cases[0])), list(problem.get_inputs(**cases[0]))


def graph_of(task: Task, module: nn.Module, inputs: Sequence[Any]) -> Graph:
    if task.step:
        gradients, _ = learn(module, values.encode(list(inputs), []), inputs, ())
        return trace_training(module, tuple(inputs), {}, inputs, gradients)
    with torch.no_grad():
        return trace(module, tuple(inputs), {})


def ours(task: Task, graph: Graph, way: Way) -> Iterator[tuple[str, Recipe, Candidate]]:
    """(name, recipe, candidate) of each of our subjects; none where nothing matches."""
    graphs = {"ours": graph}
    if task.algebra and (better := rewritten(graph)) is not None:
        graphs["algebra"] = better.graph
    for who, of in graphs.items():
        facts = (CaseFacts(inputs=(), outputs=(), work=NO_WORK, graph=of),)
        matched = found_patterns(facts, way.device)
        patterns = matched[0].patterns
        chosen = {who: patterns}
        if who == "ours" and task.apart and len(patterns) > 1:
            most = max(patterns, key=lambda p: len(p.matches[0].nodes))
            chosen["apart"] = tuple(p for p in patterns if p is not most)
        for name, some in chosen.items():
            for label, recipe in recipes(some, way):
                yield f"{name} {label}", recipe, compose(task.source, facts, matched, recipe, device=way.device)


def recipes(patterns: Sequence[Pattern], way: Way) -> Iterator[tuple[str, Recipe]]:
    """All patterns at their points of one number; or, with `at`, products at the first one's other settings."""
    if not patterns:
        return
    if way.at:
        knobs = {name: held.split(",") for name, held in (knob.split("=") for knob in way.at.split())}
        for held in itertools.product(*knobs.values()):
            new = dict(zip(knobs, (int(v) if v.isdigit() else v for v in held), strict=True))
            points = {p.id: p.space.points[0] for p in patterns}
            points |= {p.id: tuple((dict(points[p.id]) | new).items()) for p in patterns if p.program.products}
            yield " ".join(f"{k}={v}" for k, v in new.items()), _recipe(patterns, points)
        return
    for n in range(min(way.points, max(len(p.space.points) for p in patterns))):
        points = {p.id: p.space.points[min(n, len(p.space.points) - 1)] for p in patterns}
        yield str(n), _recipe(patterns, points)


def _recipe(patterns: Sequence[Pattern], points: Mapping[str, Any]) -> Recipe:
    return without_idle([patterns], tuple(Choice(pattern=p.id, point=points[p.id]) for p in patterns))


def built(
    module: nn.Module, made: Sequence[tuple[str, Recipe, Candidate]], way: Way, folder: Path
) -> dict[str, nn.Module]:
    """Ours as modules that share the parameters of `module`; compiled before they are loaded, `way.jobs` at a time."""
    objects = folder / "objects"
    for who in dict.fromkeys(name.split()[0] for name, *_ in made):
        mine = [m for m in made if m[0].split()[0] == who]
        choices = [c for _, recipe, _ in mine for c in recipe]
        compiled_ahead(mine[0][2], choices, folder=objects, jobs=way.jobs, device=way.device)
    found = {}
    for n, (name, _, candidate) in enumerate(made):
        place = folder / str(n)
        write_candidate(candidate, place)
        if objects.is_dir():
            (place / "build").symlink_to(objects.resolve(), target_is_directory=True)
        found[name] = replacement(module, place)
    return found


# ---- calls


def select(module: nn.Module, copies: int) -> Callable[[int], None]:
    """Puts the weights of a number in their places, in all subjects at once: they share the modules that hold them."""
    holders: list[dict[str, Any]] = [held for part in module.modules() for held in (part._parameters, part._buffers)]
    places = [(held, leaf) for held in holders for leaf, tensor in held.items() if tensor is not None]
    own = [held[leaf] for held, leaf in places]
    sets = [own, *(copy.deepcopy(own) for _ in range(copies - 1))]

    def put(number: int) -> None:
        for (held, leaf), tensor in zip(places, sets[number % copies], strict=True):
            held[leaf] = tensor

    return put


def forward(module: nn.Module, inputs: Sequence[Any]) -> Call:
    def call() -> Any:
        with torch.no_grad():
            return module(*inputs)

    return call


def stepping(eager: nn.Module, module: nn.Module, inputs: Sequence[Any]) -> Call:
    """A whole step, from cleared gradients."""
    text = values.encode(list(inputs), [])
    gradients, like = learn(eager, text, inputs, ())
    own = eager if hasattr(module, "_orig_mod") else module
    step = TrainingStep(own, module, text, [*inputs, *map(torch.ones_like, like)], gradients)

    def call() -> Any:
        step.clear()
        return step()

    return call


def graphed(call: Call, put: Callable[[int], None], calls: int) -> Call:
    """So many calls one after the other as a CUDA graph, on the weights of each number in turn."""
    put(0)
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(calls):
            put(number)
            call()
    put(0)
    return graph.replay


def sampled(
    calls: Mapping[str, Call], rounds: int, *, target: str = "cuda", delay_cycles: int = AHEAD_CYCLES
) -> dict[str, list[float]]:
    """ms of each call in each round, in random turns, the first round left out; on a GPU with cold caches, and behind a
    delay of so many cycles, so that launches come ahead of their work."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order, draw = list(calls), random.Random(0)
    flush = torch.empty(FLUSH_ELEMENTS, device=target) if target == "cuda" else None
    for turn in range(rounds + 1):
        draw.shuffle(order)
        for name in order:
            ms = _on_gpu(calls[name], flush, delay_cycles) if flush is not None else _on_cpu(calls[name])
            if turn:
                samples[name].append(ms)
    return samples


def _on_gpu(call: Call, flush: Tensor, delay_cycles: int) -> float:
    flush.zero_()
    torch.cuda._sleep(delay_cycles)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    result = call()
    end.record()
    end.synchronize()
    del result
    return float(begin.elapsed_time(end))


def _on_cpu(call: Call) -> float:
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1e6


# ---- right or wrong


def truth_of(task: Task, module: nn.Module, inputs: Sequence[Any]) -> list[Tensor] | None:
    """The same in float64; None where torch has none of it, or no room."""
    try:
        wide = copy.deepcopy(module).double()
        given = [t.double() if isinstance(t, Tensor) and t.is_floating_point() else t for t in inputs]
        return tensors_of((stepping(wide, wide, given) if task.step else forward(wide, given))())
    except Exception:  # of whatever kind: eager's result is the measure then
        return None


def errors(found: Any, truth: Sequence[Tensor], own: Sequence[Tensor]) -> tuple[float, float]:
    """Of floats of 16 bits or more the largest error in the norm, beside what is allowed: four times eager's, or some
    of the last bits. Of other results the share that differs from eager's; one in a hundred may."""
    worst = (0.0, 1e-2)
    for mine, exact, eager in zip(tensors_of(found), truth, own, strict=True):
        if mine.is_floating_point() and mine.element_size() > 1:
            scale = exact.double().norm().clamp_min(1e-300)
            off, theirs = (float((t.detach().double() - exact).norm() / scale) for t in (mine, eager))
            limit = max(4 * theirs, 4e-5, 2 * torch.finfo(mine.dtype).eps)
        else:
            off, limit = float((mine.float() != eager.float()).float().mean()), 1e-2
        worst = max(worst, (off, limit), key=lambda e: e[0] / e[1])
    return worst


# ---- one task


@contextmanager
def device(*, alone: bool) -> Iterator[None]:
    """Whoever measures has the device alone; those who only prepare share it."""
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    with open(Path(tempfile.gettempdir()) / f"tilewright-device-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def floor_us(module: nn.Module, inputs: Sequence[Any], result: Sequence[Tensor], target: Target) -> tuple[float, int]:
    """Of a call, from the machine's measured rates; and the bytes of weights."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs)
    weights = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
    read = weights + sum(t.nbytes for t in inputs if isinstance(t, Tensor))
    floats = [t for t in (*inputs, *module.parameters()) if isinstance(t, Tensor) and t.is_floating_point()]
    kind = {torch.bfloat16: "bf16", torch.float16: "f16"}.get(floats[0].dtype if floats else torch.float32, "f32")
    work = Work(bytes_read=read, bytes_written=sum(t.nbytes for t in result), matmul_flops=counter.get_total_flops(),
                conv_flops=0, dtype=kind)  # fmt: skip
    return machine(target, cache_dir=config.cache_dir()).floor_ns(work) / 1e3, weights


def measured(task: Task, way: Way) -> dict[str, Any]:
    """All subjects of a task, compiled, checked and timed: the record of a result file."""
    torch.backends.cuda.matmul.allow_tf32 = False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, failures = Path(name), dict[str, str]()
        with device(alone=False):
            eager, inputs = opened(task, way.target, folder)
            made = list(ours(task, graph_of(task, eager, inputs), way))
        subjects: dict[str, Any] = {"eager": eager} | (built(eager, made, way, folder) if made else {})
        with device(alone=False):
            if "compile" not in way.without:
                torch.compiler.reset()
                subjects["compile"] = torch.compile(eager, dynamic=False)
            if task.library:
                from libraries import borrowed

                subjects |= borrowed(task.library, eager, way.without)
            calls = {who: _call(task, eager, subject, inputs) for who, subject in subjects.items()}
            own = [t.detach() for t in tensors_of(calls["eager"]())]
            truth = truth_of(task, eager, inputs) or own
            found = checked(calls, subjects, truth, own, failures)
            del truth
        with device(alone=True):
            record = timed(task, way, eager, (inputs, own), {w: calls[w] for w in found}, failures)
    points = {name: " ".join(f"{k}={v}" for k, v in recipe[0].point) for name, recipe, _ in made}
    best = record["best"]
    return {"name": task.name} | record | {
        "best": {who: points.get(n, "") for who, n in best.items() if points.get(n)},
        "error": {who: found[n] for who, n in best.items()}, "unmatched": not made, "failures": failures,
    }  # fmt: skip


def _call(task: Task, eager: nn.Module, subject: nn.Module, inputs: Sequence[Any]) -> Call:
    if subject.__class__.__module__ == "libraries":  # one of them writes into its input
        inputs = [t.clone() if isinstance(t, Tensor) and task.library != "linear" else t for t in inputs]
    return stepping(eager, subject, inputs) if task.step else forward(subject, inputs)


def checked(
    calls: Mapping[str, Call], subjects: Mapping[str, nn.Module], truth: Sequence[Tensor], own: Sequence[Tensor],
    failures: dict[str, str],
) -> dict[str, float]:  # fmt: skip
    """Errors of those that are right; why the others are left out goes into `failures`."""
    found = {}
    for who, call in calls.items():
        try:
            off, limit = errors(call(), truth, own)
            if not off <= limit:
                raise ValueError(f"wrong: {off:.2g}, {limit:.2g} is allowed")
            if why := "; ".join(fallbacks(subjects[who])):
                raise ValueError(why)
            found[who] = off
        except Exception as error:  # a table with a hole is worth more than none
            failures[who] = " ".join(repr(error).split())[-200:]
    return found


def timed(
    task: Task, way: Way, eager: nn.Module, held: tuple[Sequence[Any], Sequence[Tensor]], calls: dict[str, Call],
    failures: dict[str, str],
) -> dict[str, Any]:  # fmt: skip
    """us of a call, of the best of each subject; `ratio`: over ours, with the quartiles of the rounds."""
    least, weights = floor_us(eager, held[0], held[1], way.target)
    count, cycles = 1, STEP_CYCLES
    if way.target == "cuda" and not task.step:
        most = weights * 2 > sum(t.nbytes for t in (*held[0], *held[1]) if isinstance(t, Tensor))
        copies = max(1, min(MOST_COPIES, -(-COLD_BYTES // weights))) if most and weights else 1
        count = max(copies, min(MOST_COPIES, round(SAMPLE_US / least))) if copies > 1 else 1
        put, cycles, graphs = select(eager, copies), AHEAD_CYCLES, {}
        for who, call in calls.items():
            try:
                graphs[who] = graphed(call, put, count)
            except Exception as error:  # it can't be captured
                failures[who] = " ".join(repr(error).split())[-200:]
        calls = graphs
    samples = sampled(calls, way.rounds, target=way.target, delay_cycles=cycles)
    return told({who: [ms * 1e3 / count for ms in times] for who, times in samples.items()}) | {"floor_us": least}


def told(samples: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Of subjects whose names begin alike the best by the first half of the rounds, its median in the second, and what
    the others take over ours: quartiles of the rounds' ratios."""
    half = len(next(iter(samples.values()))) // 2
    early = {who: median(times[:half]) for who, times in samples.items()}
    late = {who: times[half:] for who, times in samples.items()}
    kinds = dict.fromkeys(who.split()[0] for who in samples)
    best = {kind: min((w for w in early if w.split()[0] == kind), key=early.__getitem__) for kind in kinds}
    mine = late.get(best.get("ours", ""))
    ratios = {k: [a / b for a, b in zip(late[n], mine, strict=True)] for k, n in best.items() if mine and k != "ours"}
    spread = {k: quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3 for k, each in ratios.items()}
    return {
        "us": {kind: median(late[name]) for kind, name in best.items()}, "best": best, "ratio": spread,
        "points_us": {who: us for who, us in early.items() if " " in who},
    }  # fmt: skip
