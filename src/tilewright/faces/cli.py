"""The command line: results on stdout, progress on stderr; exit 0 done, 1 refused, 2 the user's mistake, 3 ours, 75
pending."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from ..facts.dialogue import ModelChoice
from ..facts.errors import UserError
from ..facts.problem import Problem
from ..facts.run import Request
from . import config, options
from .exits import Interruptible, exit_code, leave, line, obey_signals, open_standards, stands
from .housekeeping import clean, logs, site
from .many import bench, compare
from .options import MOST_SEED, mode_of, new_folder, parts_of, target_of
from .printing import Shown, print_json, put, say, show, stdout
from .serves import serve

if TYPE_CHECKING:
    from ..run.optimize import Finished

app = options.Commands(
    name="tilewright",
    help="Turns a PyTorch module into a faster one made of CuTe or C++ kernels, and proves it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def common(version: options.VersionOption = False) -> None:
    """What is asked of no command."""


@app.command()
@options.grouped
def optimize(
    file: Annotated[Path, typer.Argument(help="Problem file: Model, get_inputs, get_init_inputs, optionally CASES.")],
    judging: options.JudgingOptions,
    search: options.SearchOptions,
    sanitize: options.WinnerSanitizeOption = None,
    racecheck: options.RacecheckOption = False,
    no_algebra: options.NoAlgebraOption = False,
    strategy: options.StrategyOption = None,
    without: options.WithoutOption = "",
    as_json: options.JsonOption = False,
) -> None:
    """Make a module faster, judge the result, and write candidate, journal and report."""
    from ..run.optimize import ModelAccess, new_run, sanitized_by_default
    from ..run.optimize import optimize as run
    from ..run.places import Places

    search = search.of(strategy)
    budget_s, limits = config.budget(search.budget, usual_s=3600.0 if search.model else 300.0)
    choice = _model(search)
    problem = _problem(file, judging, search.evaluator)
    places = Places(out=judging.out or new_folder(problem.name), cache=config.cache_dir())
    with Interruptible(places.out):
        asked = Request(
            run=new_run(), problem=problem, strategy=strategy or ("cutegen" if search.model else "catalog"),
            seed=judging.seed, budget_s=budget_s, timing=judging.timed,
            sanitize=racecheck or (sanitized_by_default(problem, search.evaluator) if sanitize is None else sanitize),
            racecheck=racecheck, model=choice, limits=limits, evaluator=search.evaluator, without=parts_of(without),
            algebra=not no_algebra, tools=search.tools,
        )  # fmt: skip
        access = ModelAccess(keys=config.key, wait=not search.no_wait)
        finished = run(asked, places=places, say=say(as_json), access=access)
    raise typer.Exit(_shown(finished, places.out, as_json=as_json))


def _model(search: options.SearchOptions) -> ModelChoice | None:
    return ModelChoice(name=search.model, base_url=search.base_url, effort=search.effort) if search.model else None


def _problem(file: Path, judging: options.JudgingOptions, evaluator: str = "") -> Problem:
    from .reading import problem_of

    return problem_of(
        file, target=target_of(judging.target, evaluator), precision=judging.precision, mode=mode_of(judging.mode),
        env=judging.env or (),
    )  # fmt: skip


def _shown(finished: Finished, out: Path, *, as_json: bool) -> int:
    from .deliver import delivered

    if finished.cut_short and finished.stop.best is not None:
        stands()
    return show(delivered(finished, out), as_json=as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the run to continue.")],
    no_wait: options.NoWaitOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Continue a run that was stopped or killed, from its journal."""
    from ..run.optimize import ModelAccess
    from ..run.optimize import resume as run
    from ..run.places import Places

    places = Places(out=folder, cache=config.cache_dir())
    with Interruptible(folder):
        finished = run(places=places, say=say(as_json), access=ModelAccess(keys=config.key, wait=not no_wait))
    raise typer.Exit(_shown(finished, folder, as_json=as_json))


