"""Which of two accepted candidates is faster: told by their judgements, or by timing them in turns where those leave it
open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import TYPE_CHECKING, Literal

from ...facts.candidate import Candidate
from ...facts.move import Interleave
from ...facts.outcome import LEAST_GAIN, Interleaved, Interval
from .faster import faster
from .tuning import Steps

if TYPE_CHECKING:
    from .asking import Author, Passed

Standing = Literal["faster", "equal", "slower", "undecided"]
_AT_ONCE = 3  # beside the best
_FLATTERED = 1.5  # an accident of the clocks makes no more of a difference than that
_FAR = 1.5  # times as slow: it says nothing of whether changes of its kind still pay
_MOST_DIFF = 6000  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadToHead:
    """How a candidate stands against another: `ratio` is the other's time over its own."""

    standing: Standing
    ratio: Interval
    in_turns: bool

    @property
    def is_near(self) -> bool:
        """Decided, and no gain, yet not far behind: such steps show that changes of their kind have stopped paying."""
        return self.standing in ("equal", "slower") and self.ratio.mid * _FAR > 1

    @property
    def told(self) -> str:
        how = " in turns" if self.in_turns else ""
        what = {"faster": "faster", "slower": "slower", "equal": "equal for every purpose", "undecided": "undecided"}
        return f"{what[self.standing]}, {span(self.ratio)}{how}"


def span(ratio: Interval) -> str:
    return f"{ratio.mid:.3g}x [{ratio.low:.3g}, {ratio.high:.3g}]"


def standing_of(ratio: Interval) -> Standing:
    """Of a ratio that was measured in turns."""
    if ratio.low > 1 + LEAST_GAIN:
        return "faster"
    if ratio.high < 1 - LEAST_GAIN:
        return "slower"
    return "equal" if ratio.low > 1 - LEAST_GAIN and ratio.high < 1 + LEAST_GAIN else "undecided"


def apart(new: Passed, base: Passed) -> HeadToHead:
    """By their judgements alone, minutes apart: "undecided" where the intervals overlap."""
    mine, theirs = new.timed.ratio("eager"), base.timed.ratio("eager")
    standing: Standing = "undecided"
    if faster(new.timed, base.timed):
        standing = "faster"
    elif faster(base.timed, new.timed):
        standing = "slower"
    if mine is None or theirs is None:
        return HeadToHead(standing=standing, ratio=Interval(low=0.0, mid=base.ns / new.ns, high=1e9), in_turns=False)
    ratio = Interval(low=mine.low / theirs.high, mid=mine.mid / theirs.mid, high=mine.high / theirs.low)
    return HeadToHead(standing=standing, ratio=ratio, in_turns=False)


def compared(author: Author, new: Passed, base: Passed) -> Steps[HeadToHead]:
    """Moves: `Interleave`, where their judgements leave it open and there is time."""
    found = apart(new, base)
    if found.standing != "undecided" or author.context.edition < 2 or author.spending.out_of_time():
        return found
    event = yield from author.move(Interleave(candidates=(base.candidate, new.candidate)))
    ratio = event.outcome.variants[1].ratio if isinstance(event.outcome, Interleaved) else None
    return found if ratio is None else HeadToHead(standing=standing_of(ratio), ratio=ratio, in_turns=True)


def fastest_in_turns(author: Author, accepted: Sequence[Passed]) -> Steps[Passed]:
    """Of those that were the best one after another, the last, unless an earlier one proves faster in turns: what was
    won by an accident of the clocks is not handed over. Moves: `Interleave`, of a few at a time."""
    *_, best = accepted
    rivals = [p for p in accepted[:-1] if p.ns < _FLATTERED * best.ns]
    while rivals and author.context.edition >= 2 and not author.spending.out_of_time():
        few, rivals = rivals[-_AT_ONCE:], rivals[:-_AT_ONCE]
        event = yield from author.move(Interleave(candidates=(best.candidate, *(p.candidate for p in few))))
        if not isinstance(event.outcome, Interleaved):
            break
        timed = enumerate(event.outcome.variants[1:])
        proven = [(v.ratio.mid, n) for n, v in timed if v.ratio and standing_of(v.ratio) == "faster"]
        best = few[max(proven)[1]] if proven else best
    return best


def difference(base: Candidate, other: Candidate) -> str:
    """What the other changes, as a unified diff, cut at _MOST_DIFF characters."""
    before, after = ({f.path: f.text for f in c.files} for c in (base, other))
    lines: list[str] = []
    for path in sorted({*before, *after}):
        old, new = before.get(path, "").splitlines(), after.get(path, "").splitlines()
        lines += unified_diff(old, new, fromfile=path, tofile=path, lineterm="", n=1)
    text = "\n".join(lines)
    return text if len(text) <= _MOST_DIFF else f"{text[:_MOST_DIFF]}\n... ({len(text)} characters in all)"
