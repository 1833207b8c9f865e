"""Tables for the terminal: one run, and many."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from ..facts.move import Event
from ..facts.outcome import Timed
from ..facts.run import SearchContext
from . import words
from .algebra import algebra
from .attribution import worth_rows
from .ending import Ending, ending, floor_share
from .objects import Task, bench_summary, ratio_of, whose, won
from .parts import part_rows
from .ruled import ruled

_COLOURS = {"improved": "green", "no_improvement": "yellow", "failed": "red", "unfinished": "blue", "pending": "blue"}


def table(context: SearchContext, events: Sequence[Event]) -> Table:
    """One run: the verdict, times with intervals, ratios, the floor, the error against float64, what was fused."""
    end = ending(context, events)
    drawn = Table(box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left", show_header=end.seen is not None)
    state = "not ended" if end.status == "unfinished" else end.status
    drawn.title = (
        f"[not italic]{escape(context.problem.name)}{' in training' if context.problem.mode == 'training' else ''} "
        f"on {escape(context.machine.device)}: "
        f"[bold {_COLOURS[end.status]}]{state.replace('_', ' ')}[/]\n{escape(end.verdict.line)}[/]"
    )
    for heading in ("", "median", "99% interval", "times as fast"):
        drawn.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))  # names wrap
    if end.seen is not None:
        _times(drawn, end, end.seen)
    if end.timed is not None:
        _error(drawn, end.timed)
        _shares(drawn, end.timed)
    less = algebra(context, events, end)
    told = _fused_lines(context.behind(end.recipe), events, end) + (f"\n{less.line}" if less else "")
    drawn.caption = f"[not italic not dim]{escape(told)}[/]"
    return drawn


def _times(drawn: Table, end: Ending, seen: Timed) -> None:
    for name in words.players(seen):
        time = seen.time(name)
        if time is None or (name.startswith("ours") and end.timed is None):
            continue
        ratio = end.timed.ratio(name) if end.timed else None
        drawn.add_row(
            f"[bold]{words.NAMES[name]}[/]" if name == "ours" else words.named(name, seen), words.duration(time.mid),
            words.span(time), escape(words.times(ratio)) if ratio else "",
        )  # fmt: skip
    for phase in seen.phases:
        for name, time in phase.times_ns:
            ratio = dict(phase.ratios).get(name)
            told = escape(words.times(ratio)) if ratio else ""
            drawn.add_row(f"{phase.name}, {words.named(name, seen)}", words.duration(time.mid), words.span(time), told)
    share = floor_share(end.timed)
    reached = f"at {words.percent(share)} of its speed" if share is not None else ""
    drawn.add_row("machine's floor", words.duration(seen.floor_ns), "", reached)
    for name, size in seen.peak_bytes:
        drawn.add_row(f"memory at its peak, {words.named(name, seen)}", words.amount(size), "", "")


def _error(drawn: Table, timed: Timed) -> None:
    worst = timed.checked.worst_error
    if worst is None:
        return
    drawn.add_section()
    for label, value, allowed in (
        ("error vs float64, norm", worst.norm, worst.allowed_norm),
        ("error vs float64, worst", worst.worst, worst.allowed_worst),
    ):
        share = words.percent(value / allowed) if allowed else ""
        drawn.add_row(label, words.error(value), f"allowed {words.error(allowed)}", f"{share} of that" if share else "")


def _shares(drawn: Table, timed: Timed) -> None:
    share = timed.checked.own_share
    if share is not None:
        drawn.add_row(
            "kernels of its own", words.percent(share), "of the time", words.shares(timed.checked.time_shares)
        )


def _fused_lines(context: SearchContext, events: Sequence[Event], end: Ending) -> str:
    left = sum(len(m.unmatched) for m in context.matched[:1])
    lines = [
        f"{p.id}: {p.title} ({f'{p.nodes} node' + ('s; ' if p.nodes > 1 else '; ') if p.nodes else ''}{p.settings})"
        for p in part_rows(context, end.recipe)
    ]
    worth = [
        f"{w.id}: {w.alone} by itself; without it the module takes {w.without}"
        for w in worth_rows(context, events, end)
    ]
    return "\n".join(
        (["fused"] if lines else [])
        + lines
        + (["what each is worth (times as fast as torch; times as long)"] if worth else [])
        + worth
        + [f"not used: {line}" for line in context.refusals]
        + ([f"left to torch: {left} {'node' if left == 1 else 'nodes'}"] if left else [])
    )


def bench_table(tasks: Sequence[Task]) -> Table:
    """Many runs: one row each, and the means below; what failed or was kept as it is counts as 1.0."""
    total = bench_summary(tasks)
    numbers = ("eager", "compile", "ours", "vs eager", "99% interval", "vs best", "floor share")
    drawn = ruled("problem", "result", *numbers, numbers=numbers, whole=("problem", "result", *numbers))
    for task in tasks:
        drawn.add_row(*_bench_row(task))
    drawn.add_section()
    drawn.add_row(
        "geometric mean", "", "", "", "", _x(total["geomean_eager"]), "", _x(total["geomean_best"]),
        _share(total["geomean_floor_share"]),
    )  # fmt: skip
    drawn.caption = f"[not italic not dim]{escape(_bench_lines(total))}[/]"
    return drawn


def _bench_row(task: Task) -> list[str]:
    status = str(task.get("status", "failed"))
    times = {name: (task.get("times_ns") or {}).get(name) for name in ("eager", "compile", "ours")}
    ratio = (task.get("ratio") or {}).get("eager") if status != "failed" else None
    reason = str((task.get("verdict") or {}).get("reason", ""))
    result = "improved" if won(task) else reason.replace("_", " ") or status.replace("_", " ")
    result += f" ({whose(task)})" if status == "failed" else ""
    return [
        escape(str(task.get("problem", "?"))), f"[{_COLOURS.get(status, 'red')}]{escape(result)}[/]",
        *(words.duration(t["mid"]) if t else "" for t in times.values()),
        _x(ratio_of(task, "eager") if status != "pending" else None),
        f"{ratio['low']:.2f} – {ratio['high']:.2f}" if ratio else "",
        _x(ratio_of(task, "best") if status != "pending" else None), _share(task.get("floor_share")),
    ]  # fmt: skip


def _bench_lines(total: dict[str, object]) -> str:
    lines = [
        f"{total['passed']} of {total['tasks']} accepted by the judge, {total['unchanged']} kept as they are, "
        f"{total['failed']} failed (each of these counts as 1.00x)"
        + (f", {total['pending']} pending" if total["pending"] else ""),
        f"against eager: median {_x(total['median_eager'])}, won beyond noise {_share(total['share_won'])}",
    ]
    if isinstance(fast := total["fast_p"], dict):
        lines[1] += "; fast_p: " + ", ".join(f"{_share(share)} above {p}x" for p, share in fast.items())
    without = total["geomean_eager_without_algebra"]
    lines += [f"against eager without algebra: geometric mean {_x(without)}"] if without else []
    failures = total["failures"]
    assert isinstance(failures, list)
    told = [f"failed ({f['whose']}): {f['problem']}: {f['reason']}: {f['summary']}" for f in failures]
    return "\n".join(lines + told)


def _x(value: object) -> str:
    return f"{value:.2f}x" if isinstance(value, int | float) else ""


def _share(value: object) -> str:
    return words.percent(float(value)) if isinstance(value, int | float) else ""
