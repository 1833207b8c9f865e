"""Statements of a Program as C++ expressions over the vectors of kernels/cpu/vec.h."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping

from ...ir.program import RANKED, Literal, Load, Plain, Reduction, Statement

MEMORY: Mapping[str, str] = {
    "f64": "double", "f32": "float", "f16": "f16", "bf16": "bf16", "i64": "int64_t", "i32": "int32_t",
    "i16": "int16_t", "i8": "int8_t", "u8": "uint8_t", "bool": "b8",
    "float8_e4m3fn": "e4m3",
}  # fmt: skip

VALUE: Mapping[str, str] = {
    "f64": "F64", "f32": "F32", "f16": "F32", "bf16": "F32", "i64": "I64", "i32": "I32", "i16": "I16", "i8": "I8",
    "u8": "U8", "bool": "Bool", "float8_e4m3fn": "F32",
}  # fmt: skip

_SPLAT: Mapping[str, str] = {
    "F64": "f64", "F32": "f32", "I64": "i64", "I32": "i32", "I16": "i16", "I8": "i8", "U8": "u8", "Bool": "boolean",
}  # fmt: skip

_FLOATS = ("float8_e4m3fn", "f16", "bf16", "f32", "f64")
_NARROW = _FLOATS[:3]
_WHOLE = ("u8", "i8", "i16", "i32", "i64")

_OPERATORS = {"add": "+", "sub": "-", "mul": "*"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITS = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_LOGIC = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
_BOOL_ARITHMETIC = {"add": "|", "mul": "&", "maximum": "|", "minimum": "&"}
_FUNCTIONS = """
sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc
sigmoid atan2
"""
_FLOAT_FUNCTIONS = frozenset(_FUNCTIONS.split())
_ROUNDING = frozenset(["floor", "ceil", "round", "trunc"])

ACCUMULATORS: Mapping[str, str] = {
    "sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "argmax": "ArgMax", "argmin": "ArgMin", "any": "Any",
    "all": "All", "moments": "Moments", "softmax_stats": "SoftmaxStats", "largest": "Largest", "smallest": "Smallest",
}  # fmt: skip


class CannotRender(Exception):
    """This target has no way to compute a statement; the message says what."""


Names = Callable[[str], str]


def load_type(result: str) -> str:
    """The type that describes the load of this name."""
    return f"Load_{result}"


class Writer:
    """Renders statements, given every value's dtype (by its name in the program); `along`: lanes lie along a row."""

    def __init__(self, dtypes: Mapping[str, str], *, along: bool) -> None:
        self._dtypes, self._along = dtypes, along

    def plain(self, item: Plain, names: Names) -> str:
        """The C++ expression of a statement's result, or of what a load reads; `names` says how a value is spelt where
        the expression stands."""
        if not isinstance(item, Load):
            return _Expression(item, self._dtypes, names).text()
        if item.args:
            return f"at.gather({load_type(item.result)}{{}}, {names(item.args[0])})"
        fill = "" if item.fill is None else f", {literal(item.fill, VALUE[item.dtype])}"
        return f"at.read({load_type(item.result)}{{}}{fill})"

    def accumulator(self, reduction: Reduction) -> str:
        kind = ACCUMULATORS[reduction.op]
        if reduction.count:
            return f"{kind}<{self.ranks(reduction)}>"
        return kind if reduction.op in ("any", "all") else f"{kind}<{self._reduced_value(reduction)}>"

    def reduced(self, reduction: Reduction, names: Names) -> str:
        """The reduction's argument in the type it accumulates."""
        return convert(names(reduction.arg), VALUE[self._dtypes[reduction.arg]], self._reduced_value(reduction))

    def ranks(self, reduction: Reduction) -> str:
        """What a kept list of elements is told: their type, how many there are, and how many lists."""
        lists = "1" if self._along else "LANES"
        return f"{self._reduced_value(reduction)}, {reduction.count}, {lists}"

    def _reduced_value(self, reduction: Reduction) -> str:
        if reduction.op in ("any", "all"):
            return "Bool"
        if reduction.op in ("argmax", "argmin", *RANKED):
            value = VALUE[self._dtypes[reduction.arg]]
            return "I32" if value == "Bool" else value
        if reduction.dtype == "bool" and reduction.op not in ("max", "min"):
            raise CannotRender(f"{reduction.op} of truth values into bool")
        return VALUE[reduction.dtype]

    def results(self, reduction: Reduction, accumulator: str) -> tuple[str, ...]:
        """One expression a result, of the type that its dtype has."""
        if len(reduction.results) == 2:
            return tuple(f"{accumulator}.result_{k}()" for k in range(2))
        made = f"{accumulator}.result()"
        kind = self._reduced_value(reduction) if reduction.op not in ("argmax", "argmin") else "I64"
        return (convert(made, kind, VALUE[reduction.dtype]),)


