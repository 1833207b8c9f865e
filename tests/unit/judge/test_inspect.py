"""What a profile is added up to: by name, the longest first, told whose code it is."""

from __future__ import annotations

from tilewright.facts.outcome import NamedTime
from tilewright.judge.tools import summed
from tilewright.judge.wire.messages import SpentClocks


def test_entries_of_one_name_are_added_up_and_all_are_counted() -> None:
    spent = [
        SpentClocks(name="aten::mul", ns=10.0),
        SpentClocks(name="my_kernel", ns=25.0),
        SpentClocks(name="aten::mul", ns=20.0),
    ]
    spent += [SpentClocks(name=f"aten::rare_{n}", ns=0.5) for n in range(40)]
    found = summed(spent, target="cpu")
    assert found.longest[:2] == (
        NamedTime(name="aten::mul", origin="torch", times=2, ns=30.0),
        NamedTime(name="my_kernel", origin="own", times=1, ns=25.0),
    )
    assert (found.kinds, found.ns, len(found.longest)) == (42, 75.0, 30)


def test_a_call_in_which_nothing_was_seen_is_empty() -> None:
    assert (summed([], target="cuda").longest, summed([], target="cuda").ns) == ((), 0.0)
