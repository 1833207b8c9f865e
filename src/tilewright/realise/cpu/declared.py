"""What a C++ file over the headers of kernels/cpu declares of a Program: its walk, its tensors and its loads."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...ir.program import DTYPE_BYTES, Load, Operand, Output, Program, Reduction, Statement
from .text import MEMORY, load_type

_SHORT = 8  # lanes along fewer elements would mostly be idle
# Rows of no more elements are reduced side by side in the lanes, of no more than the second where positions are
# reduced, too, and only where there are as many rows as the third (docs/measured.md, short rows).
_SHORT_ROW, _SHORT_WITH_POSITIONS, _ROWS = 32, 64, 64


def vector_dimension(program: Program) -> int:
    """The dimension along which the lanes lie: the innermost that has more than one element. It gives way to the one
    before where rows are short, and in a pointwise program where it is short, the other is not, and something does not
    walk through both as one."""
    wide = [d for d, size in enumerate(program.domain) if size > 1]
    if not wide:
        return len(program.domain) - 1
    last, before = wide[-1], wide[-2] if len(wide) > 1 else None
    if before is not None and _short_rows(program, last, before):
        return before
    if program.reduced or before is None or program.domain[last] >= _SHORT or program.domain[before] < _SHORT:
        return last
    seen = [o.shape for o in program.operands if not o.indexed] + [
        program.aligned(load.result) for load in program.loads
    ]
    alike = all((shape[last] > 1) == (shape[before] > 1) for shape in seen)
    told = any(isinstance(s, Statement) and s.op == "index" and s.args[0] in (last, before) for s in program.body)
    return last if alike and not told else before


def _short_rows(program: Program, last: int, before: int) -> bool:
    """Whether rows are so short that to reduce one over its lanes would take longer than to read it."""
    plain = not (program.scan or program.sums or program.loads or program.ranked)
    positions = any(isinstance(s, Reduction) and s.op in ("argmax", "argmin") for s in program.body)
    longest = _SHORT_WITH_POSITIONS if positions else _SHORT_ROW
    return plain and program.reduced == (last,) and program.domain[last] <= longest and program.domain[before] >= _ROWS


def open_dimensions(program: Program) -> dict[int, int]:
    """The dimensions that may have any size for the program's kernel, each with the operand that says which: those that
    the program calls open, and otherwise the rows along dimension 0, if they are neither reduced nor numbered, nor what
    the lanes of `Rows` run along."""
    found = program.open or ((0,) if _rows_are_open(program) else ())
    saying = {d: next((i for i, o in enumerate(program.operands) if _has(o, d)), None) for d in found}
    return {d: i for d, i in saying.items() if i is not None}


def why_not_open(program: Program) -> str | None:
    """Why what the program calls open can't be left open; None where it can. The lanes lie a constant number of
    elements apart, and a load's source has the sizes that it was traced with."""
    if not program.open:
        return None
    if program.scan or program.sums or program.ranked:
        return "a scan, ranks or sums over rows of sizes that change from call to call"
    if any(load.dims & set(program.open) for load in program.loads):
        return "reads at other positions than their own along a dimension whose size changes"
    if max(program.open) > vector_dimension(program):
        return "lanes across a dimension whose size changes"
    if len(open_dimensions(program)) < len(program.open):
        return "no operand that says a size which changes"
    return None


def _has(operand: Operand, dimension: int) -> bool:
    return not operand.indexed and operand.shape[dimension] > 1


def _rows_are_open(program: Program) -> bool:
    plain = not (program.scan or program.sums or program.loads or program.ranked)
    numbered = any(isinstance(s, Statement) and s.op == "index" and s.args[0] == 0 for s in program.body)
    kept = len(program.domain) > 1 and program.domain[0] > 1 and 0 not in program.reduced
    return plain and kept and not numbered and not (_along_rows(program) and vector_dimension(program) == 0)


def _along_rows(program: Program) -> bool:
    """Whether its walk is that of `Rows`."""
    return not program.reduced or vector_dimension(program) in program.reduced


