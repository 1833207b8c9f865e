"""The flags that several commands share, each with one meaning everywhere."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import typer

from ..facts.errors import UserError
from ..facts.problem import Mode, Precision, Target
from ..facts.profile import Question
from ..facts.run import Timing
from ..facts.version import VERSION
from . import config
from .printing import tell

T = TypeVar("T", bound=str)
C = TypeVar("C", bound=Callable[..., Any])
MOST_SEED = 2**32 - 1

TargetOption = Annotated[
    Literal["auto", "cuda", "cpu"], typer.Option("--target", help="Device to run on; auto: the GPU, else the CPU.")
]


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"tilewright {VERSION}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version, and end.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of tables.")]
ModeOption = Annotated[
    Literal["auto", "inference", "training"],
    typer.Option("--mode", help="Judge the forward alone, or with its backward; auto: what the problem says."),
]
_SANITIZE = "Watch the memory of the result, too: by compute-sanitizer on a GPU, by guard pages on a CPU."
SanitizeOption = Annotated[bool, typer.Option("--sanitize", help=_SANITIZE)]
WinnerSanitizeOption = Annotated[
    bool | None,
    typer.Option(
        "--sanitize/--no-sanitize",
        help=f"{_SANITIZE} Default: where compute-sanitizer is installed.",
        show_default=False,
    ),
]
RacecheckOption = Annotated[
    bool, typer.Option("--racecheck", help="Where the memory is watched on a GPU: look for races of threads, too.")
]
QuestionOption = Annotated[
    Question,
    typer.Option("--question", help="What ncu is to look at more closely; auto: what limits the longest kernel."),
]
NoAlgebraOption = Annotated[
    bool,
    typer.Option("--no-algebra", help="Leave the amount of work as it is: no weights summed first, no zeros left out."),
]
BudgetOption = Annotated[str, typer.Option("--budget", help="Time for all of it, e.g. 90s, 5m, 1h.")]

AgentBudgetOption = Annotated[
    str, typer.Option("--budget", help="What a run may take at most: time, tries, e.g. 1h,20tries,device:20m.")
]

StrategyOption = Annotated[
    Literal["catalog", "fact", "oneshot", "best_of_n", "cutegen", "cutegen_paper", "evolve", "evolve_paper", "agent"]
    | None,
    typer.Option("--strategy", help="How to search; default: catalog, with --model cutegen."),
]
WithoutOption = Annotated[
    str,
    typer.Option(
        "--without", metavar="PART[,PART]", help="Parts of the strategy to switch off, e.g. islands,summary.",
        show_default=False,
    ),
]  # fmt: skip
EvaluatorOption = Annotated[
    str,
    typer.Option(
        "--evaluator", metavar="bundle:DIR", help="Who builds, judges and tunes; default: this machine.",
        show_default=False,
    ),
]  # fmt: skip
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME", help="Let the problem's cells see this variable, as it is set; repeatable."),
]
NoWaitOption = Annotated[
    bool,
    typer.Option(
        "--no-wait", help="Leave with exit code 75 where a mailbox or bundle holds no answer yet; resume goes on."
    ),
]

JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, max=1024, help="Problems at once on each device; they measure in turn.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemOptions:
    """What every command that runs a problem takes."""

    target: TargetOption = "auto"
    env: EnvOption = None
    seed: Annotated[
        int,
        typer.Option(
            "--seed", min=0, max=MOST_SEED, help="Seed of the search; the judge's inputs are drawn in secret."
        ),
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOptions(ProblemOptions):
    """And every one that times candidates."""

    timing: Annotated[
        str,
        typer.Option(
            "--timing", help="Time to time a candidate against its baselines; more where noise may hide a gain."
        ),
    ] = "6s"
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Leave torch.compile out: it takes minutes on a large module.")
    ] = False
    compile_modes: Annotated[
        str,
        typer.Option(
            "--compile-modes",
            help="Modes of torch.compile to time beside candidates, by commas, or all; usual: default, and on a GPU "
            "reduce-overhead. What takes minutes to compile is timed once and remembered.",
        ),
    ] = "usual"

    @property
    def timed(self) -> Timing:
        return config.timed(self.timing, compiled=False if self.no_compile else self.compile_modes)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingOptions(TimedOptions):
    """And every one that judges candidates of one problem after the other."""

    mode: ModeOption = "auto"
    precision: Annotated[
        Precision,
        typer.Option(
            "--precision",
            help="The class that results are held to, and that baselines may use; default: the module's own.",
        ),
    ] = "reference"
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run, or of the runs; default: a new one under runs/.")
    ] = None

    @property
    def settings(self) -> tuple[str, ...]:
        """As `optimize` takes them, but for target, folder and seed."""
        timing = f"{config.seconds(self.timing, '--timing'):g}s"
        compiled = ("--no-compile",) if self.no_compile else ("--compile-modes", self.compile_modes)
        told = ("--mode", self.mode, "--precision", self.precision, "--timing", timing)
        return (*told, *compiled, *config.env_flags(self.env or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What every command that searches takes: for how long, which model it asks, and who evaluates."""

    budget: Annotated[
        str,
        typer.Option(
            "--budget", help="For the search: time, money, tokens, calls, e.g. 1h,5usd,2Mtokens,40calls,device:20m."
        ),
    ] = ""
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="PROVIDER:NAME|mailbox:DIR|ALIAS", help="The model that a strategy asks."),
    ] = None
    base_url: Annotated[
        str, typer.Option("--base-url", help="Where the provider listens, if not at its own address.")
    ] = ""
    effort: Annotated[
        Literal["minimal", "low", "medium", "high", "xhigh", "max"] | None,
        typer.Option("--effort", help="How long the model may reason."),
    ] = None
    tools: Annotated[
        bool, typer.Option("--tools", help="Let the model call tools before it replies: compile, run, time, code, ...")
    ] = False
    evaluator: EvaluatorOption = ""
    no_wait: NoWaitOption = False

    def of(self, *strategies: str | None) -> SearchOptions:
        """With the model that an alias means, and where one of these strategies asks a model and none is named, with
        the user's own."""
        from ..search.strategies import ASKING

        return replace(self, model=config.model_of(self.model, asking=any(s in ASKING for s in strategies)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOptions:
    """What every command that takes a folder of problems takes."""

    only: Annotated[str | None, typer.Option("--only", help="Problem numbers, e.g. 1,5,19-31 (of a folder).")] = None
    jobs: JobsOption = 1
    devices: Annotated[
        str | None, typer.Option("--devices", help="GPUs to spread a folder over, e.g. 0,1,2,3; default: one.")
    ] = None
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster", metavar="ray://HOST|ray|local|slurm:PARTITION[:JOBS]|ssh:HOST,...", show_default=False,
            help="Who does the problems of a folder; default: processes of this machine.",
        ),
    ] = ""  # fmt: skip
    device_price: Annotated[
        str,
        typer.Option(
            "--device-price", metavar="USD|NAME=USD,...", show_default=False,
            help="With --cluster: what an hour of a device costs, e.g. 2.5, or H100=2.5,H200=4.",
        ),
    ] = ""  # fmt: skip


