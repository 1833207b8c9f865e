"""What a cell may open: hidden places are cut out of readable ones."""

from __future__ import annotations

import sys
from pathlib import Path

from tilewright.judge.candidate_process.disk import DiskView, grants
from tilewright.judge.candidate_process.landlock import LIST, READ, WRITE


def _granted(view: DiskView, environment: dict[str, str]) -> dict[Path, int]:
    return {Path(g.place): g.rights for g in grants(view, environment)}


def _readable(found: dict[Path, int], place: Path) -> bool:
    return any(found.get(p, 0) & READ & ~LIST for p in (place, *place.parents))


def test_what_is_hidden_is_cut_out_of_a_readable_place(tmp_path: Path) -> None:
    for name in ("library/code.py", "problems/p.py", "runs/run.db", "module.py"):
        place = tmp_path / "project" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("")
    project = tmp_path / "project"
    view = DiskView(
        own=(str(project / "runs/cell"),),
        hidden=(str(project / "problems/p.py"), str(project / "runs")),
        shared_memory=True,
    )
    found = _granted(view, {"PYTHONPATH": str(project)})
    assert _readable(found, project / "library/code.py") and _readable(found, project / "module.py")
    assert not _readable(found, project / "problems/p.py") and not _readable(found, project / "problems/copy.py")
    assert not _readable(found, project / "runs/run.db")
    assert found[project] == LIST
    assert found[project / "runs/cell"] == READ | WRITE


def test_a_path_that_names_a_hidden_folder_itself_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("")
    view = DiskView(own=(str(tmp_path / "cell"),), hidden=(str(tmp_path / "p.py"),), shared_memory=False)
    found = _granted(view, {"PYTHONPATH": f"{tmp_path}:/:/tmp:relative:"})
    assert not _readable(found, tmp_path / "p.py") and not _readable(found, Path("/tmp/other"))
    assert found[Path("/dev/shm")] == LIST


def test_python_and_programs_can_be_read_though_the_problem_lies_beside_them(tmp_path: Path) -> None:
    problem = Path(sys.prefix).resolve() / "p.py"  # it need not exist: its folder holds the interpreter
    view = DiskView(own=(str(tmp_path),), hidden=(str(problem),), shared_memory=False)
    found = _granted(view, {})
    assert _readable(found, Path(sys.prefix).resolve() / "lib") and _readable(found, Path("/usr/bin/env"))
    assert not _readable(found, problem)
    assert not _readable(found, Path("/etc/shadow")) and _readable(found, Path("/etc/passwd"))
