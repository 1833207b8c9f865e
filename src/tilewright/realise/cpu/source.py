"""A Program as a C++ file over the headers of kernels/cpu: what it declares, and its functors."""

from __future__ import annotations

import math
from dataclasses import replace

from ...ir.program import DTYPE_BYTES, Load, Output, Plain, Program, Reduction, Scan, Statement
from ...ir.schedule import Pass, Schedule, scan_schedule, schedule
from ..float8 import rounded_once
from .declared import Declarations, vector_dimension
from .text import VALUE, CannotRender, Writer, convert, literal

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
_ROW = "[[maybe_unused]] const Row& row"  # a parameter


def source(program: Program) -> str:
    """The whole file. Raises CannotRender where this target has no way to compute something."""
    program = rounded_once(_short_positions(program))
    return (_ScanText(program) if program.scan else _Text(program, schedule(program))).source()


def headline(program: Program) -> str:
    over = f", reduced over dimensions {program.reduced}" if program.reduced else ""
    ops = list(dict.fromkeys(item.op for item in program.body))
    return f"{', '.join(ops[:12])}{' ...' if len(ops) > 12 else ''} over {program.domain}{over}."


class _Text:
    """The C++ file of one program."""

    def __init__(self, program: Program, plan: Schedule) -> None:
        self.program, self.plan = program, plan
        self.vector = vector_dimension(program)
        self.walk = "Columns" if program.reduced and self.vector not in program.reduced else "Rows"
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

    def _sweeps(self) -> list[str]:
        """What is reduced, and `Passes`, the list of it."""
        names = [f"Pass{k}" for k in range(len(self.plan.passes))]
        bodies = [line for k, p in enumerate(self.plan.passes) for line in self._pass(k, p)]
        return [*bodies, f"  using Passes = PassList<{', '.join(names)}>;\n"]

    def source(self) -> str:
        declared = Declarations(self.program, self.vector)
        parts = [
            f"// {headline(self.program)}",
            *([f"#define TW_WIDEST {self._widest()}"] if self._widest() > 4 else []),
            '#include "entry.h"\n',
            "using namespace tilewright;\n",
            "struct Program {",
            *declared.constants(writes_elements=bool(self.plan.element_outputs)),
            *declared.tensors(),
            "",
            *self._row(),
            *self._sweeps(),
            *self._element(),
            *_function("store_row", _ROW, [*map(self._store, self.plan.row_outputs)]),
            "};\n",
            f"TW_EXPORT(Program, {self.walk})",
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

    def _row(self) -> list[str]:
        """Row, what is known once per row; and `head`, which reads and computes what needs no pass."""
        rows = [n for n in self.dtypes if n in self.plan.row_names]
        members = [f"    {VALUE[self.dtypes[n]]} {self.names[n]};" for n in rows if n not in self.ranked]
        lists = {r.results[0]: r for r in self.ranked.values()}
        members += [f"    Ranked<{self.writer.ranks(r)}> {self.names[n]};" for n, r in lists.items()]
        body = [f"    row.{self.names[n]} = at(in_{n});" for n in rows if n in self.operands]
        body += [f"    row.{self.names[s.result]} = {self.writer.plain(s, self._row_name)};" for s in self.plan.head]
        return [*_struct("Row", members), *_function("head", "[[maybe_unused]] Row& row", body), ""]

    def _row_name(self, name: str) -> str:
        return f"row.{self.names[name]}"

    def _name(self, name: str) -> str:
        return self._row_name(name) if name in self.plan.row_names else self.names[name]

    def _elements(self, statements: tuple[Plain, ...], *more: str) -> list[str]:
        """Loads, then statements, of element values."""
        loads = [o for o in self.plan.operands_of(statements, self.program, *more) if o.name not in self.plan.row_names]
        lines = [f"    const {VALUE[o.dtype]} {self.names[o.name]} = at(in_{o.name});" for o in loads]
        for s in statements:
            lines.append(f"    const {VALUE[s.dtype]} {self.names[s.result]} = {self.writer.plain(s, self._name)};")
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
        return self.writer.plain(item, self._row_name)

    def _store(self, output: Output) -> str:
        if output.name in self.ranked:
            made = self.ranked[output.name]
            (dim,) = self.program.reduced
            part = "values" if output.name == made.results[0] else "positions"
            entries = f"row.{self.names[made.results[0]]}.{part}"
            return f"    at.template store_ranks<{math.prod(output.shape[dim + 1 :])}>(out_{output.name}, {entries});"
        value = convert(self._name(output.name), VALUE[self.dtypes[output.name]], VALUE[output.dtype])
        return f"    at.{'add' if output.parts else 'store'}(out_{output.name}, {value});"

    def _element(self) -> list[str]:
        """The last sweep, which writes the element-level outputs."""
        body = self._elements(self.plan.final, *(o.name for o in self.plan.element_outputs))
        body += [self._store(o) for o in self.plan.element_outputs]
        return _function("element", _ROW, body)


class _ScanText(_Text):
    """The C++ file of a program with a scan: see kernels/cpu/scan.h."""

    def __init__(self, program: Program) -> None:
        self.cut = cut = scan_schedule(program)
        plan = Schedule(
            head=cut.head, passes=(), final=cut.after, element_outputs=program.outputs, row_outputs=(),
            row_names=cut.row_names,
        )  # fmt: skip
        super().__init__(program, plan)
        self.walk = "ScanColumns" if self.vector != cut.scan.dim else "ScanRows"

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
            *_function("argument", _ROW, body, gives="Scan::State"),
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
        return _function("element", f"{_ROW}, [[maybe_unused]] Scan::State scanned", body)


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


def _struct(name: str, members: list[str]) -> list[str]:
    return [f"  struct {name} {{", *members, "  };"] if members else [f"  struct {name} {{}};"]


def _function(name: str, parameters: str, body: list[str], gives: str = "void") -> list[str]:
    head = [
        "  template <class At>",
        f"  static TW_INLINE {gives} {name}([[maybe_unused]] const At& at, {parameters}) {{",
    ]
    return [*head, *body, "  }"]
