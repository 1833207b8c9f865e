"""The languages in which a candidate may be written here, beside plain torch: what is installed to build them with."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ...facts.problem import Target
from .installed import compiler_version, cuda_tool, distribution, said, torch_cuda_build


def languages(target: Target) -> tuple[tuple[str, str], ...]:
    """By name, the version that is installed or, of CUTLASS, the folder of its headers: "cute-dsl", "triton", "cuda"
    (NVRTC, which comes with torch), "nvcc", "cutlass-cpp", "ptx" (in CUDA's source); on the CPU "cpp"."""
    if target == "cpu":
        return _there(("cpp", compiler_version()))
    nvrtc, nvcc = torch_cuda_build(), _nvcc_version()
    return _there(
        ("cute-dsl", distribution("nvidia-cutlass-dsl", module="cutlass")), ("triton", distribution("triton")),
        ("cuda", nvrtc), ("nvcc", nvcc), ("cutlass-cpp", cutlass_headers() if nvcc else ""), ("ptx", nvrtc or nvcc),
    )  # fmt: skip


def _there(*found: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, version) for name, version in found if version)


def _nvcc_version() -> str:
    tool = cuda_tool("nvcc")
    release = re.search(r"release (\d+\.\d+)", said([str(tool), "--version"])) if tool else None
    return release[1] if release else ""


def cutlass_headers() -> str:
    """The folder that holds `cutlass/cutlass.h`; "" where none is known."""
    return next((str(place) for place in _places() if (place / "cutlass" / "cutlass.h").is_file()), "")


def _places() -> Iterator[Path]:
    for name in ("CUTLASS_PATH", "CUTLASS_HOME", "CUDA_HOME"):
        if os.environ.get(name):
            yield Path(os.environ[name]) / "include"
    spec = importlib.util.find_spec("cutlass_library")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "source" / "include"
    yield from (p for entry in sys.path for p in Path(entry or ".").glob("nvidia/cutlass/include"))
    yield from map(Path, ("/usr/local/cutlass/include", "/usr/local/cuda/include", "/usr/include"))
