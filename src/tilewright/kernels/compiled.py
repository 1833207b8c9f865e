"""Has torch.compile run what a case leaves to torch, with our kernels in it as operators of torch.library; or has a
CUDA graph replay the whole case."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._inductor import list_mode_options
from torch.compiler import is_dynamo_compiling
from torch.utils._pytree import tree_map_only

from .graphed import Graphed

CUDA_GRAPH = "cuda-graph"  # beside torch.compile's modes: what is left to torch is eager mode's, all in one CUDA graph
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
_GRAPHED = ("reduce-overhead", "max-autotune")  # what Inductor makes is replayed as a CUDA graph
_LINE = 200
# Otherwise Inductor first compiles a test program for each instruction set, and headers: longer than the kernels take.
# Where the compiler then refuses the code, the case runs without torch.compile, and that is counted.
_CPU_OPTIONS = {"cpp.vec_isa_ok": True, "cpp_cache_precompile_headers": False}

Function = Callable[..., Any]


class Compiled:
    """The knob `mode` of torch.compile, and the functions that run under it; each is compiled at its first call.

    `training`: gradients are wanted of the results; `device`: the type of the device. `counts` counts, by reason, calls
    that ran without torch.compile because it refused them."""

    def __init__(self, *, training: bool, device: str, counts: dict[str, int]) -> None:
        self.mode = "default"
        self._training, self._device, self._counts = training, device, counts
        self._is_whole = False

    def configure(self, *, mode: str) -> None:
        """Raises ValueError for a mode that torch.compile does not have, or that can't be used here."""
        if mode == CUDA_GRAPH and (self._training or self._device != "cuda" or self._is_whole):
            raise ValueError(f"mode {mode!r} wants guarded cases of inference on a GPU")
        if mode not in (*MODES, CUDA_GRAPH):
            raise ValueError(f"mode {mode!r}: torch.compile has {', '.join(MODES)}")
        if self._training and mode in _GRAPHED:
            raise ValueError(f"mode {mode!r}: the next step overwrites what a CUDA graph of a training step gave")
        self.mode = mode

    def case(
        self, function: Function, states: Iterable[str], judged: Callable[..., bool] | None = None, *,
        dynamic: bool = False,
    ) -> Function:  # fmt: skip
        """A method that is compiled as one graph for the shapes of its first call, or for all where it is `dynamic`.
        Where `judged` says of its arguments that their shapes are others, the method runs as it is. `states`: the paths
        of what it reads of its module."""
        return self._by_mode(function, judged, states, fullgraph=True, dynamic=dynamic)

    def whole(self, function: Function) -> Function:
        """The same of a module's own forward, as its user would compile it: graphs may break, shapes may change."""
        self._is_whole = True
        return self._by_mode(function, None, (), fullgraph=False, dynamic=None)

    def _by_mode(
        self, function: Function, judged: Callable[..., bool] | None, states: Iterable[str], **how: bool | None
    ) -> Function:
        made: dict[str, Function] = {}

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or (judged is not None and not judged(*args, **kwargs)):
                return function(*args, **kwargs)
            mode = self.mode
            fast = made.get(mode)
            if fast is None:
                fast = made[mode] = self._made(function, mode, states, how)
            try:
                return fast(*args, **kwargs)
            except TorchDynamoException as error:
                reason = f"torch.compile refused it ({type(error).__name__}: {str(error).strip()[:_LINE]})"
                refused = self._counting(function, " ".join(reason.split()))
                if not isinstance(error, FailOnRecompileLimitHit):  # what was compiled before still runs
                    made[mode] = refused
                return refused(*args, **kwargs)

        return call

    def _made(self, function: Function, mode: str, states: Iterable[str], how: dict[str, bool | None]) -> Function:
        if mode == CUDA_GRAPH:
            return Graphed(function, states, refused=self._count)
        # Random numbers are drawn as eager mode draws them.
        options: dict[str, Any] = {**list_mode_options(mode), "fallback_random": True}
        options |= _CPU_OPTIONS if self._device == "cpu" else {}
        graphed = mode in _GRAPHED and self._device == "cuda"
        if graphed and not self._is_whole:  # our graph asks less of the host, and need not copy results
            options["triton.cudagraphs"] = False
        fast: Function = torch.compile(function, options=options, **how)  # type: ignore[call-overload]
        if not graphed:
            return fast
        return _owned(function, fast) if self._is_whole else Graphed(fast, states, refused=self._count)

    def _counting(self, function: Function, reason: str) -> Function:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._count(reason)
            return function(*args, **kwargs)

        return counted

    def _count(self, reason: str) -> None:
        if reason not in self._counts:
            warnings.warn(f"tilewright: {reason}; it runs without", RuntimeWarning, stacklevel=5)
        self._counts[reason] = self._counts.get(reason, 0) + 1


def _owned(function: Function, fast: Function) -> Function:
    """Results in memory of their own: those of Inductor's CUDA graph are overwritten by its next replay. While somebody
    else records a CUDA graph, the function runs as it is."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            return function(*args, **kwargs)
        return tree_map_only(Tensor, torch.clone, fast(*args, **kwargs))

    return call
