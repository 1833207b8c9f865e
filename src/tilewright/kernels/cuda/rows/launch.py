"""Calls a Spec on torch tensors: plans and compiles once per layout of the operands, then only launches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cutlass.cute as cute
import torch
from torch import Tensor

from ...ops import DTYPES, registered
from ..common import cache
from ..common.addresses import is_wide
from ..common.calls import Call, Ready, fresh, lasting, written_out
from ..common.math import ELEMENT_TYPES
from ..common.spec import ArraySpec, Spec
from ..common.views import ITEM_BYTES, contiguous
from .dynamic import at_rows, freed
from .engine import SCRAP_BYTES, EngineKernel
from .plan import DEFAULTS, KNOBS, Gpu, Plan
from .planning import make_plan

Entry = Callable[..., None]

TOO_LARGE = 720  # cudaErrorCooperativeLaunchTooLarge
ALIGNED = 16  # bytes: what torch allocates is
MOST_KNOWN = 1024  # layouts and numbers of rows, of which what a call needs is remembered


def check_knobs(settings: dict[str, Any]) -> None:
    """Raise ValueError on an unknown knob or value."""
    for name, value in settings.items():
        if name not in KNOBS:
            raise ValueError(f"unknown knob {name!r}; there are {', '.join(KNOBS)}")
        if value not in KNOBS[name]:
            raise ValueError(f"knob {name!r} can't be {value!r}; legal are {KNOBS[name]}")


def _alignment(address: int) -> int:
    """The largest power of two up to 16 that divides the address."""
    return min(address & -address, 16) or 16


def _fake(tensor: ArraySpec, strides: Sequence[int], alignment: int, *, free: bool) -> Any:
    # The stride of a mode of size 1 is anybody's guess: it stays symbolic. So does the number of rows where it is free.
    walk = tuple(cute.sym_int64() if n == 1 else s for n, s in zip(tensor.shape, strides, strict=True))
    shape = (cute.sym_int(), *tensor.shape[1:]) if free and tensor.has_rows else tensor.shape
    return cute.runtime.make_fake_tensor(
        ELEMENT_TYPES[tensor.dtype], shape, stride=walk, assumed_align=max(alignment, ITEM_BYTES[tensor.dtype])
    )


def _too_many_at_once(error: Exception) -> bool:
    """Whether a launch failed since the device can't hold all its CTAs: less of it is ours than it says (MPS)."""
    return f"error code: {TOO_LARGE}" in str(error).lower()


