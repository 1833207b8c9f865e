"""A Program as a C++ file over the headers of kernels/cpu: what it declares, and its functors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from ...ir.program import DTYPE_BYTES, Load, Operand, Output, Plain, Program, Reduction, Scan, Statement
from ...ir.schedule import Pass, Schedule, scan_schedule, schedule
from ..float8 import rounded_once
from .text import MEMORY, VALUE, CannotRender, Writer, convert, literal, load_type

# Words that a value's name would hide in the generated file.
_WORDS = """
Row Scan abs acos acosh alignas alignof and asin asinh asm at atan atan2 atanh auto b8 bf16 bits bool boolean break case
cast catch ceil char class const constexpr continue cos cosh decltype default delete do double e4m3 else enum erf erfc
exp exp2 explicit expm1 export extern f16 f32 f64 false float floor floor_divide fmod for friend goto i16 i32 i64 i8
if index inline int int16_t int32_t int64_t int8_t isinf isnan linux load log log10 log1p log2 long mask maximum
minimum mutable namespace new noexcept not nullptr operator or pow private protected public register remainder
return round rounded row rsqrt scanned self share short sigmoid sign signed sin sinh sizeof splat sqrt static store
struct switch tan tanh template this throw true trunc try typedef typename u8 uint8_t union unix unsigned using virtual
void volatile where while whole_fmod whole_pow xor
"""
_TAKEN = frozenset(_WORDS.split())

_SHORT = 8  # lanes along fewer elements would mostly be idle
# Rows of no more elements are reduced side by side in the lanes, of no more than the second where positions are
# reduced, too, and only where there are as many rows as the third (docs/measured.md, short rows).
_SHORT_ROW, _SHORT_WITH_POSITIONS, _ROWS = 32, 64, 64


def source(program: Program) -> str:
    """The whole file. Raises CannotRender where this target has no way to compute something."""
    return (_ScanText(program) if program.scan else _Text(program)).source()


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


def open_rows(program: Program) -> int | None:
    """The operand that says how many rows there are, where the program's kernel takes any number of them: rows lie
    along dimension 0, neither reduced nor numbered, nor what the lanes of `Rows` run along. None: it takes as many as
    the domain says."""
    plain = not (program.scan or program.sums or program.loads or program.ranked)
    numbered = any(isinstance(s, Statement) and s.op == "index" and s.args[0] == 0 for s in program.body)
    kept = len(program.domain) > 1 and program.domain[0] > 1 and 0 not in program.reduced
    if not (plain and kept) or numbered or (_along_rows(program) and vector_dimension(program) == 0):
        return None
    return next((i for i, o in enumerate(program.operands) if o.shape[0] > 1), None)


def _along_rows(program: Program) -> bool:
    """Whether its walk is that of `Rows`."""
    return not program.reduced or vector_dimension(program) in program.reduced


def headline(program: Program) -> str:
    over = f", reduced over dimensions {program.reduced}" if program.reduced else ""
    ops = list(dict.fromkeys(item.op for item in program.body))
    return f"{', '.join(ops[:12])}{' ...' if len(ops) > 12 else ''} over {program.domain}{over}."


class _Text:
    """The C++ file of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program = rounded_once(_short_positions(program))
        self.plan = self._schedule()
        self.vector = vector_dimension(program)
        self.dtypes = {o.name: o.dtype for o in program.operands}
        for item in program.body:
            if isinstance(item, Scan | Reduction):
                self.dtypes |= zip(item.results, item.dtypes, strict=True)
            else:
                self.dtypes[item.result] = item.dtype
        self.operands = {o.name for o in program.operands if not o.indexed}
        self.writer = Writer(self.dtypes, along=self.vector in program.reduced)
        self.ranked = program.ranked
        self.names = {
            n: f"{n}_" if n in _TAKEN or n.isupper() or n.startswith(("in_", "out_", "TW_")) else n for n in self.dtypes
        }

    def _schedule(self) -> Schedule:
        return schedule(self.program)

    def _walk(self) -> str:
        return "Columns" if self.program.reduced and self.vector not in self.program.reduced else "Rows"

    def _sweeps(self) -> list[str]:
        """What is reduced, and `Passes`, the list of it."""
        names = [f"Pass{k}" for k in range(len(self.plan.passes))]
        bodies = [line for k, p in enumerate(self.plan.passes) for line in self._pass(k, p)]
        return [*bodies, f"  using Passes = PassList<{', '.join(names)}>;\n"]

    def source(self) -> str:
        parts = [
            f"// {headline(self.program)}",
            *([f"#define TW_WIDEST {self._widest()}"] if self._widest() > 4 else []),
            '#include "entry.h"\n',
            "using namespace tilewright;\n",
            "struct Program {",
            *self._constants(),
            *self._tensors(),
            "",
            *self._row(),
            *self._sweeps(),
            *self._element(),
            *self._store_row(),
            "};\n",
            f"TW_EXPORT(Program, {self._walk()})",
        ]
        return "\n".join(parts) + "\n"

    def _widest(self) -> int:
        """Bytes of the widest value at element level."""
        plan = self.plan
        statements = (*(s for p in plan.passes for s in p.elements), *plan.final)
        used = {s.result for s in statements} | {a for s in statements for a in s.args if isinstance(a, str)}
        used |= {o.name for o in self.plan.element_outputs} | {r.arg for p in plan.passes for r in p.reductions}
        wide = {n for n in used - plan.row_names if DTYPE_BYTES[self.dtypes[n]] == 8}
        # What is the same in all lanes needs no room for each.
        return 8 if any(self.program.aligned(n)[self.vector] > 1 for n in wide) else 4

    def _slots(self) -> list[tuple[Operand | Load | Output, int, tuple[int, ...]]]:
        """Aligned operands, loads and outputs, each with the number of its tensor in a call and its aligned shape."""
        p = self.program
        numbers = {o.name: i for i, o in enumerate(p.operands)}
        slots: list[tuple[Operand | Load | Output, int, tuple[int, ...]]] = [
            (o, numbers[o.name], o.shape) for o in p.operands if not o.indexed
        ]
        slots += [(load, numbers[load.source], p.aligned(load.result)) for load in p.loads]
        return [*slots, *((o, len(p.operands) + i, o.shape) for i, o in enumerate(p.outputs))]

    def _constants(self) -> list[str]:
        p, slots = self.program, self._slots()
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
            f"  static constexpr int VECTOR = {self.vector};",
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
            f"  static constexpr bool OPEN = {'true' if open_rows(p) is not None else 'false'};",
            f"  static constexpr bool GATHERS = {'true' if any(load.args for load in p.loads) else 'false'};",
            f"  static constexpr bool WRITES_ELEMENTS = {'true' if self.plan.element_outputs else 'false'};",
        ]

    def _tensors(self) -> list[str]:
        """Handles of what is read and written at its own position; and the loads."""
        lines = []
        for slot, (value, _, shape) in enumerate(self._slots()):
            if isinstance(value, Load):
                lines += self._load(value, slot)
                continue
            prefix = "in" if isinstance(value, Operand) else "out"
            step = self._lane_step(value, shape)
            lines.append(f"  static constexpr Tensor<{slot}, {MEMORY[value.dtype]}, {step}> {prefix}_{value.name}{{}};")
        loads = ", ".join(load_type(load.result) for load in self.program.loads)
        return [*lines, f"  using Loads = LoadList<{loads}>;"]

    def _lane_step(self, value: Operand | Load | Output, shape: tuple[int, ...]) -> int:
        """Elements from lane to lane in a contiguous tensor of an aligned shape; of a load its own type says it."""
        alone = isinstance(value, Load) or shape[self.vector] == 1
        return 0 if alone else math.prod(shape[self.vector + 1 :])

    def _source(self, load: Load) -> Operand:
        return next(o for o in self.program.operands if o.name == load.source)

    def _checked(self, load: Load) -> list[int]:
        """The dimensions of the source beyond which a position may lie."""
        sizes = self._source(load).shape
        domain = self.program.domain
        return [k for k, p in enumerate(load.at) if not p.value and not p.surely_inside(sizes[k], domain)]

    def _load(self, load: Load, slot: int) -> list[str]:
        sizes, rank = self._source(load).shape, len(self.program.domain)
        gathered = next((k for k, p in enumerate(load.at) if p.value), -1)
        varies = any(self.program.aligned(name)[self.vector] > 1 for name in load.args)
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

    def _row(self) -> list[str]:
        """Row, what is known once per row; and `head`, which reads and computes what needs no pass."""
        rows = [n for n in self.dtypes if n in self.plan.row_names]
        members = [f"    {VALUE[self.dtypes[n]]} {self.names[n]};" for n in rows if n not in self.ranked]
        lists = {r.results[0]: r for r in self.ranked.values()}
        members += [f"    Ranked<{self.writer.ranks(r)}> {self.names[n]};" for n, r in lists.items()]
        body = [f"    row.{self.names[n]} = at(in_{n});" for n in rows if n in self.operands]
        body += [f"    row.{self.names[s.result]} = {self._expression(s, self._row_name)};" for s in self.plan.head]
        return [*_struct("Row", members), *_function("static", "head", "[[maybe_unused]] Row& row", body), ""]

    def _expression(self, item: Plain, names: Callable[[str], str]) -> str:
        return self.writer.load(item, names) if isinstance(item, Load) else self.writer.statement(item, names)

    def _row_name(self, name: str) -> str:
        return f"row.{self.names[name]}"

    def _name(self, name: str) -> str:
        return self._row_name(name) if name in self.plan.row_names else self.names[name]

    def _elements(self, statements: tuple[Plain, ...], *more: str) -> list[str]:
        """Loads, then statements, of element values."""
        loads = [o for o in self.plan.operands_of(statements, self.program, *more) if o.name not in self.plan.row_names]
        lines = [f"    const {VALUE[o.dtype]} {self.names[o.name]} = at(in_{o.name});" for o in loads]
        for s in statements:
            lines.append(f"    const {VALUE[s.dtype]} {self.names[s.result]} = {self._expression(s, self._name)};")
        return lines

    def _pass(self, k: int, this: Pass) -> list[str]:
        accumulators = [f"{self.names[r.results[0]]}" for r in this.reductions]
        pairs = list(zip(accumulators, this.reductions, strict=True))
        element = self._elements(this.elements, *(r.arg for r in this.reductions))
        element = ["  " + line for line in element]
        element += [f"      {a}.add({self.writer.reduced(r, self._name)}, at);" for a, r in pairs]
        finish = []
        for a, r in pairs:
            if r.count:
                finish.append(f"      row.{self.names[r.results[0]]} = {a}.ranked;")
                continue
            made = self.writer.results(r, a)
            finish += [f"      row.{self.names[n]} = {text};" for n, text in zip(r.results, made, strict=True)]
        finish += [f"      row.{self.names[s.result]} = {self._late(s)};" for s in this.rows]
        each = ("flush()", "fold()")
        merged = " ".join(f"{a}.merge(other.{a});" for a in accumulators)
        return [
            f"  struct Pass{k} {{",
            *(f"    {self.writer.accumulator(r)} {a};" for a, r in pairs),
            "    template <class At>",
            "    TW_INLINE void element(const At& at, [[maybe_unused]] const Row& row) {",
            *element,
            "    }",
            "    TW_INLINE void finish(Row& row) const {",
            *finish,
            "    }",
            *(f"    TW_INLINE void {call} {{ {' '.join(f'{a}.{call};' for a in accumulators)} }}" for call in each),
            f"    TW_INLINE void merge(const Pass{k}& other) {{ {merged} }}",
            "  };",
        ]

    def _late(self, item: Plain) -> str:
        """Of a row, when its sweep is over: nothing is read any more."""
        if isinstance(item, Load) or item.op == "inside":
            raise CannotRender(f"{item.result}: a load from where a reduction says")
        return self.writer.statement(item, self._row_name)

    def _store(self, output: Output) -> str:
        if output.name in self.ranked:
            made = self.ranked[output.name]
            (dim,) = self.program.reduced
            part = "values" if output.name == made.results[0] else "positions"
            entries = f"row.{self.names[made.results[0]]}.{part}"
            return f"    at.template store_ranks<{math.prod(output.shape[dim + 1 :])}>(out_{output.name}, {entries});"
        return f"    at.{'add' if output.parts else 'store'}(out_{output.name}, {self._stored(output)});"

    def _stored(self, output: Output) -> str:
        have, want = VALUE[self.dtypes[output.name]], VALUE[output.dtype]
        return self._name(output.name) if have == want else f"cast<{want}>({self._name(output.name)})"

    def _element(self) -> list[str]:
        """The last sweep, which writes the element-level outputs."""
        body = self._elements(self.plan.final, *(o.name for o in self.plan.element_outputs))
        body += [self._store(o) for o in self.plan.element_outputs]
        return _function("static", "element", "[[maybe_unused]] const Row& row", body)

    def _store_row(self) -> list[str]:
        return _function(
            "static", "store_row", "[[maybe_unused]] const Row& row", [self._store(o) for o in self.plan.row_outputs]
        )


