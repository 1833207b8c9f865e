"""What a generated `fused_K.py` of recurrent layers tells the skeleton, and how it is called: like any other fused
kernel."""

from __future__ import annotations

import hashlib
from math import ceil
from pathlib import Path
from typing import Any

from cutlass import cute
from torch import Tensor

from ...recurrent.layers import LayerCall, run_layers
from ...recurrent.shape import RecurrentShape
from ..common import cache
from ..common.math import ELEMENT_TYPES
from ..common.views import ITEM_BYTES
from ..gemm.host import entries
from ..gemm.host.compiling import Launch
from ..gemm.host.kernels import Epilogue, KernelStore
from ..rows.plan import Gpu
from .kernel import RecurrentKernel
from .plan import DEFAULTS, RecurrentPlan, make_plan

ARCH = "sm_90a"
_HERE = Path(__file__).resolve().parent
_LINE = 16  # bytes at whose multiples tensors begin


class FusedRecurrent:
    """Recurrent layers with their knobs. Calling it launches on torch's current stream; what it compiles is kept on
    disk."""

    def __init__(self, shape: RecurrentShape, knobs: dict[str, Any], *, source: str = "", arch: str = ARCH) -> None:
        self.shape, self.arch = shape, arch
        self.knobs = dict(DEFAULTS)
        self.store = KernelStore(source=Path(source) if source else None)
        self.configure(**knobs)

    @property
    def objects(self) -> set[Path]:
        """The files in which what it compiled is kept."""
        return self.store.objects

    def configure(self, **knobs: Any) -> None:
        """Replace settings. Raises ValueError, and replaces none, where they are unknown or don't fit together."""
        wanted = self.knobs | knobs
        self.plan: RecurrentPlan = make_plan(self.shape, wanted)
        self.knobs.update(wanted)

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """The results that are wanted, freshly allocated. Raises ValueError on another number of operands."""
        if len(operands) != self.shape.operands:
            raise ValueError(f"{self.shape.operands} operands are wanted, not {len(operands)}")
        return run_layers(self.shape, self._layer, operands)

    def _layer(self, call: LayerCall) -> None:
        given = [x.reshape(-1) for x in (*call.read, *call.written) if x is not None]
        aligned = [x if x.data_ptr() % _LINE == 0 else x.clone() for x in given[: len(call.read)]]
        written = tuple(x is not None for x in call.written)
        self._launch(written, batch_first=call.batch_first)(*aligned, *given[len(call.read) :])

    def _launch(self, written: tuple[bool, ...], *, batch_first: bool) -> Launch:
        facts = ("recurrent", self.arch, self.plan, written, batch_first, cache.contents(_HERE))
        return self.store.obtain(facts, Epilogue(), lambda: self.compile(written, batch_first=batch_first))

    def compile(self, written: tuple[bool, ...], *, batch_first: bool, options: str = "") -> Launch:
        """A launch of (products .., weights .., biases .., states .., what is written), flat; no GPU needed."""
        s = self.shape
        rows = s.gates * s.hidden
        state = s.directions * s.batch * s.hidden
        sizes = [s.steps * s.batch * rows, rows * s.hidden, *([rows] if s.bias else [])]
        sizes = [n for n in sizes for _ in range(s.directions)] + [state] * s.states
        sizes += [n for n, wanted in zip((s.steps * state, *([state] * s.states)), written, strict=True) if wanted]
        tensors = [
            cute.runtime.make_fake_tensor(ELEMENT_TYPES[s.dtype], (n,), stride=(1,), assumed_align=ITEM_BYTES[s.dtype])
            for n in sizes
        ]
        kernel = RecurrentKernel(s, self.plan, written=written, batch_first=batch_first)
        made: Launch = cute.compile(
            entries.combine(len(tensors)), kernel, *tensors, cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
            options=f"--enable-tvm-ffi --gpu-arch {self.arch} {options}".rstrip(),
        )  # fmt: skip
        return made

    def variants(self) -> list[tuple[tuple[bool, ...], bool]]:
        """What its layers write, and whether their input has the batch outermost: of all kernels that a call
        launches."""
        s = self.shape
        others = (True, *s.wanted[1:])
        found = [s.wanted if i == s.layers - 1 else others for i in range(s.layers)]
        return list(dict.fromkeys((written, s.batch_first and i == 0) for i, written in enumerate(found)))

    def prepare(self, device: Gpu) -> None:
        """Compile, or find on disk, what a call needs; no GPU needed."""
        for written, batch_first in self.variants():
            self._launch(written, batch_first=batch_first)

    def demand(self, processors: int) -> dict[str, int | str]:
        """What the kernel of a layer takes (see `cuda.demand`)."""
        s, p = self.shape, self.plan
        rows = s.directions * s.steps * s.batch * (p.gates + 1) * s.hidden
        return {
            "plan": hashlib.sha256(repr(p).encode()).hexdigest()[:16],
            "registers": p.registers,
            "local_bytes": 0,
            "shared_bytes": p.shared_bytes,
            "threads": p.threads,
            "ctas": p.cluster * ceil(s.batch / p.batch) * s.directions,
            "in_flight_bytes": 4 * p.gates * p.turns,
            "moved_bytes": ITEM_BYTES[s.dtype] * (rows + s.directions * p.gates * s.hidden * s.hidden),
        }
