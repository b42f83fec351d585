"""What a history says, sorted by broker and by bundle; times in seconds from the first record on."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from loaddata.report_record import TopBundlesReport
from statechannel.core.bundle import parse_key

if TYPE_CHECKING:
    from loaddata.broker_load import BrokerLoad
    from loaddata.bundle_load import BundleStats
    from shedders.simulate.history import Told

LOST_S: Final = 1_800.0
"""A tombstone so long after the last report was written because the report had expired: the broker had died."""


class Absence(NamedTuple):
    """A broker is not there from a time on, until its next report."""

    at_s: float
    lost: bool


@dataclass
class PastBroker:
    """Reports of one broker, and its tombstones; by time."""

    at_s: list[float] = field(default_factory=list)
    loads: list[BrokerLoad] = field(default_factory=list)
    gone_s: list[float] = field(default_factory=list)

    def absences(self) -> Iterator[Absence]:
        """When it went; further tombstones of one that is gone say nothing."""
        seen = 0
        for gone_s in self.gone_s:
            count = bisect_right(self.at_s, gone_s)
            if count > seen:
                last_s = self.at_s[count - 1]
                lost = gone_s - last_s >= LOST_S
                yield Absence(last_s if lost else gone_s, lost)
                seen = count

    def back_s(self, absence: Absence) -> float | None:
        """When it reported again."""
        count = bisect_right(self.at_s, absence.at_s)
        return self.at_s[count] if count < len(self.at_s) else None

    def at(self, time_s: float) -> BrokerLoad:
        """Its newest report at a time; before the first one that."""
        return self.loads[max(0, bisect_right(self.at_s, time_s) - 1)]

    def moments(self) -> list[tuple[float, BrokerLoad | None]]:
        """Its reports, and None where it went."""
        found: list[tuple[float, BrokerLoad | None]] = [*zip(self.at_s, self.loads, strict=True)]
        found += [(one.at_s, None) for one in self.absences()]
        return sorted(found, key=lambda one: one[0])

    @property
    def fullest(self) -> BrokerLoad:
        """The newest report among those that know the most limits."""
        return max(
            reversed(self.loads),
            key=lambda one: sum(part.limit > 0 for part in (one.cpu, one.bandwidth_in, one.bandwidth_out)),
        )


@dataclass
class PastBundle:
    """What was told of one bundle: when, by which broker, and what (None: it was split).

    Attributes:
        split_off: Another one was there in its place before.
    """

    at_s: list[float] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)
    stats: list[BundleStats | None] = field(default_factory=list)
    sessions: int = 0
    split_off: bool = False

    def tell(self, at_s: float, broker: str, stats: BundleStats | None) -> None:
        """Once more."""
        self.at_s.append(at_s)
        self.brokers.append(broker)
        self.stats.append(stats)
        self.sessions = max(self.sessions, 0 if stats is None else stats.sessions)


@dataclass
class Past:
    """All of it.

    Attributes:
        brokers: Those that reported, by name, sorted.
        bundles: By key, sorted.
    """

    brokers: dict[str, PastBroker]
    bundles: dict[str, PastBundle]

    @staticmethod
    def of(told: Sequence[Told]) -> Past:
        """Out of what was told, by time."""
        brokers: dict[str, PastBroker] = defaultdict(PastBroker)
        bundles = _Bundles()
        for at_ms, name, report in told:
            at_s = (at_ms - told[0].at_ms) / 1e3
            if report is None:
                brokers[name].gone_s.append(at_s)
            elif isinstance(report, TopBundlesReport):
                for one in report.bundles:
                    bundles.tell(one.name, at_s, name, one.stats)
            else:
                brokers[name].at_s.append(at_s)
                brokers[name].loads.append(report.load)
        return Past(
            {name: one for name, one in sorted(brokers.items()) if one.loads}, dict(sorted(bundles.all.items()))
        )


class _Bundles:
    def __init__(self) -> None:
        self.all: dict[str, PastBundle] = {}
        self._live: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        self._ended: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def tell(self, key: str, at_s: float, broker: str, stats: BundleStats) -> None:
        parts = parse_key(key.encode())
        if parts is None or parts.is_namespace or parts.lower >= parts.upper:
            return
        own, live, ended = (parts.lower, parts.upper), self._live[parts.namespace], self._ended[parts.namespace]
        if key not in live:
            # Whatever overlaps it was split, and is there no more.
            for other in [other for other, its in live.items() if _overlap(own, its)]:
                self.all[other].tell(at_s, broker, None)
                ended.append(live.pop(other))
            live[key] = own
            self.all.setdefault(key, PastBundle(split_off=any(_overlap(own, its) for its in ended)))
        self.all[key].tell(at_s, broker, stats)


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]
