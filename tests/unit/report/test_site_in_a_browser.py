"""The site in a real browser, without a screen: it asks nothing of anybody else, nothing hostile runs, and it can be
read on a phone, in the dark, and by keyboard."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fakes.sites import campaign
from tilewright.faces.sites import write_site
from tilewright.report.site.entries import slug

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright; pip install -r requirements/dev.txt")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH; apt-get install chromium")

HOSTILE = f"runs/{slug('../../run <e>')}"
PAGES = ["index.html", "runs.html", f"groups/{slug('campaign/catalog')}.html", "runs/run-a/index.html",
         "runs/run-a/candidates.html", "runs/run-a/candidate-1.html", f"{HOSTILE}/index.html",
         f"{HOSTILE}/candidates.html", f"{HOSTILE}/candidate-3.html", f"{HOSTILE}/candidate-1.html",
         f"{HOSTILE}/dialogue.html"]  # fmt: skip

# Of every visible text the contrast with what lies behind, where it is less than WCAG's AA.
TOO_FAINT = """() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = colour => {
    paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
    return Array.from(paint.getImageData(0, 0, 1, 1).data);
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const found = rgba(getComputedStyle(e).backgroundColor);
      if (found[3] === 255) return found;
    }
    return rgba(matchMedia("(prefers-color-scheme: dark)").matches ? "#000" : "#fff");
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = Array.from(element.childNodes).some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const colour = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(colour), light(behind(element))].sort((x, y) => y - x);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    const told = `${element.tagName}.${element.getAttribute("class")} ${element.textContent.slice(0, 40)}`;
    if (ratio < least) faint.push(`${ratio.toFixed(2)} ${told}`);
  }
  return Array.from(new Set(faint));
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a web server with the site below a path of its own."""
    root = tmp_path_factory.mktemp("hosted")
    runs = campaign(tmp_path_factory.mktemp("runs") / "campaign")
    write_site([runs], root / "results" / "of us", say=lambda text: None)
    return root


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/results/of%20us/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


class Visit:
    """A tab that remembers what went wrong in it, and what it asked of whom."""

    def __init__(self, browser: Any, address: str, **settings: Any) -> None:
        self.address = address
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("requestfailed", lambda request: self.wrong.append(f"failed: {request.url}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", lambda dialog: (self.wrong.append("a dialogue"), dialog.dismiss()))

    def go(self, path: str) -> Any:
        response = self.page.goto(self.address + path)
        assert response is None or response.ok
        return self.page

    def ended(self) -> None:
        self.context.close()
        assert self.wrong == []
        assert [url for url in self.asked if not url.startswith((self.address, "data:"))] == []


@pytest.fixture
def phone(browser: Any, address: str) -> Iterator[Visit]:
    visit = Visit(browser, address, viewport={"width": 390, "height": 844}, color_scheme="dark")
    yield visit
    visit.ended()


@pytest.fixture
def desk(browser: Any, address: str) -> Iterator[Visit]:
    visit = Visit(browser, address, viewport={"width": 1280, "height": 900}, color_scheme="light")
    yield visit
    visit.ended()


def shown(page: Any) -> list[str]:
    rows = page.locator("table.results > tbody > tr:visible th")
    return [text.split()[0] for text in rows.all_inner_texts()]


def test_pages_fit_a_phone_and_are_legible_in_the_dark_with_nothing_hostile_run(phone: Visit) -> None:
    for path in PAGES:
        page = phone.go(path)
        page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert page.evaluate(TOO_FAINT) == [], path


def test_pages_are_legible_in_the_light(desk: Visit) -> None:
    for path in PAGES:
        page = desk.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, path
        assert page.evaluate(TOO_FAINT) == [], path


def test_filters_narrow_the_table_and_stand_in_the_address(desk: Visit) -> None:
    page = desk.go("runs.html")
    everything = shown(page)
    assert len(everything) == 9
    page.get_by_label("Strategy").select_option("cutegen")
    assert shown(page) == ["9_gate", "12"]
    page.get_by_label("Text").fill("9_GATE")
    assert shown(page) == ["9_gate"] and page.locator("output").inner_text() == "1 of 9 shown"
    page.goto(page.url)  # as somebody who was sent it
    assert shown(page) == ["9_gate"] and page.get_by_label("Text").input_value() == "9_GATE"
    page.get_by_role("button", name="Show all").click()
    assert shown(page) == everything and "?" not in page.url
    page.goto(desk.address + "index.html")
    page.get_by_role("link", name="See which").click()
    assert len(shown(page)) in (3, 9)


def test_a_filter_that_somebody_made_up_runs_nothing(desk: Visit) -> None:
    page = desk.go("runs.html?text=%3Csvg%20onload%3Dalert(1)%3E&constructor=1&__proto__=2&status=none")
    assert shown(page) == [] and page.locator("output").inner_text() == "0 of 9 shown"


def test_a_run_is_reached_by_keyboard_and_what_has_the_focus_is_seen(desk: Visit) -> None:
    page = desk.go("index.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.locator("a.skip").bounding_box()["x"] >= 0
    for _ in range(40):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline not in ("none", "hidden"), page.evaluate("document.activeElement.outerHTML")
        if page.evaluate("document.activeElement.textContent") == "9_gate":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/run-*/index.html")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the skip link
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_role("link", name="Candidates").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/candidates.html")
    assert page.get_by_role("row").count() > 1


def test_without_scripts_the_tables_are_whole_and_the_filters_hidden(browser: Any, address: str) -> None:
    visit = Visit(browser, address, java_script_enabled=False)
    page = visit.go("runs.html?strategy=cutegen")
    assert len(shown(page)) == 9 and not page.locator("form.filters").is_visible()
    page.get_by_role("link", name="9_gate").first.click()
    assert page.get_by_role("heading", name="9_gate").is_visible()
    visit.ended()


def test_from_the_disk_it_works_without_a_server(browser: Any, folder: Path) -> None:
    visit = Visit(browser, (folder / "results" / "of us").as_uri() + "/")
    page = visit.go("index.html")
    page.get_by_label("Text").fill("10_norm")
    assert shown(page) == ["10_norm"]
    visit.ended()
