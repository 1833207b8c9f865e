"""What a search has learnt: a line for each idea that was judged, and a model's review of them, carried on."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

MOST_LINES = 24  # of single ideas in a prompt; older ones are in the review, or forgotten
_MOST_LESSONS, _RECOMMENDATIONS = 10, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What a model made of the lines so far: lessons, and what a profile of the best says should be done next."""

    lessons: tuple[str, ...] = ()
    recommendations: tuple[str, ...] = ()


class Lessons:
    """`lines` as they came, of which the first `reviewed` are in the `review`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.review = Review()
        self._reviewed = 0

    def add(self, line: str) -> None:
        self.lines.append(line)

    @property
    def recent(self) -> list[str]:
        """What no review has condensed yet."""
        return self.lines[self._reviewed :][-MOST_LINES:]

    def outdate(self) -> None:
        """Another kernel is the fastest: what was recommended was for the one before."""
        self.review = replace(self.review, recommendations=())

    def settle(self, review: Review, *, lines: int) -> None:
        """`lines`: how many of them the model had seen. A review that holds nothing changes nothing."""
        if review.lessons:
            self._reviewed = lines
        self.review = Review(
            lessons=review.lessons or self.review.lessons,
            recommendations=review.recommendations or self.review.recommendations,
        )


def read_review(text: str) -> Review:
    """Of a reply with LESSONS and RECOMMENDATIONS, each a list; what is missing is empty."""
    return Review(
        lessons=_listed(text, "LESSONS")[:_MOST_LESSONS],
        recommendations=_listed(text, "RECOMMENDATIONS")[:_RECOMMENDATIONS],
    )


def _listed(text: str, name: str) -> tuple[str, ...]:
    found = re.search(rf"^[\s*#]*{name}\b[^\n]*\n(.*?)(?=^[\s*#]*[A-Z]{{5,}}\b|\Z)", text, flags=re.M | re.S)
    items = re.findall(r"^[ \t]*(?:[-*]|\d+[.)])[ \t]+(.+?)[ \t]*$", found[1] if found else "", flags=re.M)
    return tuple(item[:300] for item in items)
