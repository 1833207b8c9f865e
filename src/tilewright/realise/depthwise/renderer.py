"""Depthwise convolutions as CuTe DSL kernels that read each element once, with what comes before them and follows."""

from __future__ import annotations

from math import gcd

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Knob, Point, Space, point
from ...ir.program import DTYPE_BYTES, Program
from ...ir.schedule import schedule
from ..float8 import rounded_once
from ..realiser import Fit, Refused, carried
from ..rows import renderer as rows
from ..rows.text import Lines, fused_text, safe_names
from ..strength import reduced_in_strength
from .shape import DepthwiseParts, depthwise

target: Target = "cuda"
digest, writers = "depthwise", ("rows/text.py", "depthwise/renderer.py")
_KNOBS = (
    Knob(name="threads", values=(64, 128, 256, 512), about="threads of a CTA"),
    Knob(name="down", values=(1, 2, 4, 8), about="results of a thread, one below the other"),
    Knob(name="along", values=(1, 2, 4, 8), about="results of a thread, side by side"),
    Knob(name="through", values=("shared", "cache"), about="where threads find what neighbours read, too"),
)
LARGE_WINDOW = 25  # elements: lines are read for several results each
SKELETONS = (*rows.SKELETONS, "cuda/depthwise")
_ROWS_LAUNCH = "from tilewright_kernels.cuda.rows.launch import Fused\n"
_IMPORTS = """\
from tilewright_kernels.cuda.depthwise.launch import Depthwise
from tilewright_kernels.cuda.depthwise.plan import DepthwiseSpec
"""
_SPEC = """

DEPTHWISE = DepthwiseSpec(source="{source}", weights="{weights}", prologue=prologue, factor=factor)
"""


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    found = depthwise(program)
    if isinstance(found, str):
        return Refused(found, foreign=True)
    answer = rows.fits(program, device)
    return Fit(open=answer.open) if isinstance(answer, Fit) else answer


def points(program: Program, device: Device) -> Space:
    """Neighbouring threads' results lie side by side, so that a warp writes whole lines of memory: a thread has as many
    as one store takes. Larger tiles read less twice, smaller ones are more at once."""
    found = depthwise(program)
    assert isinstance(found, DepthwiseParts)
    (source,) = (o for o in program.operands if o.name == found.source)
    ((kept, apart),) = ((d, step) for d, step in program.loads[0].at[-1].steps if d not in program.reduced)
    store = gcd(program.domain[kept], 4)
    wide = min(store, max(4 // apart, 1))  # reads of 16 bytes then lie side by side, too
    deep, other = (8, 4) if program.inner_size >= LARGE_WINDOW or wide < 4 else (4, 8)
    if len(source.shape) == 3:  # one line a plane
        deep = other = 1
    if any(d > kept for d, _ in program.loads[0].at[1].steps):  # the channels of a pixel lie side by side
        return Space(knobs=_KNOBS, points=tuple(dict.fromkeys(
            point(threads=threads, down=min(down, deep), along=along, through="cache")
            for threads, down, along in ((256, 2, 4), (128, 2, 4), (256, 2, 2), (256, 1, 4), (128, 1, 4), (256, 4, 2))
        )))  # fmt: skip
    settings = [(256, deep, wide, "shared"), (128, deep, wide, "shared"), (128, other, wide, "shared"),
                (256, other, wide, "shared"), (128, deep, wide, "cache"), (256, deep, wide, "cache"),
                (128, deep, 4, "shared"), (64, deep, wide, "shared")]  # fmt: skip
    if DTYPE_BYTES[source.dtype] < 4 and program.domain[kept] % 8 == 0:
        settings.insert(5, (128, other, 8, "cache"))
    made = (point(threads=threads, down=down, along=along, through=way) for threads, down, along, way in settings)
    return Space(knobs=_KNOBS, points=tuple(dict.fromkeys(made)))


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`<name>.py`: as the fused file of a reduction, with its prologue and its factors apart."""
    program = safe_names(reduced_in_strength(rounded_once(program)))
    found = depthwise(program)
    assert isinstance(found, DepthwiseParts), found
    lines = Lines(program)
    known = {item.result for item in schedule(program).head}
    before = tuple(item for item in found.before if item.result not in known)
    functions = [
        lines.function("prologue", "What is convolved, of an element.", before, [found.value], found.value),
        lines.function("factor", "A weight as it is multiplied.", found.factor, [found.weight], found.weight),
    ]
    text = fused_text(program, name, point, rows_of=rows.dynamic_rows(program))
    head, entry = text.split("\n\n@cute.jit\n")
    spec = _SPEC.format(source=found.source, weights=found.weights)
    entry = entry.replace("Fused(SPEC, entry,", "Depthwise(SPEC, DEPTHWISE, entry,")
    text = head.replace(_ROWS_LAUNCH, _IMPORTS) + "\n\n" + "\n\n".join(functions) + spec + "\n\n@cute.jit\n" + entry
    return (SourceFile(path=f"{name}.py", text=text),)


def skeleton_files() -> tuple[SourceFile, ...]:
    """See `realiser`."""
    return carried(SKELETONS)