@app.command()
@options.grouped
def evaluate(
    file: Annotated[Path, typer.Argument(help="Problem file, or a robust-kbench task folder.")],
    candidate: Annotated[
        Path, typer.Argument(help="A file or a folder with ModelNew, written by anybody; for a task also a .cu file.")
    ],
    judging: options.JudgingOptions,
    sanitize: options.SanitizeOption = False,
    racecheck: options.RacecheckOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Judge and time a candidate; exit 1 when it is refused."""
    from ..judge.build import load_candidate
    from ..run.optimize import judge_given
    from ..run.places import Places
    from .deliver import delivered

    problem = _problem(file, judging)
    given = load_candidate(candidate, problem)
    places = Places(out=judging.out or new_folder(f"{problem.name}-evaluate"), cache=config.cache_dir())
    with Interruptible(places.out, resumable=False):
        finished = judge_given(
            problem, given, places=places, seed=judging.seed, say=say(as_json), sanitize=sanitize or racecheck,
            racecheck=racecheck, timing=judging.timed,
        )  # fmt: skip
    code = show(delivered(finished, places.out, given_at=candidate), as_json=as_json)
    raise typer.Exit(code if finished.stop.best is not None else 1)


@app.command()
@options.grouped
def profile(
    file: Annotated[Path, typer.Argument(help="Problem file, or a robust-kbench task folder.")],
    candidate: Annotated[
        Path | None, typer.Argument(help="A file or a folder with ModelNew; default: the module as it is.")
    ] = None,
    *,
    shared: options.ProblemOptions,
    mode: options.ModeOption = "auto",
    question: options.QuestionOption = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Say what limits a call, with the evidence, and which changes are most likely to pay; judges nothing."""
    from .profiles import profiled

    found = profiled(
        file,
        candidate,
        target=target_of(shared.target),
        mode=mode_of(mode),
        question=question,
        seed=shared.seed,
        say=say(as_json),
        env=shared.env or (),
    )
    raise typer.Exit(put(found, as_json=as_json))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")], as_json: options.JsonOption = False
) -> None:
    """Write report.md and report.html anew from the journal, and print the table."""
    from .deliver import redelivered

    show(redelivered(folder), as_json=as_json)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, or of the candidate it delivered.")],
    name: Annotated[str, typer.Option("--name", help="What the package is imported as, e.g. fast_block.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for package and wheel; default: DIR/export.")
    ] = None,
    arch: Annotated[
        str, typer.Option("--arch", metavar="ARCH[,ARCH]", help="GPUs to compile for; default: sm_90a.")
    ] = "",
    version: Annotated[str, typer.Option("--version", help="Of the package.")] = "0",
    as_json: options.JsonOption = False,
) -> None:
    """Make a wheel of the result, with its kernels compiled, that needs neither Tilewright nor a compiler."""
    from .exports import exported, shown

    put(shown(exported(folder, name=name, out=out, version=version, archs=parts_of(arch))), as_json=as_json)


@app.command()
@options.grouped
def discover(
    where: Annotated[
        str, typer.Argument(metavar="FILE|FOLDER|kernelbench:PATH/levelN", help="A problem file, or many.")
    ],
    folder: options.FolderOptions,
    *,
    shared: options.ProblemOptions,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="PATH", help="Draw a file's graph into it.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where a folder's results are kept.")] = None,
    budget: Annotated[str, typer.Option("--budget", help="Time for one task's rounds of timing, e.g. 4s.")] = "4s",
    as_json: options.JsonOption = False,
) -> None:
    """Say where a module's time goes, which patterns realise which part of it, and what each could win."""
    from .discoveries import discovered
    from .folders import FolderRequest, many_of

    wish = FolderRequest(
        target=target_of(shared.target),
        budget_s=config.seconds(budget, "--budget"),
        seed=shared.seed,
        env=tuple(shared.env or ()),
    )
    put(discovered(where, wish, many_of(folder, out), svg=svg, say=say(as_json)), as_json=as_json)


