"""Brokers whose figures cannot be what they say: `weighted-move` doubts them for a while. Pure.

A broker that has become slow does less, so its reports look idle; one that lies looks idle or full. Both show in their bundles:
all of them do less (or more) than they used to, at once, while those of other brokers do not. A broker's pulse is the median of
what its bundles do now over what they do in the long run, over the same of the whole cluster. And what was sent to a broker has
to show in its reports.

    fell        the pulse is far below what it was; nothing is sent there, and a part of its load goes elsewhere. If its use
                stays as it was it is at the end of what it can do, and that is its capacity from then on (for `WEAK_S`)
    rose        the pulse is far above; nothing goes from there, unless it is overloaded by its own word
    lies        the long-term averages of its bundles jumped, all by the same factor, which no such average can: nothing goes
                there, and nothing from there unless it is overloaded by its own word
    unmoved     what was sent did not show; nothing more is sent

A doubt ends when the pulse is back, at the latest after `DOUBT_S`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from shedders.model.cluster import Bundle
from shedders.model.readings import MOST, remembered

FELL, ROSE, LIES, UNMOVED = "fell", "rose", "lies", "unmoved"
KINDS = (FELL, ROSE, LIES, UNMOVED)

STEP = 0.15
"""A pulse this far from what it was is no noise; more, where pulses differ much."""

SPREAD = 4.5
"""So many times what pulses of brokers usually differ by."""

SAME = 0.08
"""Two factors that differ by less are the same."""

HITS = 3
"""Decisions in a row that have to see it."""

ASKED = HITS + 1
"""Hits of a broker that has given the part away by which it is tried."""

CALM = 0.1
"""What one decision counts in a broker's usual pulse: it goes along with a load that changes slowly."""

LONG_SAMPLES = 60
"""Fewer samples (5 minutes) say nothing of the long run."""

LONG_STEADY = 240
"""An average of so many samples (20 minutes) cannot jump."""

QUARTERS, TOLD_SIZES = 4, 3
"""The largest bundle, the one a quarter down, the one in the middle: which smaller ones are told changes all the time."""

BUNDLES = 4
"""Fewer bundles have no common pulse."""

DOUBT_S = 1_800.0
WEAK_S = 7_200.0

PROBED = 0.2
"""Part of its load that a broker gives away whose pulse fell; if its use falls by less than half of that, it was strained."""

RESPONSE = 0.4
"""Part of what was sent that has to show."""

TOLD = 0.03
"""Less of a broker's limit is too little to tell."""


