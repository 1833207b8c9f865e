"""Commands that optimise many problems: `bench` by one strategy, `compare` by several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..facts.errors import UserError
from . import options
from .exits import Interruptible, line
from .options import new_folder, parts_of, target_of
from .printing import put, say, stdout


@options.grouped
def bench(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER|kernelbench:PATH/levelN", help="Where the problem files are.")
    ],
    *,
    shared: options.FolderOptions,
    judging: options.JudgingOptions,
    search: options.SearchOptions,
    sanitize: options.SanitizeOption = False,
    no_algebra: options.NoAlgebraOption = False,
    strategy: options.StrategyOption = None,
    without: options.WithoutOption = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write tasks, summary, command, commit and machine here.")
    ] = None,
) -> None:
    """Optimise every problem of a folder; started again, it continues where it stopped."""
    from .benches import BenchRequest, bench_folder, campaign_of, require_asked
    from .folders import many_of

    settings = [*judging.settings, "--sanitize" if sanitize else "--no-sanitize", "--seed", str(judging.seed)]
    settings += ["--no-algebra"] if no_algebra else []
    search = search.of(strategy)
    asked = BenchRequest.of(search, strategy=strategy, without=parts_of(without))
    many = many_of(shared, judging.out)
    campaign = campaign_of(
        folder, many, target=target_of(judging.target, search.evaluator),
        budget=search.budget, settings=settings, asked=asked,
    )  # fmt: skip
    require_asked(asked)
    with Interruptible(campaign.out, again=f"the same command continues from {campaign.out}"):
        tables, ended = bench_folder(campaign, json_file=json_file, say=say(False), cluster=many.cluster)
    for table in tables:
        stdout.print(table)
    if ended.pending:
        raise typer.Exit(line(f"pending: {ended.pending} of {len(campaign.files)}; the same command goes on", 75))
    if ended.failed:
        told = f"{len(ended.failed)} of {len(campaign.files)} failed: {', '.join(ended.failed)}"
        raise typer.Exit(line(told, ended.code))


@options.grouped
def compare(
    where: Annotated[
        list[str], typer.Argument(metavar="DIR...|FILE|FOLDER", help="Folders of runs; with --strategies problems.")
    ],
    *,
    by: Annotated[
        Literal["calls", "tokens", "usd", "device", "seconds", "tries"],
        typer.Option("--by", help="What the strategies have spent: the axis."),
    ] = "calls",
    strategies: Annotated[
        str,
        typer.Option("--strategies", metavar="NAME,...", help="Run these first, e.g. catalog,oneshot,evolve-islands."),
    ] = "",
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=1000, help="Runs of each that asks a model.")] = 3,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="PATH", help="Draw best so far against --by.")] = None,
    folder: options.FolderOptions,
    judging: options.JudgingOptions,
    search: options.SearchOptions,
    as_json: options.JsonOption = False,
) -> None:
    """Say what strategies reached on the same problems after equal spending; run them first, where they are named."""
    from .benches import BenchRequest, campaign_of, require_asked, usual_budget_s
    from .compares import compared_journals, entrants, run_strategies
    from .folders import many_of

    folders = [Path(name) for name in where]
    if strategies:
        chosen = entrants(strategies)
        if len(where) > 1:
            raise UserError(f"--strategies: give one problem or one folder of them, not {len(where)}")
        search = search.of(*(one.strategy for one in chosen))
        asked = BenchRequest.of(search)
        many = many_of(folder, judging.out or new_folder("compare"))
        campaign = campaign_of(
            where[0], many, budget=search.budget,
            target=target_of(judging.target, search.evaluator), settings=[*judging.settings, "--no-sanitize"],
            usual_s=usual_budget_s(search.model is not None),
            asked=replace(asked, model=None, base_url="", effort=None, evaluator=""),  # each has flags of its own
        )  # fmt: skip
        for entrant in chosen:
            entrant.flags(asked)  # what is wrong with them is said before any work
        require_asked(asked)
        again = f"the same command with --out {campaign.out} goes on"
        with Interruptible(campaign.out, again=again):
            pending = run_strategies(
                campaign,
                chosen,
                asked=asked,
                repeats=repeats,
                seed=judging.seed,
                say=say(as_json),
                cluster=many.cluster,
            )
        if pending:
            raise typer.Exit(line(f"pending: {pending} runs; {again}", 75))
        folders = [campaign.out]
    put(compared_journals(folders, axis=by, svg=svg), as_json=as_json)
