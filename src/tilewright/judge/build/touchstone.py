"""Touchstones: candidates of a few lines that are right, each for something that candidates take from the machine.

Where a candidate fails and the touchstone of what it needs fails in the same kind of cell, the machine lacks that, and
nothing is the candidate's fault. Each does its work when it is imported, and raises what went wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ...facts.candidate import Candidate, SourceFile
from ...facts.problem import Target

KERNELS = "tilewright_kernels/"  # where copies of the skeletons lie


@dataclass(frozen=True, slots=True, kw_only=True)
class Touchstone:
    """`what` the machine lacks where this fails, and the `remedy`; `named`: how texts and messages speak of it;
    `files` beside its model.py; `skeletons`: whether it builds with the copies of them. `library`: the targets for
    which Tilewright's own kernels need it; `languages`: those of `edges.toolchain.languages` that are built with it."""

    what: str
    remedy: str
    named: re.Pattern[str]
    targets: tuple[Target, ...]
    model: str
    files: tuple[SourceFile, ...] = ()
    skeletons: bool = False
    library: tuple[Target, ...] = ()
    languages: tuple[str, ...] = ()

    def wanted(self, target: Target, offered: Collection[str]) -> bool:
        """Whether the library needs it, or who writes candidates was `offered` a language that is built with it."""
        return target in self.library or not set(self.languages).isdisjoint(offered)

    def candidate(self, skeletons: Iterable[SourceFile]) -> Candidate:
        """It, with the skeletons where it needs them."""
        files = (SourceFile(path="model.py", text=self.model), *self.files)
        return Candidate(files=(*files, *skeletons) if self.skeletons else files)


def needed(candidate: Candidate, target: Target, said: str) -> Iterator[Touchstone]:
    """Those of what the candidate may need: its own files name it, or what it `said` when it failed. To name too many
    costs time alone: on a machine that has them all they all pass."""
    own = [f for f in candidate.files if not f.path.startswith(KERNELS)]
    said = re.sub(r'File "[^"]*/', 'File "', said)  # the folders that it happens to lie in say nothing
    text = "\n".join([said, *(line for f in own for line in (f.path, f.text))])
    return (t for t in TOUCHSTONES if target in t.targets and t.named.search(text))


_END = """

class ModelNew:
    pass
"""
_CPP = """
from pathlib import Path

from tilewright_kernels.cpu.build import load

found = load(Path(__file__).with_name("touchstone.cpp"), {})()
if found != 499500:
    raise RuntimeError(f"error: a sum over OpenMP's threads is {found}, not 499500")
"""
_CPP_SOURCE = """#include "entry.h"

extern "C" __attribute__((visibility("default")))
int __tvm_ffi_run(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  int64_t sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int64_t i = 0; i < 1000; ++i) sum += i;
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = sum;
  return 0;
}
"""
_EXTENSION = """
import subprocess
import sysconfig

from torch.utils import cpp_extension

cpp_extension.verify_ninja_availability()
compiler = [cpp_extension.get_cxx_compiler(), "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
done = subprocess.run(
    [*compiler, f"-I{sysconfig.get_path('include')}"], input="#include <Python.h>\\n#include <cmath>\\n", text=True,
    capture_output=True,
)
if done.returncode:
    raise RuntimeError(done.stderr[-2000:])
"""
_NVCC = """
import shutil
import subprocess
from pathlib import Path

from torch.utils.cpp_extension import CUDA_HOME

nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=f"{CUDA_HOME}/bin")
if nvcc is None:
    raise RuntimeError("error: no nvcc on PATH or in CUDA_HOME")
source = Path(__file__).with_name("touchstone.cu")
source.write_text("#include <cmath>\\n__global__ void one(float* x) { *x = 1; }\\n")
done = subprocess.run(
    [nvcc, "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-o", source.with_suffix(".so"), source], text=True,
    capture_output=True,
)
if done.returncode:
    raise RuntimeError((done.stdout + done.stderr)[-2000:])
"""
_DSL = """
import cutlass.cute
import tvm_ffi
"""

_COMPILED = (
    r"\.(cpp|cc|cxx|c|cu|cuh|h|hpp)$|load_inline|cpp_extension|tvm_ffi\.cpp|torch\.compile|[Cc]ompiler|compilation"
)
_COMPILED += r"|g\+\+|c\+\+|\bgcc\b|\bclang|\bCXX\b|cc1plus|ninja|BuildError|CppCompileError|InductorError"
TOUCHSTONES = (
    Touchstone(
        what="a C++ compiler that works",
        remedy="install one (apt-get install g++) or name it in CXX",
        named=re.compile(_COMPILED, re.MULTILINE),
        targets=("cpu", "cuda"),
        model=f'"""What the kernels of a CPU take."""\n{_CPP}{_END}',
        files=(SourceFile(path="touchstone.cpp", text=_CPP_SOURCE),),
        skeletons=True,
        library=("cpu",),
        languages=("cpp", "nvcc", "cutlass-cpp"),
    ),
    Touchstone(
        what="what torch builds extensions with",
        remedy="install ninja (pip install ninja), g++ and Python's headers (apt-get install g++ python3-dev)",
        named=re.compile(r"load_inline|cpp_extension|pybind11|Python\.h|ninja"),
        targets=("cpu", "cuda"),
        model=f'"""What torch.utils.cpp_extension takes."""\n{_EXTENSION}{_END}',
        languages=("cpp", "nvcc", "cutlass-cpp"),
    ),
    Touchstone(
        what="an nvcc that works",
        remedy="install the CUDA toolkit with a g++ that it knows, and name its folder in CUDA_HOME",
        named=re.compile(r"\.cuh?$|cuda_sources|with_cuda|nvcc|NotBuilt|CUDA_HOME", re.MULTILINE),
        targets=("cuda",),
        model=f'"""What kernels in CUDA C++ with host code take."""\n{_NVCC}{_END}',
        languages=("nvcc", "cutlass-cpp"),
    ),
    Touchstone(
        what="the CuTe DSL",
        remedy="pip install 'nvidia-cutlass-dsl[cu13]' apache-tvm-ffi",
        named=re.compile(r"\bcutlass\b|tvm_ffi|tilewright_kernels"),
        targets=("cuda",),
        model=f'"""What kernels in the CuTe DSL take."""\n{_DSL}{_END}',
        library=("cuda",),
        languages=("cute-dsl",),
    ),
    Touchstone(
        what="tvm-ffi",
        remedy="pip install apache-tvm-ffi",
        named=re.compile(r"tvm_ffi|tilewright_kernels"),
        targets=("cpu",),
        model=f'"""What launches every kernel."""\n\nimport tvm_ffi{_END}',
        library=("cpu",),
    ),
    Touchstone(
        what="Triton",
        remedy="pip install triton",
        named=re.compile(r"\bimport triton|from triton"),
        targets=("cuda",),
        model=f'"""What kernels in Triton take."""\n\nimport triton.language{_END}',
        languages=("triton",),
    ),
)
