"""How torch's operators are spelled out in our vocabulary, by families; the rules of search/retrieve name these."""

from __future__ import annotations

from collections.abc import Mapping

from .depthwise import DEPTHWISE_LOWERINGS
from .gather import GATHER_LOWERINGS
from .join import JOIN_LOWERINGS
from .losses import LOSS_LOWERINGS
from .lower import Lowering
from .norms import NORM_LOWERINGS
from .pointwise import POINTWISE_LOWERINGS
from .pool import POOL_LOWERINGS
from .reduce import REDUCE_LOWERINGS
from .scan import SCAN_LOWERINGS
from .views import VIEW_LOWERINGS

LOWERING_FAMILIES: Mapping[str, Mapping[str, Lowering]] = {
    "pointwise": POINTWISE_LOWERINGS, "views": VIEW_LOWERINGS, "reductions": REDUCE_LOWERINGS, "norms": NORM_LOWERINGS,
    "losses": LOSS_LOWERINGS, "scans": SCAN_LOWERINGS, "windows": POOL_LOWERINGS, "joins": JOIN_LOWERINGS,
    "gathers": GATHER_LOWERINGS, "depthwise": DEPTHWISE_LOWERINGS,
}  # fmt: skip
LOWERINGS: Mapping[str, Lowering] = {
    name: lower for family in LOWERING_FAMILIES.values() for name, lower in family.items()
}
