"""A run told: the rows that the Markdown and the HTML page share, as plain words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..facts.candidate import Candidate
from ..facts.dialogue import Reply, ToolAnswer
from ..facts.move import Await, Enter, Event, Stop, Try, Tune, Within
from ..facts.outcome import Captured, Failure, Inspected, Interleaved, OutputError, Sanitized, Timed, Tuned
from ..facts.pattern import Recipe
from ..facts.problem import TensorSpec
from ..facts.run import SearchContext
from ..facts.verdict import Verified
from . import moves, words
from .algebra import algebra
from .attribution import WorthRow, worth_rows
from .chart import Chart, chart
from .costs import CostRow, GainRow, costs, gains
from .ending import Ending, ending, floor_share, fused
from .graphs import GraphView, graph_view
from .objects import device_seconds, fallbacks
from .parts import PartRow, part_rows

_MOST_ERRORS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryTile:
    """A headline figure."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    name: str
    median: str
    interval: str
    ratio: str  # how many times as fast ours is


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One event. `fate` is "kept", "lost" (accepted, but not the result), "refused", "tuned", "replied", "seen"
    (profiled), "verified" or "end"."""

    seq: int
    fate: str
    what: str
    why: str
    result: str
    seconds: str
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRow:
    settings: str
    time: str
    interval: str
    of_floor: str  # the floor / the time
    behind: str  # how much slower than the fastest point
    chosen: bool
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedPattern:
    id: str
    title: str
    points: tuple[PointRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    where: str
    norm: str
    allowed_norm: str
    worst: str
    allowed_worst: str
    share: float  # of the allowance, the larger of both
    share_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    index: int
    arguments: str
    inputs: str
    outputs: str
    graph: GraphView | None
    trace_failure: str
    unmatched: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    context: SearchContext
    end: Ending
    heading: str
    tiles: tuple[StoryTile, ...]
    times: tuple[TimeRow, ...]
    chart: Chart | None
    floor: str
    noise: str
    stations: str
    fused: tuple[PartRow, ...]
    worth: tuple[WorthRow, ...]
    algebra: str
    fallbacks: tuple[str, ...]
    notes: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    tuned: tuple[TunedPattern, ...]
    errors: tuple[ErrorRow, ...]
    errors_made: int
    cases: tuple[CaseView, ...]
    environment: tuple[tuple[str, str], ...]
    protections: tuple[str, ...]
    missing_protections: tuple[str, ...]
    seconds: str
    held: str
    costs: tuple[CostRow, ...]
    gains: tuple[GainRow, ...]


_HEADINGS = {"improved": "Improved", "no_improvement": "No improvement", "failed": "Failed", "unfinished": "Not ended"}


def story(context: SearchContext, events: Sequence[Event]) -> Story:
    end = ending(context, events)
    whole, context = context, context.behind(end.recipe)
    less = algebra(whole, events, end)
    built = end.seen.checked.built if end.seen else None
    errors = end.timed.checked.errors if end.timed else ()
    return Story(
        context=context,
        end=end,
        heading=_HEADINGS[end.status],
        tiles=_tiles(end),
        times=_times(end),
        chart=chart(end.seen, ours="ours" if end.timed else "tried, not kept") if end.seen else None,
        floor=_floor(context, end.seen),
        noise=_noise(end.seen),
        stations=_stations(end.seen),
        fused=part_rows(context, end.recipe),
        worth=worth_rows(context, events, end),
        algebra=f"{less.line[:1].upper()}{less.line[1:]}." if less else "",
        fallbacks=tuple(
            f"case {f['case']}: {f['reason']}" if "case" in f else f"{f['calls']} calls: {f['reason']}"
            for f in fallbacks(context, end)
        ),
        notes=_notes(end),
        attempts=tuple(_attempt(e, end) for e in events if not isinstance(e.move, Await)),
        tuned=_tuned(whole, events),
        errors=_errors(errors),
        errors_made=len(errors),
        cases=tuple(_case(context, end.recipe, index) for index in range(len(context.cases))),
        environment=(*_environment(context), *_agents(events)),
        protections=built.protections if built else (),
        missing_protections=built.missing_protections if built else (),
        seconds=f"{sum(e.wall_s for e in events):.1f} s",
        held=words.seconds_by_name(device_seconds(context, events)),
        costs=costs(events),
        gains=gains(events),
    )


def _tiles(end: Ending) -> tuple[StoryTile, ...]:
    if end.timed is None:
        return ()
    tiles = []
    for name, title in (("eager", "against eager"), ("compile", f"against {end.timed.compile_title}")):
        if ratio := end.timed.ratio(name):
            note = f"99% interval {words.digits(ratio.low)} – {words.digits(ratio.high)}"
            if warm := end.timed.ratio(f"{name}_warm"):
                note += f"; {words.digits(warm.mid)}× with warm caches"
            tiles.append(StoryTile(name=title, value=f"{words.digits(ratio.mid)}×", note=note))
    if share := floor_share(end.timed):
        note = f"the floor takes {words.duration(end.timed.floor_ns)}"
        tiles.append(StoryTile(name="of the floor's speed", value=words.percent(share), note=note))
    if worst := end.timed.checked.worst_error:
        by_norm = worst.norm * worst.allowed_worst >= worst.worst * worst.allowed_norm
        value, allowed = (worst.norm, worst.allowed_norm) if by_norm else (worst.worst, worst.allowed_worst)
        note = f"{words.error(value)} of {words.error(allowed)} {'in the norm' if by_norm else 'in the worst element'}"
        tiles.append(StoryTile(name="of the error allowed", value=words.percent(worst.share), note=note))
    return tuple(tiles)


def _times(end: Ending) -> tuple[TimeRow, ...]:
    if end.seen is None:
        return ()
    rows = []
    for name in words.players(end.seen):
        if time := end.seen.time(name):
            ratio = end.seen.ratio(name)
            rows.append(
                TimeRow(
                    name="tried, not kept" if name == "ours" and end.timed is None else words.named(name, end.seen),
                    median=words.duration(time.mid),
                    interval=words.span(time),
                    ratio=words.times(ratio) if ratio else "",
                )
            )
    return tuple(rows) + _halves(end.seen)


def _halves(seen: Timed) -> tuple[TimeRow, ...]:
    """The rows of a training step's halves."""
    return tuple(
        TimeRow(
            name=f"{phase.name}, {words.named(name, seen)}", median=words.duration(time.mid), interval=words.span(time),
            ratio=words.times(dict(phase.ratios)[name]) if name in dict(phase.ratios) else "",
        )
        for phase in seen.phases
        for name, time in phase.times_ns
    )  # fmt: skip


