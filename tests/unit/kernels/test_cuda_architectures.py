"""Rows compile for every architecture of the table of devices, without a GPU, and ask for nothing that it has not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import gpu
from fakes.traced import only_program
from tilewright.facts.device import Device
from tilewright.facts.devices import DEVICES
from tilewright.ir.program import Program
from tilewright.kernels.cuda.common.demand import demand
from tilewright.realise.table import realisers

pytestmark = pytest.mark.each(3)

ONE_OF_EACH = {d.architecture: d for d in DEVICES.values()}
PROGRAMS = {
    "a chain": lambda: kp.chain((1001, 333)),
    "a transpose": lambda: kp.laid_out((1024, 768), (1, 0), dtype="bf16"),
    "long rows": lambda: kp.softmax((4096, 65536)),
    "rows and sums over them": lambda: kp.norm_backward((32768, 4096)),
    "a scan": lambda: only_program(lambda x: x.cumsum(-1), torch.empty(4096, 4096, device="meta")),
    "windows": lambda: only_program(lambda x: F.max_pool2d(x, 3, 2), torch.empty(8, 64, 112, 112, device="meta")),
    "the first of a row": lambda: only_program(
        lambda x: x.topk(8, -1, sorted=True).values, torch.empty(4096, 4096, device="meta")
    ),
    "chosen rows": lambda: only_program(
        lambda i, w: F.relu(F.embedding(i, w)), torch.empty(4096, dtype=torch.int64, device="meta"),
        torch.empty(1000, 256, device="meta"),
    ),
}  # fmt: skip
OFTEN = {("sm_80", "long rows"), ("sm_120a", "rows and sums over them")}  # where the fewest features are left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "name"),
    [pytest.param(a, n, marks=() if (a, n) in OFTEN else pytest.mark.thorough) for a in ONE_OF_EACH for n in PROGRAMS],
)
def test_the_first_point_compiles_and_fits_a_multiprocessor(architecture: str, name: str, tmp_path: Path) -> None:
    device, program = ONE_OF_EACH[architecture], PROGRAMS[name]()
    make = realisers(device)
    assert make.unsupported(program) is None
    fused = load_fused(program, tmp_path, make.space(program).points[0], renderer=make)._FUSED
    taken = demand(getattr(fused, "lead", fused), gpu(device))
    assert device.resident_ctas(
        registers=int(taken["registers"]), threads=int(taken["threads"]), shared_bytes=int(taken["shared_bytes"])
    ), taken


def plans_of(program: Program, device: Device, folder: Path) -> list[object]:
    """At every point that is proposed."""
    make = realisers(device)
    fused = load_fused(program, folder, renderer=make)._FUSED
    fused = getattr(fused, "lead", fused)
    walks, found = [o.strides for o in program.operands], []
    for point in make.space(program).points:
        fused.configure(**dict(point))
        found.append(fused.plan(walks, [16] * len(walks), gpu(device)))
    return found


@pytest.mark.parametrize("architecture", ONE_OF_EACH)
def test_every_plan_keeps_within_the_clusters_and_the_shared_memory_that_there_are(
    architecture: str, tmp_path: Path
) -> None:
    device = ONE_OF_EACH[architecture]
    clusters = set()
    for columns in (4096, 40000, 65536, 655360):
        for plan in plans_of(kp.softmax((4096, columns)), device, tmp_path / str(columns)):
            clusters.add(plan.chunks if plan.cta_split == "cluster" else 1)
            held = plan.blocks_per_chunk * plan.block_steps * plan.space.vector * 4
            if plan.row_storage == "shared" and not plan.teams:
                assert held <= device.cta_shared_bytes
    assert max(clusters) == device.largest_cluster if device.largest_cluster > 1 else clusters == {1}


@pytest.mark.parametrize("architecture", ONE_OF_EACH)
def test_sums_over_rows_that_are_taken_have_a_plan(architecture: str, tmp_path: Path) -> None:
    """A program that fits and that no plan fits would be found out when it is run."""
    device, taken = ONE_OF_EACH[architecture], 0
    for columns in (64, 4096, 8192, 12288, 16384, 24576, 32768, 65536):
        for dtype in ("f32", "bf16"):
            for program in (
                kp.norm_backward((4096, columns), dtype=dtype),
                kp.gelu_backward((4096, columns), dtype=dtype),
            ):
                if realisers(device).unsupported(program) is None:
                    taken += 1
                    plans_of(program, device, tmp_path / f"{columns}{dtype}")
    assert taken > 4
