"""Arenas and layouts: tensors of any strides lie where they were put, and nowhere else."""

from __future__ import annotations

import os

import pytest
import torch

from tilewright.facts.problem import TensorSpec
from tilewright.judge.memory.arena import ALIGNMENT, Arena, Layout, bytes_of
from tilewright.judge.memory.mapped import Opened, contiguous, span_bytes, spec_of

TENSORS = {
    "dense": torch.arange(24.0).reshape(4, 6),
    "transposed": torch.arange(24.0).reshape(4, 6).T,
    "strided": torch.arange(48.0).reshape(4, 12)[:, ::2],
    "expanded": torch.arange(4.0)[:, None].expand(4, 6),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "half": torch.randn(5, 3).half(),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.randn(3, 2, dtype=torch.complex64),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_keeps_values_shape_and_strides(name: str) -> None:
    tensor = TENSORS[name]
    (ref,) = Layout((spec_of(tensor),)).at("a", 1024)
    arena = Arena("a", 1 << 16, "cpu")
    arena.write(ref, tensor)
    back = arena.tensor(ref)
    assert torch.equal(back, tensor) and back.dtype == tensor.dtype
    assert tuple(back.stride()) == tuple(tensor.stride()) or tensor.numel() == 0
    arena.close()


def test_windows_that_overlap_become_dense() -> None:
    windows = torch.arange(10.0).unfold(0, 4, 1)
    assert spec_of(windows) == contiguous((7, 4), "f32")


def test_refs_do_not_overlap_and_are_aligned() -> None:
    layout = Layout(tuple(spec_of(t) for t in TENSORS.values()))
    refs = layout.at("a", 0)
    ends = [r.offset + span_bytes(r.spec) for r in refs]
    assert all(end <= ref.offset for end, ref in zip(ends, refs[1:], strict=False))
    assert all(r.offset % ALIGNMENT == 0 for r in refs)
    assert layout.size_bytes >= ends[-1]


def test_bytes_count_an_expanded_element_once() -> None:
    assert bytes_of(TensorSpec(shape=(4, 6), stride=(1, 0), dtype="f32")) == 16
    assert bytes_of(TensorSpec(shape=(4, 0), stride=(0, 1), dtype="f32")) == 0


def test_what_is_written_on_one_side_is_read_on_the_other() -> None:
    arena = Arena("a", 4096, "cpu")
    opened = Opened(arena.message(), os.dup(arena.descriptor))
    (ref,) = Layout((contiguous((3,), "f32"),)).at("a", 512)
    opened.write(ref, torch.tensor([1.0, 2.0, 3.0]))
    assert arena.tensor(ref).tolist() == [1.0, 2.0, 3.0]
    opened.close()
    arena.close()


def test_a_cell_cannot_shrink_it() -> None:
    arena = Arena("a", 8192, "cpu")
    with pytest.raises(PermissionError):
        os.ftruncate(arena.descriptor, 4096)
    arena.close()


def test_a_ref_outside_is_refused() -> None:
    arena = Arena("a", 4096, "cpu")
    (ref,) = Layout((contiguous((1024,), "f32"),)).at("a", 512)
    with pytest.raises(ValueError, match="do not lie"):
        arena.tensor(ref)
    arena.close()
