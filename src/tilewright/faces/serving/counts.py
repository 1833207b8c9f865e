"""What the server counts: requests, refusals by reason, and how long requests took; as Prometheus reads it."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass(slots=True)
class Counts:
    """Any thread may count. `refusals` by reason; requests by what came of them; times but of those that wait."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    _refusals: Counter[str] = field(default_factory=Counter)
    _times: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))
    _sum_s: float = 0.0

    def request(self, method: str, status: int, seconds: float | None) -> None:
        """`seconds` of None: it waited on purpose."""
        with self._lock:
            self._requests[method, status] += 1
            if seconds is not None:
                self._times[bisect_left(_BOUNDS_S, seconds)] += 1
                self._sum_s += seconds

    def refusal(self, reason: str) -> None:
        with self._lock:
            self._refusals[reason] += 1

    def refusals(self) -> tuple[tuple[str, int], ...]:
        with self._lock:
            return tuple(sorted(self._refusals.items()))

    def text(self, tickets: Iterable[tuple[str, int]]) -> str:
        """In Prometheus' text format, with the number of tickets by state."""
        with self._lock:
            lines = ["# TYPE tilewright_requests_total counter"]
            lines += [f'tilewright_requests_total{{method="{m}",status="{s}"}} {n}' for (m, s), n in
                      sorted(self._requests.items())]  # fmt: skip
            lines += ["# TYPE tilewright_refusals_total counter"]
            lines += [f'tilewright_refusals_total{{reason="{r}"}} {n}' for r, n in sorted(self._refusals.items())]
            lines += ["# TYPE tilewright_tickets gauge"]
            lines += [f'tilewright_tickets{{state="{state}"}} {n}' for state, n in tickets]
            lines += ["# TYPE tilewright_request_seconds histogram"]
            total = 0
            for bound, n in zip((*map(str, _BOUNDS_S), "+Inf"), self._times, strict=True):
                total += n
                lines += [f'tilewright_request_seconds_bucket{{le="{bound}"}} {total}']
            lines += [f"tilewright_request_seconds_sum {self._sum_s:.6f}", f"tilewright_request_seconds_count {total}"]
        return "\n".join(lines) + "\n"
