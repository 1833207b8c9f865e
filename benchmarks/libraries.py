"""Our kernels beside those of the libraries quack and Liger, torch and torch.compile: forward, and a step of training.

    python benchmarks/libraries.py [--only softmax,f32,4096] [--phases step] [--without compile] [--points 4]
                                   [--rounds 16] [--json FILE]

Both libraries must be installed (`quack-kernels`, `liger-kernel`). Every task has a process of its own; some compile
side by side, and measure one after another: calls in random turns, the L2 cache flushed before each, launches hidden
behind a delay. Of our points the best by the first half of the rounds is shown by its times in the second. `error` is
relative in the norm, against float64. Nothing here is a claim: the judge measures what is claimed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from gemm import line_within
from torch import Tensor, nn
from turns import sampled

from tilewright.faces.deliver import commit
from tilewright.facts.pattern import Choice, without_idle
from tilewright.facts.problem import Target, Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.trace import trace, trace_training
from tilewright.ir.graph import Graph
from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.step import Step, tensors_of
from tilewright.judge.reference_process.learn import learn
from tilewright.realise.compose import compose
from tilewright.run.ahead import compiled_ahead
from tilewright.run.optimize import write_candidate
from tilewright.run.workbench import found_patterns

TARGET: Target = "cuda"
ARCH = "sm_90a"
ELEMENTS = 1 << 27
WIDTHS = (1024, 4096, 16384, 65536, 262144)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
EPS = 1e-6
ROUNDS = 16
SIDE_BY_SIDE = 8
READY_S, MEASURED_S = 240, 60
DELAY_CYCLES = 2_000_000  # 1 ms of a Hopper: autograd launches slowly
LIBRARIES = ("quack", "liger")
PHASES = ("forward", "step")
Players = dict[str, Callable[[], Any]]


class Softmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, -1)


class LayerNorm(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width, dtype=dtype) + 0.5)
        self.bias = nn.Parameter(torch.randn(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, EPS)


class RMSNorm(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width, dtype=dtype) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, EPS)


class CrossEntropy(nn.Module):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x, target)


OPERATIONS: dict[str, Callable[[int, torch.dtype], nn.Module]] = {
    "softmax": lambda width, dtype: Softmax(),
    "layer_norm": LayerNorm,
    "rms_norm": RMSNorm,
    "cross_entropy": lambda width, dtype: CrossEntropy(),
}


class QuackLayerNorm(torch.autograd.Function):
    """quack has the two kernels, without an autograd function around them. Weights are fp32 there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from quack.rmsnorm import layernorm_fwd

        out, rstd, mean = layernorm_fwd(x, weight, bias, EPS, return_rstd=True, return_mean=True)
        ctx.save_for_backward(x, weight, rstd, mean)
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from quack.rmsnorm import layernorm_bwd

        x, weight, rstd, mean = ctx.saved_tensors
        return layernorm_bwd(x, weight, upstream, rstd, mean)


def of_quack(operation: str) -> Callable[..., Tensor]:
    from quack import cross_entropy, rmsnorm, softmax
    from quack.rmsnorm import layernorm_fwd

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return QuackLayerNorm.apply(x, weight, bias)
        return layernorm_fwd(x, weight, bias, EPS)

    return {
        "softmax": softmax, "layer_norm": layer_norm, "cross_entropy": cross_entropy,
        "rms_norm": lambda x, weight: rmsnorm(x, weight, eps=EPS),
    }[operation]  # fmt: skip


def of_liger(operation: str) -> Callable[..., Tensor]:
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return {
        "softmax": LigerSoftmaxFunction.apply,
        "layer_norm": lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPS),
        "rms_norm": lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False),
        "cross_entropy": lambda x, target: LigerCrossEntropyFunction.apply(x, target, None)[0],
    }[operation]


class Borrowed(nn.Module):
    """A library's function with the parameters of ours. `like`: their dtype, where it asks for one."""

    def __init__(self, function: Callable[..., Tensor], own: nn.Module, like: torch.dtype | None) -> None:
        super().__init__()
        for name, parameter in own.named_parameters():
            self.register_parameter(name, nn.Parameter(parameter.detach().clone().to(like or parameter.dtype)))
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs, *self.parameters())


