"""The words keep step with the code: links lead somewhere, commands and flags exist, the map stays short."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import typer

from tilewright.faces.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / n for n in ("README.md", "AGENTS.md", "CHANGELOG.md", "benchmarks/README.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
CLI = (ROOT / "docs" / "cli.md").read_text()


def commands() -> dict[str, set[str]]:
    """Every command of the command line and its flags."""
    group = typer.main.get_command(app)
    found = getattr(group, "commands")  # noqa: B009  click's Group, whichever click typer brings
    return {
        name: {o for p in c.params for o in (*p.opts, *p.secondary_opts) if o.startswith("--")}
        for name, c in found.items()
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    places = [link.partition("#")[0] for link in links if "://" not in link]
    assert [place for place in places if place and not (page.parent / place).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_anchors_stand_in_the_page_that_is_linked(page: Path) -> None:
    links = [link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    to = [(page.parent / place if place else page, anchor) for place, _, anchor in links if anchor]
    assert [f"{p.name}#{anchor}" for p, anchor in to if p.suffix == ".md" and anchor not in anchors(p)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|examples|benchmarks|requirements)/[\w./-]+)`", page.read_text())
    assert [name for name in named if not name.endswith("/") and not (ROOT / name).exists()] == []


def test_every_command_and_flag_is_documented_and_no_other() -> None:
    lines = re.finditer(r"^    tilewright ([a-z]+).*$", CLI, re.MULTILINE)
    said = {line[1]: set(re.findall(r"--[a-z-]+", line[0])) for line in lines}
    assert said == {name: flags - {"--help"} for name, flags in commands().items()}


def test_the_map_is_short_and_names_every_storey() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    assert len(text.splitlines()) < 120
    storeys = {p.name for p in (ROOT / "src" / "tilewright").iterdir() if (p / "__init__.py").exists()}
    assert [s for s in storeys if f"`{s}`" not in text] == []


def test_requirements_pin_what_the_package_needs() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = (ROOT / "requirements" / "base.txt").read_text()
    dev = (ROOT / "requirements" / "dev.txt").read_text()
    pins = [line for line in (base + dev).splitlines() if line and not line.startswith(("#", "-r"))]
    assert all(re.fullmatch(r"[a-z0-9-]+(\[[a-z0-9,]+\])?==\S+", pin) for pin in pins)
    names = {re.split(r"[\[=]", pin)[0] for pin in pins}
    asked = (*wanted["dependencies"], *(r for extra in wanted["optional-dependencies"].values() for r in extra))
    needed = {re.split(r"[\[<>=]", r)[0] for r in asked}
    # Tests must never read the user's keys; convolutions by cuDNN are tested where it is installed.
    assert needed - names == {"keyring", "nvidia-cudnn-frontend"}
