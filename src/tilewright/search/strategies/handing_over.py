"""How a search ends that found something: with it, if it is faster than eager beyond noise, and clean where asked."""

from __future__ import annotations

from collections.abc import Callable

from ...facts.candidate import Candidate
from ...facts.move import Capture, Event, Sanitize, Stop
from ...facts.outcome import LEAST_GAIN, Captured, Failure, Timed
from ...facts.pattern import CUDA_GRAPH, Recipe, inductor_mode
from ...facts.run import SearchContext
from .left_over import GRAPHED, compiled_alone, improved
from .tuning import Steps


def _always() -> bool:
    return True


def handed_over(
    what: Candidate | Recipe, timed: Timed, *, context: SearchContext, why: str = "", recorded: bool = False,
    has_time: Callable[[], bool] = _always,
) -> Steps[None]:  # fmt: skip
    """Moves: `Try` with torch.compile where that may pay, or is ahead (see `left_over`), some of them only while there
    is time; then, where there is a gain: with `recorded`, on a GPU, `Capture`, under which it must pay, too; `Sanitize`
    where the context asks for it; `Stop`. `why`: what ended the search."""
    what, timed = yield from improved(what, timed, context=context, has_time=has_time)
    recorded = recorded and (isinstance(what, Candidate) or inductor_mode(what) not in (GRAPHED, CUDA_GRAPH))
    before = f"{why}; " if why else ""
    ratio = timed.ratio("eager")
    told = f"{ratio.mid:.2f}x as fast as eager [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else "untimed"
    if not timed.faster_than("eager"):
        if ratio and ratio.low > 1 + LEAST_GAIN:  # what is told looks like a gain
            told += f", but {timed.doubt('eager')}; run it again when the machine is idle"
        yield Stop(best=None, why=f"{before}judged right, not faster beyond noise: {told}")
        return
    if recorded and context.problem.target == "cuda" and context.problem.mode == "inference":
        event = yield Capture(what=what)
        found = event.outcome if isinstance(event, Event) else None
        if isinstance(found, Failure):
            yield Stop(best=None, why=f"{told}, and as a CUDA graph refused: {found.summary}")
            return
        if isinstance(found, Captured) and found.ratio is not None:
            as_graph = f"{found.ratio.mid:.2f}x [{found.ratio.low:.2f}, {found.ratio.high:.2f}] as CUDA graphs"
            told = f"{told}, {as_graph}"
            if not found.pays:
                yield Stop(best=None, why=f"{before}{told}: not faster beyond noise as a CUDA graph")
                return
    if context.sanitize:
        event = yield Sanitize(what=what)
        if isinstance(event, Event) and isinstance(event.outcome, Failure):
            yield Stop(best=None, why=f"{told}, and refused: {event.outcome.summary}")
            return
    yield Stop(best=what, why=f"{before}{told}")


def nothing_accepted(context: SearchContext, why: str) -> Steps[None]:
    """Moves: the module itself under torch.compile, where it may be tried, is handed over if it is faster; else `Stop`
    with nothing. `why`: what ended the search."""
    found = yield from compiled_alone(context)
    if found is None:
        yield Stop(best=None, why=why)
        return
    yield from handed_over(*found, context=context, why=why)
