"""Replays a case as one CUDA graph: for modules whose kernels take less time than the host needs to launch them.

Arguments are copied into memory of the graph's own, parameters and buffers are read (and buffers written) where they
lie. Results are their caller's own: they are handed out as they lie in the graph's memory, and while anybody holds one
of them, another recording takes its turn, or what it gives is copied. The first calls run as they are, on a side
stream; then one is recorded. A call runs as it is, too, while somebody else records.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

_WARM_UPS = 2  # calls: what is compiled, planned or allocated at a first call is no part of a graph
_MOST = 4  # graphs of a module, of arguments that lie in different ways
_RECORDINGS = 8  # of a module: one whose parameters move again and again runs without
_HANDED_OUT = 2  # recordings of one graph whose results are not copied: a loop holds one result while it makes the next
_LINE = 200

Function = Callable[..., Any]
Reason = Callable[[str], None]  # counts why a call ran without a graph


class Graphed:
    """The function, a module's method, with a graph for each module that it is called on. `states`: the paths of the
    tensors that it reads of a module, which is guarded, as `guards.Guard` does it, before each call; `refused` is told
    why a call ran as it is."""

    def __init__(self, function: Function, states: Iterable[str], *, refused: Reason) -> None:
        self._function, self._states, self._refused = function, tuple(states), refused
        self._modules: WeakKeyDictionary[nn.Module, _Recordings] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def __call__(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            return self._function(module, *args, **kwargs)
        with self._lock:
            mine, seen = self._modules.get(module), module._tilewright_guard.seen
            if mine is None or mine.seen is not seen:  # the guard looked at another structure meanwhile
                mine = self._modules[module] = _Recordings(module, self._states, seen)
            function = self._function
            return mine.call(lambda *a, **k: function(module, *a, **k), args, kwargs, refused=self._refused)


class _Recordings:
    """Of one module: the graphs by how arguments lie in memory, as long as its parameters and buffers stay there."""

    def __init__(self, module: nn.Module, states: Sequence[str], seen: Any) -> None:
        self.seen = seen
        self._states = _states(module, states)
        self._every = list(range(len(states)))
        self._left = _RECORDINGS
        self._forget([])

    def _forget(self, now: Sequence[Tensor]) -> None:
        """Begin anew, for parameters and buffers that lie as they do `now`."""
        self._settings, self._places = _settings(), [t.data_ptr() for t in now]
        self._graphs: dict[Any, _Recorded | int | str] = {}  # or how many calls go before it, or why there is none

    def call(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], *, refused: Reason) -> Any:
        leaves, spec = (args, None) if not kwargs and all(map(_is_tensor, args)) else tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        now = self._states()
        if self._settings != _settings() or not _lie_at(now, self._places, self._every):
            self._forget(now)
        key = (spec, *((t.shape, t.stride(), t.get_device()) if isinstance(t, Tensor) else t for t in leaves))
        found = self._graphs.get(key)
        if isinstance(found, _Recorded):
            try:
                return found.replayed(function, tensors)
            except _NotRecorded as error:
                refused(str(error))
                return function(*args, **kwargs)
        why = found if isinstance(found, str) else self._why_not(key, tensors)
        left = found if isinstance(found, int) else _WARM_UPS
        if not why and left > 0:
            self._graphs[key] = left - 1
            return _beside(function, args, kwargs, tensors[0].device)
        if not why:
            self._left -= 1
            made = _Recorded(args, kwargs, tensors, states=self._places)
            try:
                result = made.replayed(function, tensors)
            except _NotRecorded as error:
                why = self._graphs[key] = str(error)
            else:
                self._graphs[key] = made
                return result
        refused(why)
        return function(*args, **kwargs)

    def _why_not(self, key: Any, tensors: Sequence[Tensor]) -> str:
        """Why calls of this kind are not recorded; "" where they are."""
        if not tensors:
            return "a CUDA graph wants a tensor as an argument"
        if key not in self._graphs and len(self._graphs) == _MOST:
            return "arguments lie in more ways in memory than there are CUDA graphs"
        return "" if self._left else "parameters were moved too often for a CUDA graph"


class _NotRecorded(Exception):
    """Why a call has no graph."""


class _Recorded:
    """The calls of one kind: memory that arguments are copied to, and recordings, each with memory of its own for the
    rest: one that wrote to another's would write over results that are held. The last of the most that there may be is
    for when results of all others are held."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[Tensor], *, states: Sequence[int]
    ) -> None:
        device = tensors[0].device
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(device):
            self._arguments = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in tensors]
            mine = iter(self._arguments)
            self._args, self._kwargs = tree_map_only(Tensor, lambda t: next(mine), (args, kwargs))
        self._elsewhere = {*states, *(t.untyped_storage().data_ptr() for t in self._arguments)}
        self._recordings: list[_Recording] = []
        self._stream = torch.cuda.current_stream(device)

    def replayed(self, function: Function, tensors: list[Tensor]) -> Any:
        """The results for these arguments, which nobody writes to while they are held. Raises _NotRecorded where the
        function can't be recorded (once more)."""
        last = self._stream
        if torch._C._cuda_getCurrentRawStream(last.device_index) != last.cuda_stream:
            self._stream = torch.cuda.current_stream(last.device)
            self._stream.wait_stream(last)  # there, the graph may still be at work on the same memory
        torch._foreach_copy_(self._arguments, tensors)
        for recording in self._recordings:
            if recording.is_free:
                recording.graph.replay()
                return recording.handed(Tensor.detach)
        if not self._recordings or self._recordings[-1].is_shared:
            self._recordings.append(self._record(function))
        recording = self._recordings[-1]
        recording.graph.replay()
        return recording.handed(Tensor.detach if recording.is_free else Tensor.clone)

    def _record(self, function: Function) -> _Recording:
        graph: Any = torch.cuda.CUDAGraph()
        try:
            with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(self._stream.device):
                made = _recorded(graph, lambda: function(*self._args, **self._kwargs))
        except RuntimeError as error:  # what the driver, or torch, says of being recorded
            raise _NotRecorded(
                f"it can't be recorded as a CUDA graph: {' '.join(str(error).split())[:_LINE]}"
            ) from None
        results = [t for t in tree_flatten(made)[0] if isinstance(t, Tensor)]
        places = {t.untyped_storage().data_ptr() for t in results}
        if len(places) < len(results) or not places.isdisjoint(self._elsewhere):
            raise _NotRecorded(
                "it can't be recorded as a CUDA graph: a result shares memory with an argument, a parameter or another "
                "result"
            )
        shared = len(self._recordings) < _HANDED_OUT and _holders is not None
        return _Recording(graph, made, results, is_shared=shared)


