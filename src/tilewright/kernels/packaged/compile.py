"""A script for a child process: compiles all that a candidate would compile where it runs, for an exported package.

On stdin one JSON object: `candidate`, a folder with its files (of which, for CUDA, cuda.py here took the place of
cache.py); `files`, those with kernels; `build`, the folder to fill; `devices`, the fields of a Gpu each, none for a
CPU. What fails is an exception."""

from __future__ import annotations

import gc
import importlib
import json
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .cpu import instruction_sets, name_of
from .cuda import FUNCTION
from .package import told

# Flags of x86 processors that name instructions which a compiler may use; on others all are taken to.
_USED = re.compile(r"(s?sse|avx|fma|f16c|bmi|abm|movbe|popcnt|aes|pclmul|vpclmul|vaes|gfni|sha|adx|amx)")
# The one name of the DSL's runtime that objects need beside those of its archive: how a failed call becomes an error.
_SHIM = r"""
#include <stdio.h>
void CuteDSLRT_TVMFFISetRaisedCudaError(void (*raise)(const char*, const char**, int), int code) {
  char text[32];
  const char* parts[2] = {"CUDA error code: ", text};
  if (!raise) return;
  snprintf(text, sizeof(text), "%d", code);
  raise("RuntimeError", parts, 2);
}
"""


def libraries(modules: Iterable[Any], build: Path) -> None:
    """What every `Kernel` needs at the knobs that it has, and what that asks of a processor."""
    from tilewright_kernels.cpu import build as of_candidate  # type: ignore[import-not-found]
    from tilewright_kernels.cpu.launch import Kernel  # type: ignore[import-not-found]

    kept = list(modules)  # and with them their kernels, which the collector then knows
    for kernel in [found for found in gc.get_objects() if kept and type(found) is Kernel]:
        defines = of_candidate.macros(kernel._knobs)
        made = of_candidate.build(kernel._source, defines)
        shutil.copy(made, build / name_of(kernel._source, defines))
    flags = instruction_sets()
    used = {flag for flag in flags if _USED.match(flag)} if "fpu" in flags else flags
    (build / "processor.json").write_text(json.dumps(sorted(used)))


def launches(modules: Iterable[Any], devices: Sequence[Mapping[str, Any]]) -> None:
    """What operands need that are aligned and lie as the Specs say, on each device. Raises ValueError for a product
    that is written for another architecture."""
    from tilewright_kernels.cuda.common import cache  # type: ignore[import-not-found]
    from tilewright_kernels.cuda.rows.plan import Gpu  # type: ignore[import-not-found]

    cache.LINK = link
    for module in modules:
        for facts in devices:
            lead = getattr(module._FUSED, "lead", module._FUSED)
            arch = getattr(lead, "arch", facts["arch"])
            if arch != facts["arch"]:
                raise ValueError(
                    f"{module.__name__} is a product for {arch} alone: optimise for {facts['arch']} by itself"
                )
            module._FUSED.prepare(Gpu(**facts))


def link(launch: Any, library: Path) -> None:
    """Write what the DSL compiled as a library that needs tvm-ffi, and CUDA's runtime, which torch brings."""
    import cutlass
    import torch
    from tvm_ffi.libinfo import find_libtvm_ffi

    toolkit = f"cu{(torch.version.cuda or '13').split('.')[0]}"
    archive = Path(cutlass.__file__).parents[2] / toolkit / "lib" / "libcuda_dialect_runtime_static.a"
    library.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made, shim = Path(folder) / "launch.o", Path(folder) / "shim.c"
        launch.export_to_c(str(made), FUNCTION)
        shim.write_text(_SHIM)
        ffi = Path(find_libtvm_ffi()).parent
        command = ["gcc", "-O1", "-fPIC", "-shared", str(shim), str(made), str(archive), f"-L{ffi}", "-ltvm_ffi"]
        done = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"gcc can't link {library.name}: {done.stderr[-1000:]}")


def facts(original: Any) -> list[dict[str, Any]]:
    """What the module of each case reads beside its arguments and its code; cases that are alike once."""
    from tilewright_kernels.survey import Survey  # type: ignore[import-not-found]

    found: dict[str, dict[str, Any]] = {}
    cases: Sequence[Mapping[str, Any]] = getattr(original, "CASES", None) or ({},)
    for case in cases:
        given = original.get_init_inputs(**case)
        if repr(given) not in found:
            module = original.Model(*given)
            found[repr(given)] = told(Survey(module).facts, type(module))
    return list(found.values())


def main() -> None:
    asked = json.load(sys.stdin)
    build = Path(asked["build"])
    sys.path.insert(0, asked["candidate"])
    modules = [importlib.import_module(name) for name in asked["files"]]
    if asked["devices"]:
        launches(modules, asked["devices"])
        for library in (Path(asked["candidate"]) / "build").glob("*.so"):
            shutil.copy(library, build)
    elif modules:
        libraries(modules, build)
    (build / "judged.pkl").write_bytes(pickle.dumps(facts(importlib.import_module("original"))))


if __name__ == "__main__":
    main()
