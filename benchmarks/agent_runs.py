"""A model's loop on ten problems, all of them advanced by a step at each call, and the table of what came of them.

    python benchmarks/agent_runs.py advance --kernelbench CHECKOUT --folder RUNS [--strategy cutegen] [--only 1,4]
    tilewright worker RUNS/bundle          # on the machine with the GPU, after each call; --watch over a shared disk
    python benchmarks/agent_runs.py table --folder RUNS

Where only letters have to travel, the runs may live on the machine with the GPU: `advance --here` judges in place, each
problem until its next prompt, and RUNS, at one and the same path, is what is carried to whoever answers and back.

Five problems are KernelBench's, of those that `catalog` can't match at all; their files come from a checkout and are
no part of this project. Five are ours. Prompts lie in `RUNS/mail`, and so do replies (docs/models.md); orders and
answers lie in `RUNS/bundle` (docs/two-machines.md). `--strategy catalog` asks nobody: what the loops are held against.
`advance` prints what waits for whom, and leaves with 75 while anything does. `RUNS` is not to be committed: prompts
carry the problems.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tilewright.edges.ledger import Ledger
from tilewright.facts.dialogue import Reply
from tilewright.facts.move import Ask, Event, Stop, Try
from tilewright.facts.outcome import Failure, Timed
from tilewright.facts.run import Brief

ROOT = Path(__file__).parents[1]
KERNELBENCH = (  # of level 1: convolutions, which the matcher has nothing for, none much larger than a gigabyte
    "72_conv_transposed_3D_asymmetric_input_asymmetric_kernel___strided_padded_grouped_",
    "81_conv_transposed_2D_asymmetric_input_square_kernel___dilated____padded____strided__",
    "82_conv_depthwise_2D_square_input_square_kernel",
    "83_conv_depthwise_2D_square_input_asymmetric_kernel",
    "85_conv_depthwise_2D_asymmetric_input_asymmetric_kernel",
)
OURS = ("attention_bias", "depthwise_conv_norm", "gated_linear_attention", "top2_experts", "lamb_step")
BUDGET = "24h,60calls,device:1h"  # of each problem
PENDING = 75
COLUMNS = (
    "problem", "eager", "start", "best", "gain", "floor", "best of floor", "steps", "fixes", "refused", "calls",
    "tokens", "end",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem under one strategy. Times in ns of a whole call, cold; None: nothing was accepted. `start`: what the
    library made of it. `eager` was timed beside the best; `gain`: over the start, or over eager in the best's own
    judgement. `fixes`: prompts to mend what was refused; `refused`: candidates. `tokens` in and out; None:
    nobody said. `end`: why it stopped, "" where it goes on."""

    problem: str
    floor: float
    eager: float | None
    start: float | None
    best: float | None
    gain: float | None
    steps: int
    fixes: int
    refused: int
    calls: int
    tokens: tuple[int, int] | None
    end: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    advance = actions.add_parser("advance")
    advance.add_argument("--kernelbench", type=Path, required=True, help="a checkout of KernelBench")
    advance.add_argument(
        "--strategy", default="cutegen", help="cutegen, cutegen_paper, evolve, oneshot, ... or catalog"
    )
    advance.add_argument("--budget", default=BUDGET)
    advance.add_argument("--only", default="", help="numbers of problems, e.g. 1,4")
    advance.add_argument("--target", default="cuda")
    advance.add_argument("--jobs", default="1")
    advance.add_argument("--devices", default="", help="GPUs to spread the problems over, e.g. 0,1")
    advance.add_argument("--here", action="store_true", help="judge on this machine; no orders are written")
    advance.add_argument("--wait", action="store_true", help="for replies, with the judges open, until killed")
    advance.add_argument("--timing", default="6s")
    advance.add_argument("--no-compile", action="store_true")
    advance.add_argument("--without", default="", help="parts of the strategy to switch off, e.g. tuning")
    told = actions.add_parser("table")
    told.add_argument("--json", type=Path, help="write the rows there, with the machine, too")
    for action in (advance, told):
        action.add_argument("--folder", type=Path, required=True)
    asked = parser.parse_args()
    if asked.action == "table":
        print("\n".join(table(asked.folder)))
        if asked.json:
            asked.json.write_text(json.dumps(numbers(asked.folder), indent=1) + "\n")
        return
    laid_out(asked.kernelbench, asked.folder / "problems")
    done = subprocess.run(bench_command(asked), check=False)
    prompts, orders = waiting(asked.folder)
    print("\n  ".join([f"{len(prompts)} prompt(s) wait for a reply in {asked.folder / 'mail'}", *prompts]))
    if not asked.here:
        print(f"{orders} order(s) wait for `tilewright worker {asked.folder / 'bundle'}`")
    sys.exit(done.returncode)


def laid_out(checkout: Path, folder: Path) -> None:
    """The ten problem files, numbered, in one folder; those that lie there already stay, for runs know them by text."""
    level = next(
        (p for p in (checkout / "KernelBench" / "level1", checkout / "level1", checkout) if p.is_dir()), checkout
    )
    sources = [*(level / f"{name}.py" for name in KERNELBENCH)]
    sources += [ROOT / "examples" / "problems" / f"{name}.py" for name in OURS]
    folder.mkdir(parents=True, exist_ok=True)
    for number, source in enumerate(sources, start=1):
        place = folder / f"{number:02}_{re.sub(r'^[0-9]+_', '', source.stem)}.py"
        if not place.exists():
            shutil.copyfile(source, place)


