"""Draft of a shedder's plan: usable reports, the choice of the bundles that move, and moves so far. Pure."""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import fsum
from typing import Any

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from loaddata.model.bundle_load import MessageAverage
from shedders.filters.rules import pin_of
from shedders.model.amounts import BYTES, MESSAGES, LoadUnit, count, rate, seconds
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import BundleMove, Label, Left, Plan, Reason
from shedders.model.readings import MOST, SheddingSettings, is_sound, may_receive, no_decision, read
from shedders.model.strategy import CanTake

Weighed = Sequence[tuple[Bundle, float]]  # bundles with their traffic


def greedy(bundles: Weighed, need: float) -> list[tuple[Bundle, float]]:
    """Largest first until the need is met; at least one, whatever its size (upstream's threshold and overload shedder)."""
    chosen: list[tuple[Bundle, float]] = []
    marked = 0.0
    for bundle, weight in bundles:
        if chosen and not marked < need:
            break
        chosen.append((bundle, weight))
        marked += weight
    return chosen


class Receivers:
    """Possible destinations, with the bundles that this plan has already booked on them.

    Args:
        loads: Their loads, in the measure in which the source's load is given.
        can_take: Filters; one that fails refuses. Without any every broker takes every bundle.
        tries: Number of the least loaded that are tried.
    """

    def __init__(self, loads: Mapping[str, float], can_take: CanTake | None = None, tries: int = 1) -> None:
        self._sorted = sorted((load, name) for name, load in loads.items())
        self._can_take = can_take
        self._tries = tries
        self.refusal: str | None = None

    def __bool__(self) -> bool:
        return bool(self._sorted)

    @property
    def least(self) -> float:
        return self._sorted[0][0]

    def book(self, bundle: Bundle, source: str, load: float, below: float) -> str | None:
        """Book a bundle on the least loaded broker that takes it and ends below; None if none does."""
        for index, (before, name) in enumerate(islice(self._sorted, self._tries)):
            if not before + load < below * _LOWER:
                return None
            if name != source and self._takes(bundle, name):
                del self._sorted[index]
                insort(self._sorted, (before + load, name))
                return name
        return None

    def _takes(self, bundle: Bundle, name: str) -> bool:
        why = refused(self._can_take, bundle, name)
        if why is not None:
            self.refusal = f"{name} may not take {bundle.name}: {why}"
        return why is None


def refused(can_take: CanTake | None, bundle: Bundle, broker: str) -> str | None:
    """Why a broker may not take a bundle; a filter that fails refuses."""
    try:
        return None if can_take is None else can_take(bundle, broker)
    except Exception as error:
        return f"a filter fails: {error!r}"


@dataclass(frozen=True, slots=True)
class LoadToGive:
    """The load that a broker should give away.

    Attributes:
        traffic: How much, in bytes or messages a second.
        floor: Less than this is not worth another move.
        load_per_traffic: What one byte or message a second weighs in that load.
    """

    source: str
    traffic: float
    floor: float
    load: float
    load_per_traffic: float


def level(
    bundles: Weighed, need: LoadToGive, receivers: Receivers, most: int | None = None
) -> list[tuple[Bundle, float, str]]:
    """Choose bundles, each with its traffic and its planned destination.

    Largest first, those that fit into the remaining need. If at least the floor, and a tenth of the need, then still remains:
    the smallest of the larger ones that can go. Each only if a receiver, with all its bookings, ends below the source's
    present load, so that every single move lowers the maximum of its pair. Idle bundles stay: moving them levels nothing.
    """
    chosen: list[tuple[Bundle, float, str]] = []
    missing, load = need.traffic, need.load
    larger: list[tuple[Bundle, float]] = []
    room = len(bundles) if most is None else most
    for bundle, weight in bundles:
        if missing <= 0 or weight <= 0 or len(chosen) >= room:
            break
        if weight > missing:
            larger.append((bundle, weight))
            continue
        receiver = receivers.book(bundle, need.source, weight * need.load_per_traffic, load)
        if receiver is not None:
            chosen.append((bundle, weight, receiver))
            missing -= weight
            load -= weight * need.load_per_traffic
    if missing > 0 and len(chosen) < room and (not chosen or missing >= max(need.floor, need.traffic * _TENTH)):
        for bundle, weight in islice(reversed(larger), _TRIES_BEYOND):
            receiver = receivers.book(bundle, need.source, weight * need.load_per_traffic, load)
            if receiver is not None:
                chosen.append((bundle, weight, receiver))
                break
    return chosen


_TENTH = 0.1
_LOWER = 1 - 1e-9  # lower by more than rounding
_TRIES_BEYOND = 8
"""Number of larger bundles that are tried, the smallest first: if these fit nowhere, heavier ones hardly will."""


Measure = Callable[[MessageAverage | BrokerLoad], float]

# Upstream's heartbeat namespaces (both versions), those that monitor the service level, and those of its own topics.
_INTERNAL = re.compile(r"pulsar/([^/]+/)?[^:]+:\d+|sla-monitor/[^/]+/[^:]+:\d+|pulsar/system", re.ASCII)
_SYSTEM = ("pulsar/", "sla-monitor/")
_NEEDED = 2
_NAMED = 5


