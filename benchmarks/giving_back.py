"""What it costs a cell on a GPU to give memory back: a collection of Python's, before and after the CuTe DSL's objects
are frozen, and blocks of torch's allocator.

    python benchmarks/giving_back.py [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from tilewright.faces.deliver import commit

TIMES = 7
SIZES_GB = (0.25, 1, 4)  # each in four blocks


def taken_ms(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.zeros(1, device="cuda")
    gc.collect()
    gc.freeze()
    found = {"collection, torch frozen": median(taken_ms(gc.collect) for _ in range(TIMES))}
    importlib.import_module("cutlass.cute")
    found["collection, DSL imported"] = median(taken_ms(gc.collect) for _ in range(TIMES))
    gc.freeze()
    found["collection, DSL frozen"] = median(taken_ms(gc.collect) for _ in range(TIMES))
    for size in SIZES_GB:
        new, back = [], []
        for _ in range(TIMES):
            new.append(
                taken_ms(lambda count=int(size * 2**28 / 4): [torch.empty(count, device="cuda") for _ in range(4)])
            )
            back.append(taken_ms(torch.cuda.empty_cache))
        found |= {f"{size} GB allocated anew": median(new), f"{size} GB given back": median(back)}
    for name, ms in found.items():
        print(f"{name:28s} {ms:8.2f} ms")
    if asked.json:
        about = {"command": shlex.join(["python", *sys.argv]), "commit": commit(), "date": time.strftime("%Y-%m-%d"),
                 "device": torch.cuda.get_device_name(), "torch": torch.__version__}  # fmt: skip
        asked.json.write_text(json.dumps(about | {"ms": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
