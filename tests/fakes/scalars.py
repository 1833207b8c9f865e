"""CuTe's scalars on the host: fp32, fp16 and 32-bit integers with their rounding and wrapping, one value each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


class Scalar:
    kind: type = np.float32

    def __init__(self, value: Any) -> None:
        raw = value.value if isinstance(value, Scalar) else value
        self.value = np.asarray(raw).astype(self.kind)[()]

    def _with(self, other: Any, function: Any) -> Any:
        with np.errstate(all="ignore"):
            made = function(self.value, type(self)(other).value)
        return bool(made) if isinstance(made, np.bool_) else type(self)(made)

    def __add__(self, other: Any) -> Any:
        return self._with(other, np.add)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, np.subtract)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, np.multiply)

    def __neg__(self) -> Any:
        return type(self)(-self.value)

    def __rshift__(self, other: Any) -> Any:
        return self._with(other, np.right_shift)

    def __lshift__(self, other: Any) -> Any:
        return self._with(other, np.left_shift)

    def __and__(self, other: Any) -> Any:
        return self._with(other, np.bitwise_and)

    def __lt__(self, other: Any) -> Any:
        return self._with(other, np.less)

    def __gt__(self, other: Any) -> Any:
        return self._with(other, np.greater)

    def __ge__(self, other: Any) -> Any:
        return self._with(other, np.greater_equal)

    def __eq__(self, other: object) -> Any:
        return self._with(other, np.equal)

    def __ne__(self, other: object) -> Any:
        return self._with(other, np.not_equal)

    __hash__ = None  # type: ignore[assignment]

    def bitcast(self, kind: type[Scalar]) -> Any:
        return kind(np.asarray(self.value).view(kind.kind)[()])

    def to(self, kind: type[Scalar]) -> Any:
        with np.errstate(all="ignore"):
            return kind(self.value)


class Float32(Scalar):
    pass


class Float16(Scalar):
    kind = np.float16


class Int32(Scalar):
    kind = np.int32


class Uint32(Scalar):
    kind = np.uint32


TYPES = {"Float32": Float32, "Float16": Float16, "Int32": Int32, "Uint32": Uint32}


def patch(monkeypatch: Any, *modules: Any) -> None:
    """The modules' types, choices and registers on the host."""
    for module in modules:
        for name, kind in TYPES.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, kind)
        math = SimpleNamespace(
            select=lambda c, yes, no: yes if c else no, both=lambda a, b: a and b, either=lambda a, b: a or b
        )
        registers = SimpleNamespace(make_rmem_tensor=lambda shape, kind: [kind(0)] * shape[0], size=len)
        for name, fake in (("m", math), ("cute", registers), ("when", lambda c, body: body() if c else None)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, fake)
        if hasattr(module, "cutlass"):
            monkeypatch.setattr(module, "cutlass", SimpleNamespace(max=lambda a, b: a if a > b else b))