def bytes_of(load: MessageAverage | BrokerLoad) -> float:
    """Bytes a second in both directions."""
    return load.msg_throughput


def messages_of(load: MessageAverage | BrokerLoad) -> float:
    """Messages a second in both directions."""
    return load.msg_rate


def unit_of(measure: Measure) -> LoadUnit:
    return BYTES if measure is bytes_of else MESSAGES


class Draft:
    """Builder of one plan.

    Words for brokers left alone: `no-load-data`, `bad-load`, `outdated`, `lapsed`, `no-limits`. Words for bundles:
    `in-flight`, `pinned`, `recently-moved`, `internal`, `excluded`, `secondhand`, `bad-load`.

    Args:
        weights: If usage decides; None if only traffic does.
        can_take: Filters; without them every accepting broker takes every bundle.

    Attributes:
        loads: Usable reports by broker, sorted.
        usages: Their weighted maximum, with `weights`.
        stopped: The plan, if there is nothing to decide: safe mode, or fewer than two brokers with usable reports.
        counted: Bundles that count as moved, including those that upstream refuses afterwards.
        planned: Planned destinations by bundle, named in the move or not.
    """

    def __init__(
        self,
        strategy: str,
        cluster: Cluster,
        settings: SheddingSettings,
        memory: Mapping[str, Any],
        weights: ResourceWeights | None,
        can_take: CanTake | None = None,
    ) -> None:
        self.cluster = cluster
        self.strategy = strategy
        self._settings = settings
        self._can_take = can_take
        self._judged: dict[str, list[Bundle]] = {}
        self._averaged: dict[str, Mapping[Measure, float]] = {}
        self._few_rules = not cluster.policies.pins and (not cluster.policies.excluded or settings.upstream)
        readings = read(cluster, settings, weights)
        self.loads = readings.loads
        self.usages = readings.usages
        self.left = list(readings.left)
        self.moves: list[BundleMove] = []
        self.counted = 0
        self.planned: dict[str, str] = {}
        self.scores: Mapping[str, float] = {}
        self.stats: dict[str, float] = {}
        self.memory: dict[str, Any] = dict(memory)
        self.stopped = self._stop()

    def leave(self, name: str, reason: str, why: str) -> None:
        """Record a broker or bundle that was left alone."""
        self.left.append(Left(name, reason, why))

    def size(self, broker: str) -> int:
        """Number of bundles that it owns, movable or not."""
        return self.cluster.bundles_of.count(broker)

    def movable(self, broker: str) -> Sequence[Bundle]:
        """Its movable bundles, sorted by name; the others are recorded. Computed once for each broker.

        Bundles in flight, pinned or recently moved are not movable, nor are those of excluded namespaces; but upstream counts
        these as moved before it finds that they are excluded, and so does this with `upstream` (they are refused in `move`).
        """
        movable = self._judged.get(broker)
        if movable is None:
            owned = self.cluster.bundles_of.get(broker, ())
            movable = [bundle for bundle in owned if self._is_plain(bundle) or self._may_go(bundle)]
            self._judged[broker] = movable
        return movable

    def weighed(self, broker: str, measure: Measure) -> Weighed:
        """Its movable bundles with their short-term traffic, most first, equal ones by name."""
        pairs = [(bundle, measure(bundle.averages.short)) for bundle in self.movable(broker)]
        pairs.sort(key=lambda pair: -pair[1])
        return pairs

    def averaged(self, broker: str, measure: Measure) -> float:
        """The sum of the short-term averages of a broker's bundles."""
        sums = self._averaged.get(broker)
        if sums is None:
            sums = self._averaged[broker] = _added_up(self.cluster.bundles_of.unsorted(broker))
        return sums[measure]

    def total(self, broker: str, measure: Measure) -> float:
        """A broker's traffic: its report, or the sum of its bundles' averages, whichever is larger."""
        return max(measure(self.loads[broker]), self.averaged(broker, measure))

    def receivers(self, loads: Mapping[str, float], excluding: Iterable[str]) -> Receivers:
        """The brokers that take bundles at all, with their loads."""
        out = set(excluding)
        return Receivers(
            {name: load for name, load in loads.items() if name not in out and may_receive(self.cluster, name)},
            self._can_take,
            self._settings.max_destinations_per_bundle,
        )

    def relieve(
        self,
        need: LoadToGive,
        measure: Measure,
        receivers: Receivers,
        reason: Reason,
        situation: str,
        most: int | None = None,
    ) -> bool:
        """Relieve a broker as far as possible (`level`); whether anything moves.

        Args:
            situation: The broker's load, for messages.
        """
        unit = unit_of(measure)
        chosen = level(self.weighed(need.source, measure), need, receivers, most) if receivers else []
        if not chosen:
            least = f"the least loaded has {receivers.least:.6g}" if receivers else "no broker takes bundles"
            last = f"; {receivers.refusal}" if receivers.refusal else ""
            why = f"{situation}; no bundle fits {rate(need.traffic, unit)} to give; {least}{last}"
            self.leave(need.source, "nothing-fits", why)
        for bundle, weight, receiver in chosen:
            why = (
                f"{situation} and should give {rate(need.traffic, unit)}; this is {rate(weight, unit)}, for {receiver}"
            )
            destination = receiver if self._settings.transfer else None
            self.planned[bundle.name] = receiver
            self.move(bundle, need.source, reason, weight, why, destination, unit)
        return bool(chosen)

    def move(
        self,
        bundle: Bundle,
        source: str,
        reason: Reason,
        load: float,
        why: str,
        destination: str | None = None,
        unit: LoadUnit = BYTES,
    ) -> None:
        self.counted += 1
        if bundle.namespace in self.cluster.policies.excluded:
            self.leave(bundle.name, "excluded", f"chosen and counted as moved, but {bundle.namespace} is excluded")
            return
        self.moves.append(BundleMove(bundle.name, source, destination, reason, load, why, load_unit=unit))

    def plan(self, why: str, otherwise: Reason) -> Plan:
        """The plan.

        Args:
            why: The sentence if nothing moves.
            otherwise: Upstream's reason if nothing moves.
        """
        if self.moves:
            sources = sorted({move.source for move in self.moves})
            more = f" and {len(sources) - _NAMED} more" if len(sources) > _NAMED else ""
            why = f"{count(len(self.moves), 'bundle')} from {', '.join(sources[:_NAMED])}{more}"
        return Plan(
            self.strategy,
            Label.SUCCESS if self.moves else Label.SKIP,
            self.moves[0].reason if self.moves else otherwise,
            why,
            self.moves,
            self.left,
            self.scores,
            self.stats,
            self.memory,
        )

    def _stop(self) -> Plan | None:
        if self.cluster.safe is not None:
            return self.plan(f"the cluster is left alone: {self.cluster.safe}", Reason.UNKNOWN)
        if len(self.loads) >= _NEEDED:
            return None
        brokers = count(len(self.cluster.brokers), "broker")
        why = f"{len(self.loads)} of {brokers} have a usable report; at least {_NEEDED} are needed"
        return self.plan(why, no_decision({left.reason for left in self.left}))

    def _is_plain(self, bundle: Bundle) -> bool:
        """A fast check for bundles without any restriction: there may be a hundred thousand of them."""
        return (
            self._few_rules
            and not bundle.in_flight
            and not bundle.secondhand
            and bundle.name not in self.cluster.recent.bundles
            and not bundle.name.startswith(_SYSTEM)
            and is_sound(bundle.averages.short)
        )

    def _may_go(self, bundle: Bundle) -> bool:
        policies, namespace = self.cluster.policies, bundle.namespace
        age_s = self.cluster.recent.bundles.get(bundle.name)
        pin = pin_of(policies, bundle)
        if bundle.in_flight:
            self.leave(bundle.name, "in-flight", "it is in flight or being split")
        elif pin is not None:
            self.leave(bundle.name, "pinned", f"it is pinned to {pin}")
        elif age_s is not None and not age_s > self._settings.grace_s:
            self.leave(
                bundle.name, "recently-moved", f"moved {seconds(age_s)} ago, grace {seconds(self._settings.grace_s)}"
            )
        elif _is_internal(namespace):
            self.leave(bundle.name, "internal", f"{namespace} belongs to one broker or to the system")
        elif namespace in policies.excluded and not self._settings.upstream:
            self.leave(bundle.name, "excluded", f"{namespace} is excluded")
        elif bundle.secondhand:
            self.leave(
                bundle.name,
                "secondhand",
                f"{bundle.owner} has not measured it since it came there, or since other bundles came or went",
            )
        elif not is_sound(bundle.averages.short):
            self.leave(bundle.name, "bad-load", f"its short-term averages are {bundle.averages.short}")
        else:
            return True
        return False


def _added_up(bundles: Iterable[Bundle]) -> Mapping[Measure, float]:
    """Sums of both measures over all valid short-term averages.

    `is_sound` and the measures are inlined: this runs for each of tens of thousands of bundles. Sums are exactly rounded,
    so the order does not matter.
    """
    sizes: list[float] = []
    rates: list[float] = []
    for bundle in bundles:
        if bundle.secondhand:
            continue
        average = bundle.averages.short
        size_in, size_out = average.msg_throughput_in, average.msg_throughput_out
        rate_in, rate_out = average.msg_rate_in, average.msg_rate_out
        if 0.0 <= size_in <= MOST and 0.0 <= size_out <= MOST and 0.0 <= rate_in <= MOST and 0.0 <= rate_out <= MOST:
            sizes.append(size_in + size_out)
            rates.append(rate_in + rate_out)
    return {bytes_of: fsum(sizes), messages_of: fsum(rates)}


@lru_cache(maxsize=4096)
def _is_internal(namespace: str) -> bool:
    return _INTERNAL.fullmatch(namespace) is not None
