"""What kernels ask their GPU at run time is what is compiled for ahead of it."""

from __future__ import annotations

import torch

from fakes.realisers import gpu
from tilewright.edges.gpu.machine import identity
from tilewright.facts.devices import device_of
from tilewright.kernels.cuda.rows.launch import _device


def test_the_device_of_this_machine_is_the_gpu_that_kernels_see() -> None:
    here, seen = device_of(identity("cuda")), torch.cuda.get_device_properties(0)
    assert _device(torch.device("cuda", 0)) == gpu(here)
    assert (here.name, here.processors, here.cache_bytes) == (seen.name, seen.multi_processor_count, seen.L2_cache_size)
    assert here.registers == seen.regs_per_multiprocessor
