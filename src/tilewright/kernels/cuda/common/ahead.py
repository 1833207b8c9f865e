"""A script for a child process: compiles a fused file at many knob settings, and keeps on disk what it compiles.

No GPU is needed. Operands are taken to be aligned, and to lie as their Spec says. On stdin one JSON object: the
fields of a Gpu, and `jobs`, a list of [path of the fused file, {knob: value}]; on stdout one JSON object a job, a line
each: `objects`, the paths of what is kept, or `failure` alone. The folder of the files must be on Python's path.
"""

from __future__ import annotations

from typing import Any

from ..rows.launch import Fused
from ..rows.plan import Gpu
from .demand import TellsItself, answer_jobs


def _kept(fused: Fused | TellsItself, device: Gpu) -> dict[str, Any]:
    fused.prepare(device)
    return {"objects": sorted(map(str, fused.objects))}


if __name__ == "__main__":
    answer_jobs(_kept)
