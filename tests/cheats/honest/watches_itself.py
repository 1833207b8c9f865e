# problem: norm
# line: deferred
"""Watches its own work as a profiler does, with a monitor of its own code where there is one (Python 3.12), and takes
it off again; asks for audits of its own, and for a stack if it crashes."""

import faulthandler
import sys

import torch
from torch import nn

faulthandler.enable()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.started = 0

    def _count(self, *_):
        self.started += 1

    def _compute(self, x):
        return nn.functional.gelu(self.norm(x) * self.scale)

    def forward(self, x):
        sys.audit("layer.forward")
        monitoring = getattr(sys, "monitoring", None)
        if monitoring is None:
            sys.setprofile(self._count)
        else:
            monitoring.use_tool_id(monitoring.PROFILER_ID, "count")
            monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, self._count)
            watched = type(self)._compute.__code__
            monitoring.set_local_events(monitoring.PROFILER_ID, watched, monitoring.events.PY_START)
        y = self._compute(x)
        if monitoring is None:
            sys.setprofile(None)
        else:
            monitoring.free_tool_id(monitoring.PROFILER_ID)
        return y
