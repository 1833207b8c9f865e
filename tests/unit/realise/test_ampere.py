"""Products on GPUs without TMA: what is taken, said and compiled there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import kernel_programs as kp
from fakes.fused import load_fused
from fakes.realisers import cuda, gpu
from tilewright.facts.devices import DEVICES
from tilewright.realise.table import realisers

A100, L40S, B200 = (realisers(DEVICES[name]) for name in ("a100", "l40s", "b200"))


def test_without_tma_products_are_of_16_bits_and_what_is_refused_is_said() -> None:
    for make in (A100, L40S):
        assert make.unsupported(kp.product(1024, 1024, 1024, "bf16")) is None
        for program, why in (
            (kp.product(1024, 1024, 1024), "without TMA, a product in other types than fp16 and bf16"),
            (kp.product(16, 4096, 4096, "bf16"), "a side of 64 or less"),
        ):
            found = make.unsupported(program) or ""
            assert "needs sm_90a" in found and why in found, found
    needs = "the product's skeleton needs sm_90a (TMA and wgmma)"
    assert B200.unsupported(kp.product(1024, 1024, 1024, "bf16")) == needs
    assert cuda.unsupported(kp.product(1024, 1024, 1024, "f64")) == "a product in f64 has no skeleton"


def test_tiles_that_fill_the_chip_come_first_and_others_where_there_are_few() -> None:
    def first(size: int) -> object:
        return dict(A100.space(kp.product(size, size, 1024, "f16")).points[0])["tile"]

    assert first(8192) == "128x128" and first(512) == "64x64"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("a100", "bf16"), pytest.param("l40s", "f16", marks=pytest.mark.thorough)])
def test_every_point_compiles_for_its_own_architecture(name: str, dtype: str, tmp_path: Path) -> None:
    device, program = DEVICES[name], kp.product(512, 1024, 256, dtype)
    make = realisers(device)
    assert make.unsupported(program) is None
    fused = load_fused(program, tmp_path, renderer=make)._FUSED
    assert fused.arch == device.architecture
    for point in make.space(program).points:
        fused.configure(**dict(point))
        fused.prepare(gpu(device))
        taken = fused.demand(device.processors)
        tall, wide = map(int, str(dict(point)["tile"]).split("x"))
        assert (taken["threads"], taken["local_bytes"]) == (128, 0)
        assert taken["ctas"] == 512 // tall * (1024 // wide)
        assert device.resident_ctas(
            registers=int(taken["registers"]), threads=128, shared_bytes=int(taken["shared_bytes"])
        )
