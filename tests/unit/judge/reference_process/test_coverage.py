"""What views reach of a storage, held against counting byte for byte."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tilewright.judge.reference_process import work

VIEWS = {
    "whole": lambda x: x, "left": lambda x: x.chunk(2, -1)[0], "right": lambda x: x.chunk(2, -1)[1],
    "even": lambda x: x[..., ::2], "odd": lambda x: x[..., 1::2], "top": lambda x: x[:3], "bottom": lambda x: x[3:],
    "transposed": lambda x: x.mT, "across": lambda x: x[1:4, 2:5], "inside": lambda x: x[2, 3],
    "flat": lambda x: x.reshape(-1)[5:21],
    "windows": lambda x: x.reshape(-1).unfold(0, 4, 2), "broadcast": lambda x: x[:1].expand(9, *x.shape[1:]),
    "bytes": lambda x: x.view(torch.uint8)[..., 1::3], "diagonal": lambda x: x.diagonal(), "last": lambda x: x[5:, 6:],
}  # fmt: skip


def _bytes(view: Tensor) -> set[int]:
    places = torch.arange(view.untyped_storage().nbytes()).as_strided(
        (*view.shape, view.element_size()), (*(s * view.element_size() for s in view.stride()), 1),
        view.storage_offset() * view.element_size(),
    )  # fmt: skip
    return set(places.reshape(-1).tolist())


def _covered(views: list[Tensor]) -> tuple[work.InputRegion, ...]:
    known: tuple[work.InputRegion, ...] = ()
    for view in views:
        known = work.add(known, work.region(view))
    return known


@given(
    st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=6), st.sampled_from(["float32", "bfloat16", "uint8"])
)
def test_never_more_than_is_reached(names: list[str], dtype: str) -> None:
    x = torch.zeros(6, 8, dtype=getattr(torch, dtype))
    views = [VIEWS[n](x) for n in names]
    found = sum(r.size for r in _covered(views))
    assert max(work.region(v).size for v in views) <= found <= len(set.union(*map(_bytes, views)))


def test_parts_of_one_storage_add_up() -> None:
    x = torch.zeros(6, 8)
    for names in (
        ["left", "right"],
        ["even", "odd"],
        ["top", "bottom"],
        ["left", "whole", "right"],
        ["odd", "even", "top"],
    ):
        views = [VIEWS[n](x) for n in names]
        assert sum(r.size for r in _covered(views)) == len(set.union(*map(_bytes, views))), names
    quarters = [half.chunk(2, 0)[k] for half in x.view(6, 4, 2).chunk(2, 1) for k in (0, 1)]
    assert sum(r.size for r in _covered(quarters)) == 192


def test_halves_of_an_input_are_read_once_each() -> None:
    x, table = torch.rand(4, 6), torch.rand(100, 3)
    seen = work.measure(lambda: torch.sigmoid(x.chunk(2, 1)[0]) * x.chunk(2, 1)[1], [x], lambda y: [y])
    assert (seen.work.bytes_read, seen.work.bytes_written) == (96, 48)
    gathered = work.measure(lambda: table[torch.tensor([4, 4])] + table[:1], [table], lambda y: [y])
    assert gathered.work.bytes_read == 24
