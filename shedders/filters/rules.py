"""Rules of single filters, their settings, pins, and bookings of bundles in flight; `shedders.filters.chain` orders the rules.

A pin of a bundle to a broker also holds for the parts of its bundle, which may have been split since.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from pydantic import Field

from shedders.filters.isolation import Isolation, Zone
from shedders.model.cluster import Broker, Bundle, Cluster, Policies
from shedders.model.strategy import StrategySettings
from statechannel.protocol.bundle import parse_key

_Parent = tuple[int, int, str]  # bounds and name of a bundle


def pin_of(policies: Policies, bundle: Bundle) -> str | None:
    """The broker that a bundle is pinned to: by itself, else by its namespace."""
    pins = policies.pins
    if not pins:
        return None
    return pins.get(bundle.name, pins.get(bundle.namespace))


def inherited(policies: Policies, bundles: Collection[str]) -> Policies:
    """The policies with each pin of a bundle that no longer exists extended to its parts.

    A part's own pin takes precedence over its parent's, and that of a smaller parent over that of a larger one.

    Args:
        bundles: Names of all that exist; searched only if there is such a pin.
    """
    gone = _gone(policies, bundles)
    if not gone:
        return policies
    pins = dict(policies.pins)
    for name in bundles:
        if name not in policies.pins and (around := _around(name, gone)):
            pins[name] = policies.pins[min(around, key=lambda parent: parent[1] - parent[0])[2]]
    return policies if len(pins) == len(policies.pins) else replace(policies, pins=pins)


def split_up(policies: Policies, bundles: Collection[str]) -> frozenset[str]:
    """Pins of bundles that no longer exist and whose parts are pinned (`inherited`)."""
    gone = _gone(policies, bundles)
    parts = [name for name in policies.pins if name in bundles] if gone else []
    return frozenset(parent for name in parts for _, _, parent in _around(name, gone))


def _gone(policies: Policies, bundles: Collection[str]) -> dict[str, list[_Parent]]:
    """By namespace, the pinned bundles that do not exist."""
    gone: dict[str, list[_Parent]] = {}
    for name in policies.pins:
        if name not in bundles:
            parts = parse_key(name.encode())
            if parts is not None and not parts.is_namespace:
                gone.setdefault(parts.namespace, []).append((parts.lower, parts.upper, name))
    return gone


def _around(name: str, gone: Mapping[str, Sequence[_Parent]]) -> list[_Parent]:
    parents = gone.get(name.rpartition("/")[0])
    parts = None if parents is None else parse_key(name.encode())
    if parents is None or parts is None:
        return []
    return [parent for parent in parents if parent[0] <= parts.lower and parts.upper <= parent[1]]


class Bookings(Mapping[str, Sequence[str]]):
    """Bundles by the broker that they go to; placement strategies get it as this mapping.

    Attributes:
        topics: Topics in flight, by broker; every bundle counts at least one.
        most_topics: The largest of these.
        count: Bookings so far; it changes with each.
    """

    def __init__(self, cluster: Cluster, booked: Mapping[str, Sequence[str]] | None = None) -> None:
        self._cluster = cluster
        self._bundles: dict[str, list[str]] = {}
        self._homes: dict[str, list[str]] = {}
        self._namespaces: dict[str, Counter[str]] = {}
        self.topics: Counter[str] = Counter()
        self.most_topics = 0
        self.count = 0
        for broker in sorted(booked or {}):
            for bundle in (booked or {})[broker]:
                self.book(broker, bundle)

    def book(self, broker: str, name: str) -> bool:
        """Count a bundle for a broker; twice the same counts once.

        Returns:
            Whether it is new.
        """
        homes = self._homes.setdefault(name, [])
        if broker in homes:
            return False
        homes.append(broker)
        self._bundles.setdefault(broker, []).append(name)
        bundle = self._cluster.bundles.get(name)
        # Ownership counts a bundle that has arrived already, the broker's report may not.
        if bundle is None or bundle.owner != broker:
            self._namespaces.setdefault(broker, Counter())[name.rpartition("/")[0]] += 1
        self.topics[broker] += 1 if bundle is None else topics_of(bundle)
        self.most_topics = max(self.most_topics, self.topics[broker])
        self.count += 1
        return True

    def is_booked(self, broker: str, name: str) -> bool:
        return broker in self._homes.get(name, ())

    def of_bundle(self, name: str) -> Sequence[str]:
        """Brokers that a bundle is in flight to; more than one only if it was booked twice."""
        return self._homes.get(name, ())

    def of_namespace(self, namespace: str) -> Counter[str]:
        """Bundles of a namespace that are in flight and not owned by their destination yet, by broker."""
        return Counter({broker: counts[namespace] for broker, counts in self._namespaces.items() if counts[namespace]})

    def namespaces(self, broker: str) -> Sequence[str]:
        return list(self._namespaces.get(broker, ()))

    def __getitem__(self, broker: str) -> Sequence[str]:
        return self._bundles[broker]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bundles)

    def __len__(self) -> int:
        return len(self._bundles)


def topics_of(bundle: Bundle) -> int:
    """Topics of a bundle as far as known; at least one, as a bundle is placed only when a client looks up one of its topics."""
    return max(1, len(bundle.topics), 0 if bundle.stats is None else bundle.stats.topics)


Removed = tuple[str, str]  # name of the filter, and the reason
NON_PERSISTENT = "non-persistent://"


class FilterSettings(StrategySettings):
    """Settings of the filters; defaults are upstream's except for `failure_domains` and `fewest_bundles`."""

    upstream: bool = Field(
        default=False,
        description="Filter as Pulsar does, including where it fails open; moves of one plan are not counted for each other, and "
        "the older manager chooses again if its choice is overloaded.",
    )
    generation: Literal["extensible", "modular"] = Field(
        default="extensible", description="With upstream: the filters of which of its load managers."
    )
    manager: str = Field(default="extensible", description="Brokers with another load manager are not destinations.")
    max_topics: int = Field(
        default=50_000, ge=1, description="Topics that a broker serves at most (loadBalancerBrokerMaxTopics)."
    )
    prefer_later_versions: bool = Field(
        default=False, description="Only brokers with the newest software get bundles (preferLaterVersions)."
    )
    failure_domains: bool = Field(
        default=True,
        description="Anti-affinity compares failure domains before brokers, if any are known (failureDomainsEnabled; "
        "upstream: false).",
    )
    fewest_bundles: bool = Field(
        default=False,
        description="Only brokers with the fewest bundles of the namespace get another one; this ranks above load "
        "(loadBalancerDistributeBundlesEvenlyEnabled; upstream's older manager: true).",
    )
    overloaded_percent: float = Field(
        default=85.0,
        ge=0,
        description="With upstream and its older manager: if the chosen broker is above this, the placement chooses again "
        "among all that policies allow (loadBalancerBrokerOverloadedThresholdPercentage). A placement's own setting of this "
        "name takes precedence.",
    )
    taker_max_age_s: float = Field(
        default=1800.0,
        gt=0,
        description="A bundle that is shed goes to no broker whose report is older, in seconds, whatever the strategy says "
        "(decision record 49); for bundles without a broker the strategy alone decides.",
    )


