"""Evidence from moves: brokers whose figures were wrong from the beginning. Pure.

A move changes nothing about what clients send. If bundles from several brokers shrink as they arrive at one broker, all by the
same factor, and those that leave it grow again, its figures are that part of the truth: it reports less than it does (or more),
or it cannot do what it is asked.

A witness is a moved bundle: the ratio of its traffic afterwards, on the one broker, to that on the other, each corrected by what
is known of that other broker, or is to be seen of it without this one: two brokers with wrong figures contradict all else that
is seen of either. A factor needs witnesses of several namespaces and from several other brokers, so that neither a
burst of one tenant nor another broker with wrong figures is taken for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple
from zlib import crc32

from loaddata.model.bundle_load import MessageAverage
from shedders.model.cluster import Bundle
from shedders.model.readings import MOST, numbers
from shedders.weighted_move.loads import SAMPLES, traffic_of

WITNESSES = 8  # the newest witnesses that are kept of a broker
FEWEST = 3  # fewer witnesses are no evidence
OTHERS = 2  # they have to be from this many other brokers, and of as many namespaces
ALIKE = 0.2  # factors that differ by less agree
AGREEING = 0.75  # part of the other brokers whose bundles have to agree
DRIFT = 0.1  # a change of all load by more than this between two decisions hides what moves show
WRONG = 0.2  # a factor nearer to 1 may be chance
FACTOR_MIN, FACTOR_MAX = 0.02, 50.0
SEEN_S = 600.0  # time within which a moved bundle has to be measured by its new broker
_NAMES = 1 << 16


class BundleOnMove(NamedTuple):
    """A bundle that has left one broker for another: these brokers, its traffic at the first, and the seconds since.

    Attributes:
        full: The first broker was full, so that its traffic may have been less than what was sent.
    """

    source: str
    destination: str
    traffic: float
    age_s: float
    full: bool = False


class Witness(NamedTuple):
    """Traffic on this broker over that on another one; both names as short hashes, as each decision stores them."""

    ratio: float
    other: int
    namespace: int


@dataclass(slots=True)
class Arrivals:
    """The memory of moved bundles.

    Attributes:
        departures: By bundle: those whose arrival was not measured yet.
        witnesses: By broker, the newest last.
        factors: By broker, the part of the truth that its figures are; kept until other witnesses contradict.
        pulse: The cluster's pulse at the last decision, for changes of all load (`shedders.weighted_move.doubt`).
        namespaces: How many the cluster has (`count_namespaces`).
    """

    departures: dict[str, BundleOnMove] = field(default_factory=dict)
    witnesses: dict[str, list[Witness]] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    pulse: float = 0.0
    namespaces: int = OTHERS

    @classmethod
    def recall(cls, memory: Any, passed_s: float, present: Mapping[str, object]) -> Arrivals:
        """The memory from JSON; brokers that left are dropped: who comes back may have been repaired."""
        if not isinstance(memory, Mapping):
            return cls()
        departures = {
            name: departure
            for name, row in _rows(memory, "departures")
            if (departure := _departure(row, passed_s)) is not None
            and departure.source in present
            and departure.destination in present
        }
        witnesses = {
            name: known
            for name, rows in _rows(memory, "witnesses")
            if name in present and (known := [each for row in _some(rows) if (each := _witness(row)) is not None])
        }
        factors = {
            name: values[0]
            for name, value in _rows(memory, "factors")
            if name in present and (values := numbers([value], 1)) is not None and FACTOR_MIN <= values[0] <= FACTOR_MAX
        }
        pulse = (numbers([memory.get("pulse")], 1) or [0.0])[0]
        return cls(departures, witnesses, factors, pulse)

    def dumped(self) -> dict[str, Any]:
        """For JSON."""
        tables: dict[str, dict[str, Any]] = {
            "departures": {
                name: [row.source, row.destination, _short(row.traffic), round(row.age_s, 1), int(row.full)]
                for name, row in self.departures.items()
            },
            "factors": {name: _short(factor) for name, factor in self.factors.items()},
            "witnesses": {
                name: [[round(each.ratio, 3), each.other, each.namespace] for each in rows]
                for name, rows in self.witnesses.items()
                if rows
            },
        }
        kept: dict[str, Any] = {name: dict(sorted(table.items())) for name, table in tables.items() if table}
        return kept | {"pulse": _short(self.pulse)} if self.departures else kept

    def left(self, bundle: Bundle, source: str, destination: str, *, full: bool = False) -> None:
        """Record that a plan moves a bundle; its traffic counts as its present broker reports it.

        Args:
            full: The source is full.
        """
        traffic = None if bundle.estimated else traffic_of(bundle)
        amount = 0.0 if traffic is None else traffic.msg_throughput or traffic.msg_rate
        if amount > 0:
            self.departures[bundle.name] = BundleOnMove(source, destination, amount, 0.0, full)

    def look(
        self,
        bundles: Mapping[str, Bundle],
        pulse: float,
        *,
        namespaces: int,
        slow: Container[str] = (),
        full: Container[str] = (),
    ) -> None:
        """Compare moved bundles that have been measured by their new brokers.

        Args:
            pulse: The cluster's pulse; 0 if it is unknown.
            namespaces: How many the cluster has (`count_namespaces`).
            slow: Brokers that serve a part of what they are asked, now and then: their bundles are no evidence.
            full: Brokers at their limits.
        """
        if self.pulse > 0 and pulse > 0 and abs(pulse / self.pulse - 1) > DRIFT:
            self.departures = {}  # so much load came or went by itself that it cannot be told apart
        self.pulse, self.namespaces = pulse, namespaces
        new: set[str] = set()
        for name in list(self.departures):
            departure = self.departures[name]
            now = _measured(bundles.get(name), departure.destination)
            if now is None:
                continue
            del self.departures[name]
            if departure.source in slow or departure.destination in slow:
                continue
            space = _hash(name.rpartition("/")[0])
            source, destination = departure.source, departure.destination
            ratio = _bounded(now / departure.traffic)
            # A full broker serves a part of what it is asked: bundles grow when they leave it, and shrink when they come.
            if departure.full:
                ratio = min(1.0, ratio)
            if destination in full:
                ratio = max(1.0, ratio)
            self._add(destination, Witness(_bounded(ratio * self.factors.get(source, 1.0)), _hash(source), space))
            self._add(source, Witness(_bounded(self.factors.get(destination, 1.0) / ratio), _hash(destination), space))
            new |= {source, destination}
        self._judge(sorted(new))
        for name in new:
            self._tidy(name)

    def forget(self, name: str) -> None:
        """Drop what moves showed with a broker that is slow: its own factor, and what others' bundles seemed to show with it."""
        self.factors.pop(name, None)
        self.witnesses.pop(name, None)
        number = _hash(name)
        for other, rows in list(self.witnesses.items()):
            rest = [each for each in rows if each.other != number]
            if len(rest) == len(rows):
                continue
            self.witnesses[other] = rest
            if other in self.factors and self._factor_of(rest) is None:
                del self.factors[other]
            if not rest:
                del self.witnesses[other]

    def _add(self, name: str, witness: Witness) -> None:
        rows = self.witnesses.setdefault(name, [])
        rows.append(witness)
        del rows[:-WITNESSES]

    def _judge(self, new: Sequence[str]) -> None:
        """Judge these brokers; and if one is found to be wrong, again those that have exchanged bundles with it."""
        names = {_hash(name): name for name in self.witnesses} if new else {}
        queue, corrected = list(new), set[str]()
        for name in queue:
            factor = self._agreed(name, names)
            if factor is None:
                continue
            before = self.factors.pop(name, None)
            if abs(factor - 1) > WRONG:
                self.factors[name] = factor
                if before is None and name not in corrected:
                    corrected.add(name)
                    self._correct(_hash(name), factor)
                    queue += sorted({names[each.other] for each in self.witnesses[name] if each.other in names})

    def _agreed(self, name: str, names: Mapping[int, str]) -> float | None:
        """The factor of a broker; None if it is not known."""
        factor = self._factor_of(self.witnesses[name])
        return self._factor_of(self._explained(name, names)) if factor is None else factor

    def _factor_of(self, witnesses: Iterable[Witness]) -> float | None:
        """The factor on which these agree, given the brokers whose figures are corrected; None if they do not."""
        return agreed(witnesses, self.namespaces, {_hash(name) for name in self.factors})

    def _explained(self, name: str, names: Mapping[int, str]) -> list[Witness]:
        """A broker's witnesses, corrected where the other broker is wrong as well, by all but this broker's bundles.

        Args:
            names: Brokers by hash.
        """
        own, of_others = _hash(name), dict[int, float]()
        for number in {each.other for each in self.witnesses[name]}:
            other = names.get(number, "")
            if other not in self.factors:
                of_third = agreed(
                    (each for each in self.witnesses.get(other, ()) if each.other != own), self.namespaces
                )
                if of_third is not None and abs(of_third - 1) > WRONG:
                    of_others[number] = of_third
        return [
            each._replace(ratio=_bounded(each.ratio * of_others.get(each.other, 1.0))) for each in self.witnesses[name]
        ]

    def _correct(self, other: int, factor: float) -> None:
        """Correct what others' bundles seemed to show with a broker whose figures are known to be wrong from now on.

        What showed nothing was seen before they were wrong.
        """
        for name, rows in self.witnesses.items():
            if any(each.other == other for each in rows):
                self.witnesses[name] = [
                    each._replace(ratio=_bounded(each.ratio * factor)) if each.other == other else each
                    for each in rows
                    if each.other != other or abs(each.ratio - 1) > WRONG
                ]

    def _tidy(self, name: str) -> None:
        """Of brokers that are believed only the newest witnesses are kept."""
        rows = self.witnesses.get(name, [])
        if not rows:
            self.witnesses.pop(name, None)
        elif name not in self.factors and all(abs(each.ratio - 1) < WRONG for each in rows):
            del rows[:-1]


