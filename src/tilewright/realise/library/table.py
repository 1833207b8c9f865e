"""The table of libraries whose calls realise parts of a graph, and what other packages add to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from tilewright.facts.candidate import LIBRARY, Candidate, SourceFile, fault_in
from tilewright.facts.device import Device
from tilewright.facts.pattern import Choice, Recipe, Region, Written
from tilewright.facts.space import Point
from tilewright.ir.graph import Graph

from ..realiser import Refused
from ..subproblem_code import arguments
from .cudnn_conv import CudnnConvolution
from .flash_attn import FlashAttention
from .protocol import Library, LibraryMatch
from .row_libraries import LIGER, QUACK
from .sdpa import Sdpa

LIBRARIES: tuple[Library, ...] = (Sdpa(), FlashAttention(), QUACK, LIGER, CudnnConvolution())
GROUP = "tilewright.realisers"  # of entry points


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`recipe`: a choice for each part that a library realises, by the names `library_0`, ..., at its first point;
    equal parts are one choice at several regions, and two libraries' choices may stand for one part. `refusals`: a
    sentence of each library that could have realised one, and of each package whose object is broken."""

    recipe: Recipe
    refusals: tuple[str, ...]


def found(graph: Graph, device: Device) -> Found:
    """What the table's libraries, and those of installed packages, realise of a graph."""
    choices: list[Choice] = []
    refusals: list[str] = []
    for library in LIBRARIES:
        _add(library, graph, device, choices, refusals)
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        made: list[Choice] = []
        try:
            _add(_loaded(entry), graph, device, made, refusals, first=len(choices))
        except Exception as error:  # another package's code: whatever it raises is told, and the others go on
            refusals.append(f"{_named(entry)} is skipped: {type(error).__name__}: {_line(error)}")
            continue
        choices += made
    return Found(recipe=tuple(choices), refusals=tuple(refusals))


def _loaded(entry: EntryPoint) -> Library:
    made = entry.load()
    library: Library = made() if isinstance(made, type) else made
    lacking = [name for name in ("name", "finds", "points", "render") if not hasattr(library, name)]
    if lacking or not isinstance(library.name, str):
        raise TypeError(f"it has no {', '.join(lacking) or 'name of type str'}")
    return library


def _named(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name}" if entry.dist is not None else ""
    return f"realiser {entry.name}{package}"


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:200]


def _add(
    library: Library, graph: Graph, device: Device, choices: list[Choice], refusals: list[str], *, first: int = 0
) -> None:
    """Append the library's choices, named from `first` on beside those there, or its refusal."""
    matches = library.finds(graph, device)
    if isinstance(matches, Refused):
        refusals.append(f"{library.name}: {matches.why}")
        return
    for written in _written(library, matches, graph, device):
        point = written.points[0] if written.points else ()
        choices.append(Choice(pattern=f"library_{first + len(choices)}", point=point, written=written))


def _written(library: Library, matches: Sequence[LibraryMatch], graph: Graph, device: Device) -> Iterator[Written]:
    """Each different realisation once, at all regions where it stands between tensors of the same shapes."""
    looks = {n.name: (n.shape, n.dtype, n.order) for n in graph.nodes}
    alike: dict[tuple[object, ...], list[Region]] = {}
    for match in matches:
        arguments(graph, match.region)  # raises where it takes what is computed elsewhere
        shapes = tuple(looks[name] for name in (*match.region.inputs, *match.region.outputs))
        files, points = tuple(library.render(match, device)), tuple(library.points(match, device))
        alike.setdefault((match.title, files, points, shapes), []).append(match.region)
    for key, regions in alike.items():
        title, files, points = _checked(key)
        candidate = Candidate(files=files, language=LIBRARY)
        title = f"{title} by {library.name}"
        yield Written(title=title, candidate=candidate, regions=tuple(regions), points=points)


def _checked(key: tuple[object, ...]) -> tuple[str, tuple[SourceFile, ...], tuple[Point, ...]]:
    """Title, files and points, of which a package's may be anything."""
    title, files, points, _ = key
    if not isinstance(title, str) or not isinstance(files, tuple) or not isinstance(points, tuple):
        raise TypeError("it gives something other than titles, files and points")
    if not all(isinstance(f, SourceFile) for f in files) or "model.py" not in [f.path for f in files]:
        raise ValueError("it renders no model.py")
    if fault := fault_in({f.path: f.text for f in files}):
        raise ValueError(fault)
    return title, files, points