@app.command()
@options.grouped
def tune(
    file: Annotated[Path, typer.Argument(help="Problem file: Model, get_inputs, get_init_inputs, optionally CASES.")],
    *,
    shared: options.ProblemOptions,
    budget: options.BudgetOption = "5m",
    trials: Annotated[
        int,
        typer.Option(
            "--trials", min=0, max=1_000_000, help="Search so many settings more of each kernel (extra `search`)."
        ),
    ] = 0,
    ahead: Annotated[
        str,
        typer.Option("--ahead", help="Measure nothing: compile all settings for a GPU that is not here, e.g. h200."),
    ] = "",
    as_json: options.JsonOption = False,
) -> None:
    """Measure the knobs of every fused kernel of a module, and remember which settings won."""
    from ..run.tune import tune as run
    from .reading import problem_of
    from .winners import tuned_object, tuned_table

    if ahead:
        from .tunings import prepared

        put(prepared(problem_of(file, target="cuda", env=shared.env or ()), ahead, say=say(as_json)), as_json=as_json)
        return
    problem = problem_of(file, target=target_of(shared.target), env=shared.env or ())
    tuned = run(
        problem, cache=config.cache_dir(), budget_s=config.seconds(budget, "--budget"), seed=shared.seed,
        say=say(as_json), trials=trials,
    )  # fmt: skip
    if as_json:
        print_json(tuned_object(tuned))
    else:
        stdout.print(tuned_table(tuned))
    for warning in tuned.warnings:
        line(warning, 0)


