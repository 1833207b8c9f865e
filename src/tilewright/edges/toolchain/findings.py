"""What `tilewright doctor` looks for, thing by thing, and what it advises on each lack."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...facts.machine import Machine
from . import installed
from .finding import SanitizerFinding

_OLDEST_DRIVER = 580  # the first that runs CUDA 13
_LEAST_DISK_BYTES, _LEAST_MEMORY_BYTES = 2 << 30, 4 << 30

_OPENMP = """
#include <cstdio>
#include <omp.h>
int main() {
  int sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int i = 0; i < 1000; ++i) sum += i;
  std::printf("%d %d", sum, omp_get_max_threads());
}
"""
_CUDA_TOOLS = {
    "nvcc": "only kernels in CUDA C++ need it: pip install nvidia-cuda-nvcc, or install the CUDA toolkit",
    "ncu": "profiles will lack hardware counters: install NVIDIA Nsight Compute",
    "compute-sanitizer": "memory faults of kernels will be harder to find: install the CUDA toolkit",
    "cuobjdump": "machine code can't be shown: install the CUDA toolkit (its binary utilities)",
}
_NAMESPACES = "allow unprivileged namespaces (sysctl kernel.unprivileged_userns_clone=1, or the container's profile)"
_LANDLOCK = "use Linux 5.13 or newer with Landlock enabled"
_PROTECTIONS = {  # name in judge.candidate_process.confine -> what its lack means, and the way out
    "user namespace": f"candidates see the other processes as their own user's: {_NAMESPACES}",
    "network namespace": f"candidates can reach the network: {_NAMESPACES}",
    "private shared memory": f"files in /dev/shm may outlive a candidate, or can't be made: {_NAMESPACES}",
    "limit on processes": f"a fork bomb is ended by the watch alone: {_NAMESPACES}",
    "no new privileges": "candidates may gain privileges through set-uid programs: use Linux 3.5 or newer",
    "others keep their pace": "candidates can slow your other processes down: use Linux 4.17 or newer, with seccomp",
    "read-only disk": f"candidates can write wherever you can: {_LANDLOCK}",
    "hidden disk": f"candidates can read the reference, journals and your files: {_LANDLOCK}",
    "no TCP": "where there is no network namespace either, candidates can reach the network: use Linux 6.7 or newer",
    "signals kept in": "candidates can signal your other processes: use Linux 6.12 or newer",
}  # fmt: skip


def findings(cache_dir: Path, *, measured: Sequence[Machine] = ()) -> tuple[SanitizerFinding, ...]:
    """All that was looked for, in the order of reading; seconds at most. `measured`: machines whose rates to tell."""
    gpus = tuple(_gpus())
    return (
        *(gpus or (_no_gpu(),)), *_driver(bool(gpus)), *_packages(bool(gpus)), *_compiler(), *_cuda_tools(bool(gpus)),
        *_protections(), *_memory(cache_dir), *(rate for machine in measured for rate in _rates(machine)),
    )  # fmt: skip


def _gpus() -> Iterator[SanitizerFinding]:
    fields = "name,memory.total,compute_cap"
    listed = installed.said(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"])
    for index, line in enumerate(listed.splitlines()):
        name, memory, capability = (*(part.strip() for part in line.split(",")), "", "")[:3]
        new_enough = capability.partition(".")[0].isdigit() and float(capability) >= 8.0
        yield SanitizerFinding(
            name=f"GPU {index}", value=f"{name}, {memory}, compute capability {capability}", ok=new_enough,
            advice="" if new_enough else "kernels are written for compute capability 8.0 and newer, 9.0 first",
        )  # fmt: skip
    if not listed:
        for index, place in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))):
            model = place.read_text().partition("Model:")[2].partition("\n")[0].strip()
            yield SanitizerFinding(name=f"GPU {index}", value=model or "NVIDIA GPU")


def _no_gpu() -> SanitizerFinding:
    advice = (
        f"work runs on the CPU; for --target cuda use a machine with an NVIDIA GPU, driver {_OLDEST_DRIVER} or newer"
    )
    return SanitizerFinding(name="GPU", value="none", ok=False, advice=advice)


def _driver(gpu: bool) -> Iterator[SanitizerFinding]:
    version = installed.driver_version()
    major = version.partition(".")[0]
    if gpu or version:
        ok = major.isdigit() and int(major) >= _OLDEST_DRIVER
        advice = "" if ok else f"CUDA 13 needs driver {_OLDEST_DRIVER} or newer"
        yield SanitizerFinding(name="NVIDIA driver", value=version or "none", ok=ok, advice=advice)


def _packages(gpu: bool) -> Iterator[SanitizerFinding]:
    python_ok = sys.version_info >= (3, 11)
    yield SanitizerFinding(name="Python", value=platform.python_version(), ok=python_ok)
    torch, cuda = installed.distribution("torch", module="torch"), installed.torch_cuda_build()
    lack = "" if torch else "pip install torch"
    if torch and gpu and not cuda:
        lack = "this build can't use the GPU: install a CUDA build from https://pytorch.org/get-started"
    built = f", built for CUDA {cuda}" if cuda else ", built without CUDA"
    yield SanitizerFinding(name="torch", value=f"{torch}{built}" if torch else "absent", ok=not lack, advice=lack)
    for name, package, module, use in (
        ("numpy", "numpy", "numpy", "candidates are judged through it: pip install numpy"),
        (
            "CuTe DSL",
            "nvidia-cutlass-dsl",
            "cutlass",
            "kernels for --target cuda need it: pip install nvidia-cutlass-dsl",
        ),
        ("tvm-ffi", "apache-tvm-ffi", "tvm_ffi", "all kernels are launched through it: pip install apache-tvm-ffi"),
    ):
        version = installed.distribution(package, module=module)
        yield SanitizerFinding(name=name, value=version or "absent", ok=bool(version), advice="" if version else use)


def _compiler() -> Iterator[SanitizerFinding]:
    name, version = installed.compiler()[0], installed.compiler_version()
    advice = "" if version else "--target cpu and kernels in C++ need it: install g++ (apt-get install g++)"
    yield SanitizerFinding(
        name="C++ compiler", value=f"{name} {version}" if version else "absent", ok=bool(version), advice=advice
    )
    if version:
        threads = _openmp_threads()
        advice = (
            "" if threads else "no CPU kernel can be built: install a compiler that works, with OpenMP (g++, libgomp)"
        )
        yield SanitizerFinding(
            name="OpenMP", value=f"works, {threads} threads" if threads else "fails", ok=bool(threads), advice=advice
        )


def _openmp_threads() -> int:
    """The threads that a freshly built OpenMP program gets; 0 where it can't be built or computes nonsense."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "openmp.cpp"), str(Path(folder, "openmp"))
        source.write_text(_OPENMP)
        installed.said([*installed.compiler(), "-O1", "-fopenmp", "-o", program, str(source)])
        words = installed.said([program]).split()
    return int(words[1]) if len(words) == 2 and words[0] == "499500" else 0


