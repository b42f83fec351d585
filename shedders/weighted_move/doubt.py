"""Detection of implausible reports, which `weighted-move` distrusts for a while. Pure.

A broker that has become slow serves less traffic, so its reports look idle; one with false reports looks idle or full. Both show
in their bundles: the traffic of all of them falls (or rises) at once, while that of other brokers' bundles does not. A broker's
pulse is the median ratio of its bundles' present to long-term traffic, relative to that of the whole cluster. And load that was
moved to a broker has to show in its reports.

    fell        the pulse is far below its usual value; the broker gets no bundles, and a part of its load is moved away. If its
                usage does not fall, it is saturated, and that is its capacity from then on (for `WEAK_S`)
    rose        the pulse is far above; the broker gives no bundles, unless it reports itself overloaded
    lies        the long-term averages of its bundles jumped, all by the same factor, which is impossible: the broker gets no
                bundles, and gives none unless it reports itself overloaded
    unmoved     load that was moved there did not show; the broker gets no more

A doubt ends when the pulse is back, at the latest after `DOUBT_S`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from shedders.model.cluster import Bundle
from shedders.model.readings import MOST, numbers, remembered

FELL, ROSE, LIES, UNMOVED = "fell", "rose", "lies", "unmoved"
KINDS = (FELL, ROSE, LIES, UNMOVED)
STEP = 0.15  # a pulse this far from its usual value is not noise; more, if pulses differ much
SPREAD = 4.5  # multiple of the usual spread of pulses that is not noise
SAME = 0.08  # two factors that differ by less count as equal
HITS = 3  # number of decisions in a row that have to see a deviation
ASKED = HITS + 1  # hits of a broker that is being probed
CALM = 0.1  # weight of one decision in a broker's usual pulse, which follows slow changes of load
LONG_SAMPLES = 60  # fewer samples (5 minutes) are not a long-term average
LONG_STEADY = 240  # an average of this many samples (20 minutes) cannot jump
# The largest bundle, the one a quarter down, the one in the middle: the set of reported smaller ones changes all the time.
QUARTERS, SIZES_KEPT = 4, 3
BUNDLES = 4  # fewer bundles do not make a pulse
DOUBT_S = 1_800.0
WEAK_S = 7_200.0
# Part of its load that is moved away from a broker whose pulse fell; if its usage falls by less than half, it was saturated.
PROBED = 0.2
RESPONSE = 0.4  # part of the moved load that has to show
SHOWS = 0.03  # a smaller part of a broker's limit is within the error


@dataclass(slots=True)
class ReportDoubt:
    """A doubt about a broker's reports: its kind, how often in a row it was seen (`hits`), and its age."""

    kind: str
    hits: int = 1
    age_s: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it was seen often enough to count."""
        return self.hits >= HITS or self.kind == UNMOVED


@dataclass(slots=True)
class Doubts:
    """The memory of implausible reports.

    Attributes:
        calm: A broker's usual pulse; `now`: its pulse at this decision, relative to the usual one.
        sizes: Long-term averages of a broker's bundles in bytes a second: the largest, and two smaller ones.
        doubts: Doubts by broker.
        probes: Level of a broker before a part of its load was moved away, and that part.
        weak: Capacity of a broker, as a part of the reported one, with the seconds since it was measured.
        sent: Level of a broker before the last plan, the load that the plan moved there, and the number of bundles.
    """

    calm: dict[str, float] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)
    doubts: dict[str, ReportDoubt] = field(default_factory=dict)
    probes: dict[str, tuple[float, float]] = field(default_factory=dict)
    weak: dict[str, tuple[float, float]] = field(default_factory=dict)
    sent: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    sizes: dict[str, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def recall(cls, memory: Any, passed_s: float, present: Mapping[str, object]) -> Doubts:
        """The memory from JSON; brokers that left are dropped."""
        if not isinstance(memory, Mapping):
            return cls()
        ages, hits = remembered(memory, "age_s"), remembered(memory, "hits")
        kinds = memory.get("kinds")
        doubts = {
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
        sizes = {name: row for name, row in _rows(memory, "sizes", SIZES_KEPT).items() if name in present}
        sent = {name: (row[0], row[1], row[2]) for name, row in _rows(memory, "sent", 3).items()}
        return cls(calm, {}, doubts, _pairs(_rows(memory, "probes", 2)), weak, sent, sizes)

    def dumped(self) -> dict[str, Any]:
        """For JSON; empty if there are no doubts."""
        tables: dict[str, dict[str, Any]] = {
            "age_s": {name: doubt.age_s for name, doubt in self.doubts.items()},
            "calm": {name: round(value, 4) for name, value in self.calm.items()},
            "capacity": {name: round(capacity, 4) for name, (capacity, _) in self.weak.items()},
            "hits": {name: doubt.hits for name, doubt in self.doubts.items()},
            "kinds": {name: doubt.kind for name, doubt in self.doubts.items()},
            "probes": {name: [round(value, 4) for value in probe] for name, probe in self.probes.items()},
            "sent": {name: [round(value, 4) for value in row] for name, row in self.sent.items()},
            "sizes": {name: [float(f"{value:.4g}") for value in row] for name, row in self.sizes.items()},
            "weak_s": {name: age_s for name, (_, age_s) in self.weak.items()},
        }
        return {name: dict(sorted(table.items())) for name, table in tables.items() if table}

    def judge(self, pulses: Mapping[str, float], levels: Mapping[str, float]) -> None:
        """Judge the pulses of this decision, and the responses to load that was moved.

        Args:
            levels: Present level of each broker, as a part of its reported limits.
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
            if name not in self.doubts:
                self.calm[name] = (1 - CALM) * self.calm.get(name, relative[name]) + CALM * relative[name]

    def look_at(self, name: str, sizes: Sequence[float] | None, *, changed: bool) -> None:
        """Check whether the long-term averages of a broker's bundles jumped.

        Args:
            sizes: As in the attribute; None if they are too young.
            changed: The broker has other bundles than before.
        """
        known, before = self.doubts.get(name), self.sizes.get(name)
        lies = known is not None and known.kind == LIES
        if sizes is None or (changed and not lies):
            self.sizes.pop(name, None)
        elif before is not None:
            factors = [now / then for now, then in zip(sizes, before, strict=True) if then > 0]
            if factors and min(abs(factor - 1) for factor in factors) > STEP and max(factors) / min(factors) < 1 + SAME:
                if not lies:
                    self.doubts[name] = ReportDoubt(LIES, HITS)
                return
            if lies:
                del self.doubts[name]
        if sizes is not None:
            self.sizes[name] = sizes

    def of(self, name: str) -> str | None:
        """The kind of doubt about a broker; None without one."""
        doubt = self.doubts.get(name)
        return doubt.kind if doubt is not None and doubt.holds else None

    def why(self, name: str) -> str:
        """A sentence on what is implausible about a broker."""
        doubt = self.doubts[name]
        sentence = f"the traffic of all its bundles is {self.now.get(name, 1.0):.2f} of the usual"
        if doubt.kind in (LIES, UNMOVED):
            jumped = "the long-term averages of all its bundles jumped alike, which is impossible"
            sentence = jumped if doubt.kind == LIES else "load that was moved there did not show"
        return f"{sentence}, for {doubt.age_s:.0f} s"

    def may_take(self, name: str) -> bool:
        """Whether a broker may get bundles: the first sign that its pulse fell is enough to wait."""
        doubt = self.doubts.get(name)
        return doubt is None or doubt.kind == ROSE or (name in self.weak and doubt.kind == FELL)

    def to_try(self, name: str) -> bool:
        """Whether a broker has to be probed for saturation."""
        doubt = self.doubts.get(name)
        return doubt is not None and doubt.kind == FELL and doubt.hits == HITS and name not in self.weak

    def tried(self, name: str, level: float, part: float) -> None:
        """Record that a part of its load is moved away."""
        self.probes[name] = level, part
        self.doubts[name].hits = ASKED

    def _judge_one(self, name: str, value: float, step: float) -> None:
        kind = FELL if value < 1 - step else ROSE if value > 1 + step else None
        known = self.doubts.get(name)
        if known is None:
            if kind is not None:
                self.doubts[name] = ReportDoubt(kind)
        elif known.kind in (LIES, UNMOVED):
            return
        elif kind == known.kind:
            known.hits = max(known.hits, min(known.hits + 1, HITS))
        elif kind is not None:
            self.doubts[name] = ReportDoubt(kind)
        elif not known.holds or abs(value - 1) < step / 2:
            del self.doubts[name]

    def _responses(self, levels: Mapping[str, float]) -> None:
        for name, (before, part) in self.probes.items():
            if name in levels and before > 0 and before - levels[name] < before * part / 2:
                self.weak[name] = (min(1.0, levels[name]), 0.0)
        for name, (before, added, _) in self.sent.items():
            if name in levels and added >= SHOWS and levels[name] - before < RESPONSE * added - SHOWS:
                self.doubts[name] = ReportDoubt(UNMOVED)
        self.probes, self.sent = {}, {}


def pulse_of(bundles: Iterable[Bundle]) -> tuple[float | None, Sequence[float] | None]:
    """The pulse of a broker's bundles.

    Returns:
        Median ratio of present to long-term traffic; long-term averages that are old enough (`Doubts.sizes`).
        None if too few are known.
    """
    ratios, sizes = [], []
    for bundle in bundles:  # runs for every known bundle, which may be a hundred thousand
        stats = bundle.stats
        if stats is None:
            continue
        long = bundle.averages.long
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
    steady = [sizes[-1 - last * part // QUARTERS] for part in range(SIZES_KEPT)] if len(sizes) >= BUNDLES else None
    return ratios[len(ratios) // 2], steady


def _pairs(rows: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    return {name: (row[0], row[1]) for name, row in rows.items()}


def _rows(memory: Mapping[str, Any], key: str, count: int) -> dict[str, Sequence[float]]:
    table = memory.get(key)
    rows = table.items() if isinstance(table, Mapping) else ()
    return {str(name): values for name, row in rows if (values := numbers(row, count)) is not None}