@app.command()
def winners(
    action: Annotated[
        Literal["list", "merge", "export"], typer.Argument(help="What to do with the winners kept here.")
    ],
    file: Annotated[Path | None, typer.Argument(help="merge: a file to take over; export: the file to write.")] = None,
    add: Annotated[bool, typer.Option("--add", help="export: to what the file holds; newer evidence wins.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Show the settings that won on this machine, or came with the package, with their evidence; take over others';
    give this machine's away."""
    from ..search.tune.memory import FILE
    from .winners import exported, listed, merged, winners_table

    mine = config.cache_dir() / FILE
    if action == "list":
        if file is not None:
            raise UserError(f"{file}: `winners list` takes no file")
        found = listed(mine)
        if as_json:
            print_json(found)
        else:
            stdout.print(winners_table(found))
        return
    if file is None:
        raise UserError(f"winners {action}: name the file, as in `tilewright winners {action} winners.db`")
    result = merged(mine, file) if action == "merge" else exported(mine, file, add=add)
    if as_json:
        print_json(result)
    else:
        stdout.print(", ".join(f"{count} {what}" for what, count in result.items()), markup=False)


@app.command()
def patterns(
    action: Annotated[
        Literal["list", "show", "search", "check", "remove", "export", "import", "page"],
        typer.Argument(
            help="check: judge anew what is not trusted; remove: drop it; page: docs/patterns.md, of the rules."
        ),
    ],
    words: Annotated[list[str] | None, typer.Argument(metavar="NAME|WORDS|FILE", help="Of what, or where.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """List what can be realised, what was and what won here; search it; judge it anew, give it away, take it over."""
    from .patterns import known

    put(known(action, " ".join(words or ()), cache=config.cache_dir(), say=say(as_json)), as_json=as_json)


@app.command()
def doctor(as_json: options.JsonOption = False) -> None:
    """Say what was found on this machine, what was measured, and what to do about each lack."""
    from ..edges.gpu.machine import machines
    from ..edges.toolchain import findings
    from .deliver import doctor_json, doctor_table

    cache = config.cache_dir()
    found = findings(cache, measured=machines(cache_dir=cache))
    if as_json:
        print_json(doctor_json(found))
    else:
        stdout.print(doctor_table(found))


@app.command()
@options.grouped
def audit(
    where: Annotated[
        str, typer.Argument(metavar="FILE|FOLDER|kernelbench:PATH/levelN", help="A problem file, or many.")
    ],
    folder: options.FolderOptions,
    target: options.TargetOption = "auto",
    out: Annotated[Path | None, typer.Option("--out", help="Where a folder's results are kept.")] = None,
    budget: Annotated[str, typer.Option("--budget", help="Time for one task's trials, e.g. 90s.")] = "60s",
    env: options.EnvOption = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Seed of weights and inputs.")] = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Say whether a score on a task means anything; exit 1 when it does not."""
    from .audits import audited
    from .folders import FolderRequest, is_one_problem, many_of

    wish = FolderRequest(
        target=target_of(target), budget_s=config.seconds(budget, "--budget"), seed=seed, env=tuple(env or ())
    )
    quiet = as_json and is_one_problem(Path(where))
    raise typer.Exit(put(audited(where, wish, many_of(folder, out), say=say(quiet)), as_json=as_json))


@app.command()
@options.grouped
def mcp(
    http: Annotated[
        str, typer.Option("--http", metavar="[HOST:]PORT", help="Serve HTTP there, not stdin and stdout; port 0: any.")
    ] = "",
    root: Annotated[Path, typer.Option("--root", help="Where agents may name files; default: here.")] = Path(),
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Where new runs are kept; default: runs under the root.")
    ] = None,
    *,
    shared: options.TimedOptions,
    sanitize: options.WinnerSanitizeOption = None,
    budget: options.AgentBudgetOption = "1h",
    evaluator: options.EvaluatorOption = "",
) -> None:
    """Let a coding agent open problems, submit candidates and be judged, over the Model Context Protocol."""
    from .agents import serve as run
    from .tools import House

    terms = config.agents_terms(budget, timing=shared.timed, sanitize=sanitize, seed=shared.seed, evaluator=evaluator)
    chosen = target_of(shared.target, evaluator) if evaluator else shared.target
    house = House(cache=config.cache_dir(), target=chosen, terms=terms, say=say(False), env=tuple(shared.env or ()))
    config.environment(house.env)  # what is wrong with it is said before any client comes
    run(http, root=root, runs=runs or root / "runs", house=house)


@app.command()
def worker(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The bundle: the folder that --evaluator names.")],
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and take what comes; else leave when all is done.")] = (
        False
    ),
    jobs: options.JobsOption = 1,
    campaign: Annotated[
        Literal["cuda", "cpu"] | None,
        typer.Option(
            "--campaign", help="DIR is the queue of a campaign with --cluster: take its tasks for this target."
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Build, judge, tune and profile for a machine that asks for it through a folder of files."""
    from .workers import served, served_campaign

    if campaign is not None:
        done = served_campaign(folder, target=campaign, jobs=jobs, say=say(as_json))
        put(Shown(object={"done": done}, drawn=(f"{done} tasks done",)), as_json=as_json)
        return
    visit = served(folder, cache=config.cache_dir(), jobs=jobs, watch=watch, say=say(as_json))
    if as_json:
        print_json({"answered": visit.answered, "faults": visit.faults, "left": visit.left})
    else:
        stdout.print(f"{visit.answered} answered, {visit.faults} of them by a fault here; {visit.left} left")
    raise typer.Exit(3 if visit.faults else 0)


app.command()(bench)
app.command()(compare)
app.command()(serve)
app.command()(site)
app.command()(logs)
app.command()(clean)


def main() -> NoReturn:
    """Run the command line and exit; every failure that has a cause in the user's hands is one line."""
    open_standards()
    obey_signals()
    gc.set_threshold(100_000)  # nearly all that imports make stays: looking for the rest took an eighth of their time
    leave(exit_code(lambda: app(sys.argv[1:] or ["--help"], standalone_mode=False)))
