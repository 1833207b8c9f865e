"""What a timed call returned is kept as it was when the clock stopped."""

from __future__ import annotations

import torch

from tilewright.cell.timing import Sample, as_it_is


def test_a_small_result_is_copied_into_the_copy_before() -> None:
    x = torch.randn(100, 7)
    first = as_it_is((x, x[:, 0]), ())
    again = as_it_is((x + 1, x[:, 0] + 1), first)
    assert all(isinstance(c, torch.Tensor) for c in again)
    assert [c.data_ptr() for c in again] == [c.data_ptr() for c in first]  # type: ignore[union-attr]
    torch.testing.assert_close(again[0], x + 1)


def test_of_a_large_result_parts_are_kept_that_go_back_to_their_places() -> None:
    x = torch.arange(3000 * 4001, dtype=torch.float32).view(3000, 4001)
    (sample,) = as_it_is(x, ())
    assert isinstance(sample, Sample)
    assert sample.values.numel() == 1024 * 64
    place = torch.full_like(x, -1.0)
    sample.put_into(place)
    kept = place != -1.0
    assert int(kept.sum()) == sample.values.numel()
    assert torch.equal(place[kept], x[kept])
    assert bool(kept.view(-1)[-2 * sample.step :].any()), "the end is filled last"
    starts = {s.start for _ in range(8) if isinstance(s := as_it_is(x, ())[0], Sample)}
    assert len(starts) > 1


def test_what_is_large_and_not_contiguous_is_left_as_it_is() -> None:
    assert as_it_is(torch.zeros(4001, 3000).T, ()) == (None,)
