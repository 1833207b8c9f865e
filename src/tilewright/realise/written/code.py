"""A candidate that was written for a Subproblem becomes files of another candidate, and calls in its code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.facts.candidate import SourceFile
from tilewright.facts.pattern import Choice, Region
from tilewright.ir.graph import Graph

from ..case_units import Placed
from ..subproblem_code import arguments
from ..templates import template


def placed(graph: Graph, choices: Sequence[Choice]) -> tuple[Placed, ...]:
    """The calls that stand for the choices' regions in this graph."""
    return tuple(
        Placed(name=c.pattern, title=c.written.title, takes=arguments(graph, region), gives=region.outputs)
        for c in choices
        if c.written is not None
        for region in c.written.regions
    )


def written_files(choice: Choice, graph: Graph | None, *, opaque: bool) -> Iterator[SourceFile]:
    """`NAME.py`, and the candidate's own files in a folder beside it. `opaque`: torch.compile takes it for an operator
    of torch.library, whose results have the shapes that the graph has them in."""
    name, written = choice.pattern, choice.written
    assert written is not None and graph is not None
    folder = f"{name}_code"
    entry = written.candidate.entry.removesuffix(".py")
    text = template(__package__, "written.py.jinja").render(
        title=written.title, name=name, folder=folder, entry=entry, knobs=dict(choice.point) if written.points else {},
        outputs=_outputs(graph, written.regions[0]) if opaque else (),
        arity=len(arguments(graph, written.regions[0])),
    )  # fmt: skip
    yield SourceFile(path=f"{name}.py", text=f"{text.rstrip()}\n")
    for file in written.candidate.files:
        yield SourceFile(path=f"{folder}/{file.path}", text=file.text)


def _outputs(graph: Graph, region: Region) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shape and dtype of each result, as `kernels.ops` has them."""
    nodes = {n.name: n for n in graph.nodes}
    return tuple((nodes[name].shape, nodes[name].dtype) for name in region.outputs)
