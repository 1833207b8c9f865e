"""The kernels of a Spec: planned and compiled for a layout of the operands, and kept on disk (see `cache`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cutlass.cute as cute

from ..common import cache
from ..common.addresses import is_wide
from ..common.math import ELEMENT_TYPES
from ..common.spec import ArraySpec, Spec
from ..common.views import ITEM_BYTES, contiguous
from .dynamic import at_rows, freed
from .engine import EngineKernel
from .plan import DEFAULTS, KNOBS, Gpu, Plan
from .planning import make_plan

Entry = Callable[..., None]

ALIGNED = 16  # bytes: what torch allocates is


def check_knobs(settings: dict[str, Any]) -> None:
    """Raise ValueError on an unknown knob or value."""
    for name, value in settings.items():
        if name not in KNOBS:
            raise ValueError(f"unknown knob {name!r}; there are {', '.join(KNOBS)}")
        if value not in KNOBS[name]:
            raise ValueError(f"knob {name!r} can't be {value!r}; legal are {KNOBS[name]}")


def _fake(tensor: ArraySpec, strides: Sequence[int], alignment: int, *, free: bool) -> Any:
    # The stride of a mode of size 1 is anybody's guess: it stays symbolic. So does the number of rows where it is free.
    walk = tuple(cute.sym_int64() if n == 1 else s for n, s in zip(tensor.shape, strides, strict=True))
    shape = (cute.sym_int(), *tensor.shape[1:]) if free and tensor.has_rows else tensor.shape
    return cute.runtime.make_fake_tensor(
        ELEMENT_TYPES[tensor.dtype], shape, stride=walk, assumed_align=max(alignment, ITEM_BYTES[tensor.dtype])
    )


class FusedKernels:
    """A Spec with its entry point (`@cute.jit`, taking a Constexpr plan, the operands, the outputs, a workspace and a
    stream) and its knobs."""

    def __init__(self, spec: Spec, entry: Entry, knobs: dict[str, Any], *, source: str = "") -> None:
        self.spec = spec
        self.source = Path(source) if source else None  # the file of spec and entry; None: nothing is kept on disk
        self.knobs = DEFAULTS | knobs
        check_knobs(self.knobs)
        self._entry = entry
        self.objects: set[Path] = set()  # in which its compiled launches are kept
        self._launches: dict[tuple[object, ...], Callable[..., None]] = {}  # of dynamic rows

    def configure(self, **knobs: Any) -> None:
        """Replace settings and forget what was compiled under the old ones."""
        check_knobs(knobs)
        self.knobs.update(knobs)
        self._launches.clear()

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
