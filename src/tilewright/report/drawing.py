"""A graph drawn: boxes in layers with arrows between them; geometry only, the page's template turns it into SVG.

Layers and waypoints are those of Sugiyama, Tagawa and Toda (1981), with a few barycentre sweeps for the positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

BOX_WIDTH, BOX_HEIGHT = 172, 40
GAP_X, GAP_Y = 20, 30
MARGIN = 12
LARGEST = 80  # boxes; what comes after is left to the list beside the drawing
_SWEEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What is to be drawn as one box; `reads` names other items. `group` is the fused group's number, -1 for none."""

    id: str
    label: str
    below: str
    kind: str  # "input", "state", "constant", "torch", "view" or "fused"
    reads: tuple[str, ...]
    group: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    item: Item
    x: float  # of the left edge
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[str, ...]  # the `d` of an SVG path each
    left_out: int


@dataclass(frozen=True, slots=True)
class _Waypoint:
    """Where an arrow that spans several layers crosses one of them."""

    source: str
    target: str
    layer: int


_Place = str | _Waypoint


def draw(items: Sequence[Item], *, most: int = LARGEST) -> Drawing:
    """Lay the first `most` items out from top to bottom, each below all that it reads; `items` must stand in computable
    order."""
    shown = items[:most]
    known = {item.id for item in shown}
    reads = {item.id: tuple(r for r in dict.fromkeys(item.reads) if r in known and r != item.id) for item in shown}
    level = _levels(shown, reads)
    chains = {(r, id): _chain(r, id, level) for id, sources in reads.items() for r in sources if level[r] < level[id]}
    centres = _centres(_layers(level, chains), chains)
    left = min((x - _width(place) / 2 for place, x in centres.items()), default=0.0) - MARGIN
    right = max((x + _width(place) / 2 for place, x in centres.items()), default=0.0) + MARGIN
    centres = {place: round(x - left, 1) for place, x in centres.items()}
    boxes = tuple(Box(item=item, x=centres[item.id] - BOX_WIDTH / 2, y=_top(level[item.id])) for item in shown)
    return Drawing(
        width=round(right - left, 1), height=_top(max(level.values(), default=0)) + BOX_HEIGHT + MARGIN, boxes=boxes,
        arrows=tuple(_arrow(chain, centres, level) for chain in chains.values()), left_out=len(items) - len(shown),
    )  # fmt: skip


def _levels(items: Sequence[Item], reads: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Each item one layer below the lowest that it reads; what reads nothing just above its first reader."""
    level: dict[str, int] = {}
    first_reader: dict[str, int] = {}
    for item in items:
        level[item.id] = 1 + max((level[r] for r in reads[item.id] if r in level), default=-1)
    for id, sources in reads.items():
        for source in sources:
            first_reader[source] = min(level[id], first_reader.get(source, level[id]))
    for item in items:
        if not reads[item.id]:
            level[item.id] = max(0, first_reader.get(item.id, 1) - 1)
    return level


def _chain(source: str, target: str, level: Mapping[str, int]) -> tuple[_Place, ...]:
    between = range(level[source] + 1, level[target])
    return (source, *(_Waypoint(source, target, layer) for layer in between), target)


def _layers(level: Mapping[str, int], chains: Mapping[tuple[str, str], tuple[_Place, ...]]) -> list[list[_Place]]:
    layers: list[list[_Place]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for id, depth in level.items():
        layers[depth].append(id)
    for chain in chains.values():
        for place in chain:
            if isinstance(place, _Waypoint):
                layers[place.layer].append(place)
    return layers


def _width(place: _Place) -> float:
    return BOX_WIDTH if isinstance(place, str) else 4.0


def _centres(
    layers: Sequence[Sequence[_Place]], chains: Mapping[tuple[str, str], tuple[_Place, ...]]
) -> dict[_Place, float]:
    """Horizontal centres: every place near the mean of its neighbours, none nearer to another than the gap."""
    near: dict[_Place, list[_Place]] = {place: [] for layer in layers for place in layer}
    for chain in chains.values():
        for upper, lower in pairwise(chain):
            near[upper].append(lower)
            near[lower].append(upper)
    centre: dict[_Place, float] = {}
    for layer in layers:
        centre |= _spread(layer, {place: float(i) for i, place in enumerate(layer)})
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = {
                place: _mean([centre[n] for n in near[place]]) if near[place] else centre[place] for place in layer
            }
            centre |= _spread(layer, wanted)
    return centre


def _spread(layer: Sequence[_Place], wanted: Mapping[_Place, float]) -> dict[_Place, float]:
    """As near to what is wanted as the gaps allow, in its order."""
    placed: dict[_Place, float] = {}
    least = float("-inf")
    for place in sorted(layer, key=wanted.__getitem__):
        placed[place] = max(wanted[place], least + _width(place) / 2)
        least = placed[place] + _width(place) / 2 + GAP_X
    slack = _mean([x - wanted[place] for place, x in placed.items()]) if placed else 0.0
    return {place: x - slack for place, x in placed.items()}


def _mean(values: Sequence[float]) -> float:
    """Plainly summed: pixels need no more, and a drawing asks for it a thousand times."""
    return sum(values) / len(values)


def _top(layer: int) -> float:
    return float(MARGIN + layer * (BOX_HEIGHT + GAP_Y))


def _arrow(chain: Sequence[_Place], centres: Mapping[_Place, float], level: Mapping[str, int]) -> str:
    """Straight down past a layer at each waypoint, a smooth curve between layers."""
    x, path = centres[chain[0]], ""
    for place in chain[1:]:
        layer = level[place] if isinstance(place, str) else place.layer
        top, to = _top(layer), centres[place]
        start, end = top - GAP_Y, top - (4 if isinstance(place, str) else 0)
        middle = (start + end) / 2
        path += (
            f"{' L' if path else 'M'}{x:.1f} {start:.1f} C{x:.1f} {middle:.1f} {to:.1f} {middle:.1f} {to:.1f} {end:.1f}"
        )
        x = to
    return path
