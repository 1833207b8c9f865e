"""What rows cost in instructions, counted in PTX without a GPU: kernels of 16-bit rows are bound by it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import gpu
from fakes.traced import only_program

pytestmark = pytest.mark.slow  # half a second for each kernel


def compiled(program, folder, **knobs):
    """The PTX of the program's kernel, and its plan."""
    module = load_fused(program, folder)
    module.configure(**knobs)
    device = gpu()
    walks = [o.strides for o in program.operands]
    options = f"--keep-ptx --dump-dir={folder}"
    launch, kernel = module._FUSED.compile(walks, [16] * len(walks), device, options=options)
    return launch.artifacts.PTX, kernel.plan


def instructions(program, folder):
    """How often each stands in the PTX of the program's kernel, and how many elements one thread has there."""
    ptx, plan = compiled(program, folder)
    lines = (line.strip() for line in ptx.splitlines())
    found = Counter(line.split()[0].rstrip(";") for line in lines if line.endswith(";") and not line.startswith("."))
    assert plan.blocks == 1 and plan.row_storage == "registers", "nothing is in a loop"
    return found, plan.unroll * plan.space.vector


def backward(x, upstream):
    y = torch.softmax(x, -1)
    return (upstream - (y.float() * upstream.float()).sum(-1, keepdim=True)) * y


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_softmax_divides_once_a_row_and_reads_and_writes_16_bytes_at_once(dtype, tmp_path):
    found, elements = instructions(kp.softmax((32768, 4096), dtype=dtype), tmp_path)
    assert found["div.rn.f32"] + found["rcp.rn.f32"] == 1
    bytes_an_element = 4 if dtype == "f32" else 2
    wide = {name: n for name, n in found.items() if name.startswith(("ld.global", "st.global"))}
    assert sum(wide.values()) == 2 * elements * bytes_an_element // 16, wide


def test_a_softmax_of_16_bits_converts_in_pairs_and_takes_one_exponential_an_element(tmp_path):
    found, elements = instructions(kp.softmax((32768, 4096), dtype="bf16"), tmp_path)
    assert found["cvt.rn.bf16x2.f32"] == elements // 2 and found["cvt.rn.bf16.f32"] == 0
    assert elements < found["ex2.approx.ftz.f32"] <= elements + 8
    assert sum(found.values()) <= 15 * elements


def test_a_window_of_eight_is_eight_reads_of_shared_memory_and_no_check(tmp_path):
    ptx, plan = compiled(kp.pool("max", (64, 192, 65536), (8,), padding=4, dilation=3), tmp_path)
    turns = plan.windows // plan.threads
    found = Counter(line.split()[0] for line in ptx.splitlines() if line.strip())
    shared = sum(n for name, n in found.items() if name.startswith("ld.shared"))
    assert turns in (4, 8) and shared == 8 * turns and found["max.NaN.f32"] <= 8 * turns
    assert found["st.global.b32"] + found["st.global.f32"] == turns and ptx.count("cp.async.ca.shared.global") == -(
        -(plan.windows + 7 * 3) // (4 * plan.threads)
    )
    body = ptx[ptx.index("bar.sync") :]
    assert body.count("selp") == 0 and "ld.global" not in body


def test_ctas_that_share_rows_in_turn_tell_each_sum_once_a_row_and_never_wait_for_memory(tmp_path):
    ptx, plan = compiled(kp.norm_backward((512, 65536), dtype="bf16", rms=True), tmp_path)
    assert (plan.cta_split, plan.chunks, plan.parts) == ("cluster", 8, 64) and plan.slots >= 2 * plan.unroll
    assert ptx.count("st.async") == 1 and ptx.count("mbarrier.arrive.expect_tx") == 3, (
        "two sets, one of which is rearmed"
    )
    assert "membar" not in ptx and "fence.acq_rel" not in ptx


def test_its_backward_takes_few_instructions(tmp_path):
    x = torch.randn(256, 4096, dtype=torch.bfloat16)
    found, elements = instructions(only_program(backward, x, torch.randn_like(x)), tmp_path)
    assert found["div.rn.f32"] + found["rcp.rn.f32"] <= 2
    assert sum(found.values()) <= 30 * elements


def test_the_compiler_is_told_how_many_ctas_fit_or_it_would_delay_loads_to_fit_more(tmp_path):
    ptx, plan = compiled(kp.softmax((8192, 16384)), tmp_path, threads=512)
    assert f".minnctapersm {plan.least_ctas}" in ptx and plan.least_ctas == 2


def test_ctas_of_a_cluster_wait_for_messages_and_not_for_memory(tmp_path):
    ptx, plan = compiled(kp.softmax((2048, 65536)), tmp_path)
    assert plan.cta_split == "cluster" and ptx.count("st.async") == 2, "a maximum and a sum"
    arrivals = [line for line in ptx.splitlines() if "barrier.cluster.arrive" in line]
    assert len(arrivals) == 1 and ".relaxed" in arrivals[0] and "membar" not in ptx and "fence.acq_rel" not in ptx
