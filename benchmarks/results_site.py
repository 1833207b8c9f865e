"""The site of the committed results: `benchmarks/results`, and the runs whose journals `benchmarks/journals` holds.

    python benchmarks/results_site.py [--out runs/site]

Kept journals are unpacked into a temporary folder. They have neither the words of prompts nor the text of the library's
own files.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from journals import unpacked

from tilewright.edges.ledger import Ledger
from tilewright.faces.sites import Made, write_site

ROOT = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/site"))
    out = parser.parse_args().out
    made = committed(out)
    print(f"{len(made.site.entries)} results, {made.files} files: {out / 'index.html'}")


def committed(out: Path) -> Made:
    """Write the site of what this checkout holds."""
    with tempfile.TemporaryDirectory() as folder:
        journals = Path(folder) / "journals"
        for file in sorted((ROOT / "journals").rglob("*.jsonl.xz")):
            unpack(file, journals / file.relative_to(ROOT / "journals").parent / file.name.removesuffix(".jsonl.xz"))
        return write_site([ROOT / "results", journals], out, say=print)


def unpack(file: Path, folder: Path) -> None:
    """A kept journal as the folder of a run."""
    request, context, events = unpacked(file)
    with Ledger(folder / "run.db") as ledger:
        ledger.write(request)
        ledger.write(context)
        for event in events:
            ledger.append(event.move, event.outcome, wall_s=event.wall_s, held=event.held)


if __name__ == "__main__":
    main()
