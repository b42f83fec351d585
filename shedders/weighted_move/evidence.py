"""What bundles show of a broker: whether its figures are wrong, or it is full. Pure.

A bundle's traffic does not depend on the broker that serves it. Where the traffic of a broker's bundles changes by one factor
with the broker, either its figures are that factor of the truth, or it serves only that part of what it is asked.

What is compared: the largest bundles, each with its own recent traffic, as the logarithm `q` of the ratio.

- **Jump**: the bundles of one broker change by the same factor, and stay so, those of others do not.
- **Witness**: a bundle that has changed brokers says by its `q` what is wrong with the one, or the other.
- **Peak**: a broker's usage stays at its peak while that of others varies: it is full.

Jumps and witnesses make a broker's `offset`: its figures are `e^offset` of the truth. Figures that exaggerate are corrected at
once. If they are too small, the broker may as well be full below its limits: it is a suspect, gets nothing, and gives a part of
its load as a **probe**. If all its traffic follows, messages and bytes in both directions, its figures are wrong, and are
corrected; if some of it does not, that is what limits it, and its usage is its **capacity**. This holds for some time, then
it is raised step by step; each step is a probe in the other direction.

Long-term averages cannot jump by themselves: where they do, what the broker says is wrong, and no probe is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from math import exp, log, sqrt
from operator import add
from statistics import median
from typing import Annotated, NamedTuple

from pydantic import BaseModel, Field

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import TrafficRates
from shedders.model.cluster import Bundle, Cluster
from shedders.model.readings import MOST, is_sound, share_of
from shedders.weighted_move.loads import SAMPLES, memory_share

TRACKED = 1_000  # bundles that are compared, the largest
RECENT_S = 600.0  # older traffic is not compared; of a suspect from which too little could be taken within it figures are wrong
WEIGHT = 0.3  # of the present traffic in the recent one
WRONG = 0.15  # a smaller offset may be chance; where all load changes by half as much, it hides what single brokers do
SURE = 4.5  # multiple of the error that is not chance
FEWEST = 3  # fewer bundles, or decisions in a row, show nothing
WITNESSES = 8  # the newest that are kept of a broker
AGREEING, ALIKE = 0.75, 0.25  # part of the bundles that have to agree, within `ALIKE`
AT_PEAK = 0.9  # part of the samples that are at the peak of a broker that something limits
FULL = 0.85  # a broker with this usage of a limit may serve less than it is asked, for a known reason
PROBE, SHOWS = 0.2, 0.08  # part of a suspect's load that is taken; a smaller one shows nothing
PROBE_S = 100.0  # time after which reports show what was moved
FOLLOWS = 0.5  # part of what was moved by which traffic, or direct memory, has to change
HOLD_S = 7_200.0  # time for which what was found out holds; twice as long each time that it is found again, up to a day
RAISE = 1.2  # factor by which a capacity is raised then, every `RECENT_S`
STEADY = 120  # samples of a long-term average that cannot jump by itself

_Log = Annotated[float, Field(ge=-5, le=5)]
Amount = Annotated[float, Field(ge=0, le=MOST)]
_Part = Annotated[float, Field(ge=-1e3, le=1e3)]
# Messages, bytes received and bytes sent in a second.
Amounts = tuple[Amount, Amount, Amount]
# Parts of these.
Parts = tuple[_Part, _Part, _Part]


class TrackedBundle(NamedTuple):
    """A bundle's owner, its recent and long-term traffic there in bytes a second (0: too young), and what it had there last."""

    owner: str
    traffic: Annotated[float, Field(gt=0, le=MOST)]
    long: Amount
    amounts: Amounts
    at_s: Amount


class ComparedBundle(NamedTuple):
    """A bundle that has stayed: its `q`, and by how much its long-term average has changed."""

    name: str
    namespace: str
    q: float
    jumped: float


class ArrivedBundle(NamedTuple):
    """A bundle that has changed brokers: its `q`, and its traffic in parts of what both brokers had, each by its own figures."""

    namespace: str
    source: str
    destination: str
    q: float
    part: Parts
    more: Parts


