"""The realisers that tests ask when they mean one GPU or any CPU: an H200's, and those of a machine of two threads."""

from __future__ import annotations

from typing import Any

from fakes.facts import MACHINE
from tilewright.facts.device import Device
from tilewright.facts.devices import DEVICES, device_of
from tilewright.kernels.cuda.rows.plan import Gpu
from tilewright.realise.table import realisers

H200, CPU = DEVICES["h200"], device_of(MACHINE)
cuda, cpu = realisers(H200), realisers(CPU)
DEVICES_OF = {"cuda": H200, "cpu": CPU}


def gpu(device: Device = H200, **changes: Any) -> Gpu:
    """What kernels know of the device."""
    return Gpu(**({**device.plan_facts, **changes}))
