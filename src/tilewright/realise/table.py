"""The one table of realisers: a new kind of kernel is one folder beside this file and one row here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..facts.candidate import SourceFile
from ..facts.device import Device
from ..facts.space import Point, Space
from ..ir.alone import attention_backward_in
from ..ir.program import Program
from .attention import backward as attention_backward
from .attention import cpu as attention_cpu
from .attention import cpu_backward as attention_cpu_backward
from .attention import renderer as attention
from .conv import renderer as conv
from .conv_weight import depthwise as depthwise_weight
from .conv_weight import renderer as conv_weight
from .cpu import renderer as cpu
from .depthwise import renderer as depthwise
from .gemm import ampere
from .gemm import renderer as gemm
from .realiser import Fit, Realiser, Refused
from .recurrent import cpu as recurrent_cpu
from .recurrent import renderer as recurrent
from .rows import renderer as rows

REALISERS: tuple[Realiser, ...] = (
    attention,
    attention_backward,
    attention_cpu,
    conv_weight,
    attention_cpu_backward,
    conv,
    gemm,
    ampere,
    depthwise,
    recurrent,
    recurrent_cpu,
    depthwise_weight,
    rows,
    cpu,
)  # the first that fits makes a program

# Kernels that compile and that no GPU has run yet: they are not proposed. Names are a Fit's `kernel`, or what a point
# says of its knob `kernel`. To propose one, take its name away once the tests beside it have passed.
UNPROVEN = frozenset(
    {
        "attention variants",  # tests/gpu/test_attention.py: sinks, skipped tiles, shared keys, fp32 without softmax
        "attention gradients",  # tests/gpu/test_attention_backward.py
        "conv norms",  # tests/gpu/test_conv_norms.py
        "recurrent",  # tests/gpu/test_recurrent.py
        "weight gradients",  # tests/gpu/test_conv_backward.py
        "depthwise weight gradients",  # the same
    }
)


@dataclass(frozen=True, slots=True)
class Realisers:
    """The realisers of one device, as one: what is asked of a program goes to the first that fits."""

    device: Device
    rows: tuple[Realiser, ...]

    def fits(self, program: Program) -> Fit | Refused:
        """The Fit of the first realiser that fits; else the Refused that names what each of its kind says."""
        found = self._first(program)
        return found if isinstance(found, Refused) else found[1]

    def unsupported(self, program: Program) -> str | None:
        """Why no realiser makes the program on this device; None if one does."""
        found = self.fits(program)
        return found.why if isinstance(found, Refused) else None

    def space(self, program: Program) -> Space:
        """The knobs and the ranked points of a program that fits, none of an unproven kernel. Raises ValueError where
        none does."""
        row, fit = self._of(program)
        space = row.points(program, self.device)
        points = tuple(p for p in space.points if dict(p).get("kernel") not in UNPROVEN)
        return replace(space, points=points, guess=fit.guess)

    def any_rows(self, program: Program) -> bool:
        """Whether one kernel takes any number of rows, and not only as many as the program says."""
        found = self.fits(program)
        return isinstance(found, Fit) and found.any_rows

    def is_ranked(self, program: Program) -> bool:
        """Whether the points are in the order of a model of the realiser's own, which bytes must not change."""
        found = self.fits(program)
        return isinstance(found, Fit) and found.ranked

    def digest(self, program: Program) -> str:
        """The name of the digest of what makes the program (see digests.py); "" where no realiser fits."""
        found = self._first(program)
        return "" if isinstance(found, Refused) else found[0].digest

    def render(self, program: Program, name: str, point: Point) -> tuple[SourceFile, ...]:
        """`NAME.py` and what it needs of its own. Raises ValueError where no realiser fits."""
        return self._of(program)[0].render(program, name, point, self.device)

    def skeleton_files(self, programs: Sequence[Program]) -> tuple[SourceFile, ...]:
        """The files that the rendered programs import, each once, under `tilewright_kernels/`."""
        making = [self._of(program)[0] for program in programs]
        used = [row for row in self.rows if row in making]
        return tuple({f.path: f for row in used for f in row.skeleton_files()}.values())

    def _of(self, program: Program) -> tuple[Realiser, Fit]:
        found = self._first(program)
        if isinstance(found, Refused):
            raise ValueError(found.why)
        return found

    def _first(self, program: Program) -> tuple[Realiser, Fit] | Refused:
        reasons: list[str] = []
        backward = attention_backward_in(program) is not None  # which the other realisers need not know
        for row in (r for r in self.rows if not backward or r.digest == attention_backward.digest):
            answer = row.fits(program, self.device)
            if isinstance(answer, Fit) and answer.kernel in UNPROVEN:
                answer = Refused(f"no GPU has run the kernel of {answer.kernel} yet")
            if isinstance(answer, Fit):
                if answer.open.issuperset(program.open):
                    return row, answer
                answer = Refused("a kernel for one size alone, where sizes change from call to call")
            reasons += [] if answer.foreign else [answer.why]
        return Refused("; ".join(reasons) or "no skeleton")


def realisers(device: Device) -> Realisers:
    """Those of the table whose target the device is."""
    return Realisers(device, tuple(r for r in REALISERS if r.target == device.target))
