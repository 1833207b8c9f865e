"""What `tilewright export`, and `Optimized.export`, hand over: a package and its wheel, made of a run's candidate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..facts.errors import UserError
from ..judge.build import load_candidate
from ..run.export import Exported, export
from .printing import Shown


def exported(
    folder: Path, *, name: str, out: Path | None = None, version: str = "0", archs: Sequence[str] = ()
) -> Exported:
    """As `run.export.export`, of the candidate of a run in `folder`, or that lies there itself; `out`: by default
    `export` in it. Raises UserError."""
    places = [place for place in (folder / "candidate", folder) if (place / "model.py").is_file()]
    if not places:
        raise UserError(f"{folder}: no candidate here (no model.py); a run hands one over when it ends")
    target = out or folder / "export"
    target.mkdir(parents=True, exist_ok=True)
    return export(load_candidate(places[0]), target, name=name, version=version, archs=archs)


def shown(made: Exported) -> Shown:
    """For people, and for programs."""
    name = made.package.name
    lines = [
        f"package   {made.package}", f"wheel     {made.wheel}", f"needs     {', '.join(made.requires)}",
        f"to use    import {name}; module = {name}.load(module)  # or {name}.Model(...)",
        *(f"note      {note}" for note in made.notes),
    ]  # fmt: skip
    told = {"package": str(made.package), "wheel": str(made.wheel), "requires": made.requires, "notes": made.notes}
    return Shown(object=told, drawn=lines)
