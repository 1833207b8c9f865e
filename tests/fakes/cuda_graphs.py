"""CUDA graphs on a CPU: what torch's operators do while one is recorded is noted down, and done again at each replay,
on the same memory. What is recorded does not run, as on a GPU: until a replay its results hold rubbish."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class FakeGraph:
    """As torch.cuda.CUDAGraph. `made`: all of them."""

    made: ClassVar[list[FakeGraph]] = []
    fails = ""  # as the driver says it, where the call can't be recorded

    def __init__(self) -> None:
        self.steps: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0
        FakeGraph.made.append(self)

    def capture_begin(self, *, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self._mode = _Noting(self.steps)
        self._mode.__enter__()

    def capture_end(self) -> None:
        self._mode.__exit__(None, None, None)
        if FakeGraph.fails:
            raise RuntimeError(FakeGraph.fails)

    def replay(self) -> None:
        self.replays += 1
        for step, args, kwargs, results in self.steps:
            if step._schema.is_mutable:
                step(*args, **kwargs)
            elif not step.is_view:
                for mine, new in zip(tree_flatten(results)[0], tree_flatten(step(*args, **kwargs))[0], strict=True):
                    if isinstance(mine, Tensor):
                        mine.copy_(new)


class _Noting(TorchDispatchMode):
    def __init__(self, steps: list[Any]) -> None:
        super().__init__()
        self._steps = steps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = args[0] if func._schema.is_mutable else func(*args, **kwargs)
        if not func._schema.is_mutable and not func.is_view:
            for tensor in tree_flatten(made)[0]:
                if isinstance(tensor, Tensor) and tensor.is_floating_point():
                    tensor.fill_(float("nan"))
        self._steps.append((func, args, kwargs, made))
        return made


class FakeStream:
    device_index, cuda_stream, device = 0, 7, torch.device("cpu")

    def __init__(self, device: Any = None) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass


@pytest.fixture
def cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    """The graphs that are made; torch.cuda as far as they need it."""
    monkeypatch.setattr(FakeGraph, "made", [])
    monkeypatch.setattr(FakeGraph, "fails", "")
    here = FakeStream()
    fakes: dict[str, Any] = {
        "CUDAGraph": FakeGraph, "Stream": FakeStream, "synchronize": lambda: None,
        "current_stream": lambda d=None: here, "stream": lambda s: nullcontext(), "device": lambda d: nullcontext(),
        "is_current_stream_capturing": lambda: False,
    }  # fmt: skip
    for name, value in fakes.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: here.cuda_stream, raising=False)
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: None)
    return FakeGraph.made