class Probe(NamedTuple):
    """A probe under way.

    Attributes:
        usage: The broker's usage before; `served`: what it served.
        moved: Parts of that which were taken (negative: sent) since.
        at_s: When it began, or when enough had moved.
    """

    usage: Amount
    served: Amounts
    moved: Parts
    at_s: Amount

    @property
    def part(self) -> float:
        """The part of its load that was taken: the least of those of what it serves."""
        return min(
            (part for part, amount in zip(self.moved, self.served, strict=True) if amount > 0), key=abs, default=0.0
        )

    def is_proportional(self, served: Amounts) -> bool:
        """Whether messages and bytes changed by at least `FOLLOWS` of what was moved; less than `SHOWS` is not compared."""
        return all(
            (now - before * (1 - FOLLOWS * part)) * part <= 0
            for now, before, part in zip(served, self.served, self.moved, strict=True)
            if before > 0 and abs(part) >= SHOWS
        )


class BrokerEvidence(BaseModel):
    """What is known of one broker.

    Attributes:
        settled: Logarithm of the part of the truth that its figures are, as they are corrected.
        jump: By how much its bundles have changed beyond that; `seen`: decisions in a row that saw it.
        shown: What its witnesses agree on in place of `settled`; None: nothing.
        witnesses: Other broker, and what a bundle showed.
        at_peak: Decisions in a row that saw it at its peak.
        full_s: When its usage was last close to a limit.
        capacity: What it can do, in parts of its limits; 0: what it says.
        since_s: Since when that holds; `hold_s`: for how long.
        probe: The probe under way.
    """

    settled: _Log = 0.0
    jump: _Log = 0.0
    seen: Annotated[int, Field(ge=0, le=FEWEST)] = 0
    shown: _Log | None = None
    witnesses: list[tuple[str, _Log]] = []
    at_peak: Annotated[int, Field(ge=0, le=FEWEST)] = 0
    full_s: Amount | None = None
    capacity: Annotated[float, Field(ge=0, le=1)] = 0.0
    since_s: Amount = 0.0
    hold_s: Amount = HOLD_S
    probe: Probe | None = None

    @property
    def suspected(self) -> bool:
        return self.probe is not None and not self.capacity

    @property
    def unexplained(self) -> float:
        """What its bundles show beyond what is settled: its jump once that has lasted, else what its witnesses say."""
        if self.seen >= FEWEST:
            return self.jump
        return 0.0 if self.shown is None else self.shown - self.settled

    def settle(self, offset: float) -> None:
        """Correct its figures from now on, and start over with comparing."""
        self.settled = _bounded(offset) if abs(offset) > WRONG else 0.0
        self.jump, self.seen, self.shown, self.witnesses, self.probe, self.at_peak = 0.0, 0, None, [], None, 0

    def fill(self, usage: float, now_s: float) -> None:
        """Record that a broker is full at this usage."""
        self.hold_s = min(12 * HOLD_S, 2 * self.hold_s) if self.capacity else HOLD_S
        self.capacity, self.since_s = min(1.0, max(0.05, usage)), now_s
        self.settle(self.settled)


