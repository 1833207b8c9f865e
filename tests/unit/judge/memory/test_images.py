"""Contents that are laid over a slot stand at the same addresses, and nobody saw them before."""

from __future__ import annotations

import os

import pytest
import torch

from tilewright.facts.problem import TensorSpec
from tilewright.judge.memory.arena import PAGE_BYTES, Arena
from tilewright.judge.memory.images import Image
from tilewright.judge.memory.mapped import Opened
from tilewright.judge.wire.parts import TensorRef

SIZE = 3 * PAGE_BYTES


def _opened() -> tuple[Arena, Opened]:
    arena = Arena("shared", SIZE, "cpu")
    return arena, Opened(arena.message(), os.dup(arena.descriptor))


def test_an_image_lies_over_whole_pages_and_leaves_the_others() -> None:
    arena, opened = _opened()
    arena.data.fill_(1)
    start, data = PAGE_BYTES + 512, torch.arange(1000).to(torch.uint8)
    place = opened.bytes_at(start, 1000)
    address = place.data_ptr()
    image = Image(start, start + 1000)
    image.write(start, data)
    assert bool((place == 1).all()), "what is not laid yet is not seen"
    opened.lay(os.dup(image.descriptor), image.offset, image.size_bytes)
    assert torch.equal(place, data) and place.data_ptr() == address
    assert bool((opened.bytes_at(0, PAGE_BYTES) == 1).all()) and bool((opened.bytes_at(2 * PAGE_BYTES, 64) == 1).all())
    assert bool((arena.data == 1).all()), "the arena itself is as it was"


def test_who_keeps_an_earlier_one_sees_nothing_of_the_next_and_the_judge_sees_what_was_done_to_it() -> None:
    _, opened = _opened()
    spec = TensorSpec(shape=(8,), stride=(1,), dtype="f32")
    ref = TensorRef(arena="shared", offset=PAGE_BYTES, spec=spec)
    images = []
    for value in (1.0, 2.0):
        image = Image(ref.offset, ref.offset + 32)
        image.write(ref.offset, torch.full((8,), value).view(torch.uint8))
        opened.lay(os.dup(image.descriptor), image.offset, image.size_bytes)
        images.append(image)
    opened.tensor(ref)[3] = 9.0
    assert images[0].tensors((ref,))[0].tolist() == [1.0] * 8
    assert images[1].tensors((ref,))[0].tolist() == [2.0] * 3 + [9.0] + [2.0] * 4
    for image in images:
        image.close()
        image.close()


def test_nothing_is_laid_past_the_end_of_an_arena() -> None:
    _, opened = _opened()
    image = Image(0, SIZE + PAGE_BYTES)
    with pytest.raises(ValueError, match="do not lie in arena"):
        opened.lay(os.dup(image.descriptor), image.offset, image.size_bytes)
    image.close()
