"""What stopping earlier would have cost on kept runs: the regret of each rule against going on as the run did.

    python benchmarks/regret.py benchmarks/journals/cutegen/*.jsonl.xz RUNS/NAME ...
    python benchmarks/regret.py benchmarks/journals/*/*.jsonl.xz --json FILE

Of each run, a packed journal or a folder with its run.db, the best ratio against eager after each reply is read. Each
rule is asked after every reply whether it would have stopped there; what it would have handed over is held against the
run's own end. A rule that never fires has the run's whole cost and no regret, which is said as "never".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median

import journals

from tilewright.edges.ledger import Ledger
from tilewright.facts.move import Ask, Event, Try
from tilewright.facts.outcome import Timed


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterReply:
    """Where a run stood when a reply had been judged: its best ratio against eager (1: the module is kept), the share
    of the floor in the best one's time, and how many replies in a row had brought nothing."""

    best: float
    floor_share: float
    unpaid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """Over runs: at how many the rule fires, the share of their replies that it saves, the geometric mean and the worst
    of the run's end over what it would have handed over (1.0: no regret)."""

    rule: str
    fires: int
    runs: int
    saved: float
    regret: float
    worst: float


RULES: dict[str, Callable[[AfterReply], bool]] = {
    "95% of the floor": lambda at: at.floor_share >= 0.95,
    "90% of the floor": lambda at: at.floor_share >= 0.90,
    **{f"{n} replies brought nothing": lambda at, n=n: at.unpaid >= n for n in (1, 2, 3, 4, 6)},  # type: ignore[misc]
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="packed journals, or folders with a run.db")
    parser.add_argument("--json", type=Path, help="write the table there, too")
    asked = parser.parse_args()
    ways = [way for path in asked.runs if len(way := way_of(events_of(path))) > 1]
    if not ways:
        raise SystemExit("no run among these has two replies that were judged")
    results = [held_against(name, rule, ways) for name, rule in RULES.items()]
    print(f"{len(ways)} runs of {median(map(len, ways)):g} replies in the median\n")
    print("| rule | fires | replies saved | regret, mean | worst |\n|---|---|---|---|---|")
    for r in results:
        told = f"{r.saved:.0%} | {r.regret:.3f}x | {r.worst:.3f}x" if r.fires else "never | |"
        print(f"| {r.rule} | {r.fires} of {r.runs} | {told} |")
    if asked.json:
        asked.json.write_text(json.dumps({"runs": len(ways), "rules": [asdict(r) for r in results]}, indent=1) + "\n")


def events_of(path: Path) -> tuple[Event, ...]:
    if path.is_dir():
        with Ledger(path / "run.db", readonly=True) as ledger:
            return ledger.events()
    return journals.unpacked(path)[2]


def way_of(events: Sequence[Event]) -> tuple[AfterReply, ...]:
    """After each reply that is no answer to a tool, with what was judged until the next."""
    found: list[AfterReply] = []
    best, share, unpaid, asked = 1.0, 0.0, 0, False
    improved = False
    for event in (*events, None):
        is_ask = event is None or (isinstance(event.move, Ask) and not event.move.prompt.brings_answers)
        if is_ask and asked:
            unpaid = 0 if improved else unpaid + 1
            found.append(AfterReply(best=best, floor_share=share, unpaid=unpaid))
        if event is None:
            break
        asked, improved = asked or is_ask, improved and not is_ask
        if isinstance(event.move, Try) and isinstance(event.outcome, Timed):
            ratio, ours = event.outcome.ratio("eager"), event.outcome.time("ours")
            if ratio is not None and ours is not None and event.outcome.faster_than("eager") and ratio.mid > best:
                best, share, improved = ratio.mid, event.outcome.floor_ns / ours.mid, True
    return tuple(found)


def held_against(name: str, rule: Callable[[AfterReply], bool], ways: Sequence[Sequence[AfterReply]]) -> RuleResult:
    """The rule over all runs; where it does not fire in one, that run goes to its end."""
    stops = [next((n for n, at in enumerate(way) if rule(at)), len(way) - 1) for way in ways]
    fires = sum(any(map(rule, way)) for way in ways)
    regrets = [way[-1].best / way[stop].best for way, stop in zip(ways, stops, strict=True)]
    replies = sum(map(len, ways))
    return RuleResult(
        rule=name, fires=fires, runs=len(ways), saved=1 - sum(stop + 1 for stop in stops) / replies,
        regret=geometric_mean(regrets), worst=max(regrets),
    )  # fmt: skip


if __name__ == "__main__":
    main()
