"""Tilewright turns a PyTorch module into a faster one made of CuTe or C++ kernels, and proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .facts.errors import HarnessError, Lack, SickDevice, TilewrightError, TooBusy, UserError
from .facts.version import VERSION as __version__

if TYPE_CHECKING:
    from .faces.api import Evaluated, Optimized, evaluate, fallbacks, load, optimize

__all__ = [
    "__version__", "Evaluated", "HarnessError", "Lack", "Optimized", "SickDevice", "TilewrightError", "TooBusy",
    "UserError", "evaluate", "fallbacks", "load", "optimize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The Python API imports torch: loaded on first use, so that the command line starts at once."""
    if name in __all__:
        from .faces import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