# ---- one task, in a process of its own


def written(
    module: nn.Module, graph: Graph, points: int, folder: Path, source: str, *, kinds: Sequence[str] = (),
    jobs: int = 0,
) -> Iterator[tuple[str, nn.Module]]:  # fmt: skip
    """Our module at each of the points that its spaces rank first; of patterns of all kinds, or of these. `jobs`:
    processes that compile all of it beforehand, if any do."""
    facts = CaseFacts(
        inputs=(), outputs=(), work=Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32"),
        graph=graph,
    )  # fmt: skip
    matched = found_patterns((facts,), TARGET)
    patterns = tuple(p for p in matched[0].patterns if not kinds or p.kind in kinds)
    recipes = [
        without_idle(
            [patterns],
            tuple(Choice(pattern=p.id, point=p.space.points[min(n, len(p.space.points) - 1)]) for p in patterns),
        )
        for n in range(min(points, max(len(p.space.points) for p in patterns)))
    ]
    candidates = [compose(source, (facts,), matched, recipe, target=TARGET) for recipe in recipes]
    objects = folder / "objects"
    if jobs:
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        compiled_ahead(candidates[0], [choice for recipe in recipes for choice in recipe], folder=objects, jobs=jobs,
                       arch=ARCH, processors=processors)  # fmt: skip
    for n, candidate in enumerate(candidates):
        place = folder / str(n)
        write_candidate(candidate, place)
        if jobs:
            (place / "build").symlink_to(objects, target_is_directory=True)
        for name in [n for n in sys.modules if n.startswith(("fused_", "segment_", "tilewright_kernels"))]:
            del sys.modules[name]
        sys.path.insert(0, str(place))
        try:
            spec = importlib.util.spec_from_file_location(f"model_{n}", place / "model.py")
            assert spec is not None and spec.loader is not None
            found = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(found)
            ours = found.ModelNew().to(TARGET)
            ours.load_state_dict(module.state_dict())
            yield f"ours {n}", ours
        finally:
            sys.path.remove(str(place))


def fell_back(module: nn.Module) -> str:
    """Why one of ours ran as torch does it, if it did."""
    return "; ".join(getattr(type(module).forward, "__globals__", {}).get("FALLBACKS", {}))


def source_of(operation: str, width: int, dtype: str) -> str:
    """The task as a problem file: the module above, with its sizes put in."""
    made = Path(__file__).read_text()
    head = made[made.index("class Softmax") : made.index("OPERATIONS: dict")]
    name = {"softmax": "Softmax", "layer_norm": "LayerNorm", "rms_norm": "RMSNorm", "cross_entropy": "CrossEntropy"}
    arguments = f"{width}, torch.{'float32' if dtype == 'f32' else 'bfloat16'}" if "norm" in operation else ""
    return (
        "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor, nn\n\n"
        f"EPS = {EPS}\n\n\n{head}\n\nclass Model({name[operation]}):\n    def __init__(self):\n"
        f"        super().__init__({arguments})\n\n\ndef get_inputs():\n    return []\n"
    )


def inputs_of(operation: str, width: int, dtype: str) -> list[Tensor]:
    rows = ELEMENTS // width
    x = torch.randn(rows, width, device=TARGET, dtype=DTYPES[dtype])
    return [x, torch.randint(0, width, (rows,), device=TARGET)] if operation == "cross_entropy" else [x]