class _Recording:
    """One graph, and what it makes: results that are handed out as they lie where `is_shared`."""

    def __init__(self, graph: Any, made: Any, results: Sequence[Tensor], *, is_shared: bool) -> None:
        self.graph, self._made, self.is_shared = graph, made, is_shared
        self._storages = [t.untyped_storage() for t in results]

    @property
    def is_free(self) -> bool:
        """Whether results may be handed out, and of those that were nobody has one, or a part of it."""
        return self.is_shared and all(_holders(storage._cdata) == _ALONE for storage in self._storages)

    def handed(self, out: Callable[[Tensor], Tensor]) -> Any:
        """The results, each as `out` gives it."""
        made = self._made
        if isinstance(made, Tensor):
            return out(made)
        if type(made) in (tuple, list) and all(map(_is_tensor, made)):  # pytrees take a dozen microseconds
            return type(made)(map(out, made))
        return tree_map_only(Tensor, out, made)


def _recorded(graph: Any, call: Callable[[], Any]) -> Any:
    """What the call gives while it is recorded, on a stream of its own; nothing of it runs."""
    collects = gc.isenabled()
    torch.cuda.synchronize()
    gc.disable()  # a graph that is let go meanwhile would end the recording
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                return call()
            finally:
                graph.capture_end()
    finally:
        if collects:
            gc.enable()


def _beside(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Any:
    """The call as it is, on another stream, as it will be recorded there; results in memory of this one."""
    here, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        made = function(*args, **kwargs)
    here.wait_stream(side)
    for tensor in (t for t in tree_flatten(made)[0] if isinstance(t, Tensor)):
        tensor.record_stream(here)
    return made


def _states(module: nn.Module, paths: Sequence[str]) -> Callable[[], list[Tensor]]:
    """What gives a module's parameters and buffers as they are now. Written out, as it is asked in every call."""
    names: dict[str, Any] = {}
    asked = []
    for number, path in enumerate(paths):
        parent, _, name = path.rpartition(".")
        holder: Any = module
        for part in filter(None, parent.split(".")):
            holder = getattr(holder, part)
        kinds = (holder._parameters, holder._buffers, holder.__dict__)
        names[f"d{number}"] = next(kind for kind in kinds if name in kind)
        asked.append(f"d{number}[{name!r}]")
    exec(f"def asked():\n return [{', '.join(asked)}]", names)
    made: Callable[[], list[Tensor]] = names["asked"]
    return made


def _alone() -> int:
    """How many hold a storage of which there are one tensor and one handle."""
    tensor = torch.empty(1)
    handle = tensor.untyped_storage()
    return _holders(handle._cdata) if _holders is not None else 0


_holders: Any = getattr(torch._C, "_storage_Use_Count", None)  # of a storage: no promise of torch's
_ALONE = _alone()
# In one call, for all of these tensors, where torch has it: no promise of torch's.
_at_once: Any = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)


def _lie_at(tensors: list[Tensor], places: list[int], every: list[int]) -> bool:
    """Whether tensors still lie at these addresses."""
    if _at_once is None:
        return [*map(Tensor.data_ptr, tensors)] == places
    return len(places) == len(every) and bool(_at_once(tensors, places, every))


def _settings() -> tuple[Any, ...]:
    """What torch's operators choose their kernels by, beside their arguments."""
    core = torch._C
    return (
        core._get_cudnn_allow_tf32(), core._get_cudnn_enabled(), core._get_cudnn_benchmark(),
        core._get_float32_matmul_precision(), core._get_deterministic_algorithms(),
    )  # fmt: skip


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
