"""Children of a split, reckoned from their parent until somebody has measured them (PIP-192: they are offered at once).

The channel makes the children in one record, still on the parent's broker, long before a report speaks of them. Without figures
no shedder would look at them for a minute or more, and the parent's hot spot would stay. So each gets its part of the parent's
figures and is marked (`Bundle.estimated`): shedders may move it at once, nobody splits it again before it was measured, and
its averages have no samples, so that the first measurement replaces them.

A child's part of the traffic is that of its topics in the traffic of all topics that are known, measure by measure; where that
says nothing (topics unknown, or idle) its part of the range, as hashes are spread evenly: halves for a cut in the middle.
Topics are counted where all are known; sessions and cache go with the topics. The parts add up to the parent.

Worked example: 0x00_0x80 serves topics at 0x10 with 30 messages/s in, at 0x20 with 10, at 0x70 with 60; its short average is 200
in, its stats 100 in, 3 topics, 10 consumers. Cut at 0x40: the first child has 2 topics, 40 in and 80 on average, 7 consumers
(10 * 2/3, the largest rest goes up), the second 1 topic, 60, 120 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from loaddata.averages import is_sound as stats_sound
from loaddata.bundle_load import UNSEEN, BundleAverages, BundleStats, MessageAverage
from shedders.cluster import Bundle, Cluster, TopicLoad
from shedders.cuts import children, ends, part_of, topics_in
from shedders.plan import SplitPlan
from shedders.readings import is_amount, is_sound

Measured = Callable[[TopicLoad], float]


def offspring(parent: Bundle, positions: Sequence[int]) -> Sequence[Bundle]:
    """What a bundle becomes when it is cut.

    Figures of the parent that are not finite or negative are not handed on.

    Raises:
        CannotSplitError: The positions are not strictly inside it, each once.
    """
    names, cuts = children(parent, positions), sorted(positions)
    topics: list[list[TopicLoad]] = [[] for _ in names]
    lower, upper = ends(parent)
    for topic in topics_in(parent, lower, upper):
        topics[part_of(topic.position, cuts)].append(topic)
    shares = _Shares([high - low for low, high in pairwise([lower, *cuts, upper])], topics)
    stats = _stats(parent, shares)
    short, long = (
        _average(average, shares, measured=average.samples > 0 or parent.estimated)
        for average in (parent.averages.short, parent.averages.long)
    )
    return [
        replace(
            parent,
            name=name,
            stats=stats[part],
            averages=BundleAverages(short[part], long[part]),
            topics=tuple(topics[part]),
            estimated=True,
        )
        for part, name in enumerate(names)
    ]


def with_children(cluster: Cluster, splits: Iterable[SplitPlan]) -> Cluster:
    """The cluster with the children of these splits in place of their parents; those that cut nothing change nothing."""
    bundles = dict(cluster.bundles)
    for split in splits:
        parent = bundles.get(split.bundle)
        if parent is not None and split.positions:
            del bundles[split.bundle]
            bundles.update((child.name, child) for child in offspring(parent, split.positions))
    return replace(cluster, bundles=bundles)


def with_estimates(cluster: Cluster, estimates: Mapping[str, Bundle]) -> Cluster:
    """The cluster with figures for bundles that nobody has measured yet: a live balancer keeps what `offspring` gave.

    Owner, and whether it is in flight, stay as the channel has them.
    """
    found = {
        name: replace(one, owner=cluster.bundles[name].owner, in_flight=cluster.bundles[name].in_flight)
        for name, one in estimates.items()
        if name in cluster.bundles and cluster.bundles[name].stats is None
    }
    return replace(cluster, bundles={**cluster.bundles, **found}) if found else cluster


class _Shares:
    """What part of something each child gets."""

    def __init__(self, widths: Sequence[int], topics: Sequence[Sequence[TopicLoad]]) -> None:
        self._widths = list(widths)
        self._topics = topics
        self.counts = [len(one) for one in topics]

    def of(self, measured: Measured) -> Sequence[float]:
        """Weights by the topics' traffic, else by the width of the range."""
        sums = [sum(value for value in map(measured, one) if is_amount(value)) for one in self._topics]
        return sums if is_amount(sum(sums)) and sum(sums) > 0 else self._widths

    def of_topics(self) -> Sequence[int]:
        """Weights by the number of topics, else by the width of the range."""
        return self.counts if any(self.counts) else self._widths


def _stats(parent: Bundle, shares: _Shares) -> Sequence[BundleStats | None]:
    stats = parent.stats
    if stats is None or not stats_sound(stats):
        return [None] * len(shares.counts)
    all_known = sum(shares.counts) == stats.topics
    topics = shares.counts if all_known else _whole(stats.topics, shares.of_topics())
    columns = zip(
        _parted(stats.msg_rate_in, shares.of(_rate_in)),
        _parted(stats.msg_rate_out, shares.of(_rate_out)),
        _parted(stats.msg_throughput_in, shares.of(_throughput_in)),
        _parted(stats.msg_throughput_out, shares.of(_throughput_out)),
        topics,
        _whole(stats.consumers, shares.of_topics()),
        _whole(stats.producers, shares.of_topics()),
        _whole(stats.cache_size_bytes, shares.of_topics()),
        strict=True,
    )
    return [BundleStats(*column) for column in columns]


def _average(average: MessageAverage, shares: _Shares, *, measured: bool) -> Sequence[MessageAverage]:
    if not is_sound(average):
        return [UNSEEN] * len(shares.counts)
    if not measured:
        # A default for the unknown says as much of a part as of the whole.
        return [average] * len(shares.counts)
    columns = zip(
        _parted(average.msg_rate_in, shares.of(_rate_in)),
        _parted(average.msg_rate_out, shares.of(_rate_out)),
        _parted(average.msg_throughput_in, shares.of(_throughput_in)),
        _parted(average.msg_throughput_out, shares.of(_throughput_out)),
        strict=True,
    )
    return [MessageAverage(*column) for column in columns]


def _parted(total: float, weights: Sequence[float]) -> list[float]:
    """Parts by weight that add up: the largest takes what rounding leaves."""
    whole = sum(weights)
    parts = [total * (weight / whole) for weight in weights]
    largest = max(range(len(parts)), key=lambda index: (parts[index], -index))
    parts[largest] = max(0.0, total - sum(part for index, part in enumerate(parts) if index != largest))
    return parts


def _whole(total: int, weights: Sequence[int]) -> list[int]:
    """Whole parts by weight that add up: those with the largest rests are rounded up, the first of equals."""
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    by_rest = sorted(range(len(parts)), key=lambda index: (-(total * weights[index] % whole), index))
    for index in by_rest[: total - sum(parts)]:
        parts[index] += 1
    return parts


def _rate_in(topic: TopicLoad) -> float:
    return topic.msg_rate_in


def _rate_out(topic: TopicLoad) -> float:
    return topic.msg_rate_out


def _throughput_in(topic: TopicLoad) -> float:
    return topic.msg_throughput_in


def _throughput_out(topic: TopicLoad) -> float:
    return topic.msg_throughput_out
