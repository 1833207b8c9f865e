"""The three kinds of going wrong.

Failure       a value: the candidate's fault (see facts.outcome)
TilewrightError
 ├─ UserError      the user's: one clear line, exit 2
 └─ HarnessError   ours: an exception, never scored, exit 3
     └─ SickDevice  the device can't be measured on: tried once more, then put under quarantine
"""


class TilewrightError(Exception):
    """Base of all exceptions that Tilewright raises on purpose."""


class UserError(TilewrightError):
    """What the user gave can't be used; the message is one line that names the value and the way out."""


class HarnessError(TilewrightError):
    """Tilewright itself, or the machine under it, failed; never counted against a candidate."""


class SickDevice(HarnessError):
    """The device fails or holds itself back, so that nothing measured on it can count."""