def _cuda_tools(gpu: bool) -> Iterator[SanitizerFinding]:
    for name, use in _CUDA_TOOLS.items():
        found = installed.cuda_tool(name)
        if found is None:
            lack = {"ok": False, "advice": use} if gpu else {}
            yield SanitizerFinding(name=name, value="absent" if gpu else "absent; of use beside a GPU only", **lack)  # type: ignore[arg-type]
            continue
        lines = [
            line
            for line in installed.said([str(found), "--version"]).splitlines()
            if "ersion" in line or "release" in line
        ]
        yield SanitizerFinding(name=name, value=f"{lines[0].strip() if lines else 'version unknown'} ({found})")


def _protections() -> Iterator[SanitizerFinding]:
    """What a candidate's cell gets here: one is confined like it, and tells."""
    text = installed.said([sys.executable, "-m", "tilewright.judge.walls"])
    told = json.loads(text) if text else {}
    for name in told.get("active", ()):
        yield SanitizerFinding(name=name, value="works")
    missing = told.get("missing", ()) if told else [f"{name}: it could not be tried" for name in _PROTECTIONS]
    for line in missing:
        name, _, why = line.partition(": ")
        advice = _PROTECTIONS.get(name, "candidates are less confined than elsewhere; docs/threats.md says from what")
        yield SanitizerFinding(name=name, value=f"does not work here ({why})", ok=False, advice=advice)


def _memory(cache_dir: Path) -> Iterator[SanitizerFinding]:
    place = next(p for p in (cache_dir.absolute(), *cache_dir.absolute().parents) if p.is_dir())
    disk = shutil.disk_usage(place).free
    advice = "" if disk >= _LEAST_DISK_BYTES else f"builds and journals need about 2 GiB: make room in {place}"
    yield SanitizerFinding(name="free disk", value=f"{disk / 2**30:.1f} GiB in {place}", ok=not advice, advice=advice)
    memory = _available_memory_bytes()
    advice = "" if memory >= _LEAST_MEMORY_BYTES else "reference, baselines and candidate need 4 GiB together"
    yield SanitizerFinding(name="free memory", value=f"{memory / 2**30:.1f} GiB", ok=not advice, advice=advice)


def _available_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _rates(machine: Machine) -> Iterator[SanitizerFinding]:
    where = f"{machine.target}: {machine.device}"
    cache = f"{machine.cache_bytes / 2**20:.0f} MiB of last-level cache"
    bandwidth = f"{machine.copy_bytes_per_s / 1e9:.0f} GB/s, {cache} ({where})"
    if machine.under_load:
        advice = "floors may be too high; such rates are not kept: run tilewright doctor again where nothing else runs"
        yield SanitizerFinding(
            name="memory bandwidth", value=f"{bandwidth}, measured under load", ok=False, advice=advice
        )
    else:
        yield SanitizerFinding(name="memory bandwidth", value=bandwidth)
    rates = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in machine.matmul_flops_per_s)
    yield SanitizerFinding(name="matrix rates", value=f"TFLOP/s: {rates} ({where})")