@dataclass(frozen=True, slots=True)
class Passed:
    """Brokers that may take a bundle, sorted, and the others with filter and reason."""

    names: Sequence[str]
    removed: Mapping[str, Removed]


def needs(bundle: Bundle) -> tuple[bool, bool]:
    """Whether it needs a broker for persistent topics, and one for non-persistent topics.

    A bundle that is marked non-persistent holds such a topic; its persistent ones count if its topics are known
    (upstream never requires both).
    """
    if not bundle.topics:
        return not bundle.non_persistent, bundle.non_persistent
    known = [topic.name.startswith(NON_PERSISTENT) for topic in bundle.topics]
    non_persistent = bundle.non_persistent or any(known)
    return not non_persistent or not all(known), non_persistent


def incapable(broker: Broker, persistent: bool, non_persistent: bool) -> str | None:
    """Why a broker does not take topics of such a kind."""
    if persistent and not broker.persistent:
        return "it takes no persistent topics"
    if non_persistent and not broker.non_persistent:
        return "it takes no non-persistent topics"
    return None


def topics_on(cluster: Cluster, broker: Broker) -> int:
    """Topics that a broker serves: as reported, else (no report, or a negative number) as known of its bundles."""
    if broker.load is not None and broker.load.topics >= 0:
        return broker.load.topics
    return sum(map(topics_of, cluster.bundles_of.unsorted(broker.name)))