def count_namespaces(bundles: Iterable[Bundle]) -> int:
    """How many namespaces these have; at most `OTHERS`, as more make no difference."""
    namespaces: set[str] = set()
    for bundle in bundles:
        namespaces.add(bundle.namespace)
        if len(namespaces) == OTHERS:
            break
    return len(namespaces)


def agreed(witnesses: Iterable[Witness], namespaces: int, known: Container[int] = ()) -> float | None:
    """The factor on which the witnesses agree; None if they are too few, too alike in origin, or contradict each other.

    Args:
        namespaces: How many the cluster has: where it is only one, more other brokers are needed instead.
        known: Brokers whose figures are known to be wrong, by how much, and corrected: each counts as two, as of the two it is
            not the one.
    """
    rows = list(witnesses)
    by_other: dict[int, list[float]] = defaultdict(list)
    for each in rows:
        by_other[each.other].append(each.ratio)
    needed = OTHERS if namespaces > 1 else OTHERS + 1
    of_each = [
        median(ratios) for other, ratios in by_other.items() for _ in range(1 + (other in known and namespaces > 1))
    ]
    if len(rows) < FEWEST or len(of_each) < needed:
        return None
    factor = median(of_each)
    agreeing = sum(_is_alike(ratio, factor) for ratio in of_each)
    if agreeing < max(OTHERS, AGREEING * len(of_each)):
        return None
    spaces = {each.namespace for each in rows if _is_alike(each.ratio, factor)}
    return factor if len(spaces) >= min(OTHERS, namespaces) else None