class Task:
    """All players of one operation, dtype and width, ready to be called."""

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        torch.manual_seed(0)
        operation, dtype, width = asked.task.split(":")
        width, points = int(width), asked.points
        self.failures: dict[str, str] = {}
        self.operation, self.inputs = operation, inputs_of(operation, width, dtype)
        with torch.device(TARGET):
            self.eager = OPERATIONS[operation](width, DTYPES[dtype])
        self.gradients, like = learn(self.eager, self._args_text(), self.inputs, ())
        self.upstream = [torch.randn_like(t) for t in like]
        source = source_of(operation, width, dtype)
        self.modules: dict[str, nn.Module] = {"eager": self.eager}
        if "compile" not in asked.without:
            self.modules["compile"] = torch.compile(self.eager)
        for name, maker in (("quack", of_quack), ("liger", of_liger)):
            if importlib.util.find_spec(f"{name}_kernel" if name == "liger" else name) is None:
                self.failures[name] = "not installed"
                continue
            like_f32 = torch.float32 if (name, operation) == ("quack", "layer_norm") else None
            self.modules[name] = Borrowed(maker(operation), self.eager, like_f32)
        self.ours: dict[str, dict[str, nn.Module]] = {}
        for phase in asked.phases.split(","):
            graph = self._traced(phase)
            self.ours[phase] = dict(written(self.eager, graph, points, folder / phase, source))

    def _traced(self, phase: str) -> Graph:
        if phase == "step":
            return trace_training(self.eager, tuple(self.inputs), {}, self.inputs, self.gradients)
        with torch.no_grad():
            return trace(self.eager, tuple(self.inputs), {})

    def _args_text(self) -> str:
        return values.encode(self.inputs, [])

    def players(self, phase: str) -> Players:
        found: Players = {}
        for name, module in {**self.modules, **self.ours[phase]}.items():
            inputs = [t.clone() for t in self.inputs] if self.operation == "cross_entropy" else self.inputs
            call = self._step(module, inputs) if phase == "step" else self._forward(module, inputs)
            try:
                call()
                torch.cuda.synchronize()
                found[name] = call
            except Exception as error:  # a table with a hole is worth more than none
                self.failures[f"{phase}: {name}"] = " ".join(repr(error).split())[-300:]
        return found

    @staticmethod
    def _forward(module: nn.Module, inputs: Sequence[Tensor]) -> Callable[[], Any]:
        def call() -> Any:
            with torch.no_grad():
                return module(*inputs)

        return call

    def _step(self, module: nn.Module, inputs: Sequence[Tensor]) -> Callable[[], Any]:
        own = module if not hasattr(module, "_orig_mod") else self.eager
        step = Step(own, module, self._args_text(), [*inputs, *self.upstream], self.gradients)

        def call() -> Any:
            step.clear()
            return step()

        return call

    def truth(self, phase: str) -> list[Tensor]:
        module = type(self.eager).__new__(type(self.eager))
        nn.Module.__init__(module)
        for name, parameter in self.eager.named_parameters():
            module.register_parameter(name, nn.Parameter(parameter.detach().double()))
        inputs = [t.double() if t.is_floating_point() else t for t in self.inputs]
        if phase == "forward":
            return tensors_of(self._forward(module, inputs)())
        upstream = [t.double() for t in self.upstream]
        return tensors_of(Step(module, module, self._args_text(), [*inputs, *upstream], self.gradients)())


def error(found: Any, truth: Sequence[Tensor]) -> float:
    pairs = zip(tensors_of(found), truth, strict=True)
    return max(float((a.detach().double() - b).norm() / b.norm().clamp_min(1e-300)) for a, b in pairs)