class _ScanText(_Text):
    """The C++ file of a program with a scan: see kernels/cpu/scan.h."""

    def _schedule(self) -> Schedule:
        self.cut = scan_schedule(self.program)
        return Schedule(
            head=self.cut.head, passes=(), final=self.cut.after, element_outputs=self.program.outputs,
            row_outputs=(), row_names=self.cut.row_names,
        )  # fmt: skip

    def _walk(self) -> str:
        return "ScanColumns" if self.vector != self.cut.scan.dim else "ScanRows"

    def _widest(self) -> int:
        """Of the running state, too."""
        wide = self.cut.scan.op == "logcumsumexp" or {"I64", "F64"} & set(self._state())
        return 8 if wide else super()._widest()

    def _state(self) -> tuple[str, ...]:
        """What the state is made of: the types of `Scan`'s parameters."""
        scan = self.cut.scan
        if scan.op in ("cummax", "cummin"):
            value = VALUE[scan.dtype]
            long = self.program.inner_size >= 2**31
            return ("I32" if value == "Bool" else value, "I64" if long else "I32")
        if scan.op == "logcumsumexp":
            return (VALUE[scan.dtype],)
        return ("F64" if scan.dtype in ("f64", "f32", "f16", "bf16") else "I64",)

    def _given(self, arg: str | float, want: str) -> str:
        if not isinstance(arg, str):
            return literal(arg, want)
        return convert(self._name(arg), VALUE[self.dtypes[arg]], want)

    def _sweeps(self) -> list[str]:
        scan, state = self.cut.scan, self._state()
        names = [a for a in scan.args if isinstance(a, str)]
        wanted = state if len(state) == len(scan.args) else state * len(scan.args)
        given = ", ".join(self._given(a, want) for a, want in zip(scan.args, wanted, strict=True))
        body = [*self._elements(self.cut.before, *names), f"    return Scan::of({given});"]
        flags = ", ".join(f"{n} = {'true' if v else 'false'}" for n, v in (
            ("REVERSE", scan.reverse), ("EXCLUSIVE", scan.exclusive)))  # fmt: skip
        return [
            f"  static constexpr bool {flags};",
            f"  using Scan = {_SCANS[scan.op]}<{', '.join(state)}>;",
            "  using Passes = Scanned;",
            *_function("static", "argument", "[[maybe_unused]] const Row& row", body, gives="Scan::State"),
            "",
        ]

    def _element(self) -> list[str]:
        scan, state = self.cut.scan, self._state()
        texts = _SCANNED.get(scan.op, ("scanned.value",))
        body = [
            f"    [[maybe_unused]] const {VALUE[dtype]} {self.names[name]} = {convert(text, kind, VALUE[dtype])};"
            for name, dtype, text, kind in zip(scan.results, scan.dtypes, texts, state, strict=False)
        ]
        body += self._elements(self.plan.final, *(o.name for o in self.plan.element_outputs))
        body += [self._store(o) for o in self.plan.element_outputs]
        return _function(
            "static", "element", "[[maybe_unused]] const Row& row, [[maybe_unused]] Scan::State scanned", body
        )


