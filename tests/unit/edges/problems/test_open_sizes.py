"""`DYNAMIC`: the sizes of a problem file's cases that may have any value of a range."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.edges.problems import read_problem
from tilewright.facts.errors import UserError
from tilewright.facts.problem import OpenSize

FILE = """
import torch
class Model(torch.nn.Module): ...
CASES = [{"batch": 8, "seq": 128, "width": 64}]
DYNAMIC = %s
def get_inputs(batch, seq, width): ...
def get_init_inputs(batch, seq, width): ...
"""


def read(dynamic: str, folder: Path) -> tuple[tuple[OpenSize, ...], list[dict[str, int]]]:
    path = folder / "file.py"
    path.write_text(FILE % dynamic)
    problem = read_problem(path, target="cpu")
    return problem.open, [json.loads(case) for case in problem.cases]


def test_sizes_have_ranges_and_cases_that_tell_them_apart(tmp_path: Path) -> None:
    sizes, cases = read('{"batch": (1, 64), "seq": (2, 130)}', tmp_path)
    assert sizes == (OpenSize(name="batch", size=8, low=1, high=64), OpenSize(name="seq", size=128, low=2, high=130))
    assert cases[0] == {"batch": 8, "seq": 128, "width": 64} and all(case["width"] == 64 for case in cases)
    changed = [{k for k in ("batch", "seq") if case[k] != cases[0][k]} for case in cases[1:]]
    assert {"batch"} in changed and {"seq"} in changed and {"batch", "seq"} in changed
    assert all(s.low <= case[s.name] <= s.high for s in sizes for case in cases)
    (one,), cases = read('{"seq": (128, 129)}', tmp_path)
    assert [case["seq"] for case in cases] == [128, 129] and one.high == 129


@pytest.mark.parametrize(
    ("dynamic", "said"),
    [
        ("[1, 2]", "must be a dict"),
        ('{"depth": (1, 2)}', "no whole number of that name"),
        ('{"batch": (9, 64)}', "and 8, which is above 1"),
        ('{"batch": (8, 8)}', "least < greatest"),
        ('{"batch": (0, 8)}', "1 <= least"),
        ('{"batch": 8}', "two whole numbers"),
        ("{'batch': (1, x)}", "be a dict of names"),
    ],
)
def test_what_is_no_range_of_a_size_is_refused_in_one_line(dynamic: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        read(dynamic, tmp_path)