def bench_command(asked: argparse.Namespace) -> list[str]:
    folder: Path = asked.folder
    mail = [] if asked.strategy == "catalog" else ["--model", f"mailbox:{folder / 'mail'}"]
    return [
        sys.executable, "-m", "tilewright", "bench", str(folder / "problems"), "--target", asked.target,
        "--strategy", asked.strategy, *mail, *([] if asked.wait else ["--no-wait"]), "--timing", asked.timing,
        *([] if asked.here else ["--evaluator", f"bundle:{folder / 'bundle'}"]),
        *(["--no-compile"] if asked.no_compile else []), *(["--without", asked.without] if asked.without else []),
        "--budget", "10m" if asked.strategy == "catalog" else asked.budget, "--jobs", asked.jobs,
        "--out", str(folder / "runs" / asked.strategy), "--json", str(folder / f"{asked.strategy}.json"),
        *(["--only", asked.only] if asked.only else []), *(["--devices", asked.devices] if asked.devices else []),
    ]  # fmt: skip


def waiting(folder: Path) -> tuple[list[str], int]:
    """The prompts that have no whole reply yet, by name, and how many orders have no answer."""
    prompts = [
        p.name
        for p in sorted((folder / "mail").glob("*.prompt.md"))
        if not (reply := p.with_name(p.name.replace(".prompt.", ".reply."))).exists()
        or not reply.read_text(encoding="utf-8", errors="replace").rstrip().endswith("END OF REPLY")
    ]
    orders, answers = (
        {p.stem for p in (folder / "bundle" / f"{kind}s").glob(f"*.{kind}")} for kind in ("order", "answer")
    )
    return prompts, len(orders - answers)


def table(folder: Path) -> list[str]:
    """The strategies' runs in Markdown: where each loop began (with what the library alone makes of the module) and how
    far it came."""
    lines = []
    for place in strategies(folder):
        lines += [
            f"## {place.name}", "",
            f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}",
        ]  # fmt: skip
        for row in rows(place):
            share = f"{row.floor / row.best:.0%}" if row.best else ""
            tokens = f"{row.tokens[0]} in, {row.tokens[1]} out" if row.tokens else "unknown"
            gain = f"{row.gain:.2f}" if row.gain else ""
            cells = [
                row.problem, _us(row.eager), _us(row.start), _us(row.best), gain, _us(row.floor), share,
                str(row.steps), str(row.fixes), str(row.refused), str(row.calls), tokens, row.end,
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return lines


def numbers(folder: Path) -> dict[str, object]:
    """The same as JSON: a list of rows for each strategy, times in ns."""
    places = strategies(folder)
    machines = {brief.machine.device for place in places for brief, _ in journals(place)}
    return {
        "devices": sorted(machines),
        "strategies": {place.name: [asdict(row) for row in rows(place)] for place in places},
    }


def strategies(folder: Path) -> list[Path]:
    return sorted(p for p in (folder / "runs").glob("*") if p.is_dir())


def rows(place: Path) -> list[Row]:
    return [row_of(brief, events) for brief, events in journals(place)]


def journals(place: Path) -> list[tuple[Brief, tuple[Event, ...]]]:
    found = []
    for journal in sorted(place.glob("*/run.db")):
        with Ledger(journal, readonly=True) as ledger:
            brief, events = ledger.brief(), ledger.events()
        if brief is not None:
            found.append((brief, events))
    return found


def row_of(brief: Brief, events: tuple[Event, ...]) -> Row:
    """A run in numbers. Steps are the changes that were asked for, and fixes the prompts to mend what was refused."""
    passed = [(e.move.why, e.outcome) for e in events if isinstance(e.move, Try) and isinstance(e.outcome, Timed)]
    ours = [(time.mid, why, timed) for why, timed in passed if (time := timed.time("ours"))]
    start = next((ns for ns, why, _ in ours if "library makes" in why), None)
    best, _, timed = min(ours, key=lambda tried: tried[0], default=(None, "", None))
    eager, ratio = (timed.time("eager"), timed.ratio("eager")) if timed else (None, None)
    asks = [e for e in events if isinstance(e.move, Ask)]
    whys = [e.move.why for e in asks if isinstance(e.move, Ask)]
    again = [why for why in whys if why.endswith(", again")]
    fixes = [why for why in whys if ": mend" in why and why not in again]
    used = [e.outcome.usage for e in asks if isinstance(e.outcome, Reply)]
    known = [u for u in used if u is not None]
    return Row(
        problem=brief.problem.name, floor=brief.machine.floor_ns(brief.cases[0].work),
        eager=eager.mid if eager else None, start=start, best=best,
        gain=start / best if start and best else ratio.mid if ratio else None,
        steps=len(whys) - len(fixes) - len(again), fixes=len(fixes), calls=len(whys),
        refused=sum(isinstance(e.move, Try) and isinstance(e.outcome, Failure) for e in events),
        end=next((e.move.why for e in events if isinstance(e.move, Stop)), ""),
        tokens=(sum(u.input_tokens for u in known), sum(u.output_tokens for u in known))
        if known and len(known) == len(used) else None,
    )  # fmt: skip


def _us(ns: float | None) -> str:
    return "" if ns is None else f"{ns / 1e3:.4g} us"


if __name__ == "__main__":
    main()