_SCANS = {"cumsum": "SumScan", "cumprod": "ProductScan", "logcumsumexp": "LogSumScan", "cummax": "MaximumScan",
          "cummin": "MinimumScan", "recurrence": "RecurrenceScan"}  # fmt: skip
# A scan's results, where they aren't the state's one value.
_SCANNED = {"logcumsumexp": ("Scan::result(scanned)",), "recurrence": ("scanned.second",),
            "cummax": ("scanned.first", "scanned.second"), "cummin": ("scanned.first", "scanned.second")}  # fmt: skip


def _short_positions(program: Program) -> Program:
    """The same with positions in 32 bits where they are only compared with numbers: 64 would halve the lanes."""
    readers: dict[str, list[bool]] = {}
    for item in program.body:
        for name in (item.arg,) if isinstance(item, Reduction) else item.args:
            numbers_only = isinstance(item, Scan) and item.op in ("cummax", "cummin") and name != item.args[0]
            plain = isinstance(item, Statement) and item.op in ("eq", "ne", "lt", "le", "gt", "ge", "to")
            numbers = isinstance(item, Statement) and all(
                isinstance(a, int) and abs(a) < 2**31 for a in item.args if a != name)  # fmt: skip
            if isinstance(name, str):
                readers.setdefault(name, []).append(numbers_only or (plain and numbers))
    kept = {o.name for o in program.outputs}
    body = tuple(
        replace(s, dtype="i32") if isinstance(s, Statement) and s.op == "index" and s.result not in kept
        and all(readers.get(s.result, ())) and program.domain[int(s.args[0])] < 2**31 else s for s in program.body
    )  # fmt: skip
    return replace(program, body=body)


def _braces(values: Iterable[object]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def _is_sum(value: Operand | Load | Output) -> bool:
    return isinstance(value, Output) and value.parts > 0


def _bits(dimensions: Iterable[int]) -> int:
    return sum(1 << d for d in dimensions)


def _struct(name: str, members: list[str]) -> list[str]:
    return [f"  struct {name} {{", *members, "  };"] if members else [f"  struct {name} {{}};"]


def _function(qualifier: str, name: str, parameters: str, body: list[str], gives: str = "void") -> list[str]:
    head = [
        "  template <class At>",
        f"  {qualifier} TW_INLINE {gives} {name}([[maybe_unused]] const At& at, {parameters}) {{",
    ]
    return [*head, *body, "  }"]
