"""Skeletons near to a kind of work: an answer for every kind, files that are there, and that fit into a prompt."""

from __future__ import annotations

from typing import get_args

import pytest

from tilewright.facts.problem import Target
from tilewright.realise import table
from tilewright.realise.written.near import skeletons_near
from tilewright.search.strategies.category import CATEGORIES


@pytest.mark.parametrize("target", get_args(Target))
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_kind_of_work_has_an_answer_that_fits_into_a_prompt(category: str, target: Target) -> None:
    found = skeletons_near(category, target)
    assert all(f.path.startswith(f"tilewright_kernels/{'cuda' if target == 'cuda' else 'cpu'}/") for f in found)
    assert sum(len(f.text) for f in found) < 40_000  # some 10 000 tokens
    assert found or (target, category) in {("cpu", "gemm"), ("cpu", "convolution"), ("cpu", "recurrence")}


def test_a_product_is_learnt_from_the_tensor_cores_main_loop() -> None:
    for category in ("gemm", "convolution", "attention"):
        assert "wgmma" in skeletons_near(category, "cuda")[0].text


def test_parts_that_a_module_has_no_use_for_are_left_out_with_a_line_in_their_place() -> None:
    (rows, reductions) = skeletons_near("row_reduction", "cpu")
    assert "struct SoftmaxStats" in reductions.text and "struct Ranking" not in reductions.text
    assert "// (ranking: not of use here)" in reductions.text and rows.path.endswith("rows.h")
    ranks = skeletons_near("row_reduction", "cpu", {"largest", "exp"})[1]
    assert "struct Ranking" in ranks.text
    whole = skeletons_near("row_reduction", "cpu", {"largest", "argmax", "moments"})[1]
    assert "not of use here" not in whole.text


def test_attention_and_depthwise_convolutions_are_learnt_from_their_own_skeletons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (attention,) = skeletons_near("attention", "cpu")
    assert attention.path.endswith("cpu/attention.h")
    for proven, path in ((False, "mainloop/wgmma.py"), (True, "attention/kernel.py")):
        monkeypatch.setattr(table, "UNPROVEN", frozenset() if proven else frozenset({"attention"}))
        found = skeletons_near("attention", "cuda")
        assert found[0].path.endswith(path), "what has not run on a GPU is not vetted"
        assert sum(len(f.text) for f in found) < 40_000
    for category in ("convolution", "mixed"):
        (depthwise,) = skeletons_near(category, "cuda", depthwise=True)
        assert depthwise.path.endswith("depthwise/staged.py")
