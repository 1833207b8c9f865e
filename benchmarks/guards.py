"""What a fused module's guard costs a call, in nanoseconds, and what else a call from outside costs on the host.

    python benchmarks/guards.py [--json FILE] [--calls]

For three modules: `guard`, all that is asked before a call (least of many batches; `cold`: the median of single calls,
each after a walk through 256 MiB, which leaves nothing of Python in the caches either); `after a write`, when an
attribute that no code reads was set in each layer since the last call; `in Python alone`, where torch gives neither its
tensor guards nor the versions of dictionaries; `torch.compile's guards`, which it makes of the same module for the same
call. With `--calls` the modules are compiled for the CPU: `call` is `module(x)` of the result; what of it is the
guard's, what `nn.Module.__call__` takes, what the case's code and kernels take, and of these the reads of weights as
`self.layer.weight`. A busy machine slows everything: its load is told beside.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from results import about, write
from subjects import Task, Way, graph_of, ours
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

from tilewright.faces.live import fallbacks, replacement
from tilewright.kernels import guards
from tilewright.kernels.guards import Guard
from tilewright.kernels.survey import GUARD
from tilewright.run.optimize import write_candidate

WIDTH, LAYERS, HEADS = 64, 12, 4
BATCH, BATCHES, COLD = 1000, 100, 60
SOURCE = "import torch\n\n\nclass Model(torch.nn.Module):\n    pass\n"


class Layer(nn.Module):
    """(rows, 64) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x))


class Perceptron(nn.Module):
    """(rows, 64) to the same, by 12 linear layers with a norm and an activation each."""

    def __init__(self) -> None:
        super().__init__()
        parts = [(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(LAYERS)]
        self.layers = nn.Sequential(*(part for each in parts for part in each))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


class Block(nn.Module):
    """A transformer's, (batch, length, 64) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.act, self.drop = nn.GELU(), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        q, k, v = (f(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = x + self.drop(self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        made: Tensor = x + self.drop(self.down(self.act(self.up(self.second(x)))))
        return made


MODULES: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...]], ...] = (
    ("one layer", Layer, (8, WIDTH)),
    ("12 layers with norms", Perceptron, (8, WIDTH)),
    ("a transformer's block", Block, (2, 8, WIDTH)),
)


def warm_ns(call: Callable[[], Any], batch: int = BATCH) -> float:
    """The least, less what the loop and an empty call take."""
    empty = min(timeit.repeat(lambda: None, number=batch, repeat=BATCHES))
    return (min(timeit.repeat(call, number=batch, repeat=BATCHES)) - empty) / batch * 1e9


def cold_ns(call: Callable[[], Any]) -> float:
    """The median of calls, each after a walk through more than the caches hold, less what the clock takes."""
    walked = torch.ones(64 << 20)

    def once(measured: Callable[[], Any]) -> int:
        walked.add_(1.0)
        start = time.perf_counter_ns()
        measured()
        return time.perf_counter_ns() - start

    return statistics.median(once(call) for _ in range(COLD)) - statistics.median(
        once(lambda: None) for _ in range(COLD)
    )


@contextmanager
def python_alone() -> Iterator[None]:
    kept = guards._TensorGuards, guards._version
    guards._TensorGuards = guards._version = None
    guards._versions_count.cache_clear()
    try:
        yield
    finally:
        guards._TensorGuards, guards._version = kept
        guards._versions_count.cache_clear()


def guarding(module: nn.Module, x: Tensor) -> Callable[[], bool]:
    states = {n: (tuple(p.shape), p.dtype, False) for n, p in module.named_parameters()}
    guard = module.__dict__[GUARD] = Guard(module, [states], training=False, device="cpu")
    if why := guard.differs(module, 0, x):
        raise RuntimeError(why)
    fits, state = guard.fits[0], module.__dict__
    if not fits(state, x):
        raise RuntimeError("it does not fit what it was made for")
    return lambda: fits(state, x)


def written(module: nn.Module, call: Callable[[], bool]) -> Callable[[], bool]:
    parts = [part.__dict__ for part in module.modules()][1:]
    numbers = iter(range(10**9))

    def write() -> bool:
        number = next(numbers)
        for part in parts:
            part["unread"] = number
        return call()

    return write


def compiles(module: nn.Module, x: Tensor) -> float:
    """What torch.compile's guards take on the arguments of the call that they were made for."""
    torch._dynamo.reset()
    torch.compile(module, backend="eager")(x)
    entries = _debug_get_cache_entry_list(type(module).forward.__code__)
    given = {"self": module, "x": x}
    check = entries[0].guard_manager.check
    if not check(given):
        raise RuntimeError("torch.compile's guards do not fit what they were made for")
    return warm_ns(lambda: check(given))


def guard_ns(module: nn.Module, x: Tensor) -> dict[str, float]:
    call = guarding(module, x)
    found = {"guard": warm_ns(call), "guard, cold": cold_ns(call)}
    for part in list(module.modules())[1:]:
        part.__dict__["unread"] = -1
    call = guarding(module, x)
    write = written(module, lambda: True)
    found["guard, after a write"] = warm_ns(written(module, call), 100) - warm_ns(write, 100)
    with python_alone():
        found["guard, in Python alone"] = warm_ns(guarding(module, x))
    for part in list(module.modules())[1:]:
        del part.__dict__["unread"]
    del module.__dict__[GUARD]
    return found | {"torch.compile's guards": compiles(module, x)}


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def call_ns(module: nn.Module, x: Tensor, folder: Path) -> dict[str, float]:
    """Of the module fused, at the likeliest points."""
    task, way = Task(name="module", source=SOURCE), Way(target="cpu", points=1)
    ((_, _, candidate),) = ours(task, graph_of(task, module, [x]), way)
    write_candidate(candidate, folder)
    fast: Any = replacement(module, folder)
    torch.testing.assert_close(fast(x), module(x))
    fast(x)
    if counted := fallbacks(fast):
        raise RuntimeError(f"{counted}")
    fits, state, nothing = fast._tilewright_guard.fits[0], fast.__dict__, Nothing()
    reads = eval(f"lambda m: ({''.join(f'm.{_path(n)}, ' for n, _ in module.named_parameters())})")
    return {
        "call": warm_ns(lambda: fast(x), 100),
        "of it the guard's": warm_ns(lambda: fits(state, x)),
        "of it torch's": warm_ns(lambda: nothing(x)),
        "of it the case's": warm_ns(lambda: fast._case_0(x), 100),
        "of that reads of weights": warm_ns(lambda: reads(fast), 100),
        "eager": warm_ns(lambda: module(x), 100),
    }


def _path(name: str) -> str:
    """As code reads it: layers of a sequence have numbers for names."""
    *parents, last = name.split(".")
    steps = (f"_modules['{p}']" if p.isdigit() else p for p in parents)
    return ".".join([*steps, last])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--calls", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for n, (name, make, shape) in enumerate(MODULES):
            module, x = make().eval(), torch.randn(shape)
            found[name] = guard_ns(module, x)
            if given.calls:
                found[name] |= call_ns(module, x, Path(folder) / str(n))
            for what, ns in found[name].items():
                print(f"{name:24} {what:26} {ns:9.0f} ns", flush=True)
    write(given.json, about() | {"ns": found})


if __name__ == "__main__":
    main()
