"""Memory of `weighted-move` from one decision to the next: the history of each broker, and the moves of former plans. Pure.

It is stored as JSON and may come from anywhere: invalid entries are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from math import sqrt
from typing import Any

from shedders.model.cluster import Bundle
from shedders.model.readings import numbers, remembered
from shedders.weighted_move.bursts import Bursts
from shedders.weighted_move.direct_memory import MemoryEvidence
from shedders.weighted_move.doubt import Doubts
from shedders.weighted_move.habits import Habits
from shedders.weighted_move.loads import Use
from statechannel.protocol.bundle import parse_key

SMOOTHED = 3  # a broker's use is the mean of up to this many of its last readings; fewer after a move
NOISE = 0.04  # prior for the noise of a new broker, in parts of its level: that of ordinary traffic
NOISE_WEIGHT = 4  # weight of the prior, in readings
NOISE_WINDOW = 20  # number of readings over which noise is measured
NEWS = 0.2  # a level that changed by at least this part is new: hits of the old one do not count for it
JUMP = 4.0  # a reading this many standard deviations off is not noise
USUAL_S = 900.0  # a level that has lasted for this time is the usual one: three times a burst
# If the number of a broker's bundles changes by more than this part, its load is a new one; splits change less.
PLACED = 0.1
GAP_MAX_S = 600.0  # longest interval between two decisions from which something can be concluded
CAME_MAX = 1_000  # moved bundles that are remembered
SOURCES_MAX = 12  # former brokers of each
SOURCES_MIN = 4  # of each of `CAME_MAX` bundles; where fewer have moved, more of each, together at most as many
MISSED = 0.1  # if more than this part of a plan was not carried out, its effect is not judged
_SPREAD = 0.8862  # standard deviation of a reading in parts of the mean distance between two of them (sqrt(pi) / 2)
_DIGITS = 4
_FIELDS = 15
_FORMER_FIELDS = 14  # without direct memory


@dataclass(slots=True)
class BrokerHistory:
    """The history of one broker.

    Attributes:
        count: Readings since bundles came or went, at most `SMOOTHED`.
        use: Their mean.
        last: Its level at the last reading, in parts of a limit.
        noise: Mean distance between two readings, over `noted` of them.
        mean: Mean level of the readings that are in `use`.
        usual: Its level over the last quarter of an hour before it deviated, in parts of a limit.
        bundles: Number of its bundles at the last reading.
        over, under: Hits in a row, with the seconds since the first.
    """

    count: int = 0
    use: Use = (0.0, 0.0, 0.0, 0.0)
    last: float = 0.0
    noise: float = 0.0
    noted: int = 0
    mean: float = 0.0
    usual: float = 0.0
    bundles: int = 0
    over: tuple[int, float] = (0, 0.0)
    under: tuple[int, float] = (0, 0.0)

    def read(self, use: Use, level: float, bundles: int, *, moved: bool, passed_s: float) -> None:
        """Add a reading. The same as before is the same report: it counts, but not for the noise.

        The mean restarts after bundles came or went, and with a reading that is too far off for noise; if it is very far off,
        hits are reset as well.

        Args:
            moved: Whether bundles came or went.
        """
        more = abs(bundles - self.bundles)
        if moved or more > max(1, self.bundles * PLACED):
            self.count = 0
        self.bundles = bundles
        news = False
        if not self.count:
            self.usual = level
        elif level != self.last:
            jump = abs(level - self.last)
            if abs(level - self.mean) > JUMP * self.deviation(self.mean):
                self.count = 0
                news = abs(level - self.mean) > NEWS * self.mean
            self.noted = min(self.noted + 1, NOISE_WINDOW)
            self.noise += (min(jump, JUMP * NOISE * level) - self.noise) / self.noted
        if not (self.over[0] or self.under[0] or news):
            self.usual += (level - self.usual) * min(1.0, passed_s / USUAL_S)
        if news:
            self.over = self.under = (0, 0.0)
        self.last = level
        self.count = min(self.count + 1, SMOOTHED)
        old = self.use
        self.use = (
            old[0] + (use[0] - old[0]) / self.count,
            old[1] + (use[1] - old[1]) / self.count,
            old[2] + (use[2] - old[2]) / self.count,
            old[3] + (use[3] - old[3]) / self.count,
        )
        self.mean += (level - self.mean) / self.count

    def steady(self, hits: int) -> float:
        """The part of its use that is not new: all of it once it has lasted for `hits` hits."""
        if self.over[0] >= hits or not self.usual < self.mean * (1 - NEWS / 2):
            return 1.0
        return self.usual / self.mean

    def deviation(self, level: float) -> float:
        """Standard deviation of `use`, in parts of a limit: the measured one combined with the prior."""
        single = (self.noted * self.noise * _SPREAD + NOISE_WEIGHT * NOISE * level) / (self.noted + NOISE_WEIGHT)
        return single / sqrt(max(1, self.count))

    def hit(self, *, above: bool, below: bool, passed_s: float) -> None:
        """Count a hit above or below, or reset the count."""
        self.over = _one_more(self.over, passed_s) if above else (0, 0.0)
        self.under = _one_more(self.under, passed_s) if below else (0, 0.0)

    def dumped(self) -> list[float]:
        averages = (self.mean, self.usual)
        row = (
            self.count,
            *self.use,
            self.last,
            self.noise,
            self.noted,
            *averages,
            self.bundles,
            *self.over,
            *self.under,
        )
        return [value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}") for value in row]


def _one_more(hits: tuple[int, float], passed_s: float) -> tuple[int, float]:
    count, since_s = hits
    return min(count + 1, 1_000), since_s + passed_s if count else 0.0


def watched(row: Any) -> BrokerHistory | None:
    """A history from JSON; None if it is not a row of `BrokerHistory.dumped`."""
    values = numbers(row, _FIELDS)
    if values is None:
        former = numbers(row, _FORMER_FIELDS)
        if former is None:
            return None
        values = [*former[:4], 0.0, *former[4:]]
    count, cpu, inwards, outwards, cached, last, noise, noted, mean, usual, bundles, over, over_s, under, under_s = (
        values
    )
    return BrokerHistory(
        min(int(count), SMOOTHED),
        (cpu, inwards, outwards, cached),
        last,
        noise,
        min(int(noted), NOISE_WINDOW),
        mean,
        usual,
        int(min(bundles, 1e9)),
        (min(int(over), 1_000), over_s),
        (min(int(under), 1_000), under_s),
    )


@dataclass(slots=True)
class Memory:
    """The whole memory.

    Attributes:
        at_ms: When the last decision was made.
        passed_s: Seconds since then; `known_s`: for how long all moves are remembered, at most `keep_s`.
        watched: History by broker.
        came: By bundle, its former brokers, with the seconds since.
        touched: Brokers of the last plan, with the changes of their levels; `large`: it moved so much that it may have to be
            completed.
        doubts: Brokers with implausible reports.
        habits: What the largest bundles usually do.
        direct_memory: What is known of it.
        bursts: How long levels that rose last.
        asked: By bundle of which a split was requested, its bytes a second and the seconds since.
    """

    at_ms: int = 0
    passed_s: float = 0.0
    known_s: float = 0.0
    watched: dict[str, BrokerHistory] = field(default_factory=dict)
    came: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    touched: dict[str, float] = field(default_factory=dict)
    large: bool = False
    asked: dict[str, tuple[float, float]] = field(default_factory=dict)
    doubts: Doubts = field(default_factory=Doubts)
    habits: Habits = field(default_factory=Habits)
    direct_memory: MemoryEvidence = field(default_factory=MemoryEvidence)
    bursts: Bursts = field(default_factory=Bursts)
    _gone: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)
    _former: dict[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def recall(
        cls, memory: Mapping[str, Any], now_ms: int, grace_s: float, present: Mapping[str, object], keep_s: float
    ) -> Memory:
        """The memory from JSON.

        Args:
            grace_s: Time within which a moved bundle stays where it is.
            present: Brokers; others are dropped.
            keep_s: Older moves are dropped; of more than `CAME_MAX` bundles the oldest, of many bundles the first of each.
        """
        at_ms = memory.get("at_ms")
        known = type(at_ms) is int and 0 <= at_ms <= now_ms
        passed_s = min(GAP_MAX_S, (now_ms - at_ms) / 1000) if known and at_ms is not None else 0.0
        known_s = (numbers([memory.get("known_s")], 1) or [0.0])[0]
        return cls(
            now_ms,
            passed_s,
            min(grace_s, known_s + passed_s),
            {
                name: history
                for name, row in _table(memory.get("watched"))
                if (history := watched(row)) is not None and name in present
            },
            _newest({name: rows for name, row in _table(memory.get("came")) if (rows := _came(row, passed_s, keep_s))}),
            remembered(memory, "touched"),
            memory.get("large") is True,
            {
                name: (pair[0], pair[1] + passed_s)
                for name, row in _table(memory.get("asked"))
                if (pair := numbers(row, 2)) is not None and pair[1] + passed_s <= grace_s
            },
            Doubts.recall(memory.get("doubts"), passed_s, present),
            Habits.recall(memory.get("habits"), passed_s),
            MemoryEvidence.recall(memory.get("direct_memory"), passed_s, present),
            Bursts.recall(memory.get("bursts"), passed_s, present),
        )

    def dumped(self) -> dict[str, Any]:
        known, bursts = self.direct_memory.dumped(), self.bursts.dumped()
        return {
            "asked": {name: list(self.asked[name]) for name in sorted(self.asked)},
            "at_ms": self.at_ms,
            "came": {name: [list(source) for source in self.came[name]] for name in sorted(self.came)},
            "doubts": self.doubts.dumped(),
            "habits": self.habits.dumped(),
            "known_s": self.known_s,
            "large": self.large,
            "touched": {name: float(f"{self.touched[name]:.3g}") for name in sorted(self.touched)},
            "watched": {name: self.watched[name].dumped() for name in sorted(self.watched)},
        } | {name: value for name, value in (("bursts", bursts), ("direct_memory", known)) if value}

    def settle(self, bundles: Mapping[str, Bundle], recent: Mapping[str, float]) -> None:
        """Compare the last plan with the cluster: moves that were not made are dropped, so that their brokers are still relieved.

        A move of an older plan that has failed since (it was refused, or has expired) is dropped as well.
        Changes `came`, and empties `touched` if much of the plan was not carried out.

        Args:
            recent: Seconds since bundles came to their brokers.
        """
        planned = missed = 0
        there: Counter[str | None] = Counter()
        for name in list(self.came):
            source, age_s = self.came[name][-1]
            bundle = bundles.get(name)
            parts = parse_key(name.encode()) if bundle is None else None
            if parts is not None:
                self._gone.setdefault(parts.namespace, []).append((parts.lower, parts.upper, name))
            still = bundle is not None and bundle.owner == source and not bundle.in_flight
            newest = age_s <= self.passed_s and bool(self.touched)
            planned += newest
            if newest and bundle is not None:
                there[bundle.owner] += 1
            # A bundle that came back was moved nevertheless.
            if still and (newest or recent.get(name, age_s) >= age_s):
                missed += newest
                self.came[name].pop()
                if not self.came[name]:
                    del self.came[name]
        if missed > planned * MISSED or self.passed_s >= GAP_MAX_S:
            self.touched = {}
            self.doubts.sent = {}
            self.direct_memory.sent = {}
        if missed or self.passed_s >= GAP_MAX_S:
            self.doubts.taken, self.doubts.probes = {}, {}
        # Bundles that went elsewhere (by a placement's choice) or have not arrived cannot show.
        self.doubts.sent = {name: row for name, row in self.doubts.sent.items() if there[name] >= row[2]}

    def moved(self, bundle: str, age_s: float | None, grace_s: float) -> bool:
        """Whether a bundle was moved by this strategy recently, or may have been before the memory began.

        Args:
            age_s: Seconds since it came to its broker; None: long ago.
            grace_s: How long ago is recently.
        """
        came = self.came.get(bundle)
        return (came is not None and came[-1][1] <= grace_s) or (age_s is not None and age_s > self.known_s)

    def former_brokers(self, bundle: str) -> Mapping[str, float]:
        """Brokers that a bundle, or one that it was split from, has left, with the seconds since; not those of long ago."""
        if bundle not in self._former:
            self._former[bundle] = self._left_by(bundle)
        return self._former[bundle]

    def _left_by(self, bundle: str) -> Mapping[str, float]:
        rows = list(self.came.get(bundle, ()))
        space = bundle.rpartition("/")[0] if self._gone else ""
        around = self._gone.get(space, ())
        parts = parse_key(bundle.encode()) if around else None
        for lower, upper, parent in around:
            if parts is not None and lower <= parts.lower and parts.upper <= upper:
                rows += self.came[parent]
        former: dict[str, float] = {}
        for name, age_s in rows:
            former[name] = min(age_s, former.get(name, age_s))
        return former


def _newest(came: dict[str, list[tuple[str, float]]]) -> dict[str, list[tuple[str, float]]]:
    kept: Iterable[str] = came
    if len(came) > CAME_MAX:
        kept = sorted(nsmallest(CAME_MAX, came, key=lambda name: (came[name][-1][1], name)))
    most = min(SOURCES_MAX, SOURCES_MIN * CAME_MAX // max(1, min(CAME_MAX, len(came))))
    return {name: came[name][-most:] for name in kept}


def _came(rows: Any, passed_s: float, keep_s: float) -> list[tuple[str, float]]:
    sources = []
    for row in rows if isinstance(rows, list | tuple) else ():
        if isinstance(row, list | tuple) and len(row) == 2 and isinstance(row[0], str):  # noqa: PLR2004 - a pair
            age = numbers(row[1:], 1)
            if age is not None and age[0] + passed_s <= keep_s:
                sources.append((row[0], age[0] + passed_s))
    return sources


def _table(table: Any) -> Iterable[tuple[str, Any]]:
    return [(name, row) for name, row in table.items() if isinstance(name, str)] if isinstance(table, Mapping) else ()
