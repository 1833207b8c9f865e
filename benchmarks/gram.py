"""A matrix times its own transpose as declared algebra has it: half of the tiles, and their mirror image.

    python benchmarks/gram.py --json benchmarks/results/h200/gram.json

Beside torch and our whole product: us, medians of nine calls with cold caches, of four points the best; errors against
float64 in Frobenius' norm. What is measured was compiled before, by several processes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from alone import TOGETHER, alone
from on_h200 import GPU, cuda
from torch import Tensor

from fakes.fused import load_fused
from fakes.modules import Applies
from fakes.program_interpreter import view
from tilewright.faces.deliver import commit
from tilewright.frontend.rewrite.algebra import rewritten
from tilewright.frontend.trace import trace
from tilewright.fusion import Pattern, match
from tilewright.ir.graph import Graph

SIZES = ((4096, 4096), (4096, 1024), (8192, 8192), (16384, 1024))
DTYPES = (torch.float32, torch.bfloat16)
POINTS, CALLS = 4, 9


def with_itself(x: Tensor) -> Tensor:
    return x @ x.T


@dataclass(frozen=True)
class Made:
    """One way of making it: its patterns, the product first, each with its module."""

    graph: Graph
    parts: list[tuple[Pattern, Any]]

    def __call__(self, x: Tensor) -> Tensor:
        nodes, known = {n.name: n for n in self.graph.nodes}, {}

        def value(name: str) -> Tensor:
            if name in known:
                return known[name]
            node = nodes[name]
            return x if node.op == "input" else value(node.sources[0]).permute(node.dims)

        for pattern, module in self.parts:
            site = pattern.sites[0]
            operands = zip(site.operands, pattern.program.operands, strict=True)
            results = module.run(*(view(value(b.node), b, o.shape) for b, o in operands))
            for bind, result in zip(site.outputs, results, strict=True):
                known[bind.node] = view(result, bind, nodes[bind.node].shape)
        return value("matmul")


def make(graph: Graph, folder: Path) -> Made:
    patterns = match(graph, unsupported=cuda.unsupported, space=cuda.space).patterns
    ordered = sorted(
        (p for p in patterns if "matmul" in p.nodes or p.kind == "product"), key=lambda p: p.kind != "product"
    )
    loaded = [(p, load_fused(p.program, folder)) for p in ordered]
    return Made(graph, loaded)


def ways(n: int, k: int, dtype: torch.dtype, folder: Path) -> dict[str, Made]:
    whole = trace(Applies(with_itself), (torch.empty(n, k, dtype=dtype, device="meta"),), {})
    return {"whole": make(whole, folder), "half": make(rewritten(whole).graph, folder)}


def compiled(job: tuple[tuple[int, int], torch.dtype, Path, int]) -> None:
    """Both ways' kernels of the point of this number, by way of a folder of this process."""
    (n, k), dtype, folder, number = job
    device = GPU
    own = folder / f"process-{os.getpid()}"
    for made in ways(n, k, dtype, own).values():
        for i, (pattern, module) in enumerate(made.parts):
            if i == 0 and number < len(pattern.space.points):
                module.configure(**dict(pattern.space.points[number]))
            module._FUSED.prepare(device)
    for kept in (own / "build").glob("*.o"):
        kept.rename(folder / "build" / kept.name)


def microseconds(call: Callable[[], Tensor]) -> float:
    flush, found = torch.empty(64 * 2**20, device="cuda"), []
    for _ in range(CALLS + 1):
        flush.zero_()
        torch.cuda._sleep(1_000_000)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e3)
    return round(median(found[1:]), 1)


def measured(n: int, k: int, dtype: torch.dtype, folder: Path) -> dict[str, Any]:
    x = torch.randn(n, k, device="cuda").to(dtype)
    truth = x.double() @ x.double().T

    def about(call: Callable[[], Tensor]) -> dict[str, Any]:
        result = call()
        return {"us": microseconds(call), "error": float((result.double() - truth).norm() / truth.norm())}

    line: dict[str, Any] = {"torch": about(lambda: with_itself(x))}
    for name, made in ways(n, k, dtype, folder).items():
        product, module = made.parts[0]
        found = []
        for point in product.space.points[:POINTS]:
            module.configure(**dict(point))
            found.append({**about(lambda made=made: made(x)), "tile": dict(point)["tile"]})  # type: ignore[misc]
        line[name] = min(found, key=lambda f: f["us"])
    return line


def make_all(folder: Path) -> None:
    """Compile."""
    (folder / "build").mkdir()
    jobs = [(sizes, dtype, folder, number) for sizes in SIZES for dtype in DTYPES for number in range(POINTS)]
    with ProcessPoolExecutor(TOGETHER, mp_context=get_context("spawn")) as processes:
        list(processes.map(compiled, jobs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    about = {"command": "python benchmarks/gram.py", "commit": commit(), "device": torch.cuda.get_device_name()}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        make_all(Path(folder))
        for dtype in DTYPES:
            for n, k in SIZES:
                with alone():
                    line = measured(n, k, dtype, Path(folder))
                found[f"{n} x {k} {str(dtype)[6:]}"] = line
                times = {way: line[way]["us"] / line["half"]["us"] for way in ("torch", "whole")}
                print(f"{n} x {k} {str(dtype)[6:]}: {times['torch']:.2f} of torch, {times['whole']:.2f} of the whole")
                if options.json:
                    options.json.write_text(
                        json.dumps(about | {"torch": torch.__version__, "sizes": found}, indent=1) + "\n"
                    )


if __name__ == "__main__":
    main()