def _is_alike(ratio: float, factor: float) -> bool:
    return abs(ratio / factor - 1) < ALIKE


def _measured(bundle: Bundle | None, broker: str) -> float | None:
    """Its traffic, if its new broker has measured it."""
    if bundle is None or bundle.owner != broker or bundle.in_flight or bundle.secondhand or bundle.estimated:
        return None
    short: MessageAverage = bundle.averages.short
    if bundle.stats is None or short.samples < SAMPLES:
        return None
    traffic = traffic_of(bundle)
    amount = 0.0 if traffic is None else traffic.msg_throughput or traffic.msg_rate
    return amount if 0 < amount <= MOST else None


def _bounded(ratio: float) -> float:
    return min(FACTOR_MAX, max(FACTOR_MIN, ratio))


def _hash(name: str) -> int:
    return crc32(name.encode("utf-8", "surrogatepass")) % _NAMES


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _rows(memory: Mapping[str, Any], key: str) -> Iterable[tuple[str, Any]]:
    table = memory.get(key)
    return [(name, row) for name, row in table.items() if isinstance(name, str)] if isinstance(table, Mapping) else ()


def _some(rows: Any) -> Iterable[Any]:
    return rows[-WITNESSES:] if isinstance(rows, list | tuple) else ()


def _departure(row: Any, passed_s: float) -> BundleOnMove | None:
    if not isinstance(row, list | tuple) or len(row) not in (4, 5):  # of former versions 4
        return None
    source, destination, *rest = row
    values = numbers([*rest, 0][:3], 3)
    if values is None or not isinstance(source, str) or not isinstance(destination, str):
        return None
    traffic, age_s = values[0], values[1] + passed_s
    is_usable = age_s <= SEEN_S and 0 < traffic <= MOST
    return BundleOnMove(source, destination, traffic, age_s, values[2] > 0) if is_usable else None


def _witness(row: Any) -> Witness | None:
    values = numbers(row, 3)
    if values is None or not FACTOR_MIN <= values[0] <= FACTOR_MAX:
        return None
    return Witness(values[0], int(values[1]) % _NAMES, int(values[2]) % _NAMES)
