"""Realisers of other packages: found by their entry points, named, and skipped with a line where they are broken."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes.modules import Applies
from fakes.packages import EXAMPLE, installed
from fakes.realisers import CPU
from tilewright.facts.space import point
from tilewright.frontend.trace import trace
from tilewright.ir.graph import Graph
from tilewright.realise.library.table import found


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def graph() -> Graph:
    return trace(Applies(gelu), (torch.randn(4, 8),), {})


def test_the_example_package_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(graph(), CPU).recipe == ()
    installed(monkeypatch, tmp_path, EXAMPLE, "gelu-realiser", "gelu = gelu_realiser:Gelu")
    (choice,) = found(graph(), CPU).recipe
    assert choice.written is not None and choice.written.title == "GELU by gelu-realiser"
    assert choice.point == point(approximate="none") and len(choice.written.points) == 2
    scope: dict[str, object] = {}
    exec(choice.written.candidate.files[0].text, scope)
    x = torch.randn(4, 8)
    made = scope["ModelNew"]()(x)  # type: ignore[operator]
    torch.testing.assert_close(made, gelu(x))


BROKEN = """
class NoFinds:
    name = "none"
    points = render = None


class Fails:
    name = "fails"

    def finds(self, graph, device):
        raise RuntimeError("two\\nlines")

    points = render = None


class Refuses:
    name = "refuses"

    def finds(self, graph, device):
        from tilewright.realise.library import Refused

        return Refused("it wants a wider module")

    points = render = None


class Elsewhere:
    name = "elsewhere"

    def finds(self, graph, device):
        from tilewright.facts.pattern import Region
        from tilewright.realise.library import LibraryMatch

        nodes = [n.name for n in graph.nodes]
        return [LibraryMatch(Region(nodes=(nodes[-1],), inputs=(nodes[0],), outputs=(nodes[-1],)), "the last")]

    def points(self, match, device):
        return ()

    def render(self, match, device):
        return ()
"""


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("broken:NoFinds", "realiser it of broken is skipped: TypeError: it has no finds"),
        ("broken:Fails", "realiser it of broken is skipped: RuntimeError: two"),
        ("broken:Missing", "realiser it of broken is skipped: AttributeError: "),
        ("absent:Library", "realiser it of broken is skipped: ModuleNotFoundError: No module named 'absent'"),
        ("broken:Elsewhere", "realiser it of broken is skipped: NotAlone: it takes"),
        ("broken:Refuses", "refuses: it wants a wider module"),
    ],
)
def test_a_broken_one_is_told_in_a_line_and_the_others_are_found(
    value: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "broken.py").write_text(BROKEN)
    installed(monkeypatch, tmp_path / "one", tmp_path / "code", "broken", f"it = {value}")
    installed(monkeypatch, tmp_path / "two", EXAMPLE, "gelu-realiser", "gelu = gelu_realiser:Gelu")
    there = found(graph(), CPU)
    assert [c.written.title for c in there.recipe if c.written] == ["GELU by gelu-realiser"]
    (told,) = there.refusals
    assert told.startswith(line) and "\n" not in told