def _floor(context: SearchContext, seen: Timed | None) -> str:
    if seen is None:
        return ""
    machine = context.machine
    parts = f"{words.amount(seen.bytes_moved)} through memory at {words.rate(machine.copy_bytes_per_s, 'B/s')}"
    if seen.flops:
        rate = machine.rate(context.cases[0].work.dtype if context.cases else "f32")
        parts += f", {words.rate(seen.flops, 'FLOP')} at {words.rate(rate, 'FLOP/s')}"
    told = f"The floor is {words.duration(seen.floor_ns)}: {parts}, rates measured here{words.loaded(machine)}."
    told = f"{told} Only data that stays in the cache, or calls that hardly write, can beat it."
    peaks = ", ".join(f"{words.amount(size)} ({words.named(name, seen)})" for name, size in seen.peak_bytes)
    return f"{told} Memory at the peak of a call: {peaks}." if peaks else told


def _stations(seen: Timed | None) -> str:
    """Where the time of the last judgement went."""
    if seen is None or not seen.stations:
        return ""
    told = []
    for station in seen.stations:
        parts = sorted(station.parts, key=lambda part: -part[1])
        split = ", ".join(f"{name} {words.digits(s)}" for name, s in parts if s >= 0.05 * station.seconds)
        told.append(f"{station.name} {words.digits(station.seconds)} s" + (f" ({split})" if split else ""))
    total = sum(s.seconds for s in seen.stations)
    return f"The last judgement took {words.digits(total)} s: {'; '.join(told)}. {_device(seen)}".strip()


