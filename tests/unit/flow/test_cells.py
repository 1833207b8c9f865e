"""Whose fault it is when the reference's cell fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.facts import MACHINE, PROBLEM
from tilewright.edges.sandbox.cell import Cell, CellFault
from tilewright.facts.errors import HarnessError, UserError
from tilewright.flow.audit import audit
from tilewright.flow.cells import Cells, users_fault


@pytest.mark.parametrize(
    ("reason", "by_code", "kind"),
    [
        ("raised", True, UserError), ("out_of_memory", True, UserError), ("out_of_memory", False, UserError),
        ("crashed", True, HarnessError), ("broke_the_protocol", True, HarnessError),
        ("cell_error", False, HarnessError),
    ],
)  # fmt: skip
def test_whose_fault_it_is(reason: str, by_code: bool, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="what was said"), users_fault(PROBLEM):
        raise CellFault(reason, "what was said", source="reference", by_code=by_code)


def test_an_audit_without_memory_for_it_asks_for_a_smaller_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(self: Cells) -> Cell:
        raise CellFault("out_of_memory", "no memory is left", source="reference", by_code=False)

    monkeypatch.setattr(Cells, "open", without_memory)
    with pytest.raises(UserError, match="make the case smaller"):
        audit(PROBLEM, machine=MACHINE, seed=1, workdir=tmp_path, say=print)
