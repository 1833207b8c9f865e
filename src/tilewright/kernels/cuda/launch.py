"""Calls a Spec on torch tensors: plans and compiles once per layout of the operands, then only launches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cutlass.cute as cute
import torch
from torch import Tensor

from ..ops import DTYPES
from . import cache
from .engine import SCRAP_BYTES, Kernel
from .math import ELEMENT_TYPES
from .plan import DEFAULTS, KNOBS, Device, Plan
from .planning import make_plan
from .spec import Spec
from .views import ITEM_BYTES, contiguous

Entry = Callable[..., None]

TOO_LARGE = 720  # cudaErrorCooperativeLaunchTooLarge
ALIGNED = 16  # bytes: what torch allocates is


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


def _fake(dtype: str, shape: Sequence[int], strides: Sequence[int], alignment: int) -> Any:
    # The stride of a mode of size 1 is anybody's guess: it stays symbolic.
    walk = tuple(cute.sym_int64() if n == 1 else s for n, s in zip(shape, strides, strict=True))
    kind = ELEMENT_TYPES[dtype]
    return cute.runtime.make_fake_tensor(
        kind, tuple(shape), stride=walk, assumed_align=max(alignment, ITEM_BYTES[dtype])
    )


def _written_out(arity: int) -> tuple[Callable[..., tuple[Any, ...]], Callable[..., Any]]:
    """What decides which compiled launch takes so many operands (the device, strides, and addresses within 16 bytes),
    and, of a look-up by that and of what prepares a launch that is not there yet, the call. Both are run in every call,
    so they are written out: half the time of comprehensions and starred arguments."""
    names = [f"t{i}" for i in range(arity)]
    taken = ", ".join(names)
    key = f"(t0.get_device(), {', '.join(f'{n}.stride(), {n}.data_ptr() & 15' for n in names)})"
    call = f"lambda found, prepare: lambda {taken}: (found({key}) or prepare({taken}))({taken})"
    return eval(f"lambda {taken}: {key}"), eval(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A compiled launch. `scrap` stands in for a workspace that nothing uses."""

    launch: Callable[..., None]
    work_bytes: int
    make_work: Callable[..., Tensor]  # torch.empty or torch.zeros
    scrap: Tensor | None
    # empty_like of a one-element expanded tensor is the cheapest way to a fresh contiguous one
    outputs: tuple[Tensor, ...]

    def call(self) -> Callable[..., tuple[Tensor, ...]]:
        """Of the operands, the outputs, freshly allocated on their device."""
        launch, empty, likes, scrap = self.launch, torch.empty_like, self.outputs, self.scrap
        if scrap is not None and len(likes) == 1:
            (like,) = likes

            def launched(*operands: Tensor) -> tuple[Tensor, ...]:
                output = empty(like)
                launch(*operands, output, scrap)
                return (output,)

        else:

            def launched(*operands: Tensor) -> tuple[Tensor, ...]:
                outputs = tuple(map(empty, likes))
                work = scrap
                if work is None:
                    work = self.make_work(self.work_bytes, dtype=torch.uint8, device=operands[0].device)
                launch(*operands, *outputs, work)
                return outputs

        return launched


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
        self._outputs = tuple((o.shape, DTYPES[o.dtype]) for o in spec.outputs)
        self.objects: set[Path] = set()  # in which its compiled launches are kept
        self._ready: dict[tuple[Any, ...], _Ready] = {}
        self._calls: dict[tuple[Any, ...], Callable[..., tuple[Tensor, ...]]] = {}
        self._key, calling = _written_out(len(spec.operands))
        # The outputs of operands, freshly allocated on their device; so is `self`, a little later.
        self.call: Callable[..., tuple[Tensor, ...]] = calling(self._calls.get, self._first_call)

    def configure(self, **knobs: Any) -> None:
        """Replace settings and forget what was compiled under the old ones."""
        check_knobs(knobs)
        self.knobs.update(knobs)
        self._ready.clear()
        self._calls.clear()

    def plan(self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Device) -> Plan:
        return make_plan(self.spec, strides, alignments, self.knobs, device)

    def compile(
        self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Device, *, options: str = ""
    ) -> tuple[Callable[..., None], Kernel]:
        """The compiled launch for operands of this layout, and the kernel that it launches; no GPU needed. `options`:
        more for the DSL's compiler."""
        kernel = Kernel(self.spec, self.plan(strides, alignments, device))
        operands = zip(self.spec.operands, strides, alignments, strict=True)
        fakes = [_fake(o.dtype, o.shape, s, a) for o, s, a in operands]
        fakes += [_fake(o.dtype, o.shape, contiguous(o.shape), 16) for o in self.spec.outputs]
        work = _fake("u8", (kernel.work_bytes,), (1,), 16)
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        options = f"--enable-tvm-ffi --gpu-arch {device.arch} {options}".rstrip()
        compiled = cute.compile(self._entry, kernel, *fakes, work, stream, options=options)
        return compiled, kernel

    def launch(
        self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Device
    ) -> tuple[Callable[..., None], Kernel]:
        """As `compile`, from disk where it is kept there."""
        facts = self._facts(strides, alignments, device)
        made = cache.obtain(self.source, facts, lambda: self.compile(strides, alignments, device)[0], self.objects)
        return made, Kernel(self.spec, self.plan(strides, alignments, device))

    def kept(self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Device) -> bytes | None:
        """The object in which the same is kept, where it is."""
        return cache.kept(self.source, self._facts(strides, alignments, device))

    def _facts(self, strides: Sequence[Sequence[int]], alignments: Sequence[int], device: Device) -> tuple[object, ...]:
        shapes = [o.shape for o in self.spec.operands]
        walks = [[s for s, n in zip(walk, shape, strict=True) if n > 1]
                 for walk, shape in zip(strides, shapes, strict=True)]  # fmt: skip
        return walks, list(alignments), sorted(self.knobs.items()), device

    def prepare(self, device: Device) -> None:
        """Compile, or find on disk, what operands need that are aligned and lie as the Spec says; no GPU needed."""
        walks = [o.strides or contiguous(o.shape) for o in self.spec.operands]
        self.launch(walks, [ALIGNED] * len(walks), device)

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The outputs, freshly allocated on the operands' device."""
        return self.call(*operands)

    def _first_call(self, *operands: Tensor) -> Callable[..., tuple[Tensor, ...]]:
        """The call for operands of a layout that was not seen yet."""
        key = self._key(*operands)
        ready = self._ready[key] = self._prepare(operands)
        made = self._calls[key] = ready.call()
        return made

    def _prepare(self, operands: Sequence[Tensor]) -> _Ready:
        device = operands[0].device
        for spec, tensor in zip(self.spec.operands, operands, strict=True):
            if tuple(tensor.shape) != spec.shape or tensor.dtype != DTYPES[spec.dtype] or not tensor.is_cuda:
                raise ValueError(
                    f"{self.spec.name}: {spec.name} must be {spec.dtype} {spec.shape} on a CUDA device, "
                    f"not {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
                )
        facts = torch.cuda.get_device_properties(device)
        arch = f"sm_{facts.major}{facts.minor}" + ("a" if facts.major >= 9 else "")
        alignments = [_alignment(t.data_ptr()) for t in operands]
        target = Device(processors=facts.multi_processor_count, arch=arch)
        launch, kernel = self.launch([t.stride() for t in operands], alignments, target)
        ready = self._make_ready(launch, kernel, device)
        if kernel.plan.spread != "grid":
            return ready
        try:
            ready.call()(*operands)
        except Exception as error:  # of the DSL's own class, or RuntimeError where it isn't registered
            if not _too_many_at_once(error):
                raise
            warnings.warn(
                f"{self.spec.name}: the device can't hold all CTAs at once, so rows are read again", stacklevel=5
            )
            launch, kernel = self.launch([t.stride() for t in operands], alignments, replace(target, teams=False))
            ready = self._make_ready(launch, kernel, device)
        return ready

    def _make_ready(self, launch: Callable[..., None], kernel: Kernel, device: torch.device) -> _Ready:
        size, make = kernel.work_bytes, torch.zeros if kernel.zeroed else torch.empty
        scrap = None if size > SCRAP_BYTES else torch.empty(size, dtype=torch.uint8, device=device)
        outputs = tuple(torch.empty(1, dtype=dtype, device=device).expand(shape) for shape, dtype in self._outputs)
        return _Ready(launch=launch, work_bytes=size, make_work=make, scrap=scrap, outputs=outputs)


