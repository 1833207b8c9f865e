"""What compiled kernels take, read from cubins on a machine without a GPU: held against what is known of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import cuda, gpu
from tilewright.facts.demand import Demand
from tilewright.ir.program import Program
from tilewright.kernels.cuda.common.cubin import taken
from tilewright.kernels.cuda.common.demand import demand

pytestmark = [pytest.mark.slow, pytest.mark.one_in(4)]  # half a second for each kernel, and dozens of them

H200 = gpu()


def of(program: Program, folder: Path, **knobs: object) -> dict[str, int]:
    module = load_fused(program, folder)
    module.configure(**knobs)
    return demand(module._FUSED, H200)


def test_registers_grow_with_what_is_loaded_and_too_many_spill(tmp_path: Path) -> None:
    bytes_moved = 13 * 4096 * 4096 * 4
    small = of(kp.sum_of_matrices(12), tmp_path, threads=256, unroll=2)
    large = of(kp.sum_of_matrices(12), tmp_path, threads=256, unroll=8)
    assert small["registers"] < large["registers"] <= 255 and large["local_bytes"] == 0
    assert (large["threads"], large["ctas"], large["moved_bytes"]) == (256, 2048, bytes_moved)
    assert large["in_flight_bytes"] == 12 * 16 * 8, "12 operands, 8 vectors each"
    crowded = of(kp.sum_of_matrices(12, (4096 * 4096,)), tmp_path, threads=1024, unroll=8)
    assert crowded["registers"] == 64 and crowded["local_bytes"] > 0, "65536 registers for 1024 threads"


def test_a_row_in_shared_memory_is_counted_and_one_read_again_moves_more(tmp_path: Path) -> None:
    program = kp.softmax((640, 40000))
    traffic = 2 * 640 * 40000 * 4
    held = of(program, tmp_path, row_storage="shared", cta_split="none", threads=1024, unroll=4)
    assert held["shared_bytes"] == 3 * 1024 * 4 * 16 + 1024, "three blocks, and what the system reserves"
    assert held["moved_bytes"] == traffic
    again = of(program, tmp_path, row_storage="reread", cta_split="none", threads=1024, unroll=4)
    assert again["shared_bytes"] < 4096 and again["moved_bytes"] == 1.5 * traffic
    assert held["plan"] != again["plan"]


def test_what_windows_read_of_a_line_is_counted_and_so_is_a_ring_of_rows(tmp_path: Path) -> None:
    found = of(kp.pool("max", (64, 192, 65536), (8,), padding=4, dilation=3), tmp_path, threads=256, unroll=4)
    assert found["shared_bytes"] == (2048 + 7 * 3 + 3) // 4 * 16 + 1024 and found["ctas"] == 64 * 192 * 32
    found = of(kp.norm_backward((32768, 4096), rms=True), tmp_path, threads=256, unroll=4)
    ring = 12 * 256 * 2 * 16
    assert ring <= found["shared_bytes"] <= ring + 1024 + 256 and found["in_flight_bytes"] == 12 * 2 * 16
    assert found["ctas"] == 528 and found["local_bytes"] == 0


def test_of_a_row_that_teams_do_not_hold_what_is_left_is_read_again(tmp_path: Path) -> None:
    tensor = 64 * 2**24 * 4
    found = of(kp.softmax((64, 2**24)), tmp_path, threads=512, unroll=2, cta_split="grid")
    assert found["moved_bytes"] == round((2 + 13 / 32) * tensor), "a CTA holds 12 blocks of 32, and 7 in registers"
    assert found["in_flight_bytes"] == 2 * 2 * 16, "2 slots of 14 are on their way"
    assert found["shared_bytes"] == 14 * 512 * 2 * 16 + 1024 and found["ctas"] == 128
    assert 64 < found["registers"] <= 128 and found["local_bytes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("unroll", [2, 4])
def test_a_batch_norm_that_moves_its_statistics_keeps_rows_in_registers_without_spilling(
    unroll: int, tmp_path: Path
) -> None:
    b = kp.Builder((64, 64, 2**18), (0, 2))
    x = b.read("x")
    mean, deviations = b.reduce("moments", x, "f32")
    scale = b.op("rsqrt", b.op("add", b.op("div", deviations, 2.0**24), 1e-5))
    weight, bias, last_mean, last_variance = (b.read(name, (1, 64, 1)) for name in "wbmv")
    b.write(b.op("add", b.op("mul", b.op("mul", b.op("sub", x, mean), scale), weight), bias))
    for last, new in ((last_mean, mean), (last_variance, b.op("div", deviations, 2.0**24 - 1))):
        b.write_row(b.op("add", b.op("mul", last, 0.9), b.op("mul", new, 0.1)))
    found = of(b.done(), tmp_path, threads=512, unroll=unroll, cta_split="grid")
    assert found["local_bytes"] == 0 and 64 < found["registers"] <= 128


@pytest.mark.slow
def test_weights_stay_in_registers_without_spilling(tmp_path: Path) -> None:
    shape = (16, 64, 256, 256)
    program = kp.norm(shape, (1, 2, 3), affine=(1, *shape[1:]))
    found = of(program, tmp_path, threads=512, unroll=2, cta_split="grid")
    assert found["local_bytes"] == 0 and 64 < found["registers"] <= 128 and found["ctas"] == 128
    assert found["moved_bytes"] == 2 * (16 + 1) * 2**22 * 4


def test_ranked_rows_spill_nothing_and_their_queues_are_counted(tmp_path: Path) -> None:
    for count, threads in ((64, 256), (8, 1024)):
        found = of(kp.ranked((100, 262144), count), tmp_path, threads=threads, unroll=8)
        assert found["local_bytes"] == 0 and found["registers"] * threads <= 65536 and found["threads"] == threads
        assert found["shared_bytes"] == threads // 32 * (32 + 32 * 16) * 8 + 1024, (
            "a queue a warp, the system's reserve"
        )
        assert found["moved_bytes"] == 100 * (262144 * 4 + count * 12), "one reading; values and positions"
    fused = of(kp.ranked((4096, 256), 8, fused=True), tmp_path, threads=256, unroll=4)
    assert (fused["moved_bytes"], fused["ctas"]) == (4096 * (256 * 4 + 8 * 12), 1024), "rows in registers, a warp each"


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x01", b"\x7fELF\x02" + bytes(100), b"MZ" * 100])
def test_what_is_no_cubin_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a cubin"):
        taken(content)


def test_the_script_answers_for_every_job_and_one_that_fails_hides_no_other(tmp_path: Path) -> None:
    program = kp.chain((64, 64))
    good = cuda.space(program).points[0]
    for file in (*cuda.skeleton_files([program]), *cuda.render(program, "fused_0", good)):
        place = tmp_path / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(file.text)
    jobs = [[str(tmp_path / "fused_0.py"), knobs] for knobs in ({"threads": 96}, dict(good))]
    done = subprocess.run(
        [sys.executable, "-m", "tilewright.kernels.cuda.common.demand"], capture_output=True, text=True, check=True,
        input=json.dumps({**asdict(H200), "jobs": jobs}),
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
    )  # fmt: skip
    bad, found = (json.loads(line) for line in done.stdout.splitlines())
    assert "can't be 96" in bad["failure"]
    (kept,) = found["objects"]
    assert Path(kept).parent == tmp_path / "build" and Demand(**found["demand"]).registers > 0


def test_what_is_kept_takes_what_the_same_takes_that_is_compiled_for_this_alone(tmp_path: Path) -> None:
    fused = load_fused(kp.sum_of_matrices(12), tmp_path)._FUSED
    fused.configure(threads=1024, unroll=8)
    alone = demand(fused, H200)
    fused.prepare(H200)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(fused), "compile", lambda *a, **k: pytest.fail("it compiles again"))
        assert demand(fused, H200) == alone


def test_what_is_read_at_positions_of_its_own_counts_as_loaded(tmp_path: Path) -> None:
    found = of(kp.joined(1000, 300, 724), tmp_path, threads=128, unroll=4)
    assert found["in_flight_bytes"] == 4 * 4 * 3 * 4, "4 vectors of 4 elements, each of x, y and the scale"
    assert found["moved_bytes"] == (1000 * (300 + 724) + 1024 + 1000 * 1024) * 4