QUIET = inspect.Parameter(
    "quiet", inspect.Parameter.KEYWORD_ONLY, default=False,
    annotation=Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr, only what went wrong.")],
)  # fmt: skip
VERBOSE = inspect.Parameter(
    "verbose", inspect.Parameter.KEYWORD_ONLY, default=False,
    annotation=Annotated[
        bool, typer.Option("--verbose", help="Progress with the time, also with --json, and where a mistake was met.")
    ],
)  # fmt: skip


class Commands(typer.Typer):
    """Commands each of which also takes --quiet and --verbose."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[C], C]:
        register = super().command(*args, **kwargs)

        def made(command: C) -> C:
            return cast(C, register(loud(command)))

        return made


def loud(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options that say how much it tells on stderr."""
    wanted = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def called(*, quiet: bool, verbose: bool, **given: Any) -> None:
        if quiet and verbose:
            raise UserError("--quiet, --verbose: one of them, not both")
        tell("quiet" if quiet else "verbose" if verbose else "usual")
        command(**given)

    shown = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in wanted), QUIET, VERBOSE]
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in shown}
    return called


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of its parameters that are groups of options, where the group stood."""
    wanted = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: p.annotation for name, p in wanted.items() if is_dataclass(p.annotation)}
    fields = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}
    shown = [q for name, p in wanted.items() for q in (fields[name].values() if name in fields else (p,))]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        made = {name: group(**{f: given.pop(f) for f in fields[name]}) for name, group in groups.items()}
        command(**given, **made)

    called.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in shown])  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in shown}
    return called


def mode_of(wanted: Literal["auto", "inference", "training"]) -> Mode | None:
    return None if wanted == "auto" else wanted


def numbers_of(text: str | None) -> tuple[int, ...] | None:
    return config.numbers(text) if text else None


def devices_of(text: str | None) -> tuple[str, ...]:
    return parts_of(text) if text else ()


def one_of(text: str, values: tuple[T, ...], of: str) -> T:
    """UserError for what is none of them."""
    for value in values:
        if value == text:
            return value
    raise UserError(f"{of} {text[:60]!r}: there is none; name {', '.join(map(str, values))}")


def parts_of(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def target_of(wanted: Literal["auto", "cuda", "cpu"], evaluator: str = "") -> Target:
    """UserError where another machine evaluates, and only that one knows what it has."""
    from ..edges.gpu.machine import default_target

    if evaluator and wanted == "auto":
        raise UserError("--evaluator: what the other machine has is not known here; add --target cuda, or cpu")
    return default_target() if wanted == "auto" else wanted


def new_folder(name: str) -> Path:
    """One under runs/ that is not there yet."""
    number = 1
    name = name[:100]  # what is put behind it must fit, too
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder
