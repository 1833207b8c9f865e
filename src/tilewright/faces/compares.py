"""`tilewright compare`: strategies on the same problems, run here under one budget, or read from journals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ..edges.ledger import Ledger
from ..facts.errors import UserError
from ..report import Axis, Curve, compared, comparison_object, comparison_svg, comparison_tables, curve
from ..run.campaign import Campaign, run_campaign
from ..run.optimize import require_parts
from ..search.strategies import ASKING, MAY_ASK, PARTS, STRATEGIES
from .benches import BenchRequest, task_line
from .clusters import HERE, ClusterChoice, dispatching
from .printing import Shown

JOURNAL = "run.db"


def compared_journals(folders: Sequence[Path], *, axis: Axis, svg: Path | None) -> Shown:
    """Of all runs that lie in the folders, at any depth. UserError where there is none."""
    curves = [found for folder in folders for path in _journals(folder) if (found := _read(path)) is not None]
    if not curves:
        raise UserError(f"{', '.join(map(str, folders))}: no run there that has begun")
    comparison = compared(curves, axis=axis)
    if svg is not None:
        svg.parent.mkdir(parents=True, exist_ok=True)
        svg.write_text(comparison_svg(comparison), encoding="utf-8")
    return Shown(object=comparison_object(comparison), drawn=comparison_tables(comparison))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A strategy that is compared, and what of it is switched off."""

    strategy: str
    without: tuple[str, ...]

    @property
    def name(self) -> str:
        return "-".join((self.strategy, *self.without))

    def flags(self, asked: BenchRequest) -> tuple[str, ...]:
        """As `optimize` takes them; who asks no model is told of none. None gets kernels of earlier runs: what one
        strategy wrote would be the start of the next."""
        table = ("table",) if "table" in PARTS.get(self.strategy, ()) and "table" not in self.without else ()
        without = (*self.without, *table)
        asking = self.strategy in ASKING or (self.strategy in MAY_ASK and asked.model is not None)
        return replace(asked, strategy=self.strategy, without=without, model=asked.model if asking else None).flags


def entrants(text: str) -> tuple[Entrant, ...]:
    """`catalog,evolve,evolve-islands`: names, each perhaps without parts. UserError for what is none."""
    found = []
    for part in dict.fromkeys(part.strip() for part in text.split(",") if part.strip()):
        name, *without = part.split("-")
        if name not in STRATEGIES:
            raise UserError(f"--strategies: {name!r} is none; there are {', '.join(STRATEGIES)}")
        require_parts(name, without)
        found.append(Entrant(strategy=name, without=tuple(without)))
    return tuple(found)


def run_strategies(
    campaign: Campaign, chosen: Sequence[Entrant], *, asked: BenchRequest, repeats: int, seed: int,
    say: Callable[[str], None], cluster: ClusterChoice = HERE,
) -> int:  # fmt: skip
    """Each on each problem, those that ask a model `repeats` times, with a seed each; how many runs are pending.
    `campaign`: the problems and settings that all share, `out` the folder of them all."""
    with ExitStack() as open_engine:
        run = run_campaign
        if cluster.engine:
            run = open_engine.enter_context(dispatching(cluster, campaign, say=say)).run
        pending = 0
        for entrant in chosen:
            times = repeats if "--model" in entrant.flags(asked) else 1
            for number in range(times):
                settings = (*campaign.settings, *entrant.flags(asked), "--seed", str(seed + number))
                one = replace(campaign, out=campaign.out / entrant.name / str(number + 1), settings=settings)
                say(f"{entrant.name}, {number + 1} of {times}")
                tasks = run(one, seen=lambda task: say(task_line(task)))
                pending += sum(task.get("status") == "pending" for task in tasks)
    return pending


def _journals(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give folders of runs, or a problem with --strategies")
    return sorted(folder.rglob(JOURNAL))


def _read(path: Path) -> Curve | None:
    """None of a run that has not begun."""
    with Ledger(path, readonly=True) as ledger:
        context = ledger.context()
        return curve(context, ledger.events()) if context is not None else None
