"""The garbage collector of a cell: what it need not walk."""

from __future__ import annotations

import gc


def keep_what_is_there() -> None:
    """Spare later collections what came with imports. The CuTe DSL alone is 100 000 objects: whenever memory was given
    back, a collection walked them in 159 ms (the host of an H200, 2026-11-23, results/h200/giving-back.json)."""
    gc.collect()
    gc.freeze()
