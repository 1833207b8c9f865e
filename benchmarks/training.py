"""One step of training, forward and backward: eager, torch.compile and ours at the first points, in turn, in one run.

    python benchmarks/training.py [cuda|cpu] [EXAMPLE ...] [--rounds 40]

Prints medians and the fastest of each, in ms. No judge, no tuning: what it prints is no claim.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tilewright.facts.pattern import Choice
from tilewright.facts.problem import Target, Work
from tilewright.facts.run import CaseFacts
from tilewright.frontend.trace import trace_training
from tilewright.judge.candidate_process import values
from tilewright.judge.candidate_process.step import Step
from tilewright.judge.reference_process.learn import learn
from tilewright.realise.compose import compose
from tilewright.run.optimize import write_candidate
from tilewright.run.workbench import found_patterns

EXAMPLES = Path(__file__).parent.parent / "examples" / "problems"
USUAL = ("swiglu", "geglu", "deep_norm", "rms_norm_residual", "cross_entropy_smoothing", "alibi_softmax")


def imported(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def candidate(path: Path, module: torch.nn.Module, given: Any, folder: Path, target: Target) -> Any:
    forward, tensors, gradients = given
    graph = trace_training(module, forward.args, forward.keywords, tensors, gradients)
    work = Work(bytes_read=0, bytes_written=0, matmul_flops=0, conv_flops=0, dtype="f32")
    facts = CaseFacts(inputs=(), outputs=(), work=work, graph=graph)
    matched = found_patterns((facts,), target)
    recipe = tuple(Choice(pattern=p.id, point=p.space.points[0]) for p in matched[0].patterns)
    write_candidate(compose(path.read_text(), (facts,), matched, recipe, target=target), folder)
    for name in [n for n in sys.modules if n.startswith(("fused_", "segment_", "tilewright_kernels"))]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        return imported("model", folder / "model.py")
    finally:
        sys.path.remove(str(folder))


def steps(name: str, folder: Path, target: Target) -> dict[str, Step]:
    path = EXAMPLES / f"{name}.py"
    problem = imported(name, path)
    case = (getattr(problem, "CPU_CASES", None) if target == "cpu" else None) or problem.CASES
    with torch.device(target):
        module = problem.Model(*problem.get_init_inputs(**case[0]))
        tensors: list[torch.Tensor] = []
        text = values.encode(problem.get_inputs(**case[0]), tensors)
        gradients, like = learn(module, text, tensors, ())
        forward = values.bound(module, values.decode(text, tensors))
        model = candidate(path, module, (forward, tensors, gradients), folder, target)
        ours = model.ModelNew(*problem.get_init_inputs(**case[0]))
        ours.load_state_dict(module.state_dict())
    inputs = [*tensors, *(torch.randn_like(t) for t in like)]
    calls = {"eager": (module, module), "compile": (module, torch.compile(module)), "ours": (ours, ours)}
    return {n: Step(own, call, text, inputs, gradients) for n, (own, call) in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("target", nargs="?", choices=["cuda", "cpu"], default=found)
    parser.add_argument("examples", nargs="*", default=USUAL)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    print(f"{'example':26}" + "".join(f"{n + ' median, min':>26}" for n in ("eager", "compile", "ours")))
    for name in given.examples:
        with tempfile.TemporaryDirectory() as folder:
            players = steps(name, Path(folder), given.target)
            times: dict[str, list[float]] = {n: [] for n in players}
            for _ in range(given.rounds + 5):
                for who, step in players.items():
                    call = step.readied("whole")
                    if given.target == "cuda":
                        torch.cuda.synchronize()
                    start = time.perf_counter()
                    result = call()
                    if given.target == "cuda":
                        torch.cuda.synchronize()
                    times[who].append((time.perf_counter() - start) * 1e3)
                    del call, result
                    step.clear()
        told = [f"{statistics.median(v[5:]):17.3f} {min(v[5:]):8.3f}" for v in times.values()]
        print(f"{name:26}" + "".join(told), flush=True)


if __name__ == "__main__":
    main()
