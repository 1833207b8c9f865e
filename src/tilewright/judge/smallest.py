"""The smallest shapes at which a refused candidate fails: whoever has to mend it begins there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .check.check import RefusedByCheck
from .client import CellFault
from .memories import Case

_MOST = 3  # cases
_MOST_OF_A_SUMMARY = 200


def narrowed(
    refused: RefusedByCheck, failed: Case, others: Sequence[Case], *, tried: Callable[[Case], None],
    ours: Callable[[CellFault], bool],
) -> RefusedByCheck:  # fmt: skip
    """The refusal of the case that failed, and in its excerpt what becomes of the others, the smallest first: `tried`
    checks one. A fault that is ours is raised."""
    told, smallest = [], failed
    for case in sorted(others, key=_size)[:_MOST]:
        try:
            tried(case)
            told.append(f"case {case.number} (inputs of {_shapes(case)}): right")
            continue
        except RefusedByCheck as other:
            found = f"{other.failure.reason.replace('_', ' ')}: {other.failure.summary}"
        except CellFault as fault:
            if ours(fault):
                raise
            found = f"{fault.reason.replace('_', ' ')}: {fault.summary}"
        told.append(f"case {case.number} (inputs of {_shapes(case)}): {found[:_MOST_OF_A_SUMMARY]}")
        smallest = min(smallest, case, key=_size)
        break  # the cell may be no more
    if not told:
        return refused
    told.append(f"the smallest that fails is case {smallest.number} (inputs of {_shapes(smallest)})")
    failure = refused.failure
    return RefusedByCheck(
        failure.reason, failure.summary, "\n".join([*([failure.excerpt] if failure.excerpt else []), *told])
    )


def _size(case: Case) -> int:
    return case.described.work.bytes_moved


def _shapes(case: Case) -> str:
    return ", ".join("x".join(map(str, s.shape)) for s in case.described.inputs)[:200]
