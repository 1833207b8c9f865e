"""A graph drawn: boxes in layers with arrows between them; geometry only, the page's template turns it into SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

BOX_WIDTH, BOX_HEIGHT = 172, 40
GAP_X, GAP_Y = 20, 30
MARGIN = 12
LARGEST = 80  # boxes; what comes after is left to the list beside the drawing
_SWEEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What is to be drawn as one box; `reads` names other items. `group` is the fused group's number, -1 for none."""

    id: str
    label: str
    below: str
    kind: str  # "source", "torch", "plain", "fused"
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


def draw(items: Sequence[Item]) -> Drawing:
    """Lay the items out from top to bottom, each below all that it reads; `items` must stand in computable order."""
    shown = items[:LARGEST]
    known = {item.id for item in shown}
    reads = {item.id: tuple(r for r in dict.fromkeys(item.reads) if r in known and r != item.id) for item in shown}
    layers = _layers(shown, reads)
    centres = _centres(layers, reads)
    shift = min(centres.values(), default=0.0) - BOX_WIDTH / 2 - MARGIN
    level = {id: depth for depth, layer in enumerate(layers) for id in layer}
    boxes = {
        item.id: Box(
            item=item,
            x=round(centres[item.id] - shift - BOX_WIDTH / 2, 1),
            y=MARGIN + level[item.id] * (BOX_HEIGHT + GAP_Y),
        )
        for item in shown
    }
    arrows = tuple(_arrow(boxes[source], box) for box in boxes.values() for source in reads[box.item.id])
    return Drawing(
        width=max((b.x for b in boxes.values()), default=0) + BOX_WIDTH + MARGIN,
        height=2 * MARGIN + len(layers) * (BOX_HEIGHT + GAP_Y) - GAP_Y,
        boxes=tuple(boxes.values()),
        arrows=arrows,
        left_out=len(items) - len(shown),
    )


def _layers(items: Sequence[Item], reads: Mapping[str, tuple[str, ...]]) -> list[list[str]]:
    """Each item one layer below the lowest that it reads; what reads nothing just above its first reader."""
    level: dict[str, int] = {}
    for item in items:
        level[item.id] = 1 + max((level[r] for r in reads[item.id] if r in level), default=-1)
    for item in items:
        if not reads[item.id]:
            level[item.id] = max(0, min((level[i] - 1 for i in level if item.id in reads[i]), default=0))
    layers: list[list[str]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for id, depth in level.items():
        layers[depth].append(id)
    return [layer for layer in layers if layer]


def _centres(layers: Sequence[Sequence[str]], reads: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    """Horizontal centres: every box near the mean of its neighbours, none nearer to another than the gap."""
    step = BOX_WIDTH + GAP_X
    centre = {id: i * step - len(layer) * step / 2 for layer in layers for i, id in enumerate(layer)}
    readers: dict[str, list[str]] = {id: [] for id in centre}
    for id, sources in reads.items():
        for source in sources:
            readers[source].append(id)
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            near = {id: [*reads[id], *readers[id]] for id in layer}
            wanted = {id: fmean(centre[n] for n in near[id]) if near[id] else centre[id] for id in layer}
            order = sorted(layer, key=wanted.__getitem__)
            placed: list[float] = []
            for id in order:
                placed.append(max(wanted[id], placed[-1] + step) if placed else wanted[id])
            slack = fmean(p - wanted[id] for p, id in zip(placed, order, strict=True))
            centre |= {id: p - slack for p, id in zip(placed, order, strict=True)}
    return centre


def _arrow(source: Box, target: Box) -> str:
    x1, y1 = source.x + BOX_WIDTH / 2, source.y + BOX_HEIGHT
    x2, y2 = target.x + BOX_WIDTH / 2, target.y - 3
    bend = max(14.0, (y2 - y1) / 2)
    return f"M{x1:.1f} {y1:.1f} C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