def convert(text: str, have: str, want: str) -> str:
    return text if have == want else f"cast<{want}>({text})"


def literal(value: Literal, kind: str) -> str:
    """A splat of `value` in vector type `kind`."""
    if kind == "Bool":
        return f"boolean({'true' if value else 'false'})"
    if kind in ("F32", "F64"):
        return f"{_SPLAT[kind]}({_floating(float(value), kind)})"
    number = int(value)
    bits = {"I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8}[kind]
    number = (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) if kind != "U8" else number % 256
    return f"{_SPLAT[kind]}({'INT64_MIN' if number == -(2**63) else number})"


def _floating(value: float, kind: str) -> str:
    if math.isnan(value):
        return "NAN"
    if math.isinf(value) or (kind == "F32" and abs(value) >= 3.4028235677973366e38):
        return "-INFINITY" if value < 0 else "INFINITY"
    return repr(value) + ("f" if kind == "F32" else "")


def promoted(dtypes: list[str], literals: list[Literal]) -> str:
    """The dtype in which torch compares or combines these: tensors' dtypes first, literals only raise the category."""
    result = dtypes[0] if dtypes else ("f32" if any(isinstance(v, float) for v in literals) else "i64")
    for other in dtypes[1:]:
        result = _wider(result, other)
    if result == "bool" and any(not isinstance(v, bool) for v in literals):
        result = "i64"
    if result not in _FLOATS and any(isinstance(v, float) for v in literals):
        result = "f32"
    return result


def _wider(a: str, b: str) -> str:
    if a == b:
        return a
    if a in _FLOATS and b in _FLOATS:
        return "f32" if {a, b} == {"f16", "bf16"} else max(a, b, key=_FLOATS.index)
    if a in _FLOATS or b in _FLOATS:
        return a if a in _FLOATS else b
    if "bool" in (a, b):
        return b if a == "bool" else a
    return "i16" if {a, b} == {"u8", "i8"} else max(a, b, key=_WHOLE.index)


def _round_half(value: float, dtype: str) -> float:
    """A literal as it is beside a half-precision tensor in a comparison."""
    if math.isinf(value) or math.isnan(value):
        return value
    if dtype == "f16":
        try:
            return float(struct.unpack("e", struct.pack("e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    pattern = int(struct.unpack("I", struct.pack("f", value))[0])
    pattern = (pattern + 0x7FFF + (pattern >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("f", struct.pack("I", pattern))[0])


class _Expression:
    """One statement on its way to text."""

    def __init__(self, statement: Statement, dtypes: Mapping[str, str], names: Names) -> None:
        self.op, self.dtype, self.args, self.result = statement.op, statement.dtype, statement.args, statement.result
        self._dtypes, self._names = dtypes, names

    def text(self) -> str:
        for family in (self._selection, self._logic, self._comparison, self._whole, self._arithmetic):
            made = family()
            if made is not None:
                return made
        raise CannotRender(f"{self.result}: {self.op} in {self.dtype}")

    def _arg(self, k: int, want: str) -> str:
        arg = self.args[k]
        if not isinstance(arg, str):
            return literal(arg, want)
        return convert(self._names(arg), VALUE[self._dtypes[arg]], want)

    def _common(self) -> str:
        """The dtype of the arguments together."""
        return promoted(
            [self._dtypes[a] for a in self.args if isinstance(a, str)], [a for a in self.args if not isinstance(a, str)]
        )

    def _selection(self) -> str | None:
        want = VALUE[self.dtype]
        if self.op == "where":
            return f"where({self._arg(0, 'Bool')}, {self._arg(1, want)}, {self._arg(2, want)})"
        if self.op == "to":
            value = self._arg(0, want)
            return f"rounded<{MEMORY[self.dtype]}>({value})" if self.dtype in _NARROW else value
        if self.op == "inside":
            return convert(f"at.inside({load_type(str(self.args[0]))}{{}})", "Bool", want)
        if self.op == "index":
            return f"at.template index<{self.args[0]}, {want}>()"
        return None

    def _logic(self) -> str | None:
        want = VALUE[self.dtype]
        if self.op in _LOGIC:
            return convert(f"{self._arg(0, 'Bool')} {_LOGIC[self.op]} {self._arg(1, 'Bool')}", "Bool", want)
        if self.op == "logical_not":
            return convert(f"~{self._arg(0, 'Bool')}", "Bool", want)
        if self.op in ("isnan", "isinf"):
            kind = VALUE[self._common()]
            if kind == "Bool":
                return literal(False, VALUE[self.dtype])
            return convert(f"{self.op}({self._arg(0, kind)})", "Bool", want)
        if self.op in _BITS and want not in ("F32", "F64"):
            return f"{self._arg(0, want)} {_BITS[self.op]} {self._arg(1, want)}"
        if self.op == "bitwise_not" and want not in ("F32", "F64"):
            return f"~{self._arg(0, want)}"
        return None

    def _comparison(self) -> str | None:
        if self.op not in _COMPARISONS:
            return None
        dtype = self._common()
        kind = "I32" if dtype == "bool" else VALUE[dtype]
        sides = []
        for k, arg in enumerate(self.args):
            if isinstance(arg, float) and dtype in ("f16", "bf16"):
                sides.append(literal(_round_half(arg, dtype), kind))
            else:
                sides.append(self._arg(k, kind))
        return convert(f"mask({sides[0]} {_COMPARISONS[self.op]} {sides[1]})", "Bool", VALUE[self.dtype])

    def _whole(self) -> str | None:
        """Results in whole numbers and truth values."""
        want = VALUE[self.dtype]
        if want in ("F32", "F64"):
            return None
        if want == "Bool":
            if self.op in _BOOL_ARITHMETIC:
                return f"{self._arg(0, want)} {_BOOL_ARITHMETIC[self.op]} {self._arg(1, want)}"
            return self._arg(0, want) if self.op in ("sign", "abs", *_ROUNDING) else None
        if self.op in ("fmod", "remainder", "floor_divide"):
            divisor = self.args[1]
            if isinstance(divisor, str) or divisor == 0:
                raise CannotRender(f"{self.result}: whole-number {self.op} by what may be zero (torch raises there)")
            name = "whole_fmod" if self.op == "fmod" else self.op
            return f"{name}({self._arg(0, want)}, {self._arg(1, want)})"
        if self.op == "pow":
            value = self._arg(0, want)
            return f"{value} * {value}" if self.args[1] == 2 else self._call("whole_pow", want)
        if self.op in _ROUNDING:
            return self._arg(0, want)
        return self._simple(want)

    def _arithmetic(self) -> str | None:
        """Results in floating point."""
        want = VALUE[self.dtype]
        if want not in ("F32", "F64"):
            return None
        if self.op == "div":
            return f"{self._arg(0, want)} / {self._arg(1, want)}"
        if self.op == "reciprocal":
            return f"{literal(1.0, want)} / {self._arg(0, want)}"
        if self.op == "pow":
            return self._power(want)
        if self.op in _FLOAT_FUNCTIONS or self.op in _ROUNDING or self.op in ("fmod", "remainder", "floor_divide"):
            return self._call(self.op, want)
        return self._simple(want)

    def _simple(self, want: str) -> str | None:
        """What whole numbers and floating point have in common."""
        if self.op in _OPERATORS:
            return f"{self._arg(0, want)} {_OPERATORS[self.op]} {self._arg(1, want)}"
        if self.op == "neg":
            return f"-{self._arg(0, want)}"
        if self.op == "square":
            return f"{self._arg(0, want)} * {self._arg(0, want)}"
        if self.op in ("abs", "sign", "maximum", "minimum"):
            return self._call(self.op, want)
        return None

    def _call(self, name: str, want: str) -> str:
        return f"{name}({', '.join(self._arg(k, want) for k in range(len(self.args)))})"

    def _power(self, want: str) -> str:
        """pow, with the exponents that torch itself computes by multiplication and roots."""
        exponent = self.args[1]
        if isinstance(exponent, str) or not isinstance(self.args[0], str):
            return self._call("pow", want)
        x, one = self._arg(0, want), literal(1.0, want)
        special = {
            2.0: f"{x} * {x}", 3.0: f"{x} * {x} * {x}", 0.5: f"sqrt({x})", -0.5: f"{one} / sqrt({x})",
            -1.0: f"{one} / {x}", -2.0: f"{one} / ({x} * {x})", 1.0: x, 0.0: one,
        }  # fmt: skip
        return special.get(float(exponent), self._call("pow", want))
