"""The environment of a cell: an allow-list of variables, and folders of its own for all that wants to be written."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path

# What compilers, drivers and loaders need to be found; nothing that could hold a key passes.
_KEPT = (
    "PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "CC", "CXX", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "VIRTUAL_ENV",
    "TVM_FFI_CUDA_ARCH_LIST",
    "TORCH_CUDA_ARCH_LIST", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
_OWN = {
    "HOME": "home", "TMPDIR": "tmp", "XDG_CACHE_HOME": "cache", "TRITON_CACHE_DIR": "cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "cache/inductor", "TORCH_EXTENSIONS_DIR": "cache/extensions",
    "TVM_FFI_CACHE_DIR": "cache/tvm-ffi", "CUTE_DSL_CACHE_DIR": "cache/cute-dsl", "CUDA_CACHE_PATH": "cache/cuda",
}  # fmt: skip
_START = Path(__file__).resolve().parents[2] / "judge" / "candidate_process" / "start.py"


def program(module: str) -> list[str]:
    """The command that runs a module of this Tilewright in an environment of those below; arguments may follow."""
    return [sys.executable, "-P", str(_START), module]


def is_own(name: str) -> bool:
    """Whether a cell has a value of its own for this variable, or the one that is set outside."""
    return name in _KEPT or name in _OWN or name.startswith(("PYTHON", "OMP_", "MKL_", "LD_"))


def common_environment(*, threads: int, outer: Mapping[str, str], device: str = "cpu") -> dict[str, str]:
    """The variables that all cells of a device share. `threads` of 0 leaves torch's own choice. Beside a GPU, threads
    that have computed on the host go to sleep at once: they would spin on in others' turns."""
    found = {k: outer[k] for k in _KEPT if k in outer}
    beside = str(Path(sys.executable).parent)  # ninja, where it came with the packages
    found["PATH"] = os.pathsep.join((beside, found.get("PATH", os.defpath)))
    found["PYTHONPATH"] = outer.get("PYTHONPATH", "")
    if site.ENABLE_USER_SITE:  # packages of `pip install --user`: a cell has another home
        found["PYTHONUSERBASE"] = site.getuserbase()
    else:
        found["PYTHONNOUSERSITE"] = "1"
    found |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"}
    if threads:
        found |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if device == "cuda":
        found["OMP_WAIT_POLICY"] = "passive"
    return found


def cell_environment(folder: Path, common: Mapping[str, str]) -> dict[str, str]:
    """All variables of a cell whose private folder is `folder`: its home, temporary files and caches lie in it."""
    found = dict(common)
    for name, place in _OWN.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        found[name] = str(folder / place)
    return found
