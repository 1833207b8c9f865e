"""What is installed and in which version, found without importing any of it."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...facts.version import VERSION

_TIMEOUT_S = 30.0


def versions() -> tuple[tuple[str, str], ...]:
    """What shapes a result, by name: python, torch, dsl, tvm-ffi, g++, tilewright, driver; "" for what is absent."""
    return (
        ("python", platform.python_version()), ("torch", distribution("torch")),
        ("dsl", distribution("nvidia-cutlass-dsl", module="cutlass")),
        ("tvm-ffi", distribution("apache-tvm-ffi", module="tvm_ffi")), ("g++", compiler_version()),
        ("tilewright", VERSION), ("driver", driver_version()),
    )  # fmt: skip


def distribution(name: str, *, module: str = "") -> str:
    """An installed package's version; "unknown" where only its module is found, "" where neither."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown" if module and importlib.util.find_spec(module) else ""


def torch_cuda_build() -> str:
    """The CUDA version that the installed torch was built for; "" for a build without CUDA, or no torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    text = (Path(spec.origin).parent / "version.py").read_text()
    found = re.search(r"^cuda\b.*= '([^']+)'", text, re.MULTILINE)
    return found[1] if found else ""


def compiler() -> list[str]:
    """The C++ compiler as the CPU target calls it."""
    return os.environ.get("CXX", "g++").split()


def compiler_version() -> str:
    return said([*compiler(), "-dumpfullversion"])


def driver_version() -> str:
    """The NVIDIA kernel driver's version; "" where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return said(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]).partition("\n")[0]
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else ""


def cuda_tool(name: str) -> Path | None:
    """A tool of the CUDA toolkit: on PATH, in its usual places, or in NVIDIA's Python packages."""
    if found := shutil.which(name):
        return Path(found)
    homes = [Path(os.environ[n]) for n in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(n)] + [Path("/usr/local/cuda")]
    places = [home / "bin" / name for home in homes]
    places += sorted(Path("/opt/nvidia/nsight-compute").glob(f"*/{name}"), reverse=True)
    places += [p / name for entry in sys.path for p in Path(entry or ".").glob("nvidia/cu*/bin")]
    return next((p for p in places if p.is_file() and os.access(p, os.X_OK)), None)


def said(command: list[str]) -> str:
    """What a command prints on stdout, stripped; "" where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
