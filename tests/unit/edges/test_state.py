"""What a device says of itself, and what of it is a sickness."""

from __future__ import annotations

import os

import pytest

from tilewright.edges.gpu.state import device_state, sickness
from tilewright.facts.machine import DeviceState

WELL = DeviceState(clock_mhz=1980, temperature_c=50, throttled=("power cap",), memory_errors=2)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (WELL, ""),
        (DeviceState(throttled=("power cap", "application clocks", "heat")), ""),  # every busy GPU does that
        (DeviceState(clock_mhz=345, temperature_c=91, throttled=("hardware: heat",)), "hardware: heat (91 C, 345 MHz)"),
        (DeviceState(throttled=("hardware: power brake",)), "power brake"),
        (DeviceState(memory_errors=5), "3 uncorrected errors"),
    ],
)
def test_only_what_the_hardware_complains_of_is_a_sickness(after: DeviceState, words: str) -> None:
    found = sickness(WELL, after)
    assert words in found and bool(found) == bool(words)


def test_the_cpus_state_is_read() -> None:
    assert device_state("cpu").load == pytest.approx(os.getloadavg()[0], abs=0.5)


def test_a_gpu_that_is_not_there_says_nothing() -> None:
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("there is a GPU")
    assert device_state("cuda") == DeviceState()
