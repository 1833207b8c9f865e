"""The three kinds of going wrong.

Failure       a value: the candidate's fault (see facts.outcome)
TilewrightError
 ├─ UserError      the user's: one clear line, exit 2
 │   └─ Lack        what the machine lacks to run a candidate, with the remedy; never counted against the candidate
 ├─ HarnessError   ours: an exception, never scored, exit 3
 │   ├─ TooBusy     others had the processors: nothing was accepted, and nobody accused; tried again for a while
 │   ├─ SickDevice  the device can't be measured on: tried once more, then put under quarantine
 │   └─ ModelOut    the model could not be reached, or gave nothing that can be read: the run can be resumed
 └─ Pending        what was asked for has not come yet: exit 75, and the run goes on from here at the next call
"""

from __future__ import annotations

from pathlib import Path


class TilewrightError(Exception):
    """Base of all exceptions that Tilewright raises on purpose."""


class UserError(TilewrightError):
    """What the user gave can't be used; the message is one line that names the value and the way out."""


class Lack(UserError):
    """The machine lacks what a candidate needs; the message begins with SAID, and ends with the remedy."""

    SAID = "the machine lacks "

    @classmethod
    def of(cls, what: str, why: str, remedy: str) -> Lack:
        return cls(f"{cls.SAID}{what} ({why}); {remedy}. `tilewright doctor` tells what else is missing")


class HarnessError(TilewrightError):
    """Tilewright itself, or the machine under it, failed; never counted against a candidate."""


class SickDevice(HarnessError):
    """The device fails or holds itself back, so that nothing measured on it can count."""


class TooBusy(HarnessError):
    """Others had the processors while something was measured: it says nothing, for a candidate or against it.
    `lasts`: what was measured then will be asked again, or calm was waited for in vain: to try again is no use.
    `folder`: of the run, where its caller was not given it otherwise; `way_on`: how it goes on. SAID begins the
    message."""

    SAID = "too busy to judge: "

    def __init__(self, told: str, *, lasts: bool = False, folder: Path | None = None, way_on: str = "") -> None:
        super().__init__(
            f"{self.SAID}{told}; nothing was accepted and nobody accused. Have it judged where nothing else "
            f"runs, or with fewer threads (OMP_NUM_THREADS){way_on and f'; then {way_on}'}"
        )
        self.told, self.lasts, self.folder = told, lasts, folder


class ModelOut(HarnessError):
    """A model gave no reply, after all tries; the message says why and holds no key."""


class Pending(TilewrightError):
    """What was asked for has not come yet; the message says where it is awaited."""
