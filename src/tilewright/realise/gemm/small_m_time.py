"""How long a small-M product takes at a setting: the large matrix's way from memory, and what its clusters add to that.

Fitted to what 17 bare products took at up to 66 settings each: 1 to 64 rows, 4096 x 4096 to 57344 x 8192, tiles of 64
and 128 rows of the large matrix (32, too, beside 64 of the small one), 1 to 8 parts of K, 3 to 8 stages. Of 519 times
it is 6.9% off in the root mean square; of the settings that were measured its first takes 1.011 of the best's time in
the geometric mean, at most 1.05 (H200, 2026-11-24; `small-M-settings.json` of the results).
"""

from __future__ import annotations

from math import ceil

from ...facts.device import Device
from .time import Rates

RESERVED_BYTES = 2048  # of a CTA
_MOST_CTAS, _MOST_OF_TWO_GROUPS = 4, 2  # to a multiprocessor
_BEGIN_NS = 2860.0
# Of that, where the next kernel's CTAs find room beside all of this one's; and of this, where each multiprocessor has
# one CTA, and takes the next when that ends: some of the case memory, and CTAs lie unevenly.
_EARLIER_NS, _IN_TURN = 1770.0, 0.6
_ROUND_NS = 1192.0  # in which what a CTA's stages asked for has come
_RATE = 3980.0  # bytes/ns, of all CTAs
_SHARPNESS = 2.4  # of the change from one bound to the other
_PART_NS, _SUMS_NS = 208.0, 111.0  # a part of K, and for it 1024 sums of a tile
# Multiprocessors that clusters of so many parts leave idle, where the chip's groups have 16 or 18 of them.
_IDLE = {1: 0, 2: 0, 3: 6, 4: 4, 5: 12, 6: 24, 8: 4}
PARTS = tuple(_IDLE)


def resident(stages: int, stage_bytes: int, *, warpgroups: int, device: Device) -> int:
    """CTAs of so many stages to a multiprocessor."""
    most = device.cta_shared_bytes // (stages * stage_bytes + RESERVED_BYTES)
    return min(most, _MOST_CTAS if warpgroups == 1 else _MOST_OF_TWO_GROUPS)


def work_ns(
    tiles: int, steps: int, *, parts: int, stages: int, resident: int, large_bytes: float, sums: int, device: Device,
) -> float:  # fmt: skip
    """Of so many `tiles`, each of so many `steps` of K in `parts`; `large_bytes`: of the large matrix in one step,
    `sums`: of a tile."""
    places, ctas, each = (device.processors - _IDLE[parts]) * resident, tiles * parts, ceil(steps / parts)
    whole, rest = divmod(ctas, places)

    def wave(ctas: int) -> float:
        waits = each / min(stages, each) * _ROUND_NS
        moves = ctas * each * large_bytes / (_RATE * Rates(device).memory)
        return float((waits**_SHARPNESS + moves**_SHARPNESS) ** (1.0 / _SHARPNESS))

    in_turn = resident == 1 and ctas <= places
    earlier = _IN_TURN if in_turn else min((places - (rest or places)) / ctas, 1.0)
    summing = parts * (_PART_NS + _SUMS_NS * sums / 1024) if parts > 1 else 0.0
    return _BEGIN_NS - earlier * _EARLIER_NS + whole * wave(places) + (wave(rest) if rest else 0.0) + summing