class Summed:
    """A Fused whose last outputs are sums in parts, and the Fused that adds these up; both are called as one.

    Operands that are not contiguous are copied first: sums are kept for rows that lie along the lanes alone."""

    def __init__(self, rows: Fused, sums: Fused) -> None:
        self.rows, self.sums = rows, sums
        self.knobs = rows.knobs
        self._count = len(rows.spec.sums)

    @property
    def spec(self) -> Spec:
        """Of the first, which does nearly all of the work."""
        return self.rows.spec

    def configure(self, **knobs: Any) -> None:
        """As a Fused's; what adds up has no knobs of its own."""
        self.rows.configure(**knobs)

    def plan(self, *layout: Any) -> Plan:
        """The first's."""
        return self.rows.plan(*layout)

    def compile(self, *layout: Any, **options: Any) -> Any:
        """The first's compiled launch."""
        return self.rows.compile(*layout, **options)

    def kept(self, *layout: Any) -> bytes | None:
        """The first's object, where it is kept."""
        return self.rows.kept(*layout)

    def prepare(self, device: Device) -> None:
        """Both, as a Fused's."""
        self.rows.prepare(device)
        self.sums.prepare(device)

    @property
    def objects(self) -> set[Path]:
        return self.rows.objects | self.sums.objects

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        made = self.rows(*(o if o.is_contiguous() else o.contiguous() for o in operands))
        return (*made[: -self._count], *self.sums(*made[-self._count :]))
