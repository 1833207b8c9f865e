"""Tilewright turns a PyTorch module into a faster one made of CuTe or C++ kernels, and proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .faces.api import Evaluated, Optimized, evaluate, fallbacks, load, optimize
    from .facts.errors import HarnessError, Lack, SickDevice, TilewrightError, TooBusy, UserError
    from .facts.version import VERSION as __version__

__all__ = [
    "__version__", "Evaluated", "HarnessError", "Lack", "Optimized", "SickDevice", "TilewrightError", "TooBusy",
    "UserError", "evaluate", "fallbacks", "load", "optimize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """All of it is loaded on first use: the Python API imports torch, which the command line starts without, and a
    process beside the code under test imports nothing that it does not need."""
    if name == "__version__":
        from .facts.version import VERSION

        return VERSION
    if name in __all__:
        from .facts import errors

        if hasattr(errors, name):
            return getattr(errors, name)
        from .faces import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
