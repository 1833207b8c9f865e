"""torch.compile as a realisation: of what the best recipe leaves to torch, and of the module as it is; and one CUDA
graph of the whole.

The judge times torch.compile's modes beside every candidate. So it is known which is ahead before it is judged itself,
and what is handed over is never slower than the fastest of them beyond noise: where it may be ahead, it is judged, and
taken if it is faster, or if it was seen to be ahead beyond noise and its own judgement does not say the contrary."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...facts.candidate import Candidate
from ...facts.move import Event, Try
from ...facts.outcome import Timed
from ...facts.pattern import CUDA_GRAPH, INDUCTOR, Choice, Recipe, inductor_mode, without_inductor
from ...facts.run import SearchContext
from .faster import faster
from .tuning import Steps

What = Candidate | Recipe
MOST_MODES = 2  # of torch.compile
LEAST_LEFT = 0.03  # share of the module's time, where that is known: for less, nothing is tried
_LAUNCHES = 0.3  # of a call's time: where the host's launches take as much, a CUDA graph is tried first
GRAPHED, _PRODUCTS = "reduce-overhead", "max-autotune-no-cudagraphs"
_IN_A_GRAPH = {"default": GRAPHED, _PRODUCTS: "max-autotune"}  # the mode of what is faster as one CUDA graph already
_MANY = 16  # launches of a call, that one CUDA graph hides
# Whose time Inductor's default mode does not change where nothing else is left beside them.
_EXTERN = ("matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "convolution", "scaled_dot_product_attention")


def improved(
    what: What, timed: Timed, *, context: SearchContext, has_time: Callable[[], bool] = lambda: True
) -> Steps[tuple[What, Timed]]:
    """Moves: `Try` of the recipe with what is left to torch under torch.compile, in the modes that may pay, at most
    MOST_MODES of them; then of the module itself under torch.compile, where that was seen to be faster than the best.
    What is faster beyond noise goes on."""
    if not context.inductor:
        return what, timed
    if isinstance(what, tuple):
        base = without_inductor(what)
        for choice in _choices(what, timed, context):
            if not has_time():
                break
            recipe = (*base, choice)
            mode = dict(choice.point)["mode"]
            left = f"what is left to torch by torch.compile, mode {mode}"
            why = "all of it as one CUDA graph" if mode == CUDA_GRAPH else left
            what, timed = yield from _better(recipe, what, timed, why)
    return (yield from _not_behind(what, timed, context))


def _not_behind(what: What, timed: Timed, context: SearchContext) -> Steps[tuple[What, Timed]]:
    """The module itself under torch.compile in the mode that was the fastest, where that may be faster. Where a result
    can't have that mode, as Inductor's CUDA graph for a module that writes to its buffers, our CUDA graph is judged."""
    ratio, known = timed.ratio("compile"), {dict(p)["mode"]: p for p in context.inductor}
    theirs = known.get(timed.compile_mode, known.get(CUDA_GRAPH, context.inductor[0]))
    mine = (Choice(pattern=INDUCTOR, point=theirs),)
    if ratio is None or ratio.mid >= 1.0 or what == mine:
        return what, timed
    ahead = ratio.high < 1.0
    seen = "was seen to be" if ahead else "may be"
    why = f"the module, mode {dict(theirs)['mode']}: torch.compile, mode {timed.compile_mode}, {seen} faster"
    return (yield from _better(mine, what, timed, why, ahead=ahead))


def compiled_alone(context: SearchContext) -> Steps[tuple[Recipe, Timed] | None]:
    """Where nothing else was accepted: `Try` of the module itself under torch.compile, in its default mode."""
    if not context.inductor:
        return None
    recipe = (Choice(pattern=INDUCTOR, point=context.inductor[0]),)
    event = yield Try(what=recipe, why="torch.compile of the module as it is")
    assert isinstance(event, Event)
    return (recipe, event.outcome) if isinstance(event.outcome, Timed) else None


def _better(other: Recipe, best: What, timed: Timed, why: str, *, ahead: bool = False) -> Steps[tuple[What, Timed]]:
    """The other, if it is faster beyond noise; where it was seen `ahead`, unless it is slower beyond noise."""
    event = yield Try(what=other, why=why)
    assert isinstance(event, Event)
    found = event.outcome
    if isinstance(found, Timed) and (faster(found, timed) or (ahead and not faster(timed, found))):
        return other, found
    return best, timed


def _choices(recipe: Recipe, timed: Timed, context: SearchContext) -> list[Choice]:
    """The modes that may pay, the likeliest first."""
    known = {str(dict(p)["mode"]): Choice(pattern=INDUCTOR, point=p) for p in context.inductor}
    mine = timed.time("ours")
    launches = timed.launches.ns / mine.mid if timed.launches is not None and mine is not None else 0.0
    left = tuple(_left(recipe, context))
    wanted = [GRAPHED] if launches >= _LAUNCHES else []
    if any(label not in _EXTERN for label in left) and _share_left(context) >= LEAST_LEFT:
        wanted.append("default")
    if any(label in _EXTERN for label in left) and _share_left(context) >= LEAST_LEFT:
        wanted.append(_PRODUCTS)
    if inductor_mode(recipe) == CUDA_GRAPH:
        wanted = [_IN_A_GRAPH.get(mode, mode) for mode in wanted]
    usable = [mode for mode in wanted if mode in known and mode != inductor_mode(recipe)][:MOST_MODES]
    ours = [CUDA_GRAPH] if launches >= _LAUNCHES and CUDA_GRAPH in known else []
    return [known[mode] for mode in (*ours, *usable)]


def of_many_launches(recipe: Recipe, context: SearchContext) -> Choice | None:
    """That all of it is one CUDA graph, where a call launches so many kernels that the host may be what takes time."""
    graphs = (p for p in context.inductor if dict(p)["mode"] == CUDA_GRAPH)
    chosen = {choice.pattern for choice in recipe}
    ours = sum(len(p.matches) for p in context.matched[0].patterns if p.id in chosen)
    found = next(graphs, None)
    many = found is not None and ours + sum(1 for _ in _left(recipe, context)) >= _MANY
    return Choice(pattern=INDUCTOR, point=found) if many and found is not None else None


def _left(recipe: Recipe, context: SearchContext) -> Iterator[str]:
    """The operators of the main case that are left to torch, by their short names."""
    of = context.behind(recipe)
    graph = of.cases[0].graph
    if graph is None:
        return
    chosen = {choice.pattern for choice in recipe}
    done = {name for p in of.matched[0].patterns if p.id in chosen for name in p.nodes}
    done |= {n for c in recipe if c.written is not None for r in c.written.regions for n in r.nodes}
    for call in graph.calls:
        if not call.view and any(name and name not in done for name in call.results):
            yield call.label


def _share_left(context: SearchContext) -> float:
    """The share of the module's time that no pattern has; 1 where it is not known."""
    return sum(p.share for p in context.parts if not p.pattern) if context.parts else 1.0
