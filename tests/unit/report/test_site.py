"""The site: every result has its row, every run its pages, what is hostile stays text, what is damaged says so."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fakes.runs import IMPROVED, context
from fakes.sites import HOSTILE, LONG, campaign, dialogue, kept_beside, written_run
from tilewright.edges.ledger import Ledger
from tilewright.facts.errors import UserError
from tilewright.facts.run import Request
from tilewright.report.site import LiveSite, Site
from tilewright.report.site.entries import read, slug


class _Links(HTMLParser):
    """What a page refers to, what it names, and the tags that are in it."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self.links += [value for name in ("href", "src") if (value := given.get(name)) is not None]
        self.ids += [value for value in [given.get("id")] if value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site.of([campaign(tmp_path_factory.mktemp("runs") / "campaign")])


def every(site: Site) -> dict[str, bytes]:
    paths = [*site.paths(), *(p for e in site.entries for p in site.paths_of(e))]
    return {path: file.data for path in paths if (file := site.render(path)) is not None}


def page(site: Site, path: str) -> str:
    found = site.render(path)
    assert found is not None
    return found.data.decode()


def test_each_result_is_an_entry_with_what_became_of_it(site: Site) -> None:
    found = {(e.problem.split()[0], e.strategy): (e.kind, e.status) for e in site.entries}
    assert found == {
        ("9_gate", "catalog"): ("run", "improved"), ("9_gate", "cutegen"): ("run", "improved"),
        ("10_norm", "catalog"): ("run", "failed"), ("11_sort", "catalog"): ("run", "no_improvement"),
        ("12", "cutegen"): ("run", "improved"), ("13_damaged", "unknown"): ("damaged", "damaged"),
        ("14_begun", "unknown"): ("damaged", "unfinished"), ("15_crashed", "catalog"): ("run", "failed"),
        ("half.json", "unknown"): ("damaged", "damaged"),
    }  # fmt: skip


def test_what_is_damaged_is_a_row_that_says_so_and_names_no_folder_of_this_machine(site: Site, tmp_path: Path) -> None:
    text = page(site, "runs.html")
    assert "can&#39;t be read" in text and ">damaged</span>" in text
    assert "the run has not begun" in text and "exit -9: killed" in text
    assert str(tmp_path.parent) not in text


def test_every_link_leads_to_a_page_of_the_site_and_every_anchor_stands_there(site: Site) -> None:
    pages = every(site)
    names = {path: set(_Links(data).ids) for path, data in pages.items() if path.endswith(".html")}
    for path in names:
        for link in _Links(pages[path]).links:
            target, _, anchor = link.partition("#")
            if target == "data:,":
                continue
            parts = [*path.split("/")[:-1], *target.partition("?")[0].split("/")] if target else path.split("/")
            while ".." in parts:
                del parts[parts.index("..") - 1 : parts.index("..") + 1]
            assert (to := "/".join(parts)) in pages, (path, link)
            assert not anchor or to not in names or anchor in names[to], (path, link)


def test_no_page_has_script_style_or_address_of_its_own_and_none_has_what_was_written_as_text(site: Site) -> None:
    for path, data in every(site).items():
        if not path.endswith(".html"):
            continue
        found = _Links(data)
        scripts = [given for tag, given in found.tags if tag == "script"]
        assert all(given.get("src", "").endswith("assets/filter.js") for given in scripts), path  # type: ignore[union-attr]
        assert not [tag for tag, given in found.tags if tag in ("style", "img", "iframe") or "style" in given]
        assert not [name for _, given in found.tags for name in given if name.startswith("on")]
        assert not [link for link in found.links if ":" in link and link != "data:,"], path
        policy = [g["content"] for tag, g in found.tags if g.get("http-equiv") == "Content-Security-Policy"]
        assert policy and "default-src 'none'" in str(policy[0]) and "unsafe" not in str(policy[0])
        assert b"\0" not in data and "‮" not in data.decode()


def test_hostile_text_is_shown_on_the_pages_that_have_it(site: Site) -> None:
    run = next(e for e in site.entries if e.problem.startswith("12"))
    assert run.id == slug("../../run <e>") and "/" not in run.id and "." not in run.id
    text = page(site, f"runs/{run.id}/dialogue.html")
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;" in text and "␀" in text and "⟨U+202E⟩" in text
    assert LONG in text
    code = page(site, f"runs/{run.id}/candidate-3.html")
    assert "&lt;/pre&gt;&lt;/code&gt;" in code and LONG in code
    assert len(page(site, "index.html")) < 40_000  # names are cut in tables


def test_a_candidate_has_its_verdict_its_code_and_its_profile(site: Site) -> None:
    refused, kept = page(site, "runs/run-d/candidate-1.html"), page(site, "runs/run-d/candidate-3.html")
    assert "refused in check, wrong values: off by 3" in refused and "Traceback make it faster" in refused
    assert "# first" in refused and "# second" not in refused
    assert "1.80x as fast as eager" in kept and "# second" in kept and "limited by memory" in kept
    assert "slow_loop" in kept and "80%" in kept
    assert "SECRET_OF_THE_LIBRARY" not in kept and "1 copies" in kept


def test_a_dialogue_shows_each_prompt_without_what_was_said_before(site: Site) -> None:
    text = page(site, "runs/run-d/dialogue.html")
    assert text.count("Begin: make it faster") == 1 and text.count("You write kernels.") == 1
    assert "begins with the 1 message of the turn before" in text
    assert text.index('id="turn-1"') < text.index('id="turn-2"')
    assert re.search(r'id="turn-2".*candidate-3\.html', text, re.DOTALL)
    assert site.render("runs/run-a/dialogue.html") is None


def test_the_code_of_a_recipe_is_that_which_was_handed_over(tmp_path: Path) -> None:
    folder = written_run(tmp_path / "runs" / "one", context(run="one"), IMPROVED)
    (folder / "candidate" / "tilewright_kernels").mkdir(parents=True)
    (folder / "candidate" / "model.py").write_text("# delivered\n")
    (folder / "candidate" / "tilewright_kernels" / "rows.py").write_text("# a copy\n")
    (folder / "candidate" / "away.py").symlink_to("/etc/passwd")
    site = Site.of([tmp_path / "runs"])
    final, other = page(site, "runs/one/candidate-1.html"), page(site, "runs/one/candidate-2.html")
    assert "# delivered" in final and "# a copy" not in final and "away.py" not in final
    assert "its code was not kept" in other and "# delivered" not in other


def test_problems_by_strategies_by_cards(tmp_path: Path) -> None:
    for n, seconds in enumerate((1.5, 6.0), start=1):
        task = {"ratio": {"eager": {"low": seconds * 0.9, "mid": seconds, "high": seconds * 1.1}}}
        kept_beside(tmp_path / "runs" / str(n) / "8_gate", context("8_gate"), IMPROVED, **task)
    other = {"machine": {"device": "NVIDIA A100"}, "status": "failed"}
    kept_beside(tmp_path / "runs" / "3" / "8_gate", context("8_gate"), IMPROVED, **other)
    text = page(Site.of([tmp_path / "runs"]), "index.html")
    (mine,) = re.findall(r"<tr data-[^>]*NVIDIA H200.*?</tr>", text, re.DOTALL)
    assert ">3.00×<" in mine and ">1.35 – 6.60<" in mine and ">2<" in mine  # the geometric mean of two runs
    (theirs,) = re.findall(r"<tr data-[^>]*NVIDIA A100.*?</tr>", text, re.DOTALL)
    assert ">failed<" in theirs and ">1.00×<" in theirs
    totals = re.findall(r'<tr><th scope="row".*?</tr>', text, re.DOTALL)
    assert len(totals) == 2 and 'data-label="above 1.5×">50%<' in totals[0] and 'data-label="failed">1<' in totals[1]


def test_baselines_that_were_not_timed_are_left_out(tmp_path: Path) -> None:
    ratio = {"eager": {"low": 2.0, "mid": 2.0, "high": 2.0}}
    kept_beside(tmp_path / "runs" / "a", context("a"), IMPROVED, ratio=ratio, times_ns={})
    row = page(Site.of([tmp_path / "runs"]), "index.html")
    assert 'data-label="vs eager">2.00×<' in row and 'data-label="vs best"><' in row


def test_addresses_hold_when_the_site_is_made_again_and_when_a_run_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    whole = dialogue()
    written_run(root / "a", context("a", run="ra"), whole[:2])
    before = Site.of([root])
    with_more = written_run(root / "0", context("0", run="r0"), IMPROVED)
    (root / "a" / "run.db").unlink()
    written_run(root / "a", context("a", run="ra"), whole)
    after = Site.of([root])
    (mine,) = [e for e in after.entries if e.problem == "a"]
    assert set(before.paths_of(before.entries[0])) < set(after.paths_of(mine))
    assert with_more.name in {e.problem for e in after.entries}


def test_a_copy_of_a_run_has_an_address_of_its_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written_run(tmp_path / "runs" / name, context("toy", run="same"), IMPROVED)
    site = Site.of([tmp_path / "runs", tmp_path / "runs" / "a"])  # the second lies in the first
    assert sorted(e.href for e in site.entries) == ["runs/same.2/index.html", "runs/same/index.html"]
    assert all(site.render(e.href) for e in site.entries)


@pytest.mark.parametrize(
    "path", ["runs/../../etc/passwd", "runs/run-a/../index.html", "assets/../site.py", "groups/none.html", "",
             "runs/run-a/candidate-99.html", "runs/none/index.html", "/index.html"],
)  # fmt: skip
def test_what_is_no_page_is_none(site: Site, path: str) -> None:
    assert site.render(path) is None


@pytest.mark.parametrize(
    "value", [[], 7, {"tasks": 3}, {"tasks": [3, {"problem": 5}]}, {"problem": "p", "verdict": {}, "status": "odd"},
              {"tasks": []}],
)  # fmt: skip
def test_json_that_is_no_result_is_counted_and_left_out(tmp_path: Path, value: object) -> None:
    (tmp_path / "some.json").write_text(json.dumps(value))
    site = Site.of([tmp_path])
    assert (site.entries, site.ignored) == ((), 1)
    assert "1 JSON file beside them holds no judged task" in page(site, "index.html")


def test_a_result_with_values_of_other_kinds_is_cut_down_to_what_fits(tmp_path: Path) -> None:
    odd = {
        "problem": HOSTILE + LONG, "status": "improved",
        "verdict": {"accepted": "yes", "summary": 5, "excerpt": HOSTILE},
        "ratio": {"eager": {"low": "x", "mid": 2.0}, "compile": {"mid": -1}, "z": None}, "times_ns": [],
        "floor_share": "1", "patterns": [{"title": HOSTILE, "point": {"a": [1]}}, 5],
        "algebra": {"kept": True, "without": 3}, "machine": {"device": 4},
    }  # fmt: skip
    (tmp_path / "odd.json").write_text(
        json.dumps({"tasks": [odd, odd], "command": "tilewright 'bench", "device": HOSTILE})
    )
    site = Site.of([tmp_path])
    assert [e.task["ratio"] for e in site.entries] == [{"eager": {"low": 2.0, "mid": 2.0, "high": 2.0}}] * 2
    assert len({e.id for e in site.entries}) == 2
    assert all(b"<script>alert" not in data.replace(b"\0", b"") for data in every(site).values())


def test_a_journal_that_no_report_can_be_made_of_is_a_row_or_a_page_that_says_so(tmp_path: Path) -> None:
    """Its facts are well-formed, but of its cases there is none: no floor, no graph."""
    written_run(tmp_path / "odd", context("odd", run="odd", cases=()), IMPROVED)
    written_run(tmp_path / "sound", context("sound", run="sound"), IMPROVED)
    site = Site.of([tmp_path])
    told = " ".join(data.decode() for path, data in every(site).items() if path == "runs.html" or "odd" in path)
    assert "can't be drawn" in told or "can&#39;t be read" in told
    assert "1.30x as fast as eager" in page(site, "runs/sound/index.html")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        Site.of([tmp_path / "none"])


def test_a_live_site_reads_what_changed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, now = tmp_path / "runs", [0.0]
    whole = dialogue()
    written_run(root / "a", context("a", run="ra"), IMPROVED)
    written_run(root / "b", context("b", run="rb"), whole[:2])
    live = LiveSite([root], clock=lambda: now[0])
    first = live.render("")
    assert first is not None and b"ra/index.html" in first.data and b"rb/index.html" not in first.data
    places: list[str] = []
    monkeypatch.setattr("tilewright.report.site.live.read", lambda source: places.append(source.place) or read(source))
    with Ledger(root / "b" / "run.db") as ledger:
        for event in whole[2:]:
            ledger.append(event.move, event.outcome, wall_s=event.wall_s)
    assert live.render("") == first, "it looked a moment ago"
    now[0] = 2.0
    again = live.render("index.html")
    assert again is not None and b"rb/index.html" in again.data and places == ["runs/b"]
    dialogues = live.render("runs/rb/dialogue.html")
    assert dialogues is not None and b"turn-2" in dialogues.data
    assert live.render("runs/none/index.html") is None


def test_a_run_that_was_asked_for_and_has_not_begun_is_known_by_its_problem(tmp_path: Path) -> None:
    on = context("9_gate")
    with Ledger(tmp_path / "runs" / "x" / "run.db") as ledger:
        ledger.write(Request(run="r", problem=on.problem, strategy="evolve", seed=0, budget_s=1.0))
    (entry,) = Site.of([tmp_path / "runs"]).entries
    assert (entry.problem, entry.strategy, entry.status) == ("9_gate", "evolve", "unfinished")
