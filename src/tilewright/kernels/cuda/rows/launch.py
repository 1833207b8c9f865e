"""Calls a Spec on torch tensors: plans and compiles once per layout of the operands, then only launches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...ops import DTYPES, registered
from ..common.calls import Call, Ready, fresh, lasting, written_out
from ..common.spec import Spec
from .dynamic import freed
from .engine import SCRAP_BYTES, EngineKernel
from .kernels import ALIGNED, Entry, FusedKernels
from .plan import Gpu

TOO_LARGE = 720  # cudaErrorCooperativeLaunchTooLarge
MOST_KNOWN = 1024  # layouts and numbers of rows, of which what a call needs is remembered


def _alignment(address: int) -> int:
    """The largest power of two up to 16 that divides the address."""
    return min(address & -address, 16) or 16


def _too_many_at_once(error: Exception) -> bool:
    """Whether a launch failed since the device can't hold all its CTAs: less of it is ours than it says (MPS)."""
    return f"error code: {TOO_LARGE}" in str(error).lower()


class Fused(FusedKernels):
    """Kernels of a Spec that are called like a function of tensors, on torch's current stream."""

    def __init__(self, spec: Spec, entry: Entry, knobs: dict[str, Any], *, source: str = "") -> None:
        super().__init__(spec, entry, knobs, source=source)
        self._takes: dict[int, bool] = {}
        self._ready: dict[Any, Ready] = {}
        self._rows_of = spec.rows_of if spec.free else None
        # The call gives the outputs of operands, freshly allocated on their device; so does `self`, a little later.
        self._key, self.call = self._written_out()

    def configure(self, **knobs: Any) -> None:
        super().configure(**knobs)
        self._ready.clear()
        self._takes.clear()

    def _written_out(self, through_op: Call | None = None) -> tuple[Callable[..., Any], Call]:
        return written_out(
            len(self.spec.operands), len(self.spec.outputs), rows_of=self._rows_of, found=self._ready.get,
            first=self._first_call, through_op=through_op,
        )  # fmt: skip

    def op(self, name: str) -> Call:
        """The call, and under torch.compile an op of its own (see `ops`)."""
        outputs = [(o.shape, o.dtype) for o in self.spec.outputs]
        return self._written_out(registered(name, self.call, outputs, len(self.spec.operands), rows=self._rows_of))[1]

    def takes(self, rows: int) -> bool:
        """Whether so many rows are worth a call: there are as many as the Spec says, or a kernel that takes any number
        of them takes these, too, where they are aligned and lie as the Spec says. A graph of torch.compile is one for
        all of them: there a kernel is compiled for what no free one takes."""
        if torch.compiler.is_compiling():
            return rows > 1
        found = self._takes.get(rows)
        if found is None:
            _forget(self._takes)
            found = self._takes[rows] = rows == self.spec.domain[0] or self._is_free(
                rows, _device(torch.device("cuda"))
            )
        return found

    def _is_free(self, rows: int, device: Gpu) -> bool:
        spec = self._at(rows)
        if not spec.free or rows < 2 or any(o.strides for o in spec.operands):
            return False
        walks = self._walks(spec)
        try:
            return freed(spec, self.plan(walks, [ALIGNED] * len(walks), device, rows=rows)) is not None
        except ValueError:  # too many rows for one launch
            return False

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The outputs, freshly allocated on the operands' device."""
        return self.call(*operands)

    def _first_call(self, *operands: Tensor) -> Ready:
        """What a call needs that has operands of a layout, or a number of rows, that was not seen yet."""
        _forget(self._ready)
        made = self._ready[self._key(*operands)] = self._prepare(operands)
        return made

    def _prepare(self, operands: Sequence[Tensor]) -> Ready:
        device = operands[0].device
        rows = operands[self.spec.rows_of].shape[0] if self.spec.free else None
        for spec, tensor in zip(self._at(rows).operands, operands, strict=True):
            if tuple(tensor.shape) != spec.shape or tensor.dtype != DTYPES[spec.dtype] or not tensor.is_cuda:
                raise ValueError(
                    f"{self.spec.name}: {spec.name} must be {spec.dtype} {spec.shape} on a CUDA device, "
                    f"not {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
                )
        alignments = [_alignment(t.data_ptr()) for t in operands]
        target = _device(device)
        strides = [t.stride() for t in operands]
        launch, kernel = self.launch(strides, alignments, target, rows)
        ready = self._make_ready(launch, kernel, device)
        if kernel.plan.cta_split != "grid":
            return ready
        try:
            launch(*operands, *(made() for made in ready[3:]), ready[2](operands[0]))
        except Exception as error:  # of the DSL's own class, or RuntimeError where it isn't registered
            if not _too_many_at_once(error):
                raise
            warnings.warn(
                f"{self.spec.name}: the device can't hold all CTAs at once, so rows are read again", stacklevel=5
            )
            launch, kernel = self.launch(strides, alignments, replace(target, teams=False), rows)
            ready = self._make_ready(launch, kernel, device)
        return ready

    def _make_ready(self, launch: Callable[..., None], kernel: EngineKernel, device: torch.device) -> Ready:
        size, make = kernel.work_bytes, torch.zeros if kernel.zeroed else torch.empty

        def kept() -> Ready:
            scrap = None if size > SCRAP_BYTES else torch.empty(size, dtype=torch.uint8, device=device)
            return scrap, *(fresh(tuple(o.shape), DTYPES[o.dtype], device) for o in kernel.spec.outputs)

        scrap, *makers = lasting(kept)
        return (launch, scrap, lambda operand: make(size, dtype=torch.uint8, device=operand.device), *makers)


def _forget(known: dict[Any, Any]) -> None:
    """Where rows come in ever new numbers, what is known of them must not pile up."""
    if len(known) >= MOST_KNOWN:
        known.clear()


def _device(device: torch.device) -> Gpu:
    facts = torch.cuda.get_device_properties(device)
    arch = f"sm_{facts.major}{facts.minor}" + ("a" if facts.major >= 9 else "")
    return Gpu(
        processors=facts.multi_processor_count, arch=arch, shared_bytes=facts.shared_memory_per_multiprocessor,
        threads=facts.max_threads_per_multi_processor,
    )  # fmt: skip