class Declarations:
    """Of a program whose lanes lie along the dimension `vector`, as lines of the file's struct."""

    def __init__(self, program: Program, vector: int) -> None:
        self._program, self._vector = program, vector

    def _slots(self) -> list[tuple[Operand | Load | Output, int, tuple[int, ...]]]:
        """Aligned operands, loads and outputs, each with the number of its tensor in a call and its aligned shape."""
        p = self._program
        numbers = {o.name: i for i, o in enumerate(p.operands)}
        slots: list[tuple[Operand | Load | Output, int, tuple[int, ...]]] = [
            (o, numbers[o.name], o.shape) for o in p.operands if not o.indexed
        ]
        slots += [(load, numbers[load.source], p.aligned(load.result)) for load in p.loads]
        return [*slots, *((o, len(p.operands) + i, o.shape) for i, o in enumerate(p.outputs))]

    def constants(self, *, writes_elements: bool) -> list[str]:
        p, slots = self._program, self._slots()
        reduced = p.reduced or tuple(range(len(p.domain)))
        indexed = {int(i.args[0]) for i in p.body if isinstance(i, Statement) and i.op == "index"}
        indexed |= {d for load in p.loads for k in self._checked(load) for d, _ in load.at[k].steps}
        codes = {"f": 2, "b": 4, "i": 0, "u": 1}
        special = {"bool": 6, "float8_e4m3fn": 10}
        code = [special.get(v.dtype, codes[v.dtype[0]]) for v, _, _ in slots]
        lanes = [(self._lane_step(v, shape), v) for v, _, shape in slots]
        rank, read, given = len(p.domain), len(slots) - len(p.outputs), len(p.operands) + len(p.outputs)
        return [
            f"  static constexpr int RANK = {rank}, OPERANDS = {read}, TENSORS = {len(slots)}, ARGUMENTS = {given};",
            f"  static constexpr int VECTOR = {self._vector};",
            f"  static constexpr unsigned REDUCED = {_bits(reduced)}, INDEXED = {_bits(indexed)};",
            f"  static constexpr int64_t POINTS = {math.prod(p.domain)}, domain[] = {_braces(p.domain)};",
            f"  static constexpr int64_t shape[][RANK] = {_braces(_braces(shape) for _, _, shape in slots)};",
            f"  static constexpr int given[] = {_braces(number for _, number, _ in slots)};",
            f"  static constexpr int code[] = {_braces(code)};",
            f"  static constexpr int64_t lane[] = {_braces(step * DTYPE_BYTES[v.dtype] for step, v in lanes)};",
            f"  static constexpr bool UNIT = {'true' if all(step < 2 for step, _ in lanes) else 'false'};",
            f"  static constexpr int bytes[] = {_braces(DTYPE_BYTES[v.dtype] for v, _, _ in slots)};",
            f"  static constexpr int64_t PARTS = {max((o.parts for o in p.outputs), default=0)};",
            f"  static constexpr bool summed[] = {_braces('true' if _is_sum(v) else 'false' for v, _, _ in slots)};",
            f"  static constexpr unsigned OPEN = {_bits(open_dimensions(p))};",
            f"  static constexpr bool GATHERS = {'true' if any(load.args for load in p.loads) else 'false'};",
            f"  static constexpr bool WRITES_ELEMENTS = {'true' if writes_elements else 'false'};",
        ]

    def tensors(self) -> list[str]:
        """Handles of what is read and written at its own position; and the loads."""
        lines = []
        for slot, (value, _, shape) in enumerate(self._slots()):
            if isinstance(value, Load):
                lines += self._load(value, slot)
                continue
            prefix = "in" if isinstance(value, Operand) else "out"
            step = self._lane_step(value, shape)
            lines.append(f"  static constexpr Tensor<{slot}, {MEMORY[value.dtype]}, {step}> {prefix}_{value.name}{{}};")
        loads = ", ".join(load_type(load.result) for load in self._program.loads)
        return [*lines, f"  using Loads = LoadList<{loads}>;"]

    def _lane_step(self, value: Operand | Load | Output, shape: tuple[int, ...]) -> int:
        """Elements from lane to lane in a contiguous tensor of an aligned shape; of a load its own type says it."""
        alone = isinstance(value, Load) or shape[self._vector] == 1
        return 0 if alone else math.prod(shape[self._vector + 1 :])

    def _source(self, load: Load) -> Operand:
        return next(o for o in self._program.operands if o.name == load.source)

    def _checked(self, load: Load) -> list[int]:
        """The dimensions of the source beyond which a position may lie."""
        sizes = self._source(load).shape
        domain = self._program.domain
        return [k for k, p in enumerate(load.at) if not p.value and not p.surely_inside(sizes[k], domain)]

    def _load(self, load: Load, slot: int) -> list[str]:
        sizes, rank = self._source(load).shape, len(self._program.domain)
        gathered = next((k for k, p in enumerate(load.at) if p.value), -1)
        varies = any(self._program.aligned(name)[self._vector] > 1 for name in load.args)
        steps = [[dict(p.steps).get(d, 0) for d in range(rank)] for p in load.at]
        return [
            f"  struct {load_type(load.result)} {{  // of {load.source}",
            f"    using Type = {MEMORY[load.dtype]};",
            f"    static constexpr int SLOT = {slot}, RANK = {len(sizes)};",
            f"    static constexpr int GATHERED = {gathered};",
            f"    static constexpr bool VARIES = {'true' if varies else 'false'};",
            f"    static constexpr unsigned CHECKED = {_bits(self._checked(load))};",
            f"    static constexpr int64_t size[] = {_braces(sizes)}, start[] = {_braces(p.start for p in load.at)};",
            f"    static constexpr int64_t step[][{rank}] = {_braces(map(_braces, steps))};",
            "  };",
        ]


def _braces(values: Iterable[object]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def _is_sum(value: Operand | Load | Output) -> bool:
    return isinstance(value, Output) and value.parts > 0


def _bits(dimensions: Iterable[int]) -> int:
    return sum(1 << d for d in dimensions)
