"""The memory verifier: whether a candidate addresses memory itself; what does is for a tool that runs it."""

from __future__ import annotations

import re
from dataclasses import replace

from ...facts.outcome import Failure, Sanitized
from ...facts.verdict import Verdict, Verified
from .reading import Reading

# Code of its own, or pointers: everything else goes through torch's kernels, which check their bounds.
_ADDRESSES = re.compile(
    r"\b(ctypes|cffi|cpp_extension|load_inline|data_ptr|untyped_storage|from_blob|frombuffer|from_dlpack|numba|triton|"
    r"cutlass|tvm_ffi|pybind11|__global__|__cuda_array_interface__|cuda\.bindings|nvrtc|mmap|torch\.ops)\b"
)


_PROVES = ("out_of_bounds", "sanitizer")


def memory(reading: Reading) -> Verdict:
    """Clean where it can't reach memory that is not its own; else unknown, until guard pages or compute-sanitizer have
    seen it run."""
    found = _ADDRESSES.search("\n".join(reading.texts.values()))
    if found is None:
        return Verdict(verifier="memory", says="clean", why="torch's own kernels alone touch memory")
    return Verdict(verifier="memory", says="unknown", why=f"it addresses memory ({found[1]})")


def with_memory(found: Verified, watched: Sanitized | Failure) -> Verified:
    """With what a tool saw when the candidate ran; a tool that came to no end says nothing."""
    if isinstance(watched, Failure) and watched.reason in _PROVES:
        seen = Verdict(verifier="memory", says="proven", why=watched.summary)
    elif isinstance(watched, Sanitized) and watched.clean:
        seen = Verdict(verifier="memory", says="clean", why=", ".join(watched.clean))
    else:
        return found
    return replace(found, verdicts=tuple(seen if v.verifier == "memory" else v for v in found.verdicts))