class Fused:
    """A Spec with its entry point (`@cute.jit`, taking a Constexpr plan, the operands, the outputs, a workspace and a
    stream) and its knobs. Calling it launches on torch's current stream; what it compiles is kept on disk (`cache`)."""

    def __init__(self, spec: Spec, entry: Entry, knobs: dict[str, Any], *, source: str = "") -> None:
        self.spec = spec
        self.source = Path(source) if source else None  # the file of spec and entry; None: nothing is kept on disk
        self.knobs = DEFAULTS | knobs
        check_knobs(self.knobs)
        self._entry = entry
        self.objects: set[Path] = set()  # in which its compiled launches are kept
        self._launches: dict[tuple[object, ...], Callable[..., None]] = {}  # of dynamic rows
        self._takes: dict[int, bool] = {}
        self._ready: dict[Any, Ready] = {}
        self._rows_of = spec.rows_of if spec.free else None
        # The call gives the outputs of operands, freshly allocated on their device; so does `self`, a little later.
        self._key, self.call = self._written_out()

    def _written_out(self, through_op: Call | None = None) -> tuple[Callable[..., Any], Call]:
        return written_out(
            len(self.spec.operands), len(self.spec.outputs), rows_of=self._rows_of, found=self._ready.get,
            first=self._first_call, through_op=through_op,
        )  # fmt: skip

    def op(self, name: str) -> Call:
        """The call, and under torch.compile an op of its own (see `ops`)."""
        outputs = [(o.shape, o.dtype) for o in self.spec.outputs]
        return self._written_out(registered(name, self.call, outputs, len(self.spec.operands), rows=self._rows_of))[1]

    def configure(self, **knobs: Any) -> None:
        """Replace settings and forget what was compiled under the old ones."""
        check_knobs(knobs)
        self.knobs.update(knobs)
        for known in (self._ready, self._launches, self._takes):
            known.clear()

    def plan(
        self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Gpu, *, rows: int | None = None
    ) -> Plan:
        """For as many rows (None: as the Spec says)."""
        return make_plan(self._at(rows), strides, alignments, self.knobs, device)

    def _at(self, rows: int | None) -> Spec:
        return self.spec if rows is None or rows == self.spec.domain[0] else at_rows(self.spec, rows)

    def compile(
        self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Gpu, *, rows: int | None = None,
        options: str = "",
    ) -> tuple[Callable[..., None], EngineKernel]:  # fmt: skip
        """The compiled launch for operands of this layout, and the kernel that it launches; no GPU needed. `options`:
        more for the DSL's compiler."""
        kernel = self._kernel(strides, alignments, device, rows)
        compiled = self._compile(kernel, strides, alignments, f"--gpu-arch {device.arch} {options}")
        return compiled, kernel

    def _kernel(
        self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Gpu, rows: int | None
    ) -> EngineKernel:
        """Of dynamic rows where that costs nothing: a chain of as many as the Spec says is up to 1% faster knowing
        it."""
        spec, plan = self._at(rows), self.plan(strides, alignments, device, rows=rows)
        free = freed(spec, plan)
        dear = spec is self.spec and not spec.reduced
        return EngineKernel(spec, plan if free is None or dear else free)

    def _compile(
        self, kernel: EngineKernel, strides: Sequence[Sequence[int]], alignments: Sequence[int], options: str
    ) -> Callable[..., None]:
        spec, free = kernel.spec, kernel.plan.rows != "fixed"
        operands = zip(spec.operands, strides, alignments, strict=True)
        fakes = [_fake(o, s, a, free=free) for o, s, a in operands]
        fakes += [_fake(o, contiguous(o.shape), ALIGNED, free=free) for o in spec.outputs]
        scrap = ArraySpec(name="work", dtype="u8", shape=(kernel.work_bytes,))
        work = _fake(scrap, (1,), ALIGNED, free=False)
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        options = f"--enable-tvm-ffi {options}".rstrip()
        return cute.compile(self._entry, kernel, *fakes, work, stream, options=options)  # type: ignore[no-any-return]

    def launch(
        self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Gpu, rows: int | None = None
    ) -> tuple[Callable[..., None], EngineKernel]:
        """As `compile`, from disk where it is kept there."""
        kernel = self._kernel(strides, alignments, device, rows)
        facts = self._facts(kernel, strides, alignments, device)
        found = self._launches.get(facts)
        if found is None:
            found = cache.obtain(
                self.source, facts,
                lambda: self._compile(kernel, strides, alignments, f"--gpu-arch {device.arch}"), self.objects,
            )  # fmt: skip
            if kernel.plan.rows != "fixed":
                self._launches[facts] = found
        return found, kernel

    def kept(self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Gpu) -> bytes | None:
        """The object in which the same is kept, where it is."""
        kernel = self._kernel(strides, alignments, device, None)
        return cache.kept(self.source, self._facts(kernel, strides, alignments, device))

    def _facts(
        self, kernel: EngineKernel, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Gpu
    ) -> tuple[object, ...]:
        """What decides, beside the Spec, what is compiled: of dynamic rows not their number, but their plan."""
        shapes = [o.shape for o in kernel.spec.operands]
        walks = tuple(tuple(s for s, n in zip(walk, shape, strict=True) if n > 1)
                      for walk, shape in zip(strides, shapes, strict=True))  # fmt: skip
        rows: object = kernel.spec.domain[0]
        if kernel.plan.rows != "fixed":
            long = (is_wide(o.shape, walk) for o, walk in zip(kernel.spec.operands, strides, strict=True) if o.indexed)
            rows = (repr(kernel.plan), *long)
        return walks, tuple(alignments), tuple(sorted(self.knobs.items())), device, rows

    def prepare(self, device: Gpu) -> None:
        """Compile, or find on disk, what operands need that are aligned and lie as the Spec says; no GPU needed."""
        walks = self._walks(self.spec)
        self.launch(walks, [ALIGNED] * len(walks), device)

    def _walks(self, spec: Spec) -> list[tuple[int, ...]]:
        return [o.strides or contiguous(o.shape) for o in spec.operands]

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
