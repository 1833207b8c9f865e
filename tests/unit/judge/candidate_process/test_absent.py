"""One package is hidden from imports, and what is installed in the same folder is not."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import torch

from tilewright.edges.sandbox.environment import common_environment, program
from tilewright.facts.version import VERSION
from tilewright.judge.candidate_process import absent
from tilewright.judge.candidate_process import fork as shelf
from tilewright.judge.candidate_process.load import installed_paths

OURS = Path(absent.__file__).parents[2]

TRIED = """
import importlib, importlib.util, sys
import beside, beside.within
assert importlib.util.find_spec("tilewright") is None
try:
    import tilewright.within
except ModuleNotFoundError as error:
    assert error.name == "tilewright", error
else:
    raise SystemExit("it was imported")
importlib.invalidate_caches()  # asks every finder
print("hidden", *[name for name in ("customised",) if hasattr(sys, name)])
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of packages as `pip install --target` leaves it: a tilewright, and something else."""
    for package in ("tilewright", "beside"):
        (tmp_path / "installed" / package).mkdir(parents=True)
        for module in ("__init__", "within"):
            (tmp_path / "installed" / package / f"{module}.py").write_text("")
    return tmp_path / "installed"


def _said(program: str, path: list[Path]) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_lies_beside_the_package_is_found(installed: Path) -> None:
    hidden = f"{Path(absent.__file__).read_text()}\nimport tilewright.within\nhide('tilewright')\n{TRIED}"
    assert _said(hidden, [installed]) == "hidden"


def test_a_process_that_is_started_hides_it_too_and_runs_the_sitecustomize_behind(installed: Path) -> None:
    place = shelf.hiding_place(installed.parent)
    assert _said(TRIED, [place, installed]) == "hidden"
    (installed / "sitecustomize.py").write_text("import sys\nsys.customised = True\n")
    assert _said(TRIED, [place, installed]) == "hidden customised"


PROBE = """
import sys, uuid
import beside
from ...facts.version import VERSION
print(uuid.__file__, beside.__file__, VERSION, *sys.argv[1:])
"""


def test_a_module_of_ours_runs_where_it_lies_and_nothing_comes_before_the_standard_library(installed: Path) -> None:
    """Of a wheel that folder is site-packages, where a stray `uuid.py` must not take the place of Python's."""
    shutil.rmtree(installed / "tilewright")
    shutil.copytree(OURS, installed / "tilewright", ignore=shutil.ignore_patterns("kernels", "realise", "run"))
    (installed / "tilewright" / "judge" / "candidate_process" / "probe.py").write_text(PROBE)
    (installed / "uuid.py").write_text("")
    start = installed / "tilewright" / "judge" / "candidate_process" / "start.py"
    command = [program("")[0], "-P", str(start), "tilewright.judge.candidate_process.probe", "an argument"]
    done = subprocess.run(command, capture_output=True, text=True, env=common_environment(threads=1, outer={}), cwd="/")
    assert done.stdout.split(maxsplit=3) == [
        uuid.__file__, str(installed / "beside" / "__init__.py"), VERSION, "an argument\n",
    ], done.stderr  # fmt: skip


def test_packages_of_the_user_are_found_from_a_cell_whose_home_is_another(tmp_path: Path) -> None:
    program = "import site; print(site.ENABLE_USER_SITE, site.USER_BASE)"
    for enabled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(site, "ENABLE_USER_SITE", enabled)
            patch.setattr(site, "getuserbase", lambda: str(tmp_path))
            outer = {"HOME": "/nowhere", "PYTHONPATH": "/more"}
            found = common_environment(threads=1, outer=outer)
        assert found["PYTHONPATH"] == "/more"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=found, check=True)
        assert (done.stdout.split()[1] == str(tmp_path)) is enabled


def test_whatever_torch_was_installed_with_lies_in_an_installed_place() -> None:
    assert torch.__file__.startswith(installed_paths()) and os.__file__.startswith(installed_paths())
    assert not __file__.startswith(installed_paths())


def test_packages_on_the_path_are_installed_and_sources_are_not(tmp_path: Path) -> None:
    packages, sources = tmp_path / "packages", tmp_path / "sources"
    (packages / "six-1.0.dist-info").mkdir(parents=True)
    sources.mkdir()
    tried = "from tilewright.judge.candidate_process.load import installed_paths\nprint(*installed_paths(), sep='\\n')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (packages, sources, OURS.parent)))}
    done = subprocess.run([sys.executable, "-c", tried], capture_output=True, text=True, env=environment, check=True)
    found = done.stdout.splitlines()
    assert f"{packages}{os.sep}" in found and f"{sources}{os.sep}" not in found


def test_a_handler_of_what_kernels_run_on_is_a_librarys_wherever_it_was_installed(tmp_path: Path) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")  # it has a handler of segmentation faults
    for part in ("tvm_ffi", "apache_tvm_ffi-*.dist-info"):  # by the second it finds its library
        (found,) = Path(tvm_ffi.__file__).parents[1].glob(part)
        shutil.copytree(found, tmp_path / found.name)
    tried = (
        "from tilewright.judge.candidate_process.hooks import Hooks\n"
        "from tilewright.judge.candidate_process.load import installed_paths\n"
        "installed_paths(); hooks = Hooks(); before = hooks._addresses\n"
        "import tvm_ffi; hooks.require_unchanged([hook() for hook in hooks.all])\n"
        "print(tvm_ffi.__file__, hooks._addresses != before)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(OURS.parent)))}
    done = subprocess.run([sys.executable, "-c", tried], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == [str(tmp_path / "tvm_ffi" / "__init__.py"), "True"], done.stderr
