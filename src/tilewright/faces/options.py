"""The flags that several commands share, each with one meaning everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..facts.errors import UserError
from ..facts.problem import Mode, Precision, Target
from ..facts.profile import Question
from ..facts.version import VERSION
from . import config

MOST_SEED = 2**32 - 1

TargetOption = Annotated[
    Literal["auto", "cuda", "cpu"], typer.Option("--target", help="Device to run on; auto: the GPU, else the CPU.")
]
SeedOption = Annotated[
    int,
    typer.Option("--seed", min=0, max=MOST_SEED, help="Seed of the search; the judge's inputs are drawn in secret."),
]


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"tilewright {VERSION}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version, and end.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of tables.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Folder of the run, or of the runs; default: a new one under runs/.")
]
ModeOption = Annotated[
    Literal["auto", "inference", "training"],
    typer.Option("--mode", help="Judge the forward alone, or with its backward; auto: what the problem says."),
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        "--precision", help="The class that results are held to, and that baselines may use; default: the module's own."
    ),
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
TimingOption = Annotated[
    str,
    typer.Option("--timing", help="Time to time a candidate against its baselines; more where noise may hide a gain."),
]
NoCompileOption = Annotated[
    bool, typer.Option("--no-compile", help="Leave torch.compile out: it takes minutes on a large module.")
]
CompileModesOption = Annotated[
    str,
    typer.Option(
        "--compile-modes",
        help="Modes of torch.compile to time beside candidates, by commas, or all; usual: default, and on a GPU "
        "reduce-overhead. What takes minutes to compile is timed once and remembered.",
    ),
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
    Literal["catalog", "fact", "oneshot", "best_of_n", "cutegen", "cutegen_paper", "evolve", "evolve_paper"] | None,
    typer.Option("--strategy", help="How to search; default: catalog, with --model cutegen."),
]
WithoutOption = Annotated[
    str,
    typer.Option(
        "--without", metavar="PART[,PART]", help="Parts of the strategy to switch off, e.g. islands,summary.",
        show_default=False,
    ),
]  # fmt: skip
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="PROVIDER:NAME|mailbox:DIR|...", help="The model that a strategy asks.")
]
BaseUrlOption = Annotated[
    str, typer.Option("--base-url", help="Where the provider listens, if not at its own address.")
]
EffortOption = Annotated[
    Literal["minimal", "low", "medium", "high", "xhigh", "max"] | None,
    typer.Option("--effort", help="How long the model may reason."),
]
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
SearchBudgetOption = Annotated[
    str,
    typer.Option(
        "--budget", help="For the search: time, money, tokens, calls, e.g. 1h,5usd,2Mtokens,40calls,device:20m."
    ),
]

OnlyOption = Annotated[str | None, typer.Option("--only", help="Problem numbers, e.g. 1,5,19-31 (of a folder).")]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, max=1024, help="Problems at once on each device; they measure in turn.")
]
DevicesOption = Annotated[
    str | None, typer.Option("--devices", help="GPUs to spread a folder over, e.g. 0,1,2,3; default: one.")
]


def mode_of(wanted: Literal["auto", "inference", "training"]) -> Mode | None:
    return None if wanted == "auto" else wanted


def numbers_of(text: str | None) -> tuple[int, ...] | None:
    return config.numbers(text) if text else None


def devices_of(text: str | None) -> tuple[str, ...]:
    return parts_of(text) if text else ()


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