def _device(seen: Timed) -> str:
    """What the device said of itself before and after timing."""
    if not seen.device:
        return ""
    told = []
    for state in seen.device:
        values = (
            (state.clock_mhz, "MHz"), (state.memory_clock_mhz, "MHz (memory)"), (round(state.power_w), "W"),
            (state.temperature_c, "C"), (round(state.load, 1), "load average"),
        )  # fmt: skip
        said = [f"{value} {unit}" for value, unit in values if value]
        told.append(", ".join(said + ([f"held back by {', '.join(state.throttled)}"] if state.throttled else [])))
    return f"The device before and after timing: {'; '.join(told)}."


def _noise(seen: Timed | None) -> str:
    ratio = seen.ratio("aa") if seen else None
    if ratio is None:
        return ""
    text = f"{ratio.mid:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    return f"Eager against itself, in the same rounds: {text}. Differences as small as this are noise."


def _attempt(event: Event, end: Ending) -> Attempt:
    fate, result = _fate(event, end)
    return Attempt(
        seq=event.seq, fate=fate, what=moves.what(event.move), why=moves.why(event.move), result=result,
        seconds=f"{event.wall_s:.1f} s", excerpt=event.outcome.excerpt if isinstance(event.outcome, Failure) else "",
    )  # fmt: skip


def _fate(event: Event, end: Ending) -> tuple[str, str]:
    match event.move, event.outcome:
        case Stop(), _:
            return "end", ""
        case _, Failure(stage=stage, reason=reason, summary=summary):
            return "refused", f"{stage}: {reason.replace('_', ' ')}: {summary}"
        case _, Tuned() as tuned:
            best = min(
                (p for p in tuned.points if p.time_ns), key=lambda p: p.time_ns.mid if p.time_ns else 0, default=None
            )
            return "tuned", f"fastest: {words.settings(best.point)}" if best else "none of them ran"
        case _, Reply() as reply:
            return "replied", words.reply(reply)
        case _, Interleaved() as turns:
            return "seen", ", ".join(f"{v.ratio.mid:.3g}x" if v.ratio else v.failure for v in turns.variants[1:])
        case _, ToolAnswer() as answer:
            return "seen", answer.text.split("\n", 1)[0][:200]
        case _, Inspected() as inspected:
            return "seen", words.inspected(inspected)
        case _, Verified() as verified:
            return ("refused" if verified.proven else "verified"), words.verified(verified)
        case _, Sanitized() as sanitized:
            return "end", "; ".join(words.sanitized(sanitized))
        case _, Captured() as graph:
            return ("seen" if graph.pays else "refused"), words.captured(graph)
        case _, Candidate() as written:
            return "seen", f"candidate {written.id}"
        case Enter(), SearchContext() as inside:
            return "seen", "; ".join(p.title for m in inside.matched for p in m.patterns) or "no skeleton's"
        case Within(move=Try()), Timed() as timed:
            return "lost", _times_told(timed)
        case Try() as move, Timed() as timed:
            return "kept" if end.timed is not None and move.what == end.best else "lost", _times_told(timed)
    return "end", ""


def _times_told(timed: Timed) -> str:
    ratio, ours = timed.ratio("eager"), timed.time("ours")
    told = [words.duration(ours.mid)] if ours else []
    return ", ".join(told + ([f"{words.times(ratio)} as fast as eager"] if ratio else []))


def _tuned(context: SearchContext, events: Sequence[Event]) -> tuple[TunedPattern, ...]:
    titles = {p.id: p.title for p in context.patterns}
    found = []
    for event in events:
        if isinstance(event.move, Tune) and isinstance(event.outcome, Tuned):
            id = event.move.pattern
            found.append(TunedPattern(id=id, title=titles.get(id, ""), points=_points(context, event.outcome)))
    return tuple(found)


def _points(context: SearchContext, tuned: Tuned) -> tuple[PointRow, ...]:
    floor_ns = context.machine.floor_ns(context.cases[0].work)
    best = min((p.time_ns.mid for p in tuned.points if p.time_ns), default=0.0)
    rows = []
    for p in sorted(tuned.points, key=lambda p: p.time_ns.mid if p.time_ns else float("inf")):
        time = p.time_ns
        rows.append(
            PointRow(
                settings=words.settings(p.point), time=words.duration(time.mid) if time else "",
                interval=words.span(time) if time else "", of_floor=words.percent(floor_ns / time.mid) if time else "",
                behind=f"+{100 * (time.mid / best - 1):.1f}%" if time and best and time.mid > best else "",
                chosen=bool(time and time.mid == best), failure=p.failure,
            )
        )  # fmt: skip
    return tuple(rows)


def _notes(end: Ending) -> tuple[str, ...]:
    """What a reader must know of how the result was judged."""
    if end.timed is None:
        return ()
    share = words.shares(end.timed.checked.time_shares)
    shares: tuple[str, ...] = (f"time of a call by whose kernels it is spent in: {share}",) if share else ()
    shares += (words.launch_bound(end.timed),) if end.timed.launch_bound else ()
    shares += words.sanitized(end.sanitized) if end.sanitized else ()
    return end.timed.checked.notes + shares + ((words.captured(end.captured),) if end.captured else ())


def _errors(errors: Sequence[OutputError]) -> tuple[ErrorRow, ...]:
    """A row for each case, family and output: the comparison nearest to its allowance; the nearest rows first."""
    groups: dict[tuple[int, str, int], list[OutputError]] = {}
    for error in errors:
        groups.setdefault((error.case, error.family, error.output), []).append(error)
    worst = [(max(group, key=lambda e: e.share), len(group)) for group in groups.values()]
    worst.sort(key=lambda pair: -pair[0].share)
    return tuple(_error(error, made) for error, made in worst[:_MOST_ERRORS])


def _error(error: OutputError, made: int) -> ErrorRow:
    return ErrorRow(
        where=f"case {error.case}, {error.family} inputs, output {error.output}"
        + (f" ({made} times)" if made > 1 else ""),
        norm=words.error(error.norm),
        allowed_norm=words.error(error.allowed_norm),
        worst=words.error(error.worst),
        allowed_worst=words.error(error.allowed_worst),
        share=min(1.0, error.share),
        share_text=words.percent(error.share),
    )


def _case(context: SearchContext, recipe: Recipe, index: int) -> CaseView:
    case = context.cases[index]
    chosen = {choice.pattern for choice in recipe}
    matched = [m for m in context.matched if m.case == index]
    patterns = tuple(p for m in matched for p in m.patterns if p.id in chosen)
    numbers = {p.id: number for number, (p, _) in enumerate(fused(context, recipe))}

    def tensors(specs: tuple[TensorSpec, ...]) -> str:
        return ", ".join(words.tensor(s.dtype, s.shape) for s in specs) or "none"

    return CaseView(
        index=index, arguments=context.problem.cases[index] if index < len(context.problem.cases) else "{}",
        inputs=tensors(case.inputs), outputs=tensors(case.outputs),
        graph=graph_view(case.graph, patterns, numbers=numbers) if case.graph else None,
        trace_failure=case.trace_failure,
        unmatched=(*(line for m in matched for line in m.unmatched), *(context.refusals if index == 0 else ())),
    )  # fmt: skip


def _agents(events: Sequence[Event]) -> tuple[tuple[str, str], ...]:
    """Who made the moves, where coding agents did, and the time that each took for itself."""
    took_s: dict[str, float] = {}
    for event in events:
        if isinstance(event.move, Await):
            took_s[event.move.agent] = took_s.get(event.move.agent, 0.0) + event.wall_s
    return tuple(("agent", f"{name}, {s:.0f} s of its own time") for name, s in took_s.items())


def _environment(context: SearchContext) -> tuple[tuple[str, str], ...]:
    machine, problem = context.machine, context.problem
    rates = ", ".join(f"{name} {words.rate(rate, 'FLOP/s')}" for name, rate in machine.matmul_flops_per_s)
    return (
        ("device", machine.device + (f" ({machine.processors} multiprocessors)" if machine.target == "cuda" else "")),
        ("driver", machine.driver), ("last-level cache", words.capacity(machine.cache_bytes)),
        ("memory bandwidth, measured", words.rate(machine.copy_bytes_per_s, "B/s")), ("matrix rates, measured", rates),
        *((name, version) for name, version in context.versions if version and name != "driver"),
        ("problem", f"{problem.name} (digest {problem.digest}, {problem.mode}, precision: {problem.precision})"),
        ("run", f"{context.run} (strategy {context.strategy}, seed {context.seed}, budget {context.budget_s:g} s)"),
    )  # fmt: skip