def isolated(isolation: Isolation, zone: Zone | None, names: Sequence[str]) -> dict[str, str]:
    """Which of these brokers isolation removes, with the reason.

    Args:
        names: Brokers that the filters before left; primaries are counted among these.
    """
    if zone is None:
        return {}
    if zone.broken is not None:
        return dict.fromkeys(names, zone.broken)
    if zone.policy is None:
        owners = isolation.owners
        return {name: f"it is primary in policy `{owners[name]}`" for name in names if name not in zone.primary}
    here = sum(name in zone.primary for name in names)
    helped = here < zone.min_available
    enough = f"policy `{zone.policy}` has {here} of {zone.min_available} primaries, secondaries are not needed"
    removed = {}
    for name in names:
        if name in zone.primary:
            continue
        if name not in zone.secondary:
            removed[name] = f"policy `{zone.policy}` does not name it"
        elif not helped:
            removed[name] = enough
    return removed


def older_versions(cluster: Cluster, names: Sequence[str]) -> dict[str, str]:
    """Brokers that do not run the newest version among these; one with an invalid version counts as older."""
    versions: dict[str, Version] = {}
    away: dict[str, str] = {}
    for name in names:
        text = cluster.brokers[name].version
        version = None if text is None else parse_version(text)
        if version is None:
            away[name] = "it reports no version" if not text else f"its version `{text}` is not valid"
        else:
            versions[name] = version
    newest = max(versions.values(), default=None)
    best = next((cluster.brokers[name].version for name in versions if versions[name] == newest), None)
    for name, version in versions.items():
        if version != newest:
            away[name] = f"its version {cluster.brokers[name].version} is older than {best}"
    return away


def summary(removed: Mapping[str, Removed]) -> str:
    """A sentence on the filters by how many brokers they removed, each with an example."""
    counts = Counter(word for word, _ in removed.values())
    parts = []
    for word, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        name = min(name for name, removal in removed.items() if removal[0] == word)
        more = f" and {count - 1} more" if count > 1 else ""
        parts.append(f"`{word}` removed {name}{more} ({removed[name][1]})")
    return "; ".join(parts) if parts else "no broker is registered"


def without(base: Passed, away: Mapping[str, Removed]) -> Passed:
    return Passed([name for name in base.names if name not in away], {**base.removed, **away})


def pinned_to(pin: str, names: Iterable[str], base: Passed) -> Passed:
    why = ("pin", f"it is pinned to {pin}")
    removed = {name: why for name in names if name != pin}
    if pin in base.removed:
        removed[pin] = base.removed[pin]
    elif pin not in base.names:
        removed[pin] = ("accepting", "the bundle is pinned to it, and it is not registered")
    return Passed([pin] if pin in base.names else [], removed)


Version = tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]
"""Sortable; build metadata is left out. The fourth member puts a release (1) after its pre-releases (0)."""

_NUMBER = r"(0|[1-9][0-9]{0,17})"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)
# A number has no leading zero; anything with a letter or a hyphen may have.
_IDENTIFIER = re.compile(r"0|[1-9][0-9]{0,17}|[0-9A-Za-z-]*[A-Za-z-][0-9A-Za-z-]*", re.ASCII)


@lru_cache(maxsize=256)
def parse_version(text: str) -> Version | None:
    """The sortable value of `1.2.3`, `1.2.3-rc.1` or `1.2.3+build`; None for anything else."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return None
    major, minor, patch, pre = match.groups()
    if pre is None:
        return int(major), int(minor), int(patch), 1, ()
    parts = pre.split(".")
    if not all(_IDENTIFIER.fullmatch(part) for part in parts):
        return None
    return int(major), int(minor), int(patch), 0, tuple(_identifier(part) for part in parts)


def _identifier(part: str) -> tuple[int, int, str]:
    return (0, int(part), "") if part.isdigit() else (1, 0, part)
