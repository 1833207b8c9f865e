"""The CPU target: a Program as a small C++ file over the headers of kernels/cpu, and the Python file that runs it."""

from __future__ import annotations

import math

from ...facts.candidate import SourceFile
from ...facts.device import Device
from ...facts.problem import Target
from ...facts.space import Knob, Point, Space, point
from ...ir.partial import adding_up, in_parts, usual_parts
from ...ir.program import DTYPE_BYTES, RANKED, Program, Reduction, multiplies
from ..float8 import computes_in_float8
from ..realiser import Fit, Refused, copied, refused
from .declared import open_dimensions, vector_dimension, why_not_open
from .source import headline, source
from .text import CannotRender

target: Target = "cpu"
digest, writers = "kernels", ("cpu/renderer.py", "cpu/declared.py", "cpu/source.py", "cpu/text.py")
_FILES = (
    "__init__.py", "ops.py", "autograd.py", "store.py", "cpu/__init__.py", "cpu/build.py", "cpu/launch.py",
    "cpu/sized.py", "cpu/vec.h", "cpu/math.h", "cpu/reductions.h", "cpu/walk.h", "cpu/rows.h", "cpu/columns.h",
    "cpu/tiles.h", "cpu/scan.h", "cpu/entry.h",
)  # fmt: skip

_MOST_OPERANDS = 32  # tiles.h packs operands into 32 KB of stack each
_LARGE_BYTES = 32 << 20  # outputs beyond a last-level cache, where going past it can pay


def fits(program: Program, device: Device) -> Fit | Refused:
    """See `realiser`."""
    if multiplies(program):
        return Refused("products of matrices", foreign=True)
    reason = _unsupported(program)
    return refused(reason, open=() if reason or program.sums else open_dimensions(program))


def _unsupported(program: Program) -> str | None:
    if not program.domain:
        return "a single point"
    if 0 in program.domain:
        return "nothing to compute: a dimension of size 0"
    if computes_in_float8(program):
        return "arithmetic in float8"
    if not program.operands:
        return "no operand"
    if len(program.operands) > _MOST_OPERANDS:
        return f"more than {_MOST_OPERANDS} operands"
    if len(program.domain) > 24:
        return f"{len(program.domain)} dimensions"
    if program.inner_size >= 2**31 and any(
        isinstance(s, Reduction) and s.op in ("argmax", "argmin", *RANKED) for s in program.body
    ):
        return "positions beyond 2^31"
    if program.scan and any(o.shape != program.domain for o in program.outputs):
        return "an output smaller than the domain beside a scan"
    for load in program.loads:
        gathered = [p for p in load.at if p.value]
        if gathered and (len(gathered) > 1 or load.fill is not None or gathered[0].steps or gathered[0].start):
            return "a gather along several dimensions, or of what may be missing"
    if program.sums and vector_dimension(program) not in program.reduced:
        return "sums over rows that lie side by side in the lanes"
    try:
        source(program)
    except CannotRender as reason:
        return str(reason)
    return why_not_open(program)


def points(program: Program, device: Device) -> Space:
    """See `realiser`; every CPU has the same points."""
    return _space(program)


def _space(program: Program) -> Space:
    """How many vectors are in flight, and whether large outputs go past the caches."""
    knobs: list[Knob] = [_GRAIN]
    base: dict[str, int | bool] = {"grain": 16384}
    variants: list[dict[str, int | bool]] = []
    along = vector_dimension(program) in program.reduced
    if program.scan and along:
        pass  # a row is one chain
    elif along:
        knobs.append(_UNROLL)
        base["unroll"] = 2
        variants = [{"unroll": 4}, {"unroll": 1}]
    elif program.reduced:
        knobs.append(_COLUMNS)
        base["columns"] = 4
        variants = [{"columns": 8}, {"columns": 2}]
    if along or program.scan or not program.reduced:
        knobs.append(_STREAM)
        base["stream"] = False
        if sum(math.prod(o.shape) * DTYPE_BYTES[o.dtype] for o in program.outputs) >= _LARGE_BYTES:
            variants = [{"stream": True}, *variants]
    if 4096 < math.prod(program.domain) <= 16384:
        variants.append({"grain": 4096})
    found = tuple(point(**{**base, **variant}) for variant in ({}, *variants))
    return Space(knobs=tuple(knobs), points=found)