@dataclass(slots=True)
class ReportDoubt:
    """Attributes: since when (`age_s`), how often in a row it was seen, and whether that is enough."""

    kind: str
    hits: int = 1
    age_s: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it counts."""
        return self.hits >= HITS or self.kind == UNMOVED


@dataclass(slots=True)
class Doubts:
    """What is remembered of this.

    Attributes:
        calm: A broker's usual pulse; `now`: its pulse at this decision, 1 for what it usually is.
        sizes: Long-term averages of a broker's bundles in bytes a second: the largest, and two smaller ones.
        found: Doubts by broker.
        probes: Level at which a broker was when part of it was sent away, and which part that was.
        weak: What a broker can do, in parts of what it says, with the seconds since that was found out.
        sent: Level of a broker before the last plan, what that sent there, and in how many bundles.
    """

    calm: dict[str, float] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)
    found: dict[str, ReportDoubt] = field(default_factory=dict)
    probes: dict[str, tuple[float, float]] = field(default_factory=dict)
    weak: dict[str, tuple[float, float]] = field(default_factory=dict)
    sent: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    sizes: dict[str, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def recall(cls, memory: Any, passed_s: float, present: Mapping[str, object]) -> Doubts:
        """Out of JSON; brokers that left are forgotten."""
        if not isinstance(memory, Mapping):
            return cls()
        ages, hits = remembered(memory, "age_s"), remembered(memory, "hits")
        kinds = memory.get("kinds")
        found = {
            name: ReportDoubt(kind, int(min(hits.get(name, 1.0), ASKED)), ages.get(name, 0.0) + passed_s)
            for name, kind in (kinds.items() if isinstance(kinds, Mapping) else ())
            if kind in KINDS and name in present and ages.get(name, 0.0) + passed_s <= DOUBT_S
        }
        capacity, weak_s = remembered(memory, "capacity"), remembered(memory, "weak_s")
        weak = {
            name: (part, weak_s.get(name, 0.0) + passed_s)
            for name, part in capacity.items()
            if name in present and 0 < part <= 1 and weak_s.get(name, 0.0) + passed_s <= WEAK_S
        }
        calm = {name: value for name, value in remembered(memory, "calm").items() if name in present}
        sizes = {name: some for name, some in _rows(memory, "sizes", TOLD_SIZES).items() if name in present}
        sent = {name: (row[0], row[1], row[2]) for name, row in _rows(memory, "sent", 3).items()}
        return cls(calm, {}, found, _pairs(_rows(memory, "probes", 2)), weak, sent, sizes)

    def dumped(self) -> dict[str, Any]:
        """For JSON; nothing where all is well."""
        tables: dict[str, dict[str, Any]] = {
            "age_s": {name: one.age_s for name, one in self.found.items()},
            "calm": {name: round(value, 4) for name, value in self.calm.items()},
            "capacity": {name: round(one[0], 4) for name, one in self.weak.items()},
            "hits": {name: one.hits for name, one in self.found.items()},
            "kinds": {name: one.kind for name, one in self.found.items()},
            "probes": {name: [round(value, 4) for value in one] for name, one in self.probes.items()},
            "sent": {name: [round(value, 4) for value in one] for name, one in self.sent.items()},
            "sizes": {name: [float(f"{value:.4g}") for value in one] for name, one in self.sizes.items()},
            "weak_s": {name: one[1] for name, one in self.weak.items()},
        }
        return {name: dict(sorted(table.items())) for name, table in tables.items() if table}

    def judge(self, pulses: Mapping[str, float], levels: Mapping[str, float]) -> None:
        """Take the pulses of this decision, and see what became of what was sent and given.

        Args:
            levels: Level of each broker now, in parts of its limits as it says.
        """
        self._responses(levels)
        if len(pulses) <= HITS:
            return
        middle = median(pulses.values())
        relative = {name: pulse / middle for name, pulse in pulses.items()} if middle > 0 else {}
        self.now = {name: value / self.calm.get(name, value) for name, value in relative.items() if value > 0}
        spread = median(abs(value - 1) for value in self.now.values()) if self.now else 0.0
        step = max(STEP, SPREAD * spread)
        for name, value in self.now.items():
            self._judge_one(name, value, step)
            if name not in self.found:
                self.calm[name] = (1 - CALM) * self.calm.get(name, relative[name]) + CALM * relative[name]

    def look_at(self, name: str, sizes: Sequence[float] | None, *, changed: bool) -> None:
        """Whether the long-term averages of a broker's bundles are where they were.

        Args:
            sizes: As the attribute has them; None where they are too young.
            changed: The broker has other bundles than before.
        """
        known, before = self.found.get(name), self.sizes.get(name)
        lies = known is not None and known.kind == LIES
        if sizes is None or (changed and not lies):
            self.sizes.pop(name, None)
        elif before is not None:
            factors = [now / then for now, then in zip(sizes, before, strict=True) if then > 0]
            if factors and min(abs(one - 1) for one in factors) > STEP and max(factors) / min(factors) < 1 + SAME:
                if not lies:
                    self.found[name] = ReportDoubt(LIES, HITS)
                return
            if lies:
                del self.found[name]
        if sizes is not None:
            self.sizes[name] = sizes

    def of(self, name: str) -> str | None:
        """Which doubt there is of a broker."""
        one = self.found.get(name)
        return one.kind if one is not None and one.holds else None

    def why(self, name: str) -> str:
        """What is odd about a broker, for people."""
        one = self.found[name]
        said = f"its bundles all do {self.now.get(name, 1.0):.2f} of usual"
        if one.kind in (LIES, UNMOVED):
            long = "the long-term averages of all its bundles jumped alike, which they cannot"
            said = long if one.kind == LIES else "what was sent there did not show"
        return f"{said}, for {one.age_s:.0f} s"

    def may_take(self, name: str) -> bool:
        """Whether a broker may be sent something: the first sign that it fell is enough to wait."""
        one = self.found.get(name)
        return one is None or one.kind == ROSE or (name in self.weak and one.kind == FELL)

    def to_try(self, name: str) -> bool:
        """Whether it has to be found out whether a broker is at its end."""
        one = self.found.get(name)
        return one is not None and one.kind == FELL and one.hits == HITS and name not in self.weak

    def tried(self, name: str, level: float, part: float) -> None:
        """A part of its load is sent away."""
        self.probes[name] = level, part
        self.found[name].hits = ASKED

    def _judge_one(self, name: str, value: float, step: float) -> None:
        kind = FELL if value < 1 - step else ROSE if value > 1 + step else None
        known = self.found.get(name)
        if known is None:
            if kind is not None:
                self.found[name] = ReportDoubt(kind)
        elif known.kind in (LIES, UNMOVED):
            return
        elif kind == known.kind:
            known.hits = max(known.hits, min(known.hits + 1, HITS))
        elif kind is not None:
            self.found[name] = ReportDoubt(kind)
        elif not known.holds or abs(value - 1) < step / 2:
            del self.found[name]

    def _responses(self, levels: Mapping[str, float]) -> None:
        for name, (before, part) in self.probes.items():
            if name in levels and before > 0 and before - levels[name] < before * part / 2:
                self.weak[name] = (min(1.0, levels[name]), 0.0)
        for name, (before, added, _) in self.sent.items():
            if name in levels and added >= TOLD and levels[name] - before < RESPONSE * added - TOLD:
                self.found[name] = ReportDoubt(UNMOVED)
        self.probes, self.sent = {}, {}


def pulse_of(bundles: Iterable[Bundle]) -> tuple[float | None, Sequence[float] | None]:
    """What bundles do, as a whole.

    Returns:
        Median of what they do now over what they do in the long run; long-term averages that are old enough (`Doubts.sizes`).
        None where too few are known.
    """
    ratios, sizes = [], []
    for one in bundles:  # asked of every bundle that is known, which may be a hundred thousand
        stats = one.stats
        if stats is None:
            continue
        long = one.averages.long
        samples = long.samples
        if samples >= LONG_SAMPLES:
            usual = long.msg_throughput_in + long.msg_throughput_out
            if 0.0 < usual <= MOST:
                ratio = (stats.msg_throughput_in + stats.msg_throughput_out) / usual
                if 0.0 <= ratio <= MOST:
                    ratios.append(ratio)
                    if samples >= LONG_STEADY:
                        sizes.append(usual)
    if len(ratios) < BUNDLES:
        return None, None
    ratios.sort()
    sizes.sort()
    last = len(sizes) - 1
    told = [sizes[-1 - last * part // QUARTERS] for part in range(TOLD_SIZES)] if len(sizes) >= BUNDLES else None
    return ratios[len(ratios) // 2], told


def _pairs(rows: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    return {name: (row[0], row[1]) for name, row in rows.items()}


def _rows(memory: Mapping[str, Any], key: str, count: int) -> dict[str, Sequence[float]]:
    table = memory.get(key)
    found: dict[str, Sequence[float]] = {}
    for name, row in table.items() if isinstance(table, Mapping) else ():
        if isinstance(row, list | tuple) and len(row) == count:
            one = remembered({"": {str(place): value for place, value in enumerate(row)}}, "")
            if len(one) == count:
                found[str(name)] = [one[str(place)] for place in range(count)]
    return found