def measured(task: Task, phase: str, players: Players, rounds: int) -> dict[str, Any]:
    truth = task.truth(phase)
    errors = {}
    for name, call in players.items():
        if name != "liger" or task.operation != "cross_entropy" or phase != "step":  # that one writes into its input
            errors[name] = error(call(), truth)
    del truth
    torch.cuda.empty_cache()
    samples = sampled(players, rounds, delay_cycles=DELAY_CYCLES)
    early = {n: median(s[: rounds // 2]) for n, s in samples.items()}
    late = {n: s[rounds // 2 :] for n, s in samples.items()}
    best = min((n for n in players if n.startswith("ours")), key=early.__getitem__, default="")
    names = [n for n in players if not n.startswith("ours")] + [best] * bool(best)
    times = {"ours" if n == best else n: median(late[n]) for n in names}
    spread = {"ours" if n == best else n: [min(late[n]), max(late[n])] for n in names}
    return {"times_ms": times, "range_ms": spread, "best": best, "error": errors, "points_ms": early}


def worker(asked: argparse.Namespace) -> None:
    operation, dtype, width = asked.task.split(":")
    with tempfile.TemporaryDirectory() as folder:
        task = Task(asked, Path(folder))
        players = {phase: task.players(phase) for phase in task.ours}
        torch.cuda.empty_cache()
        print("ready", flush=True)
        sys.stdin.readline()
        phases = {phase: measured(task, phase, players[phase], asked.rounds) for phase in players}
        record = {"operation": operation, "dtype": dtype, "width": int(width), "phases": phases}
        print(json.dumps(record | {"failures": task.failures}), flush=True)


# ---- all tasks


def _started(task: str, asked: argparse.Namespace, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--task", task, "--points", str(asked.points), "--phases", asked.phases,
               "--without", asked.without, "--rounds", str(asked.rounds)]  # fmt: skip
    with open(folder / f"{task}.log", "w") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


def run_all(tasks: Sequence[str], asked: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Processes are started ahead, so many side by side; one measures at a time, while none compiles."""
    for at in range(0, len(tasks), SIDE_BY_SIDE):
        started = time.monotonic()
        processes = [(name, _started(name, asked, folder)) for name in tasks[at : at + SIDE_BY_SIDE]]
        ready = [line_within(p, max(0.0, READY_S - time.monotonic() + started)) == "ready\n" for _, p in processes]
        for (name, process), good in zip(processes, ready, strict=True):
            said = ""
            if good and process.stdin is not None:
                process.stdin.write("go\n")
                process.stdin.flush()
                said = line_within(process, MEASURED_S)
            process.kill()
            process.wait()
            if said:
                yield json.loads(said)
            else:
                operation, dtype, width = name.split(":")
                why = " ".join((folder / f"{name}.log").read_text().split())[-400:]
                yield {"operation": operation, "dtype": dtype, "width": int(width), "phases": {}, "failures": {"": why}}


def against_best(phase: dict[str, Any]) -> float | None:
    """The better library's time over ours."""
    times = phase.get("times_ms", {})
    theirs = [times[n] for n in LIBRARIES if n in times]
    return min(theirs) / times["ours"] if theirs and "ours" in times else None


def show(record: dict[str, Any]) -> None:
    name = f"{record['operation']} {record['dtype']} {record['width']}"
    for phase, found in record["phases"].items():
        times, ratio = found["times_ms"], against_best(found)
        told = "  ".join(f"{n} {times[n]:.4f}" for n in ("eager", "compile", *LIBRARIES, "ours") if n in times)
        print(f"{name:26s} {phase:8s} {told}  best library/ours {ratio or math.nan:.3f}", flush=True)
    for who, why in record["failures"].items():
        print(f"    {name} {who}: {why[:160]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of operation:dtype:width, all of which must hold")
    parser.add_argument("--points", type=int, default=4)
    parser.add_argument("--phases", default=",".join(PHASES), help="forward, step, or both")
    parser.add_argument("--without", default="", help="compile: without torch.compile, which takes most of the time")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--task", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.task:
        worker(asked)
        return
    parts = [p for p in asked.only.split(",") if p]
    tasks = [f"{o}:{d}:{w}" for o in OPERATIONS for d in DTYPES for w in WIDTHS]
    tasks = [t for t in tasks if all(p in t.split(":") for p in parts)]
    records: list[dict[str, Any]] = []
    about = {
        "command": shlex.join(["python", *sys.argv]), "commit": commit(), "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "versions": {n: _version(n) for n in ("quack-kernels", "liger-kernel", "nvidia-cutlass-dsl", "triton")},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for record in run_all(tasks, asked, Path(folder)):
            records.append(record)
            show(record)
            if asked.json:
                asked.json.write_text(json.dumps(about | {"tasks": records}, indent=1) + "\n")
    for phase in PHASES:
        ratios = [r for r in (against_best(t["phases"].get(phase, {})) for t in records) if r is not None]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"{phase}: the better library's time over ours, geometric mean of {len(ratios)}: {mean:.3f}")


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