_GRAIN = Knob(name="grain", values=(4096, 16384, 65536), about="elements that one thread works on alone")
_UNROLL = Knob(name="unroll", values=(1, 2, 4), about="vectors of a row that are reduced side by side")
_COLUMNS = Knob(
    name="columns", values=(1, 2, 4, 8), about="vectors of neighbouring columns that are reduced side by side"
)
_STREAM = Knob(name="stream", values=(False, True), about="write outputs past the caches")


def render(program: Program, name: str, point: Point, device: Device) -> tuple[SourceFile, ...]:
    """`name`.cpp and `name`.py; `name`_sums.cpp, too, for sums over the rows. Raises CannotRender where it refuses."""
    if program.sums:
        parts = usual_parts(program.rows)
        rows, sums = in_parts(program, parts), adding_up(program, parts)
        return (
            SourceFile(path=f"{name}.cpp", text=source(rows)),
            SourceFile(path=f"{name}_sums.cpp", text=source(sums)),
            SourceFile(path=f"{name}.py", text=_python_in_two(program, rows, sums, name=name, point=point)),
        )
    return (
        SourceFile(path=f"{name}.cpp", text=source(program)),
        SourceFile(path=f"{name}.py", text=_python(program, name, point)),
    )


def skeleton_files() -> tuple[SourceFile, ...]:
    """The headers and the launcher."""
    return copied(_FILES)


def _python(program: Program, name: str, point: Point) -> str:
    return f'''"""{headline(program)} Built from {name}.cpp on first use."""

from pathlib import Path

from tilewright_kernels.cpu.launch import Kernel
{_op(program)[1]}

KNOBS = {dict(point)!r}
_OUTPUTS = {_outputs(program)}
_LEGAL = {_legal(program)!r}

_kernel = Kernel(Path(__file__).with_suffix(".cpp"), outputs=_OUTPUTS, knobs=KNOBS, legal=_LEGAL{_sizes(program)})
configure = _kernel.configure
{_run(program, name, "_kernel")}'''


def _python_in_two(program: Program, rows: Program, sums: Program, *, name: str, point: Point) -> str:
    return f'''"""{headline(program)} Built from {name}.cpp and {name}_sums.cpp on first use: the first also sums
over rows in parts, which the second adds up."""

from pathlib import Path

from tilewright_kernels.cpu.launch import Kernel, Summed
from tilewright_kernels.ops import torch_op

KNOBS = {dict(point)!r}
_OUTPUTS = {_outputs(program)}
_ROWS = {_outputs(rows)}
_SUMS = {_outputs(sums)}
_LEGAL = {_legal(program)!r}

_rows = Kernel(Path(__file__).with_suffix(".cpp"), outputs=_ROWS, knobs=KNOBS, legal=_LEGAL)
_sums = Kernel(Path(__file__).with_name("{name}_sums.cpp"), outputs=_SUMS, knobs={{}}, legal={{}})
_kernel = Summed(_rows, _sums, count=len(_SUMS))
configure = _rows.configure
{_run(program, name, "_kernel")}'''


def _outputs(program: Program) -> str:
    return f"({', '.join(f'({o.shape!r}, {o.dtype!r})' for o in program.outputs)},)"


def _legal(program: Program) -> dict[str, tuple[int | str | bool, ...]]:
    return {knob.name: knob.values for knob in _space(program).knobs}


def _run(program: Program, name: str, kernel: str) -> str:
    signature = ", ".join(o.name for o in program.operands)
    text = f"""# run({signature}) -> ({", ".join(o.name for o in program.outputs)},)
run = {_op(program)[0]}({name!r}, {kernel}.launch, _OUTPUTS, {len(program.operands)}{_op(program)[2]})
"""
    return text + (_TAKES if _any_rows(program) else "")


_TAKES = '''

def takes(rows):
    """Whether the kernel takes so many."""
    return rows > 1
'''


def _op(program: Program) -> tuple[str, str, str]:
    """What makes the kernel an operator of torch.library, its import, and what it is told of open sizes."""
    sizes = {} if program.sums else open_dimensions(program)
    if set(sizes) <= {0}:
        rows = f", rows={sizes[0]}" if sizes else ""
        return "torch_op", "from tilewright_kernels.ops import torch_op", rows
    return "sized_op", "from tilewright_kernels.cpu.sized import sized_op", f", sizes={sizes!r}"


def _sizes(program: Program) -> str:
    found = {} if program.sums else open_dimensions(program)
    return f", sizes={found!r}" if found else ""


def _any_rows(program: Program) -> bool:
    """Whether the kernel takes any number of rows, and not only as many as the program says."""
    return not program.sums and 0 in open_dimensions(program)
