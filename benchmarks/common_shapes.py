"""Tunes kernels of shapes that many modules have, so that their winners can be shipped with the package.

    python benchmarks/common_shapes.py [--target cuda] [--rows 4096,16384] [--widths 1024,2048,4096,8192]
                                       [--dtypes bf16] [--jobs 6] [--budget 20s] [--only softmax,rms_norm]
    tilewright winners export --add src/tilewright/search/tune/shipped.db

Each operation is a problem file of a module that one writes so; `tilewright tune` measures its points and remembers the
winner, several files side by side, in turns on the device. What stood in its way is printed, and the others go on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

FILE = """import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand({width}, dtype=torch.{dtype}) + 0.5)
        self.bias = nn.Parameter(torch.randn({width}, dtype=torch.{dtype}))

    def forward(self, {names}):
        return {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
ELEMENTS, LABELS = "torch.randn({rows}, {width}, dtype=torch.{dtype})", "torch.randint(0, {width}, ({rows},))"
OPERATIONS = {  # operands, what is computed
    "softmax": ({"x": ELEMENTS}, "torch.softmax(x, -1)"),
    "layer_norm": ({"x": ELEMENTS}, "F.layer_norm(x, ({width},), self.weight, self.bias)"),
    "rms_norm": ({"x": ELEMENTS}, "F.rms_norm(x, ({width},), self.weight, 1e-6)"),
    "add_rms_norm": (
        {"x": ELEMENTS, "y": ELEMENTS}, "(x + y, F.rms_norm(x + y, ({width},), self.weight, 1e-6))"),
    "swiglu": ({"x": ELEMENTS, "y": ELEMENTS}, "F.silu(x) * y"),
    "gelu": ({"x": ELEMENTS}, "F.gelu(x + self.bias)"),
    "cross_entropy": ({"x": ELEMENTS, "labels": LABELS}, "F.cross_entropy(x, labels)"),
}  # fmt: skip


def problem(operation: str, *, rows: int, width: int, dtype: str) -> str:
    """The file's text."""
    operands, body = OPERATIONS[operation]
    sizes = {"rows": rows, "width": width, "dtype": DTYPES[dtype]}
    inputs = ", ".join(made.format(**sizes) for made in operands.values())
    return FILE.format(names=", ".join(operands), inputs=inputs, body=body.format(**sizes), **sizes)


def tuned(files: list[Path], *, target: str, budget: str, jobs: int) -> Iterator[tuple[str, str]]:
    """The name of each file and "", or the last line of what went wrong."""

    def one(file: Path) -> tuple[str, str]:
        command = [sys.executable, "-m", "tilewright", "tune", str(file), "--target", target, "--budget", budget]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stderr.strip().splitlines()
        return file.stem, "" if done.returncode == 0 else said[-1] if said else f"exit {done.returncode}"

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        yield from pool.map(one, files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--rows", default="4096,16384")
    parser.add_argument("--widths", default="1024,2048,4096,8192")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--budget", default="20s")
    parser.add_argument("--only", default=",".join(OPERATIONS))
    asked = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for operation, dtype, width, rows in product(
            asked.only.split(","), asked.dtypes.split(","), asked.widths.split(","), asked.rows.split(",")
        ):
            files.append(Path(folder) / f"{operation}_{dtype}_{rows}x{width}.py")
            files[-1].write_text(problem(operation, rows=int(rows), width=int(width), dtype=dtype))
        for name, why in tuned(files, target=asked.target, budget=asked.budget, jobs=asked.jobs):
            print(f"{name}: {why or 'tuned'}", flush=True)
            wrong += bool(why)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
