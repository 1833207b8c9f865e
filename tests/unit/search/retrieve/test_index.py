"""What is known is found by words: the right skeleton, rule or note first, and what does not hold is left out."""

from __future__ import annotations

import pytest

from tilewright.facts.document import Document
from tilewright.search.retrieve import Index, packaged
from tilewright.search.retrieve.documents import note

INDEX = Index(packaged())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("softmax of rows that are too long for one CTA", {"row_reduction", "cuda/rows/team.py"}),
        ("bank conflicts of a transposed tile", {"smem_swizzle"}),
        ("small M and N, large K", {"split_k"}),
        ("implicit GEMM for conv2d", {"convolution_hopper"}),
        ("causal attention, long sequences", {"attention_hopper"}),
        ("linear recurrence with a gate", {"scans", "scan"}),
        ("embedding lookup, index_select", {"gathers"}),
        ("max pooling windows with padding", {"windows"}),
        ("fp32 accuracy on tensor cores", {"fp32_from_tensor_cores"}),
    ],
)
def test_what_is_asked_for_is_among_the_first_three(words: str, found: set[str]) -> None:
    hits = INDEX.search(words, architecture="sm_90a", most=3)
    assert found <= {h.document.name for h in hits}
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
    assert all(h.score > 0 and h.excerpt for h in hits)


def test_all_kinds_are_there_and_names_are_unique_among_them() -> None:
    documents = packaged()
    assert {d.kind for d in documents} == {"skeleton", "rule", "note"}
    assert len({(d.kind, d.name) for d in documents}) == len(documents)
    skeletons = {d.name for d in documents if d.kind == "skeleton"}
    assert {"cuda/rows/engine.py", "cuda/gemm/mainloop/wgmma.py", "cpu/rows.h"} <= skeletons


def test_what_does_not_hold_is_left_out() -> None:
    documents = [
        Document(kind="note", name="a", title="copy", text="x", architectures=("sm_90a",), dtypes=("f16",)),
        Document(kind="note", name="b", title="copy", text="x", architectures=("x86-64",)),
        Document(kind="note", name="c", title="copy", text="x"),
    ]
    index = Index(documents)
    assert {h.document.name for h in index.search("copies")} == {"a", "b", "c"}, "words are stemmed"
    assert {h.document.name for h in index.search("copy", architecture="sm_90a")} == {"a", "c"}
    assert {h.document.name for h in index.search("copy", dtype="f32")} == {"b", "c"}


@pytest.mark.parametrize("words", ["", "  ", '"', "NOT", 'x" OR "y', "col:um*n ^", "a-b", "NEAR(x, y)"])
def test_no_words_break_the_search(words: str) -> None:
    INDEX.search(words)
    assert INDEX.search("qqqzzz") == ()


@pytest.mark.parametrize(
    "source",
    [
        "no title\noperations: x\n\ntext",
        "# title\ncolour: red\n\ntext",
        "# title\noperations: x",
        "# title\ndtypes: \n\nx",
    ],
)
def test_a_note_of_another_form_is_refused_by_name(source: str) -> None:
    with pytest.raises(ValueError, match="note bad:"):
        note("bad", source)


def test_a_note_has_its_tags() -> None:
    found = note("good", "# A title\narchitectures: sm_90a, sm_100a\ndtypes: f16\n\nText.\n\nMore.\n")
    assert (found.title, found.architectures, found.dtypes, found.operations, found.text) == (
        "A title", ("sm_90a", "sm_100a"), ("f16",), (), "Text.\n\nMore.",
    )  # fmt: skip
