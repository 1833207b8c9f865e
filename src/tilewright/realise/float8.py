"""Floats narrower than fp32 are forms in memory: kernels convert from and to them, and compute in fp32."""

from __future__ import annotations

from dataclasses import replace

from ..ir.program import Program, Reduction, Scan, Statement

_NARROW = ("f16", "bf16", "float8_e4m3fn")


def computes_in_float8(program: Program) -> bool:
    """Whether something other than a conversion, a choice or a read has float8 for its result or its argument."""
    narrow = {o.name for o in program.operands if o.dtype == "float8_e4m3fn"}
    for item in program.body:
        results = item.results if isinstance(item, Reduction | Scan) else (item.result,)
        narrow.update(results if item.dtype == "float8_e4m3fn" else ())
        arguments = (item.arg,) if isinstance(item, Reduction) else item.args
        if item.op not in ("load", "product", "to", "where") and narrow.intersection((*results, *arguments)):
            return True
    return False


def rounded_once(program: Program) -> Program:
    """The same where what is only written is rounded by being written, and not before as well."""
    read = {a for i in program.body for a in ((i.arg,) if isinstance(i, Reduction) else i.args) if isinstance(a, str)}
    written: dict[str, set[str]] = {}
    for output in program.outputs:
        written.setdefault(output.name, set()).add(output.dtype)
    late = {
        s.result for s in program.body if isinstance(s, Statement) and s.op == "to" and s.dtype in _NARROW
        and s.result not in read and written.get(s.result) == {s.dtype}
    }  # fmt: skip
    body = tuple(replace(s, dtype="f32") if isinstance(s, Statement) and s.result in late else s for s in program.body)
    return replace(program, body=body)
