"""float8_e4m3fn is a form in memory: kernels convert from and to it, and compute in fp32."""

from __future__ import annotations

from ...facts.program import Program, Reduction, Scan


def computes_in_float8(program: Program) -> bool:
    """Whether something other than a conversion, a choice or a read has float8 for its result or its argument."""
    narrow = {o.name for o in program.operands if o.dtype == "float8_e4m3fn"}
    for item in program.body:
        results = item.results if isinstance(item, Reduction | Scan) else (item.result,)
        narrow.update(results if item.dtype == "float8_e4m3fn" else ())
        arguments = (item.arg,) if isinstance(item, Reduction) else item.args
        if item.op not in ("load", "to", "where") and narrow.intersection((*results, *arguments)):
            return True
    return False
