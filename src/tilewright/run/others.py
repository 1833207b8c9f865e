"""What may realise parts of a module beside skeletons: libraries' calls, and torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..edges.toolchain import languages
from ..facts.device import Device
from ..facts.pattern import Recipe
from ..facts.run import GIVEN, CaseFacts, Matched, Request
from ..facts.space import Point
from ..ir.graph import Graph
from ..realise.library.inductor import modes
from ..realise.library.table import found
from ..realise.written.cutlass import products_by_cutlass

_NOT_FOR = (GIVEN, "tune")  # strategies that compose nothing


def called_libraries(
    request: Request,
    cases: Sequence[CaseFacts],
    matched: Sequence[Matched],
    *,
    device: Device,
    say: Callable[[str], None],
) -> tuple[Recipe, tuple[str, ...]]:  # fmt: skip
    """The parts of the main case that libraries make, and why others make none, which is said, too. CUTLASS takes nvcc
    a minute for each product, so only a strategy that solves these by themselves has it."""
    problem, graph = request.problem, cases[0].graph
    if request.strategy in _NOT_FOR or problem.mode != "inference" or graph is None:
        return (), ()
    there = found(graph, device)
    for line in there.refusals:
        say(line)
    headers = dict(languages(problem.target)).get("cutlass-cpp", "") if request.strategy == "fact" else ""
    products = products_by_cutlass(graph, matched[0].patterns, headers, device=device) if headers else ()
    return (*there.recipe, *products), there.refusals


def inductor_points(request: Request, graph: Graph | None) -> tuple[Point, ...]:
    """The modes in which torch.compile may run what is left to torch; none where the user leaves it out."""
    if request.strategy in _NOT_FOR or not request.timing.compiled:
        return ()
    return modes(request.problem, graph)
