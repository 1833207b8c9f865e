"""Tilewright turns a PyTorch module into a faster one made of CuTe or C++ kernels, and proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .faces.api import Evaluated, Optimized, evaluate, fallbacks, load, optimize
    from .faces.layers import Layer, OptimizedLayers, optimize_layers
    from .facts.errors import HarnessError, Lack, SickDevice, TilewrightError, TooBusy, UserError
    from .facts.version import VERSION as __version__

__all__ = [
    "__version__", "Evaluated", "HarnessError", "Lack", "Layer", "Optimized", "OptimizedLayers", "SickDevice",
    "TilewrightError", "TooBusy", "UserError", "evaluate", "fallbacks", "load", "optimize", "optimize_layers",
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
        from .faces import api, layers

        return getattr(layers if hasattr(layers, name) else api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
