"""What realises which part in the result: skeletons, libraries' calls, torch.compile; and why others realise none."""

from __future__ import annotations

from dataclasses import dataclass

from ..facts.pattern import CUDA_GRAPH, INDUCTOR, Recipe, inductor_mode, without_inductor
from ..facts.run import SearchContext
from . import words
from .ending import fused


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    id: str
    title: str
    kind: str
    nodes: int
    traffic: str
    settings: str


def inductor_title(recipe: Recipe) -> str:
    """What torch.compile runs of the module in this recipe, or that one CUDA graph replays all of it."""
    if inductor_mode(recipe) == CUDA_GRAPH:
        return "the module as one CUDA graph"
    return "all else by torch.compile" if without_inductor(recipe) else "the module as it is, by torch.compile"


def part_rows(context: SearchContext, recipe: Recipe) -> tuple[PartRow, ...]:
    """A row for each realised part: skeletons' first."""
    rows = [
        PartRow(
            id=p.id, title=p.title, kind=p.kind.replace("_", " "), nodes=len(p.nodes),
            traffic=words.amount(p.program.traffic_bytes), settings=words.settings(point),
        )
        for p, point in fused(context, recipe)
    ]  # fmt: skip
    for choice in recipe:
        nodes, kind, title = 0, INDUCTOR, inductor_title(recipe)
        if choice.written is not None:
            nodes = sum(len(region.nodes) for region in choice.written.regions)
            kind, title = choice.written.candidate.by, choice.written.title
        elif choice.pattern != INDUCTOR:
            continue
        settings = words.settings(choice.point)
        rows.append(PartRow(id=choice.pattern, title=title, kind=kind, nodes=nodes, traffic="", settings=settings))
    return tuple(rows)
