"""Installed as people install it: the wheel, in site-packages beside what a candidate needs, far from any checkout."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
BUILT_FROM = (
    "pyproject.toml", "setup.py", "LICENSE", "README.md", "AGENTS.md", "CHANGELOG.md", "docs", "examples",
    "benchmarks/README.md",
)  # fmt: skip
EXAMPLE = ROOT / "examples" / "problems" / "dice_loss.py"
# Only beside the wheel, as tvm_ffi and torch are for who installs it: what the fused candidate brings along imports it.
STAND_IN = "EPSILON = 1e-6\n"

CASES = (
    'CASES = [{"batch": 4, "size": 96}, {"batch": 3, "size": 31}]'  # small: the judge is quick, and right all the same
)

# Run where the wheel is installed, in the folder of the run.
OUTCOMES = """
import json, pathlib
from tilewright.edges.ledger import Ledger
from tilewright.facts.move import Try, Tune
with Ledger(pathlib.Path("run/run.db"), readonly=True) as ledger:
    made = [(type(e.move).__name__, str(e.outcome)) for e in ledger.events() if isinstance(e.move, Try | Tune)]
print(json.dumps(made))
"""
LINKS = re.compile(r"\]\(([^)\s]+)\)")
CHECK = """
import importlib.util, json, sys, torch
def load(name, file):
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
problem, candidate = load("problem", "problem.py"), load("model", "run/candidate/model.py")
torch.manual_seed(1)
inputs = problem.get_inputs(**problem.CASES[0])
with torch.no_grad():
    truth = problem.Model().double()(*[x.double() for x in inputs])
    found = candidate.ModelNew()(*inputs)
print(((found - truth).norm() / truth.norm()).item())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that holds the wheel and, by a path file, what the tests' environment has."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in BUILT_FROM:
        (source / name).parent.mkdir(exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    offline = ["--no-deps", "--no-index"]
    _run([*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", str(folder), str(source)], cwd=folder)
    (wheel,) = folder.glob("tilewright-*.whl")
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], cwd=folder)
    python = folder / "venv" / "bin" / "python"
    _run([*pip, "--python", str(python), "install", *offline, "--no-compile", str(wheel)], cwd=folder)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "stand_in.py").write_text(STAND_IN)
    (packages / "of_the_tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


def _run(command: list[str], *, cwd: Path) -> str:
    apart = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    apart["OMP_NUM_THREADS"] = "1"  # two teams of threads on the same processors would wait for one another
    done = subprocess.run(command, cwd=cwd, env=apart, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_the_package_says_of_itself_leads_somewhere(installed: Path) -> None:
    """Wherever its description is read: no link to a file that only a checkout has; installed, README's links work."""
    (told,) = (installed.parents[1] / "lib").glob("python*/site-packages/tilewright-*.dist-info/METADATA")
    text = told.read_text()
    assert "## Start" in text and "docs/problems.md" in text
    assert [link for link in LINKS.findall(text) if not link.startswith(("https://", "#"))] == []
    pages = installed.parents[1] / "share" / "doc" / "tilewright"
    links = [link.partition("#")[0] for link in LINKS.findall((pages / "README.md").read_text())]
    absent = [link for link in links if not link.startswith("https://") and not (pages / link).exists()]
    assert len(links) > 20 and absent == ["benchmarks/results"] * absent.count("benchmarks/results")


def test_links_lead_to_the_repository_where_it_is_known() -> None:
    spec = importlib.util.spec_from_file_location("setup_of_tilewright", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "[a page](docs/a.md#b), [a site](https://c.example), [here](#d)"
    kept = "[a site](https://c.example), [here](#d)"
    assert module.description(text, "https://x.example/t/", "1.2") == (
        f"[a page](https://x.example/t/blob/v1.2/docs/a.md#b), {kept}"
    )
    assert module.description(text, "", "1.2") == f"a page (`docs/a.md`), {kept}"


@pytest.mark.usefixtures("own_cache")
def test_the_wheel_optimises_an_example_and_the_result_is_right(installed: Path, tmp_path: Path) -> None:
    where = _run([str(installed), "-c", "import tilewright; print(tilewright.__file__)"], cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parents[1])
    text = re.sub("^CASES = .*\nCPU_CASES = .*$", CASES, EXAMPLE.read_text(), flags=re.MULTILINE)
    text = text.replace("import torch\n", "import stand_in\nimport torch\n", 1).replace("1e-6", "stand_in.EPSILON")
    (tmp_path / "problem.py").write_text(text)
    command = [str(installed.with_name("tilewright")), "optimize", "problem.py", "--target", "cpu", "--out", "run"]
    _run([*command, "--no-compile", "--timing", "0.2s", "--budget", "90s", "--without", "tuning"], cwd=tmp_path)
    outcomes = json.loads(_run([str(installed), "-c", OUTCOMES], cwd=tmp_path))
    assert [name for name, said in outcomes if name == "Try" and said.startswith("Timed(")], outcomes
    assert not [said for _, said in outcomes if said.startswith("Failure(")]
    assert float(_run([str(installed), "-c", CHECK], cwd=tmp_path)) < 1e-5
