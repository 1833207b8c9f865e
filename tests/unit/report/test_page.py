"""The page: all sections, nothing from outside as markup, one file without outside assets, balanced tags."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fakes.runs import FUSED, IMPROVED, NOTHING, REFUSAL, REFUSED, SLOWER, context, events, timed
from tilewright.facts.move import Event, Stop, Try
from tilewright.facts.outcome import Station
from tilewright.facts.run import Matched
from tilewright.report import html, markdown
from tilewright.report.attribution import NOT_MEASURED
from tilewright.report.page import _md

RUNS = {"improved": IMPROVED, "slower": SLOWER, "refused": REFUSED, "nothing": NOTHING, "unfinished": IMPROVED[:2]}
VOID = {"meta", "br", "hr", "img", "input", "link", "rect", "line", "circle", "path"}
EVIL = "<script>alert(1)</script> | `x` *b*\n# not a heading"


class _Tags(HTMLParser):
    """Collects text, attributes and the stack of open tags; a close that does not match raises."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.values: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.values += [value or "" for _, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.values += [value or "" for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] in ("tr", "td", "th", "li", "p") and self.open[-1] != tag:
            self.open.pop()
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", RUNS)
def test_every_page_is_whole_and_stands_alone(name: str) -> None:
    page = html(context(), RUNS[name])
    tags = _Tags(page)
    assert not tags.open
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert not re.search(r"""(?:src|href)\s*=|url\((?!#)|@import|https?://""", page)
    assert "prefers-color-scheme: dark" in page
    assert "nan" not in tags.values and "None" not in tags.text


def test_the_improved_run_is_told_in_both() -> None:
    text, page = markdown(context(), IMPROVED), _Tags(html(context(), IMPROVED)).text
    for fact in ("260 µs", "200 µs", "198 – 202 µs", "75%", "threads=256", "does not compile", "+15.0%",
                 "aten.sort.default: no skeleton", "data-dependent shape", "wide exponents", "4.25 TB/s", "NVIDIA H200",
                 "own process group, rlimits", "Landlock", "without fused"):  # fmt: skip
        assert fact in page, fact
        assert fact in text, fact
    assert "Eager against itself, in the same rounds: 1.000 [0.996, 1.004]" in page
    assert "Before: 6 operators" in page and "After: 3 operators" in page


def test_the_page_is_for_phones_and_says_how_the_result_is_used() -> None:
    page = html(context(), IMPROVED, folder="runs/toy-1")
    assert 'name="viewport"' in page
    assert "tilewright.load(&#39;runs/toy-1&#39;)" in page and "tilewright export runs/toy-1 --name fast_" in page
    assert "tilewright.load('runs/toy-1')" in markdown(context(), IMPROVED, folder="runs/toy-1")
    assert "How to use this" not in html(context(), REFUSED)
    times = page[page.index("<h2>Times") :]
    assert times.index("times as fast") < times.index("median"), "what matters most is seen without scrolling"
    tables = page.count("<table>")
    assert tables == page.count('<div class="scroll"><table>') > 3
    seen = replace(timed(), stations=(Station(name="check", seconds=2.0),))
    told = html(context(), (IMPROVED[0], replace(IMPROVED[1], outcome=seen), *IMPROVED[2:]))
    assert "<details><summary>What judging took</summary>" in told


def test_a_column_of_what_was_not_measured_is_left_out() -> None:
    page = html(context(), IMPROVED)
    assert NOT_MEASURED not in page and "What each is worth" in page


def test_a_refusal_shows_stage_reason_and_excerpt() -> None:
    text, tags = markdown(context(), REFUSED), _Tags(html(context(), REFUSED))
    assert "refused" in tags.text and "check: wrong values: output 0 is off by 3.0" in tags.text
    assert REFUSAL.excerpt in tags.text
    assert "    Traceback\n      <boom>" in text, "as a code block"


def test_what_comes_from_outside_is_never_markup() -> None:
    evil = replace(FUSED, title=EVIL)
    matched = (Matched(case=0, patterns=(evil,), unmatched=(EVIL,)),)
    run = context(EVIL, matched=matched, versions=(("g++", EVIL),), run=EVIL)
    refusal = replace(REFUSAL, summary=EVIL, excerpt=EVIL)
    moves = events((Try(what=(), why=EVIL), refusal), (Stop(best=None, why=EVIL), None))
    for what in (moves, _renumbered(IMPROVED)):
        page = html(run, what)
        assert "<script" not in page and "&lt;script&gt;" in page
        assert not _Tags(page).open
        outside_code = "\n".join(line for line in markdown(run, what).splitlines() if not line.startswith("    "))
        assert "<script" not in outside_code
        assert "\n# not a heading" not in outside_code


def _renumbered(run: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple(replace(event, seq=10 + i) for i, event in enumerate(run))


def test_markdown_escapes_what_would_be_markup_and_nothing_else() -> None:
    plain = "aten.masked_fill -> 1.30x [1.29, 1.31] (4 nodes; a=1)"
    assert _md(plain) == plain
    assert _md("# a\n`b` *c* _d_ x_y |") == "\\# a \\`b\\` \\*c\\* \\_d\\_ x_y \\|"
    assert _md("![x](http://y) <b> &lt;") == "![x]\\(http://y) &lt;b> &amp;lt;"
    assert _md("[x]: http://y") == "\\[x]\\: http://y"


def test_comparisons_that_differ_in_their_draw_alone_are_one_row() -> None:
    checked = timed().checked
    twice = replace(timed(), checked=replace(checked, errors=(*checked.errors, replace(checked.errors[0], norm=2e-7))))
    text = markdown(context(), (*IMPROVED[:1], replace(IMPROVED[1], outcome=twice), *IMPROVED[2:]))
    assert "4 comparisons" in text
    assert "| case 0, own inputs, output 0 (2 times) | 2.0e-07 | 4.0e-07 | 3.0e-07 | 2.0e-06 | 50% |" in text


def test_markdown_tables_keep_their_columns() -> None:
    run = context("a|b", matched=(Matched(case=0, patterns=(replace(FUSED, title="x | y"),), unmatched=()),))
    block: list[int] = []
    for line in markdown(run, IMPROVED).splitlines():
        if line.startswith("|"):
            block.append(len(re.findall(r"(?<!\\)\|", line)))
            assert block[-1] == block[0], line
        else:
            block = []
