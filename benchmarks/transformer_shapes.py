"""Products of transformers in bf16 and fp16: ours beside cuBLAS and the library quack; fused, beside torch.compile.

    python benchmarks/transformer_shapes.py --devices 0,1,2,3 --json benchmarks/results/h200/transformer-shapes.json

Over 100 products (prefill, decode, gated MLP, vocabulary) of Llama 3, Qwen 2.5, Mistral, GPT-2 and KernelBench's
MiniGPT, and layers with what follows them (bias, GELU, residual; SwiGLU). Processes compile side by side, several tasks
each, and then measure one at a time on a device, in random turns. One sample is a CUDA graph of several calls in a row,
each on weights of its own, so that no weight is in the L2 cache when it is needed. Each player's settings are chosen in
the first half of the samples; times are medians of the second half. A command that was stopped continues where it was.
With `--at "split_k=1,2,4 stages=auto,4"` the first proposed point is measured at each of these settings instead of what
is proposed, to learn what a knob is worth. No claim: the judge measures what is claimed.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import math
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from gemm import line_within, program
from libraries import fell_back, written
from on_h200 import cuda
from torch import Tensor, nn
from turns import sampled

from tilewright.faces.deliver import commit
from tilewright.frontend.trace import trace
from tilewright.kernels.cuda.gemm.fused import is_turned, make_point
from tilewright.kernels.cuda.gemm.launch import Gemm

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
LIMITS = {"bf16": 8e-3, "f16": 1e-3}  # relative in the norm, from torch's own result
ROUNDS = 10
JOBS = 3  # processes of a fused task that compile
TASK_S, EACH = 20.0, 4
COLD_BYTES = 160 << 20  # of weights that pass between two uses of one
SAMPLE_US, MOST_CALLS = 150.0, 16
AHEAD_CYCLES = 300_000  # of the GPU's clock, in which the host launches a graph

# model: hidden size, of queries, keys and values together, of one matrix of the gated MLP (or of the MLP), vocabulary
MODELS: dict[str, tuple[int, int, int, int]] = {
    "llama3-8b": (4096, 6144, 14336, 128256),
    "llama3-70b": (8192, 10240, 28672, 128256),
    "qwen2.5-7b": (3584, 4608, 18944, 152064),
    "mistral-7b": (4096, 6144, 14336, 32768),
    "gpt2": (768, 2304, 3072, 50257),
    "gpt2-xl": (1600, 4800, 6400, 50257),
    "minigpt": (768, 2304, 3072, 0),  # KernelBench's level 3, task 44: batch 128, 512 tokens
}
PREFILL = {
    "llama3-8b": (512, 4096), "llama3-70b": (512, 4096), "qwen2.5-7b": (1024, 4096), "mistral-7b": (8192,),
    "gpt2": (8192,), "gpt2-xl": (4096,), "minigpt": (65536,),
}  # fmt: skip
DECODE = {
    "llama3-8b": (1, 8, 16, 64), "llama3-70b": (1, 32), "qwen2.5-7b": (1, 16), "mistral-7b": (4,),
    "gpt2": (1,), "gpt2-xl": (8,),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`rows` tokens through a weight of (columns, k); `fused`: "", or what is computed of the product."""

    name: str
    rows: int
    columns: int
    k: int
    dtype: str
    fused: str = ""


def layers(model: str) -> dict[str, tuple[int, int]]:
    """(columns, K) of each product of a block, and of the vocabulary's."""
    hidden, qkv, wide, words = MODELS[model]
    gated = not model.startswith(("gpt", "mini"))
    found = {"qkv": (qkv, hidden), "out": (hidden, hidden), "up": (2 * wide if gated else wide, hidden),
             "down": (hidden, wide)}  # fmt: skip
    return found | ({"words": (words, hidden)} if words else {})


def tasks() -> Iterator[Task]:
    number = 0
    for phase, table in (("prefill", PREFILL), ("decode", DECODE)):
        for model, many in table.items():
            for rows in many:
                for layer, (columns, k) in layers(model).items():
                    # Of a prompt the last token's words alone are computed; for training and scoring, all.
                    tokens = min(rows, 1024) if layer == "words" else rows
                    dtype = ("bf16", "f16")[number % 2]
                    number += 1
                    yield Task(name=f"{phase}:{model}:{layer}:{tokens}:{dtype}", rows=tokens, columns=columns, k=k,
                               dtype=dtype)  # fmt: skip


