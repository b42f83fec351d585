"""Detection of implausible reports, which `weighted-move` distrusts for a while. Pure.

A broker that has become slow serves less traffic, so its reports look idle; one with false reports looks idle or full. Both show
in their bundles: the traffic of all of them falls (or rises) at once, while that of other brokers' bundles does not. A broker's
pulse is the median ratio of its bundles' present to long-term traffic, relative to that of the whole cluster. And load that was
moved to a broker has to show in its reports.

    fell        the pulse is far below its usual value; the broker gets no bundles, and a part of its load is moved away. If its
                usage does not fall, it is saturated
    rose        the pulse is far above; the broker gives no bundles, unless it reports itself overloaded
    lies        the long-term averages of its bundles jumped, all by the same factor, which is impossible: the broker gets no
                bundles, and gives none unless it reports itself overloaded
    unmoved     load that was moved there did not show; the broker gets no more
    capped      its usage stays at its peak (`BrokerLoad.peak_share`), below its limits, while that of other brokers varies; it
                gets no bundles, and a part of its load is moved away. If its usage does not fall, or if it falls and later stays
                at the same peak again, it is saturated: it was asked for a little more than it can do

A doubt ends when the pulse is back, at the latest after `DOUBT_S`. A broker that reports itself overloaded may serve less than
it is asked, for a known reason: it is not doubted for its pulse, and not found slow.

What was found out stays, as time repairs no broker:

- A broker whose figures are a part of the truth, by what arrives there and leaves it (`shedders.weighted_move.arrivals`),
  counts with corrected figures, until other bundles show another factor.
- A broker is slow if its usage did not follow: it did not fall when load went, or rise when load came, while its bundles'
  traffic shrank. The usage that it had is its capacity: of all resources, as it does not show which of them limits it, but of
  those that it has used beyond. If load that is moved there later does not show, its usage then is its capacity.
  After `RETRY_S` it is filled to `TRIED` of that, for `TRY_S`: if its usage follows, that is its capacity, and the next step
  comes soon; if not, it is relieved again, and the next try takes twice as long to come. Once a step has brought it to the
  cluster's level, or when it leaves, it counts as any other broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from shedders.model.cluster import Bundle
from shedders.model.readings import MOST, numbers, remembered
from shedders.weighted_move.arrivals import Arrivals
from shedders.weighted_move.loads import OVERLOADED, RESOURCES, is_full
from shedders.weighted_move.slow_broker import FULL, LEAST_SERVED, TRIED, SlowBroker

FELL, ROSE, LIES, UNMOVED, CAPPED = "fell", "rose", "lies", "unmoved", "capped"
KINDS = (FELL, ROSE, LIES, UNMOVED, CAPPED)
STEP = 0.15  # a pulse this far from its usual value is not noise; more, if pulses differ much
SPREAD = 4.5  # multiple of the usual spread of pulses that is not noise
SAME = 0.08  # two factors that differ by less count as equal
HITS = 3  # number of decisions in a row that have to see a deviation
ASKED = HITS + 1  # hits of a broker that is being probed
PAUSED = ASKED + 1  # of one whose probe was not answered: it is believed until the doubt is forgotten
CALM = 0.1  # weight of one decision in a broker's usual pulse, which follows slow changes of load
LONG_SAMPLES = 60  # fewer samples (5 minutes) are not a long-term average
LONG_STEADY = 240  # an average of this many samples (20 minutes) cannot jump
# The largest bundle, the one a quarter down, the one in the middle: the set of reported smaller ones changes all the time.
QUARTERS, SIZES_KEPT = 4, 3
BUNDLES = 4  # fewer bundles do not make a pulse
DOUBT_S = 1_800.0
SUMS_S = 1_200.0  # time over which small moves to a broker are added up
PEAK_S = 28_800.0  # time over which a broker's highest level fades
STUCK = 0.5  # part of the moved load, as the broker would report it, below which its usage did not follow
PROBED = 0.2  # part of its load that is moved away from a doubted broker, to see whether its usage falls
RESPONSE = 0.4  # part of the moved load that has to show
AT_PEAK = 0.9  # part of the samples that are at the peak of a broker that something limits
VARIES = 0.4  # where more than this part of most brokers' samples are at their peaks, load does not vary, and peaks show nothing
ABOUT = 0.01  # two levels that differ by less count as equal
SAME_CEILING = 0.005  # two peaks that differ by less have the same cause
CEILING_S = 21_600.0  # time for which the level of a broker that was probed as capped is remembered
CAPPED_SERVED = 0.95  # what such a broker is assumed to serve of what it is asked
SHOWS = 0.03  # a smaller part of a broker's limit is within the error
PROBES_S = 300.0  # time from the first sign on in which a probe is repeated: once or twice, as each takes load away
STAYS = 0.06  # usage that falls by less than this part has stayed, where the pulse has stayed low
RISEN = 0.03  # if usage rises by more than this part while load is moved away, other load has come
SERVES_ALL = 0.95  # with a pulse from here on, a broker serves what it is asked


@dataclass(slots=True)
class ReportDoubt:
    """A doubt about a broker's reports: its kind, how often in a row it was seen (`hits`), and its age."""

    kind: str
    hits: int = 1
    age_s: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether it was seen often enough to count."""
        return (self.hits >= HITS or self.kind == UNMOVED) and self.hits < PAUSED


class Peak(NamedTuple):
    """The peak in a broker's report.

    Attributes:
        usage, share: `BrokerLoad.peak_usage`, `BrokerLoad.peak_share`.
        present: The present usage of the same resources.
    """

    usage: float
    share: float
    present: float


NO_PEAKS: Mapping[str, Peak] = MappingProxyType({})
NO_USAGES: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)
class Doubts:
    """The memory of implausible reports.

    Attributes:
        calm: A broker's usual pulse; `now`: its pulse at this decision, relative to the usual one.
        sizes: Long-term averages of a broker's bundles in bytes a second: the largest, and two smaller ones.
        doubts: Doubts by broker.
        probes: Level of a broker before a part of its load was moved away, and that part.
        slow: Brokers that can do less than they report.
        arrivals: Moved bundles, and brokers whose figures are a part of the truth.
        sent: Level of a broker before the last plan, the load that the plan moved there, and the number of bundles.
        taken: The same of load that the plan moved away.
        peaks: Highest level of a broker, fading: at a lower one it is not at its end.
        ceilings: Level of a broker before it was probed as capped, and the seconds since.
        usages: Usage of each broker's most used resource at this decision, without weights.
        sums: Level of a broker before several plans, the load that they moved there, and the seconds since the first.
    """

    calm: dict[str, float] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)
    doubts: dict[str, ReportDoubt] = field(default_factory=dict)
    probes: dict[str, tuple[float, float]] = field(default_factory=dict)
    slow: dict[str, SlowBroker] = field(default_factory=dict)
    arrivals: Arrivals = field(default_factory=Arrivals)
    taken: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    sums: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    sent: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    sizes: dict[str, Sequence[float]] = field(default_factory=dict)
    ceilings: dict[str, tuple[float, float]] = field(default_factory=dict)
    usages: dict[str, float] = field(default_factory=dict)

    @classmethod
    def recall(cls, memory: Any, passed_s: float, present: Mapping[str, object]) -> Doubts:
        """The memory from JSON; brokers that left are dropped."""
        if not isinstance(memory, Mapping):
            return cls()
        ages, hits = remembered(memory, "age_s"), remembered(memory, "hits")
        kinds = memory.get("kinds")
        doubts = {
            name: ReportDoubt(kind, int(min(hits.get(name, 1.0), PAUSED)), ages.get(name, 0.0) + passed_s)
            for name, kind in (kinds.items() if isinstance(kinds, Mapping) else ())
            if kind in KINDS and name in present and ages.get(name, 0.0) + passed_s <= DOUBT_S
        }
        rows = memory.get("slow")
        slow = {
            str(name): broker
            for name, row in (rows.items() if isinstance(rows, Mapping) else ())
            if name in present and (broker := SlowBroker.recall(row, passed_s)) is not None
        }
        calm = {name: value for name, value in remembered(memory, "calm").items() if name in present and value > 0}
        sizes = {name: row for name, row in _rows(memory, "sizes", SIZES_KEPT).items() if name in present}
        return cls(
            calm,
            {},
            doubts,
            _pairs(_rows(memory, "probes", 2)),
            slow,
            Arrivals.recall(memory.get("arrivals"), passed_s, present),
            _triples(_rows(memory, "taken", 3)),
            {
                name: value * exp(-passed_s / PEAK_S)
                for name, value in remembered(memory, "peaks").items()
                if name in present
            },
            {
                name: (before, added, age_s + passed_s)
                for name, (before, added, age_s) in _triples(_rows(memory, "sums", 3)).items()
                if age_s + passed_s <= SUMS_S and name in present
            },
            _triples(_rows(memory, "sent", 3)),
            sizes,
            {
                name: (level, age_s + passed_s)
                for name, (level, age_s) in _pairs(_rows(memory, "ceilings", 2)).items()
                if age_s + passed_s <= CEILING_S and name in present and level > 0
            },
        )

    def dumped(self) -> dict[str, Any]:
        """For JSON; empty if there are no doubts."""
        tables: dict[str, dict[str, Any]] = {
            "age_s": {name: doubt.age_s for name, doubt in self.doubts.items()},
            "ceilings": {name: [round(level, 4), round(age_s, 1)] for name, (level, age_s) in self.ceilings.items()},
            "calm": {name: float(f"{value:.4g}") for name, value in self.calm.items()},
            "hits": {name: doubt.hits for name, doubt in self.doubts.items()},
            "kinds": {name: doubt.kind for name, doubt in self.doubts.items()},
            "peaks": {name: round(value, 4) for name, value in self.peaks.items()},
            "probes": {name: [round(value, 4) for value in probe] for name, probe in self.probes.items()},
            "sent": {name: [round(value, 4) for value in row] for name, row in self.sent.items()},
            "slow": {name: broker.dumped() for name, broker in self.slow.items()},
            "sums": {name: [round(value, 4) for value in row] for name, row in self.sums.items()},
            "taken": {name: [round(value, 4) for value in row] for name, row in self.taken.items()},
            "sizes": {name: [float(f"{value:.4g}") for value in row] for name, row in self.sizes.items()},
        }
        arrivals = self.arrivals.dumped()
        return {name: dict(sorted(table.items())) for name, table in tables.items() if table} | (
            {"arrivals": arrivals} if arrivals else {}
        )

    def judge(
        self,
        pulses: Mapping[str, float],
        levels: Mapping[str, Sequence[float]],
        peaks: Mapping[str, Peak] = NO_PEAKS,
        usages: Mapping[str, float] = NO_USAGES,
    ) -> None:
        """Judge the pulses of this decision, the responses to load that was moved, and the peaks.

        Args:
            levels: Present usage of each broker's resources, as parts of its reported limits.
            peaks: Of each broker's report.
            usages: Usage of each broker's most used resource, in parts of its limit without weights; by default that of `levels`.
        """
        self.usages = {name: usages.get(name, max(each)) for name, each in levels.items()}
        middle = median(pulses.values()) if len(pulses) > HITS else 0.0
        relative = {name: pulse / middle for name, pulse in pulses.items()} if middle > 0 else {}
        self.now = {name: value / self.calm.get(name, value) for name, value in relative.items() if value > 0}
        self._responses(levels)
        self._find_capped(levels, peaks)
        for name in self.slow.keys() & levels.keys():
            self.slow[name].watch(levels[name][self.slow[name].resource], levels[name])
        spread = median(abs(value - 1) for value in self.now.values()) if self.now else 0.0
        step = max(STEP, SPREAD * spread)
        for name, value in self.now.items():
            overloaded = self.usages.get(name, 0.0) > OVERLOADED
            self._judge_one(name, value, step, overloaded=overloaded)
            if name not in self.doubts and not overloaded:
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
        if doubt.kind == CAPPED:
            return f"its usage has stayed at its peak for {doubt.age_s:.0f} s, while that of other brokers varies: it may be full"
        if doubt.kind in (LIES, UNMOVED):
            jumped = "the long-term averages of all its bundles jumped alike, which is impossible"
            sentence = jumped if doubt.kind == LIES else "load that was moved there did not show"
        return f"{sentence}, for {doubt.age_s:.0f} s"

    def why_corrected(self, name: str) -> str:
        """A sentence on a broker whose figures are a part of the truth."""
        factor = self.arrivals.factors[name]
        does = "shrinks" if factor < 1 else "grows"
        back = "grows" if factor < 1 else "shrinks"
        return (
            f"its figures are {factor:.2f} of the truth, and are corrected by that: the traffic of bundles that come there "
            f"{does} to {factor:.2f}, and {back} again where they go"
        )

    def why_slow(self, name: str) -> str:
        """A sentence on a slow broker."""
        slow = self.slow[name]
        then = (
            f"it is being filled to {min(1.0, TRIED * slow.capacity) * 100:.0f} % to see whether it can do more"
            if slow.trying
            else f"more will be tried in {max(0.0, slow.retry_s - slow.waited_s):.0f} s"
        )
        can = f"it can use {slow.capacity * 100:.0f} % of its {RESOURCES[slow.resource]}"
        return f"{can}: with more load its usage stays there; {then}"

    def may_take(self, name: str) -> bool:
        """Whether a broker may get bundles: the first sign that its pulse fell is enough to wait."""
        doubt = self.doubts.get(name)
        return doubt is None or doubt.kind == ROSE or doubt.hits == PAUSED or (name in self.slow and doubt.kind == FELL)

    def to_try(self, name: str) -> bool:
        """Whether a broker has to be probed for saturation."""
        doubt = self.doubts.get(name)
        if doubt is None or name in self.slow:
            return False
        return (doubt.kind in (FELL, CAPPED) and doubt.hits == HITS) or (doubt.kind == UNMOVED and doubt.hits < ASKED)

    def tried(self, name: str, level: float, part: float) -> None:
        """Record that a part of its load is moved away; if it is much less than intended, it shows nothing."""
        self.doubts[name].hits = ASKED
        if part < PROBED / 2:
            self.pause(name)
        else:
            self.probes[name] = level, part

    def pause(self, name: str) -> None:
        """Record that a probe of a broker at its peak has no answer, or that nothing could be moved away for it."""
        if self.doubts[name].kind == CAPPED:
            self.doubts[name].hits = PAUSED

    def _judge_one(self, name: str, value: float, step: float, *, overloaded: bool) -> None:
        kind = FELL if value < 1 - step and not overloaded else ROSE if value > 1 + step else None
        known = self.doubts.get(name)
        if known is None:
            if kind is not None:
                self.doubts[name] = ReportDoubt(kind)
        elif known.kind in (LIES, UNMOVED) or (known.kind == CAPPED and kind is None):
            return
        elif kind == known.kind:
            known.hits = max(known.hits, min(known.hits + 1, HITS))
        elif kind is not None:
            self.doubts[name] = ReportDoubt(kind)
        elif not known.holds or abs(value - 1) < step / 2 or (overloaded and known.kind == FELL):
            del self.doubts[name]

    def _find_capped(self, levels: Mapping[str, Sequence[float]], peaks: Mapping[str, Peak]) -> None:
        """Find brokers whose usage stays at its peak while that of others varies."""
        shares = [peak.share for peak in peaks.values() if peak.usage > 0]
        varies = len(shares) > HITS and median(shares) <= VARIES
        middle = median(max(each) for each in levels.values()) if levels else 0.0
        for name, peak in peaks.items():
            doubt, level = self.doubts.get(name), max(levels[name])
            if doubt is not None and doubt.hits == ASKED:
                self.pause(name)  # its probe was lost: bundles were refused, or it did not report
            if name in self.slow or (doubt is not None and (doubt.kind != CAPPED or doubt.hits == PAUSED)):
                continue
            is_stuck = (
                varies
                and peak.share >= AT_PEAK
                and abs(peak.present - peak.usage) < ABOUT * peak.usage
                and max(SHOWS, middle / 2) < level < OVERLOADED
            )
            ceiling, _ = self.ceilings.get(name, (level, 0.0))
            if not is_stuck or abs(level - ceiling) >= SAME_CEILING * ceiling:
                self.doubts.pop(name, None)
            elif doubt is None:
                self.doubts[name] = ReportDoubt(CAPPED)
            else:
                doubt.hits = min(doubt.hits + 1, HITS)
                if doubt.holds and name in self.ceilings:
                    self._slowed(name, levels[name], CAPPED_SERVED)

    def _responses(self, levels: Mapping[str, Sequence[float]]) -> None:
        for name, (before, part) in self.probes.items():
            if name in levels and before > 0:
                self._probed(name, before, part, levels[name])
        for name, each in levels.items():
            self.peaks[name] = max(self.peaks.get(name, 0.0), *each)
        for name in [name for name in self.sums if name in levels and not self._at_its_end(name, levels[name])]:
            del self.sums[name]
        for name, (before, added, _) in self.sent.items():
            if name in levels and self._at_its_end(name, levels[name]) and added > 0:
                base, total, age_s = self.sums.get(name, (before, 0.0, 0.0))
                self.sums[name] = base, total + added, age_s
                if name in self.slow:
                    self._limits(name, levels[name])
                else:
                    self._shows(name, levels[name])
        for name, (before, parted, _) in self.taken.items():
            factor = self.arrivals.factors.get(name, 1.0)
            self.sums.pop(name, None)
            if name not in levels or not self._at_its_end(name, levels[name]):
                continue
            if parted >= SHOWS and factor < 1 and before - max(levels[name]) < STUCK * factor * parted:
                self._slowed(name, levels[name], factor)
        self.probes, self.sent, self.taken = {}, {}, {}

    def _probed(self, name: str, before: float, part: float, levels: Sequence[float]) -> None:
        """Whether a broker's usage fell with its load: if not, it was saturated."""
        level, doubt = max(levels), self.doubts.get(name)
        kind = doubt.kind if doubt is not None else ""
        capped = kind == CAPPED
        change = before * part / 2
        fallen, risen = change, before * (ABOUT if capped else RISEN)
        if kind == FELL and self.now.get(name, 1.0) < SERVES_ALL:
            # It does not serve all that it is asked yet: a slow broker is as busy as before, or nearly so.
            fallen, risen = min(change, before * STAYS), change
        if level > 0 and before * part >= SHOWS and before - fallen < level <= before + risen:
            scale = before / level if capped else 1.0  # its peak is what it can do; a pulse falls at any level
            self._slowed(name, [scale * each for each in levels], min(1.0, max(LEAST_SERVED, self.now.get(name, 1.0))))
        elif capped:
            self.ceilings[name] = before, 0.0
            del self.doubts[name]
        elif doubt is not None and kind == FELL and abs(before - level) < change and doubt.age_s < PROBES_S:
            doubt.hits = 1  # neither as busy as before nor relieved: it is probed again if its pulse stays low

    def _at_its_end(self, name: str, levels: Sequence[float]) -> bool:
        """Whether it may be saturated: it has not been busier than now for long, or is slow."""
        return name in self.slow or max(levels) >= FULL * self.peaks.get(name, 0.0)

    def _shows(self, name: str, levels: Sequence[float]) -> None:
        """Whether what was moved to a broker shows: small moves are added up until they can."""
        base, added, _ = self.sums[name]
        factor, shown = self.arrivals.factors.get(name, 1.0), max(levels) - base
        if factor < 1 and added >= SHOWS and shown < STUCK * factor * added:
            self._slowed(name, levels, factor)
        elif is_full(self.usages[name]):
            pass  # it could not show
        elif shown < RESPONSE * min(1.0, factor) * added - SHOWS:
            self.doubts[name] = ReportDoubt(UNMOVED)
        elif shown < RESPONSE * added or added < SHOWS:
            return
        del self.sums[name]

    def _limits(self, name: str, levels: Sequence[float]) -> None:
        """Whether what was moved to a slow broker shows: if not, its most used resource is the one that limits it."""
        base, added, _ = self.sums[name]
        if added < 2 * SHOWS:
            return
        slow, level = self.slow[name], max(levels)
        served = level / (base + added)
        # What its bundles send may have fallen meanwhile. If it serves less than it is asked, its pulse has fallen as well.
        limited = level >= FULL * slow.capacity or self.now.get(name, 0.0) < (1 + served) / 2
        if 0 < level < base + STUCK * added and limited:
            slow.limited(levels.index(level), level, served)
        del self.sums[name]

    def _slowed(self, name: str, levels: Sequence[float], served: float) -> None:
        """A broker's usage did not follow its load: that is its capacity, unless it is as much as it says that it can do."""
        if name in self.slow or self.usages[name] > OVERLOADED:
            return
        level = max(levels)
        self.slow[name] = SlowBroker(min(1.0, level), levels.index(level), served)
        self.arrivals.forget(name)
        self.ceilings.pop(name, None)
        if self.of(name) in (UNMOVED, CAPPED):
            del self.doubts[name]


def pulse_of(
    bundles: Iterable[Bundle], heavy: list[Bundle] | None = None, least: float = 0.0
) -> tuple[float | None, Sequence[float] | None]:
    """The pulse of a broker's bundles.

    Args:
        heavy: Gets those bundles that have at least `least` bytes a second, as one pass over all of them is enough.

    Returns:
        Median ratio of present to long-term traffic; long-term averages that are old enough (`Doubts.sizes`).
        None if too few are known.
    """
    ratios, sizes = [], []
    for bundle in bundles:  # runs for every known bundle, which may be a hundred thousand
        stats = bundle.stats
        if stats is None:
            continue
        if heavy is not None and stats.msg_throughput_in + stats.msg_throughput_out >= least:
            heavy.append(bundle)
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


def _triples(rows: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float, float]]:
    return {name: (row[0], row[1], row[2]) for name, row in rows.items()}


def _pairs(rows: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    return {name: (row[0], row[1]) for name, row in rows.items()}


def _rows(memory: Mapping[str, Any], key: str, count: int) -> dict[str, Sequence[float]]:
    table = memory.get(key)
    rows = table.items() if isinstance(table, Mapping) else ()
    return {str(name): values for name, row in rows if (values := numbers(row, count)) is not None}
