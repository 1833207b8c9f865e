"""The site of the committed results: `benchmarks/results`, and the runs whose journals `benchmarks/journals` holds.

    python benchmarks/results_site.py [--out runs/site]

Kept journals are unpacked into a temporary folder. They have no text of the library's own files, and no prompts: the
strategy, driven by what the journal holds, words them again as this version does, and each says so.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from journals import replayed, unpacked

from tilewright.edges.ledger import Ledger
from tilewright.faces.sites import Made, write_site
from tilewright.facts.dialogue import Prompt
from tilewright.facts.move import Ask
from tilewright.run.drive import JournalMismatch

ROOT = Path(__file__).parent
_ANEW = "(The journal was kept without its prompts. This one is worded anew, as this version asks.)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/site"))
    out = parser.parse_args().out
    made = committed(out)
    print(f"{len(made.site.entries)} results, {made.files} files: {out / 'index.html'}")


def committed(out: Path) -> Made:
    """Write the site of what this checkout holds."""
    with tempfile.TemporaryDirectory() as folder:
        return write_site(folders(Path(folder)), out, say=print)


def folders(unpacked_to: Path) -> list[Path]:
    """The result files, and the kept journals as folders of runs."""
    kept = ROOT / "journals"
    for file in sorted(kept.rglob("*.jsonl.xz")):
        name = file.name.removesuffix(".jsonl.xz")
        unpack(file, unpacked_to / "journals" / file.relative_to(kept).parent / name)
    return [ROOT / "results", unpacked_to / "journals"]


def unpack(file: Path, folder: Path) -> None:
    """A kept journal as the folder of a run, with its prompts worded anew."""
    request, context, events = journal = unpacked(file)
    prompts: dict[int, Prompt] = {}
    with suppress(JournalMismatch):  # of an earlier version: its prompts stay unknown
        replayed(journal, asked=lambda ask: prompts.setdefault(ask.turn, ask.prompt))
    events = tuple(replace(e, move=_worded(e.move, prompts)) if isinstance(e.move, Ask) else e for e in events)
    with Ledger(folder / "run.db") as ledger:
        ledger.write(request)
        ledger.write(context)
        for event in events:
            ledger.append(event.move, event.outcome, wall_s=event.wall_s, held=event.held)


def _worded(ask: Ask, prompts: Mapping[int, Prompt]) -> Ask:
    prompt = prompts.get(ask.turn, ask.prompt)
    return replace(ask, prompt=replace(prompt, system=f"{_ANEW}\n\n{prompt.system}")) if prompt.messages else ask


if __name__ == "__main__":
    main()