def fused_tasks() -> Iterator[Task]:
    for model, many in {"gpt2": (1, 1024, 8192), "gpt2-xl": (16, 4096), "minigpt": (65536,)}.items():
        hidden, _, wide, _ = MODELS[model]
        for rows in many:
            yield Task(name=f"fused:{model}:gelu:{rows}:bf16", rows=rows, columns=wide, k=hidden, dtype="bf16",
                       fused="gelu")  # fmt: skip
    for model, many in {"llama3-8b": (1, 16, 512, 4096), "llama3-70b": (1, 2048), "qwen2.5-7b": (64, 2048)}.items():
        hidden, _, wide, _ = MODELS[model]
        for rows in many:
            yield Task(name=f"fused:{model}:swiglu:{rows}:f16", rows=rows, columns=wide, k=hidden, dtype="f16",
                       fused="swiglu")  # fmt: skip


class Gelu(nn.Module):
    def __init__(self, k: int, columns: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = nn.Linear(k, columns, dtype=dtype)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return F.gelu(self.inner(x)) + residual


class Swiglu(nn.Module):
    def __init__(self, k: int, columns: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = nn.Linear(k, columns, bias=False, dtype=dtype)
        self.up = nn.Linear(k, columns, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.gate(x)) * self.up(x)


FUSED: dict[str, type[nn.Module]] = {"gelu": Gelu, "swiglu": Swiglu}
Call = Callable[[int], Tensor]  # on the weights of this number


# ---- one task's players


def proposed(task: Task, count: int, at: str) -> tuple[list[dict[str, Any]], str]:
    """The first knobs that are proposed, or why none are; or the first at all settings of `at` (see `--at`)."""
    whole = program((0, task.rows, task.columns, task.k, "nt", task.dtype, ""))
    if why := cuda.unsupported(whole):
        return [], why
    points = [dict(p) for p in cuda.space(whole).points[:count]]
    if not at:
        return points, ""
    knobs = {name: values.split(",") for name, values in (knob.split("=") for knob in at.split())}
    settings = ([int(v) if v.isdigit() else v for v in values] for values in itertools.product(*knobs.values()))
    return [points[0] | dict(zip(knobs, values, strict=True)) for values in settings], ""


class Plain:
    """Products alone. Compiled before a GPU is touched."""

    def __init__(self, task: Task, source: Path, points: int, *, at: str, beside: bool) -> None:
        """`beside`: the library quack is measured, too."""
        self.task, self.failures, self.beside = task, {}, beside
        knobs, self.left_to_torch = proposed(task, points, at)
        x = torch.empty(task.rows, task.k, dtype=DTYPES[task.dtype], device="meta")
        w = torch.empty(task.columns, task.k, dtype=DTYPES[task.dtype], device="meta")
        self.gemms: dict[str, Gemm] = {}
        for each in knobs:
            name = "ours " + " ".join(str(v) for v in each.values())
            try:
                gemm = Gemm(make_point(each, scheme="plain"), task.dtype, turned=is_turned(each), source=source)
                gemm(x, w.t())
                self.gemms[name] = gemm
            except Exception as error:  # a table with a hole is worth more than none
                self.failures[name] = " ".join(repr(error).split())[-300:]

    def ready(self, copies: int) -> None:
        task = self.task
        torch.manual_seed(0)
        self.x = torch.randn(task.rows, task.k, dtype=DTYPES[task.dtype], device="cuda")
        shape = (copies, task.columns, task.k)
        self.weights = torch.randn(shape, dtype=DTYPES[task.dtype], device="cuda") * task.k**-0.5

    def players(self) -> dict[str, Call]:
        x, weights = self.x, self.weights
        found: dict[str, Call] = {"torch": lambda i: F.linear(x, weights[i])}
        for name, gemm in self.gemms.items():
            found[name] = lambda i, gemm=gemm: gemm(x, weights[i].t())
        return found | (quack(x, weights, decode=self.task.rows <= 64) if self.beside else {})

    @property
    def weight_bytes(self) -> int:
        return 2 * self.task.columns * self.task.k


def quack(x: Tensor, weights: Tensor, *, decode: bool) -> dict[str, Call]:
    """Its own choice, and some of the settings that its tuner would try."""
    try:
        from quack.gemm_config import GemmConfig
        from quack.gemm_interface import gemm, gemm_tuned
    except ImportError:
        return {}
    found: dict[str, Call] = {"quack": lambda i: gemm(x, weights[i].t(), tuned=False)}
    if decode:
        for split in (4, 8):
            found[f"quack split {split}"] = lambda i, split=split: gemm(x, weights[i].t(), tuned=False, split_k=split)
    rows, columns = x.shape[0], weights.shape[1]
    for m, n, pingpong, cluster, swapped in (
        (256, 128, False, (2, 1), False), (128, 256, False, (2, 1), False), (128, 128, True, (1, 1), decode),
    ):  # fmt: skip
        config = GemmConfig(tile_m=m, tile_n=n, pingpong=pingpong, cluster_m=cluster[0], cluster_n=cluster[1],
                            swap_ab=swapped, device_capacity=9, is_dynamic_persistent=False)  # fmt: skip

        def call(i: int, config: Any = config) -> Tensor:
            out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
            gemm_tuned.fn(x, weights[i].t(), out, config=config)
            return out

        found[f"quack {m}x{n}{' pingpong' if pingpong else ''}{' swapped' if swapped else ''}"] = call
    return found


class Fused:
    """A layer with what follows: eager, torch.compile, ours at some points of its products."""

    left_to_torch = ""

    def __init__(self, task: Task, folder: Path, points: int) -> None:
        self.task, self.failures, self.folder = task, {}, folder
        self.weight_bytes = 2 * task.columns * task.k * (2 if task.fused == "swiglu" else 1)
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.eager = FUSED[task.fused](task.k, task.columns, DTYPES[task.dtype])
            rows = [torch.randn(task.rows, task.k, dtype=DTYPES[task.dtype])]
            if task.fused == "gelu":
                rows.append(torch.randn(task.rows, task.columns, dtype=DTYPES[task.dtype]))
        self.inputs = rows
        with torch.no_grad():
            graph = trace(self.eager, tuple(rows), {})
            self.compiled = torch.compile(self.eager)
            self.compiled(*rows)
            self.ours = dict(written(self.eager, graph, points, folder, source_of(task), kinds=("product",), jobs=JOBS))
            for name, module in list(self.ours.items()):
                try:
                    module(*rows)
                    if why := fell_back(module):
                        raise ValueError(why)
                except Exception as error:  # a table with a hole is worth more than none
                    self.failures[name] = " ".join(repr(error).split())[-300:]
                    del self.ours[name]

    def ready(self, copies: int) -> None:
        """Weights enough that none is in the L2 cache when it is needed."""
        names = [name for name, _ in self.eager.named_parameters()]
        held = dict(self.eager.named_parameters())
        self.sets = [{n: nn.Parameter(held[n].detach().clone()) for n in names} for _ in range(copies)]

    def players(self) -> dict[str, Call]:
        modules = {"torch": self.eager, "compile": self.compiled, **self.ours}
        return {name: self._call(module) for name, module in modules.items()}

    def _call(self, module: nn.Module) -> Call:
        """In turn on each set of weights: they change places, as in a stack of such layers."""
        places = [(owner, name.rsplit(".", 1)[-1], name) for name, owner in owners(module)]

        def call(i: int) -> Tensor:
            for owner, leaf, name in places:
                owner._parameters[leaf] = self.sets[i][name]
            with torch.no_grad():
                return module(*self.inputs)  # type: ignore[no-any-return]

        return call


def owners(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(name of a parameter, the module that holds it), without what torch.compile puts around it."""
    inner = getattr(module, "_orig_mod", module)
    for name, _ in inner.named_parameters():
        yield name, inner.get_submodule(name.rsplit(".", 1)[0] if "." in name else "")


def source_of(task: Task) -> str:
    """The layer as a problem file."""
    made = Path(__file__).read_text()
    head = made[made.index("class Gelu") : made.index("FUSED: dict")]
    name = FUSED[task.fused].__name__
    dtype = str(DTYPES[task.dtype])
    return (
        "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor, nn\n\n\n"
        f"{head}\n\nclass Model({name}):\n    def __init__(self):\n"
        f"        super().__init__({task.k}, {task.columns}, {dtype})\n\n\ndef get_inputs():\n    return []\n"
    )


# ---- measuring


def captured(call: Call, calls: int, copies: int) -> Callable[[], object]:
    """So many calls in a row as one CUDA graph: the host has no part in what is timed."""
    for i in range(copies):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i % copies)
    return graph.replay


def measured(task: Task, whole: Plain | Fused) -> dict[str, Any]:
    copies = max(1, min(MOST_CALLS, math.ceil(COLD_BYTES / whole.weight_bytes)))
    whole.ready(copies)
    players, failures = whole.players(), dict(whole.failures)
    reference = players["torch"](0).double()
    floor_us = max(whole.weight_bytes / 4.2e6, 2.0 * task.rows * whole.weight_bytes / 2 / 7.8e8)
    calls = max(1, min(MOST_CALLS, round(SAMPLE_US / floor_us)))
    errors: dict[str, float] = {}
    graphs: dict[str, Callable[[], object]] = {}
    for name, call in players.items():
        try:
            errors[name] = float((call(0).double() - reference).norm() / reference.norm())
            if not errors[name] <= LIMITS[task.dtype]:
                raise ValueError(f"wrong: {errors[name]:.2g}")
            graphs[name] = captured(call, calls, copies)
        except Exception as error:  # a table with a hole is worth more than none
            failures[name] = " ".join(repr(error).split())[-300:]
    del reference
    turns = sampled(graphs, ROUNDS, delay_cycles=AHEAD_CYCLES)
    samples = {name: [ms * 1e3 / calls for ms in times] for name, times in turns.items()}
    early = {name: median(times[: ROUNDS // 2]) for name, times in samples.items()}
    late = {name: median(times[ROUNDS // 2 :]) for name, times in samples.items()}
    chosen = {who: min((n for n in early if n.split(" ")[0] == who), key=early.__getitem__, default="")
              for who in ("torch", "compile", "quack", "ours")}  # fmt: skip
    return {
        "times_us": {who: late[name] for who, name in chosen.items() if name}, "settings": chosen, "points_us": early,
        "errors": errors, "failures": failures, "left_to_torch": whole.left_to_torch,
        "floor_us": floor_us, "calls": calls, "copies": copies,
    }  # fmt: skip


def work(names: Sequence[str], folder: Path, points: int, *, at: str, beside: bool) -> None:
    """A process: compiles, says "ready", measures when told to. A line of JSON a task."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints is no answer
    known = {task.name: task for task in (*tasks(), *fused_tasks())}
    made: list[tuple[Task, Plain | Fused | str]] = []
    for name in names:
        task = known[name]
        place = folder / name.replace(":", "_")
        try:
            made.append((task, Fused(task, place, points) if task.fused
                         else Plain(task, folder / "product.py", points, at=at, beside=beside)))  # fmt: skip
        except Exception as error:
            made.append((task, " ".join(repr(error).split())[-300:]))
    print("ready", file=answers, flush=True)
    if not sys.stdin.readline():  # nobody is there to be told
        return
    for task, whole in made:
        record: dict[str, Any] = {"name": task.name, "m": task.rows, "n": task.columns, "k": task.k}
        try:
            found = {"failures": {"": whole}} if isinstance(whole, str) else measured(task, whole)
        except Exception as error:
            found = {"failures": {"": " ".join(repr(error).split())[-300:]}}
        print(json.dumps(record | found), file=answers, flush=True)
        if not isinstance(whole, str):
            whole.__dict__.clear()
        torch.cuda.empty_cache()


# ---- all tasks


def started(names: Sequence[str], device: str, folder: Path, asked: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *asked, "--folder", str(folder), "--tasks", ",".join(names)]
    with open(folder / f"{names[0].replace(':', '_')}.log", "w") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": device},
        )  # fmt: skip


def on_device(
    device: str, groups: Sequence[Sequence[str]], folder: Path, said: queue.Queue[Any], asked: Sequence[str],
    lock: Path, ready_s: float,
) -> None:  # fmt: skip
    """Processes of one device: all are ready, or late, before the first measures."""
    begin = time.monotonic()
    processes = [(group, started(group, device, folder, asked)) for group in groups]
    ready = [line_within(p, max(1.0, ready_s - time.monotonic() + begin)) == "ready\n" for _, p in processes]
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _measure(processes, ready, said)
    said.put(None)


def _measure(processes: Sequence[tuple[Sequence[str], Any]], ready: Sequence[bool], said: queue.Queue[Any]) -> None:
    for (group, process), good in zip(processes, ready, strict=True):
        if good and process.stdin is not None:
            process.stdin.write("go\n")
            process.stdin.flush()
        for name in group:
            line, why = (line_within(process, TASK_S), "no answer") if good else ("", "not ready in time")
            good = bool(line)
            said.put(json.loads(line) if line else {"name": name, "failures": {"": why}})
        process.kill()
        process.wait()


def groups_of(names: Sequence[str]) -> list[list[str]]:
    """What one process does: a fused task, or some others."""
    plain = [n for n in names if not n.startswith("fused")]
    return [[n] for n in names if n.startswith("fused")] + [plain[i : i + EACH] for i in range(0, len(plain), EACH)]


def run_all(
    names: Sequence[str], devices: Sequence[str], folder: Path, asked: Sequence[str], lock: Path | None, ready_s: float
) -> Iterator[dict[str, Any]]:
    (folder / "product.py").write_text("")
    groups = groups_of(names)
    said: queue.Queue[Any] = queue.Queue()
    for i, device in enumerate(devices):
        where = lock or folder / f"device-{device}.lock"
        arguments = (device, groups[i :: len(devices)], folder, said, asked, where, ready_s)
        threading.Thread(target=on_device, args=arguments, daemon=True).start()
    left = len(devices)
    while left:
        record = said.get()
        if record is None:
            left -= 1
        else:
            yield record


def ratio(record: Mapping[str, Any]) -> float | None:
    """The better other's time over ours; of what is left to torch, torch is ours."""
    times = record.get("times_us", {})
    if record["name"].startswith("fused"):
        others = [times[w] for w in ("compile",) if w in times]
    else:
        others = [times[w] for w in ("torch", "quack") if w in times]
    mine = times.get("ours", times.get("torch") if record.get("left_to_torch") else None)
    return min(others) / mine if others and mine else None


def show(record: Mapping[str, Any]) -> None:
    times = record.get("times_us", {})
    told = "  ".join(f"{who} {us:.1f}" for who, us in times.items())
    floor = record.get("floor_us", 0.0)
    print(f"{record['name']:36s} {told}  floor {floor:.1f}  ratio {ratio(record) or math.nan:.3f}  "
          f"{record.get('settings', {}).get('ours', '')} {record.get('left_to_torch', '')}", flush=True)  # fmt: skip
    for who, why in record.get("failures", {}).items():
        print(f"    {who}: {why[:200]}", flush=True)


def summary(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for kind in ("prefill", "decode", "fused", ""):
        of_kind = [r for r in records if r["name"].startswith(kind) and (kind or not r["name"].startswith("fused"))]
        found = sorted((value, r["name"]) for r in of_kind if (value := ratio(r)) is not None)
        if found:
            mean = math.exp(sum(math.log(value) for value, _ in found) / len(found))
            low = sum(value < 0.9 for value, _ in found)
            yield (f"{kind or 'all but fused'}: {len(found)} of {len(of_kind)}, geometric mean {mean:.3f}, least "
                   f"{found[0][0]:.3f} ({found[0][1]}), under 0.9: {low}")  # fmt: skip


def kept(path: Path | None, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Results of an earlier run of the same commit that had an answer."""
    if path is None or not path.exists():
        return []
    old = json.loads(path.read_text())
    same = all(old.get(key) == about[key] for key in ("commit", "device", "torch"))
    return [r for r in old["tasks"] if "times_us" in r] if same else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of tasks' names, between commas; any of them must be in it")
    parser.add_argument("--devices", default="0")
    parser.add_argument("--points", type=int, default=6, help="of each product, the first so many")
    parser.add_argument("--at", default="", help="settings of knobs, tried in the place of what is proposed")
    parser.add_argument("--without", default="", help="quack: the library is left out")
    parser.add_argument("--lock", type=Path, help="a file that whoever measures on the device holds")
    parser.add_argument("--ready", type=float, default=130.0, help="seconds after which who still compiles is left out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tasks", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tasks:
        beside = "quack" not in options.without
        work(options.tasks.split(","), options.folder, options.points, at=options.at, beside=beside)
        return 0
    about = {
        "command": shlex.join(["python", *sys.argv]), "commit": commit(), "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
    }  # fmt: skip
    records = kept(options.json, about)
    done = {r["name"] for r in records}
    parts = options.only.split(",")
    names = [t.name for t in (*fused_tasks(), *tasks()) if t.name not in done and any(p in t.name for p in parts)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        asked = ["--points", str(options.points), "--at", options.at, "--without", options.without]
        for record in run_all(names, options.devices.split(","), Path(folder), asked, options.lock, options.ready):
            records.append(record)
            show(record)
            if options.json:
                options.json.write_text(json.dumps(about | {"tasks": records}, indent=1) + "\n")
    print("\n".join(summary(records)))
    return 0 if all("times_us" in r for r in records) else 1


if __name__ == "__main__":
    sys.exit(main())
