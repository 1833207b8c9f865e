"""What a coding agent is told: what came of a job or how far it is, a run at a glance, a verdict on an attempt."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ..facts.move import Event
from ..facts.run import Limits
from ..report import attempt_object
from ..run.session import Session
from ..search.strategies.agent import attempts, best_of
from .agent_runs import AgentJob, OpenRun, Told

_MOST_WAIT_S = 3600.0
_POLL_S = 0.05


async def answer(open_run: OpenRun, job: AgentJob, ctx: Any, wait_s: float) -> Told:
    """What came of a job, or how far it is."""
    await settled(open_run, ctx, wait_s)
    return job.outcome.result() if job.done else working(open_run)


async def settled(open_run: OpenRun, ctx: Any, wait_s: float) -> None:
    """Wait for the job, and tell whoever asked of its progress."""
    job, told = open_run.job, 0
    deadline = time.monotonic() + min(max(wait_s, 0.0), _MOST_WAIT_S)
    while not job.done and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
        if len(job.lines) > told and ctx is not None:
            told = len(job.lines)
            await ctx.report_progress(told, None, job.lines[-1])


def working(open_run: OpenRun) -> Told:
    """How far the job of a run is."""
    job = open_run.job
    return {
        "run": open_run.name, "state": "working", "what": job.what, "seconds": round(time.monotonic() - job.since, 1),
        "progress": job.lines[-3:], "next": "call wait with this run",
    }  # fmt: skip


def overview(open_run: OpenRun) -> Told:
    """What an agent must know of a run to go on with it."""
    session = open_run.at_hand()
    context, stop = session.context, session.stop
    problem, machine = context.problem, context.machine
    return {
        "run": open_run.name, "state": "ended" if stop else "open", **({"ended": stop.why} if stop else {}),
        "problem": problem.name, "target": problem.target, "mode": problem.mode, "precision": problem.precision,
        "device": machine.device, "floor_ns": machine.floor_ns(context.cases[0].work), "cases": len(context.cases),
        "fusions_found": sum(len(m.patterns) for m in context.matched),
        "attempts": len(attempts(session.events)), **standing(session),
        "next": "finish hands the result over again" if stop else "read_problem, then submit",
    }  # fmt: skip


def standing(session: Session) -> Told:
    """The best so far, and the budget."""
    best = best_of(session.events)
    number = session.number_of(best[0]) if best else None
    spent, context = session.spending.spent, session.context
    limits: Limits = context.limits
    budget: Told = {"seconds": context.budget_s, "seconds_used": round(spent.seconds, 1), "tries_used": spent.tries}
    budget |= {"tries": limits.tries} if limits.tries is not None else {}
    if limits.device_s is not None:
        budget |= {"device_seconds": limits.device_s, "device_seconds_used": round(spent.device_s, 1)}
    return {"best": number, "budget": budget | ({"over": over} if (over := session.spending.over()) else {})}


def verdict(open_run: OpenRun, session: Session, event: Event, number: int) -> Told:
    """What the judge says of an attempt, and where the run stands."""
    told = attempt_object(session.context, event, number=number)
    return {"run": open_run.name, **told, **standing(session)}
