"""The realisers of an H200, where most results were measured, and of this CPU; and what kernels know of that GPU."""

from tilewright.edges.gpu.machine import identity
from tilewright.facts.devices import DEVICES, device_of
from tilewright.kernels.cuda.rows.plan import Gpu
from tilewright.realise.table import realisers

H200 = DEVICES["h200"]
DEVICE_OF = {"cuda": H200, "cpu": device_of(identity("cpu"))}
GPU = Gpu(**H200.plan_facts)  # type: ignore[arg-type]
cuda, cpu = (realisers(device) for device in DEVICE_OF.values())