class Evidence(BaseModel):
    """The memory of evidence.

    Attributes:
        bundles: Those that are compared.
        brokers: Those that anything is known of.
        least: Traffic below which a bundle is not among the largest.
    """

    bundles: dict[str, TrackedBundle] = {}
    brokers: dict[str, BrokerEvidence] = {}
    least: Annotated[float, Field(ge=0, le=MOST)] = 0.0

    def of(self, name: str) -> BrokerEvidence:
        """What is known of a broker, to be changed."""
        return self.brokers.setdefault(name, BrokerEvidence())

    def look(
        self, cluster: Cluster, loads: Mapping[str, BrokerLoad], usages: Mapping[str, float], noise: float, now_s: float
    ) -> set[str]:
        """Compare the bundles with what they had; the brokers whose figures count otherwise from now on.

        Args:
            usages: Each broker's most used resource without direct memory, in parts of its reported limit.
            noise: Usual relative difference between two readings of a broker.
            now_s: The memory's clock.
        """
        for name, usage in usages.items():
            if max(usage, memory_share(loads[name])) >= FULL:
                self.of(name).full_s = now_s
        began = {name: (figures.since_s, figures.settled) for name, figures in self.brokers.items()}
        measured = self._measured(cluster, loads)
        stayed, arrived = self._compare(measured, now_s)
        every = [row.q for rows in stayed.values() for row in rows]
        calm = bool(every) and abs(median(every)) <= WRONG / 2
        usual = self._jumps(stayed, now_s) if calm else {}
        for name, rows in stayed.items():
            doubted = name in self.brokers and self.brokers[name].seen
            for bundle, namespace, q, _ in rows:
                before = self.bundles[bundle]
                change = (
                    usual.get((name, namespace), 0.0) if doubted else q
                )  # those of a doubted broker keep what they had
                self.bundles[bundle] = before._replace(traffic=min(MOST, before.traffic * exp(WEIGHT * change)))
        if calm:
            off = [abs(row.q - usual["", row.namespace]) for rows in stayed.values() for row in rows]
            self._testify(arrived, usual, 1.9 * median(off), now_s)
        for arrival in arrived:
            self._moved(arrival.source, arrival.part, now_s, 1)
            self._moved(arrival.destination, arrival.more, now_s, -1)
        self._peaks(loads, usages)
        changed: set[str] = set()
        for name in list(self.brokers):
            figures = self.brokers[name]
            if name in usages:
                self._judge(figures, usages[name], _amounts(loads[name]), noise, now_s)
                if began.get(name, (0.0, 0.0)) != (figures.since_s, figures.settled):
                    self._forget(name, measured)
                    changed.add(name)
            if figures == BrokerEvidence():
                del self.brokers[name]
        return changed

    def _forget(self, name: str, measured: Mapping[str, Bundle]) -> None:
        """Compare a broker's bundles with what they have now, as what was seen before is settled."""
        for bundle, row in self.bundles.items():
            if row.owner == name and bundle in measured:
                self.bundles[bundle] = row._replace(traffic=measured[bundle].averages.short.msg_throughput)
        for other in self.brokers.values():
            other.witnesses = [row for row in other.witnesses if row[0] != name]

    def _compare(
        self, measured: Mapping[str, Bundle], now_s: float
    ) -> tuple[Mapping[str, Sequence[ComparedBundle]], Sequence[ArrivedBundle]]:
        """By broker its bundles, and those that changed brokers."""
        stayed: dict[str, list[ComparedBundle]] = defaultdict(list)
        arrived: list[tuple[str, str, str, float, Amounts, Amounts]] = []
        held: dict[str, Amounts] = defaultdict(lambda: (0.0, 0.0, 0.0))
        for name, bundle in measured.items():
            before, owner, traffic = self.bundles.get(name), bundle.owner or "", bundle.averages.short.msg_throughput
            averages = bundle.averages.long
            steady = averages.samples >= STEADY and averages.msg_throughput <= MOST
            recent, long = traffic, averages.msg_throughput if steady else 0.0
            amounts = _amounts(bundle.averages.short)
            if before is not None and now_s - before.at_s <= RECENT_S:
                q = min(4.0, max(-4.0, log(traffic / before.traffic)))
                held[before.owner] = _each(add, held[before.owner], before.amounts)
                if owner == before.owner:
                    jumped = log(long / before.long) if long > 0 < before.long else 0.0
                    stayed[owner].append(ComparedBundle(name, bundle.namespace, q, jumped))
                    recent = before.traffic
                else:
                    arrived.append((bundle.namespace, before.owner, owner, q, before.amounts, amounts))
            self.bundles[name] = TrackedBundle(owner, recent, long, amounts, now_s)
        self.bundles = {name: row for name, row in self.bundles.items() if now_s - row.at_s <= RECENT_S}
        return stayed, [
            ArrivedBundle(space, source, to, q, _each(share_of, gone, held[source]), _each(share_of, come, held[to]))
            for space, source, to, q, gone, come in arrived
        ]

    def _measured(self, cluster: Cluster, loads: Mapping[str, BrokerLoad]) -> dict[str, Bundle]:
        """The largest bundles that their owners have measured, and all of probed brokers."""
        probed = {name for name, figures in self.brokers.items() if figures.probe is not None}
        many, least = len(cluster.bundles) > TRACKED, self.least
        if many and not least:  # the first decision: the smaller ones would not be kept
            least = 2 * sum(load.msg_throughput for load in loads.values()) / len(cluster.bundles)
        rows: list[tuple[float, str, Bundle]] = []
        extra: list[tuple[float, str, Bundle]] = []
        for bundle in cluster.bundles.values():
            stats = bundle.stats
            if stats is not None:
                traffic = stats.msg_throughput_in + stats.msg_throughput_out
                if traffic >= least:
                    rows.append((traffic, bundle.name, bundle))
                elif bundle.owner in probed:
                    extra.append((traffic, bundle.name, bundle))
        largest = nlargest(TRACKED, rows)
        self.least = largest[-1][0] / 2 if many and largest and largest[-1][0] <= MOST else 0.0
        measured = {}
        for _, name, bundle in [*largest, *extra]:
            short = bundle.averages.short
            hidden = bundle.in_flight or bundle.secondhand or bundle.estimated or short.samples < SAMPLES
            if bundle.owner in loads and not hidden and is_sound(short) and 0 < short.msg_throughput <= MOST:
                measured[name] = bundle
        return measured

    def _jumps(self, stayed: Mapping[str, Sequence[ComparedBundle]], now_s: float) -> Mapping[tuple[str, str], float]:
        """Find brokers whose bundles have changed by one factor.

        Returns:
            By broker and namespace the usual `q` of the namespace's bundles elsewhere; for "" that of all its bundles.
        """
        by_namespace: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for name, rows in stayed.items():
            for row in rows:
                by_namespace[row.namespace].append((name, row.q))
        every = median(row.q for rows in stayed.values() for row in rows)
        usual = {("", ""): every}
        usual |= {("", space): median(q for _, q in rows) for space, rows in by_namespace.items()}
        rests: dict[str, list[float]] = {}
        for name, rows in stayed.items():
            for namespace in {row.namespace for row in rows}:
                others = [q for other, q in by_namespace[namespace] if other != name]
                usual[name, namespace] = median(others) if len(others) > 1 else every
            if len(rows) >= FEWEST:
                rests[name] = [row.q - usual[name, row.namespace] for row in rows]
        middles = {name: median(rest) for name, rest in rests.items()}
        change = median(abs(middle) for middle in middles.values()) if middles else 0.0
        for name in {*middles, *(name for name, figures in self.brokers.items() if figures.seen)}:
            middle, rest = middles.get(name, 0.0), rests.get(name, [0.0])
            error = 1.9 * median(abs(each - middle) for each in rest) / sqrt(len(rest))
            agreeing = {
                row.namespace for row, each in zip(stayed[name], rest, strict=False) if abs(each - middle) <= ALIKE
            }
            alike = sum(abs(each - middle) <= ALIKE for each in rest) >= AGREEING * len(rest)
            several = len(agreeing) > 1 or len(by_namespace) == 1
            known = self.brokers.get(name)
            least = WRONG / 2 if known is not None and known.seen else max(WRONG, SURE * error, SURE * change)
            if abs(middle) > least and alike and several and not self._is_explained(name, middle, now_s):
                figures = self.of(name)
                figures.jump, figures.seen = _bounded(middle), min(FEWEST, figures.seen + 1)
                long = median(row.jumped for row in stayed[name])
                if abs(long) > WRONG and long * middle > 0:
                    figures.settle(figures.settled + middle)
            elif known is not None:
                known.jump, known.seen = 0.0, 0
        return usual

    def _is_explained(self, name: str, jump: float, now_s: float) -> bool:
        """Whether a jump has a known cause: the broker was close to a limit, or it may be full, and is relieved."""
        figures = self.brokers.get(name)
        if figures is None:
            return False
        if figures.capacity:
            return jump > 0
        return (figures.probe is not None and jump > 0) or self._is_full(name, now_s)

    def _is_full(self, name: str, now_s: float) -> bool:
        """Whether a broker was close to a limit lately."""
        figures = self.brokers.get(name)
        return figures is not None and figures.full_s is not None and now_s - figures.full_s <= PROBE_S * 3

    def _testify(
        self, arrived: Sequence[ArrivedBundle], usual: Mapping[tuple[str, str], float], error: float, now_s: float
    ) -> None:
        """Hear the bundles that have changed brokers; the broker with the largest change is settled first.

        Args:
            error: Of a single bundle's `q`.
        """
        for namespace, source, destination, change, _, _ in arrived:
            q = _bounded(change - usual.get(("", namespace), usual["", ""]))
            if self.of(source).capacity or self.of(destination).capacity:
                continue
            if (q > 0 and self._is_full(source, now_s)) or (q < 0 and self._is_full(destination, now_s)):
                continue
            for name, other, shows in ((destination, source, q), (source, destination, -q)):
                figures = self.of(name)
                figures.witnesses = [*figures.witnesses[1 - WITNESSES :], (other, shows)]
        for _ in range(WITNESSES if arrived else 0):
            changes = {name: shown - self._offset(name) for name in self.brokers for shown in self._agreed(name)}
            sure = {
                name: change
                for name, change in changes.items()
                if abs(change) > max(WRONG, SURE * error / sqrt(len(self.brokers[name].witnesses)))
            }
            if not sure:
                return
            worst = max(sorted(sure), key=lambda name: abs(changes[name]))
            self.brokers[worst].shown = _bounded(self._offset(worst) + changes[worst])

    def _offset(self, name: str) -> float:
        """The logarithm of the part of the truth that a broker's figures seem to be."""
        figures = self.brokers.get(name)
        return 0.0 if figures is None else figures.settled + figures.unexplained

    def _agreed(self, name: str) -> Iterable[float]:
        """The offset of a broker that its witnesses show, corrected by that of the other brokers; none if they disagree."""
        by_other: dict[str, list[float]] = defaultdict(list)
        rows = self.brokers[name].witnesses
        for other, shows in rows:
            by_other[other].append(shows + self._offset(other))
        of_each = [median(each) for each in by_other.values()]
        if len(rows) >= FEWEST and len(of_each) > 1:
            shown = median(of_each)
            if sum(abs(each - shown) <= ALIKE for each in of_each) >= AGREEING * len(of_each):
                yield shown

    def _moved(self, name: str, parts: Parts, now_s: float, sign: int) -> None:
        """Count parts of a probed broker's load that have gone (1) or come (-1)."""
        figures = self.brokers.get(name)
        if figures is not None and figures.probe is not None:
            probe = figures.probe
            total = _each(lambda old, part: min(1e3, max(-1e3, old + sign * part)), probe.moved, parts)
            moved = probe._replace(moved=total)
            shows = abs(probe.part) < SHOWS <= abs(moved.part)
            figures.probe = moved._replace(at_s=now_s) if shows else moved

    def _peaks(self, loads: Mapping[str, BrokerLoad], usages: Mapping[str, float]) -> None:
        """Find brokers whose usage stays at its peak while that of others varies."""
        shares = [load.peak_share for load in loads.values() if load.peak_usage > 0]
        varies = len(shares) > 3 and median(shares) <= 0.4  # noqa: PLR2004 - fewer say nothing about load in general
        middle = median(usages.values()) if usages else 0.0
        for name, load in loads.items():
            stuck = (
                varies
                and load.peak_share >= AT_PEAK
                and max(0.03, middle / 2) < usages[name] < FULL
                and abs(load.usage_without_memory - load.peak_usage) < 0.01 * load.peak_usage
            )
            if stuck or name in self.brokers:
                figures = self.of(name)
                figures.at_peak = min(FEWEST, figures.at_peak + 1) if stuck else 0

    def _judge(self, figures: BrokerEvidence, usage: float, served: Amounts, noise: float, now_s: float) -> None:
        """Answer a probe that has shown something, begin one that is due."""
        probe, unexplained = figures.probe, figures.unexplained
        enough = probe is not None and abs(probe.part) >= max(SHOWS, 3 * noise)
        waited = now_s - probe.at_s if probe is not None else 0.0
        shows = enough and waited >= PROBE_S
        proportional = probe is None or probe.is_proportional(served)
        begun = Probe(usage, served, (0.0, 0.0, 0.0), now_s)
        if figures.at_peak >= FEWEST and (not figures.capacity or probe is not None):
            figures.fill(usage, now_s)
        elif figures.capacity:
            figures.capacity = max(figures.capacity, min(1.0, usage))
            if unexplained < -WRONG or (shows and not proportional):
                figures.fill(usage, now_s)
            elif now_s - figures.since_s >= figures.hold_s and (probe is None or shows or waited >= RECENT_S):
                figures.probe = begun if figures.capacity < 1 else None
                figures.capacity = min(1.0, figures.capacity * RAISE) if figures.capacity < 1 else 0.0
        elif unexplained > WRONG:
            figures.settle(figures.settled + unexplained)  # figures that exaggerate
        elif probe is None:
            figures.probe = begun if unexplained < -WRONG and usage < FULL else None
        elif unexplained > -WRONG / 2 and not enough:
            figures.probe = None  # it has recovered by itself
        elif shows and not proportional:
            figures.fill(usage, now_s)
        elif shows or waited >= RECENT_S:
            figures.settle(figures.settled + unexplained)


def _bounded(offset: float) -> float:
    return min(5.0, max(-5.0, offset))


def factor_of(figures: BrokerEvidence) -> float:
    """The part of the truth that a broker's figures are, where that is settled; 1 if they are right."""
    return exp(figures.settled)


def _amounts(traffic: TrafficRates | BrokerLoad) -> Amounts:
    return min(MOST, traffic.msg_rate), traffic.msg_throughput_in, traffic.msg_throughput_out


def _each(how: Callable[[float, float], float], these: Parts, those: Parts) -> Parts:
    """Messages with messages, and each direction's bytes with its own."""
    messages, inwards, outwards = map(how, these, those)
    return messages, inwards, outwards
