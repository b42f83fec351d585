"""What holds a drain back: a rate, and receivers whose reports do not count yet what they were given. Pure; times are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shedders.cluster import Broker


class TokenBucket:
    """A rate limit: over any time T at most `rate_per_s` x T + `burst`.

    Args:
        burst: What may be saved up; at least one, or nothing would ever come through.
    """

    def __init__(self, rate_per_s: float, burst: float = 1.0) -> None:
        if not rate_per_s > 0:
            raise ValueError("a rate is more than 0")
        self.rate_per_s = rate_per_s
        self._burst = max(1.0, burst)
        self._tokens = self._burst
        self._at_s: float | None = None

    def available(self, now_s: float) -> int:
        """So many may go now."""
        if self._at_s is not None:
            self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self.rate_per_s)
        self._at_s = now_s if self._at_s is None else max(self._at_s, now_s)
        return int(self._tokens + 1e-9)

    def take(self, count: int) -> None:
        """So many go; no more than were available."""
        self._tokens = max(0.0, self._tokens - count)

    def wait_s(self) -> float:
        """Time until one may go, from when `available` was asked last."""
        return max(0.0, 1.0 - self._tokens) / self.rate_per_s


class Receivers:
    """What each broker was given and its report does not count yet; one for all drains of a leader.

    Args:
        ahead_max: So many a broker is given ahead of its report.
        report_wait_s: A report that does not come within this is waited for no longer.

    Attributes:
        in_vain: Bundles whose receiver did not report in time.
    """

    def __init__(self, ahead_max: int, report_wait_s: float) -> None:
        self._ahead_max = ahead_max
        self._report_wait_s = report_wait_s
        self._given: dict[str, dict[str, float | None]] = {}
        self.in_vain = 0

    def begun(self, broker: str, bundle: str) -> None:
        """A bundle sets out for a broker."""
        self._given.setdefault(broker, {})[bundle] = None

    def ended(self, broker: str, bundle: str, now_s: float, *, arrived: bool) -> None:
        """Its move has ended."""
        if arrived:
            self._given.setdefault(broker, {})[bundle] = now_s
        else:
            self._given.get(broker, {}).pop(bundle, None)

    def look(self, brokers: Mapping[str, Broker], now_s: float) -> None:
        """Take the reports in: one that has not lapsed counts everything that has arrived."""
        for name, given in list(self._given.items()):
            broker = brokers.get(name)
            counted = broker is not None and broker.load is not None and not broker.load_lapsed
            for bundle, arrived_s in list(given.items()):
                if arrived_s is None:
                    continue
                late = now_s - arrived_s >= self._report_wait_s
                if counted or late or broker is None:
                    del given[bundle]
                    self.in_vain += late and not counted and broker is not None
            if not given:
                del self._given[name]

    def room(self, broker: str) -> int:
        """So many more it may be given now."""
        return max(0, self._ahead_max - len(self._given.get(broker, ())))

    @property
    def booked(self) -> dict[str, list[str]]:
        """By broker, what its report does not count yet: filters and placement reckon with it."""
        return {name: sorted(given) for name, given in sorted(self._given.items())}
