"""How torch's operators are spelled out in our vocabulary, by families; the rules of stages/retrieve name these."""

from __future__ import annotations

from collections.abc import Mapping

from .lower import Lowering
from .lower_gather import GATHER_LOWERINGS
from .lower_join import JOIN_LOWERINGS
from .lower_losses import LOSS_LOWERINGS
from .lower_norms import NORM_LOWERINGS
from .lower_pointwise import POINTWISE_LOWERINGS
from .lower_pool import POOL_LOWERINGS
from .lower_reduce import REDUCE_LOWERINGS
from .lower_scan import SCAN_LOWERINGS
from .lower_views import VIEW_LOWERINGS

LOWERING_FAMILIES: Mapping[str, Mapping[str, Lowering]] = {
    "pointwise": POINTWISE_LOWERINGS, "views": VIEW_LOWERINGS, "reductions": REDUCE_LOWERINGS, "norms": NORM_LOWERINGS,
    "losses": LOSS_LOWERINGS, "scans": SCAN_LOWERINGS, "windows": POOL_LOWERINGS, "joins": JOIN_LOWERINGS,
    "gathers": GATHER_LOWERINGS,
}  # fmt: skip
LOWERINGS: Mapping[str, Lowering] = {
    name: lower for family in LOWERING_FAMILIES.values() for name, lower in family.items()
}
