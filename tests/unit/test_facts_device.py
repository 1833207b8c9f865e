"""The table of GPUs: whole, with a source for what it says, and alike with what kernels know of architectures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.facts import MACHINE as CPU
from fakes.realisers import gpu
from fakes.runs import MACHINE
from tilewright.facts.device import MEASURED, MODEL, Device
from tilewright.facts.devices import DEVICES, device_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES.keys())
def test_every_number_of_a_gpu_is_there_and_says_where_it_is_from(device: Device) -> None:
    said = dict(device.sources)
    for field in ("processors", "cache_bytes", "copy_bytes_per_ns", "flops_per_ns", "shared_bytes"):
        assert said[field].startswith((MEASURED, MODEL, "NVIDIA", "CUDA")), field
        if said[field].startswith(MEASURED):
            assert (RESULTS / said[field].removeprefix("measured: benchmarks/results/")).is_file()
    assert device.capability >= 80
    assert min(device.processors, device.threads, device.ctas, device.registers, device.cache_bytes) > 0
    assert device.flops("f16") > device.flops("f32") > 0 and device.copy_bytes_per_ns > 0
    assert gpu(device).largest_cluster == device.largest_cluster
    assert gpu(device).cta_shared_bytes == device.cta_shared_bytes < device.shared_bytes


def test_a_known_gpu_keeps_the_rates_that_its_models_were_fitted_to() -> None:
    other = replace(MACHINE, copy_bytes_per_s=4.1e12, processors=120, cache_bytes=50 << 20, architecture="sm_90a")
    found = device_of(other)
    assert found.copy_bytes_per_ns == DEVICES["h200"].copy_bytes_per_ns, "points keep their order"
    assert (found.processors, found.cache_bytes, found.largest_cluster) == (120, 50 << 20, 16), "as it was queried"


def test_rates_that_a_vendor_gives_give_way_to_measured_ones() -> None:
    other = replace(MACHINE, device="NVIDIA L40S", processors=142, copy_bytes_per_s=7e11, architecture="sm_89")
    found = device_of(other)
    assert found.copy_bytes_per_ns == 700.0 and found.flops("bf16") == pytest.approx(7.8e5)
    assert found.flops("f8") == DEVICES["l40s"].flops("f8") and found.cta_shared_bytes == 99 << 10
    assert dict(found.sources)["copy_bytes_per_ns"] == "measured on this machine"


def test_gpus_that_are_not_in_the_table_have_what_their_architecture_has_or_the_least() -> None:
    known = device_of(replace(MACHINE, device="NVIDIA H100 PCIe", processors=114, architecture="sm_90a"))
    assert (known.processors, known.largest_cluster, known.shared_bytes) == (114, 16, 228 << 10)
    unknown = device_of(replace(MACHINE, device="NVIDIA new", architecture="sm_999a"))
    assert (unknown.largest_cluster, unknown.cta_shared_bytes) == (1, 99 << 10)


def test_a_cpu_is_what_was_measured_of_it() -> None:
    found = device_of(CPU)
    assert (found.target, found.processors, found.copy_bytes_per_ns, found.largest_cluster) == ("cpu", 2, 10.0, 1)
    assert found.capability == 0
