"""`flow-or-qps-equally-divide`: by the traffic of its topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from pydantic import Field

from shedders.cluster import Bundle, TopicLoad
from shedders.cuts import ends, inside, topics_in
from shedders.readings import is_amount
from shedders.strategy import StrategySettings

MIB = 1024 * 1024
_STEPS = 30


class SplitFlowOrQpsSettings(StrategySettings):
    """What `flow-or-qps-equally-divide` can be told."""

    upstream: bool = Field(
        default=False, description="Fill each part to its limit, as Pulsar does, rather than evenly."
    )
    max_msg_rate: int = Field(
        default=30_000,
        ge=1,
        description="Messages a second, both ways, that a bundle should have at most (loadBalancerNamespaceBundleMaxMsgRate).",
    )
    max_bandwidth_mib: int = Field(
        default=100,
        ge=1,
        description="MiB a second, both ways, at most (loadBalancerNamespaceBundleMaxBandwidthMbytes).",
    )
    difference_percent: float = Field(
        default=10.0,
        ge=0,
        description="A bundle is cut only if it is above a limit by so much (flowOrQpsDifferenceThresholdPercentage).",
    )


class Point(NamedTuple):
    """Traffic at one hash, a second."""

    position: int
    msg_rate: float
    throughput: float


class SplitFlowOrQps:
    """Cuts so that no part has more traffic than a bundle should have, as far as single topics allow.

    Topics without traffic do not count. Nothing is cut with fewer than two hashes that have some, or unless messages or bytes a
    second reach a limit by `difference_percent`. Then, by hash, a part takes topics as long as it stays within both limits;
    the cut is at `h[i-1] + (h[i] - h[i-1]) div 2 + 1`. That says how many parts there are; ours then finds the smallest
    share of the limits with which as many parts do, so that they are about equal, as the name promises, where upstream leaves
    a rest of any size (decision record 43). Ours adds up topics on one hash; upstream takes the last one's traffic for each.

    Worked example: limit 100 messages/s, 5 topics of 30 at hashes 10, 20, 30, 40, 50 in 0_128: 150 >= 110. Filled to the limit:
    10, 20, 30 | 40, 50, cut at 36. Two parts; 90 is the least with which two do, and it gives the same cut. Topics of 30, 30,
    30, 30 (120): filled 10, 20, 30 | 40, cut at 36 (upstream); 60 is the least for two: 10, 20 | 30, 40, cut at 26 (ours).

    Source: upstream `FlowOrQpsEquallyDivideBundleSplitAlgorithm`.
    """

    name: ClassVar[str] = "flow-or-qps-equally-divide"
    Settings: ClassVar[type[StrategySettings]] = SplitFlowOrQpsSettings

    def __init__(self, settings: SplitFlowOrQpsSettings) -> None:
        self.settings = settings
        self._max_rate = float(settings.max_msg_rate)
        self._max_bytes = float(settings.max_bandwidth_mib * MIB)

    def positions(self, bundle: Bundle) -> Sequence[int]:
        """Where to cut, possibly in several places; empty below the limits. With `upstream` not always strictly inside.

        Raises:
            CannotSplitError: The bundle's name is none.
        """
        lower, upper = ends(bundle)
        if self.settings.upstream:
            points, over = self._upstream_points(bundle.topics)
            return self._filled(points, 1.0) if over else []
        points = _points(topics_in(bundle, lower, upper))
        if len(points) < 2 or not self._is_over(points):  # noqa: PLR2004
            return []
        parts = len(self._filled(points, 1.0))
        low, high = 0.0, 1.0
        for _ in range(_STEPS):
            share = (low + high) / 2
            if len(self._filled(points, share)) <= parts:
                high = share
            else:
                low = share
        # The end of the ring is the only hash that cannot begin a part.
        return inside((min(cut, upper - 1) for cut in self._filled(points, high)), lower, upper)

    def _is_over(self, points: Sequence[Point]) -> bool:
        factor = 1 + self.settings.difference_percent / 100.0
        rate, throughput = 0.0, 0.0
        for point in points:
            rate += point.msg_rate
            throughput += point.throughput
        return not (rate < self._max_rate * factor and throughput < self._max_bytes * factor)

    def _filled(self, points: Sequence[Point], share: float) -> list[int]:
        """Cuts that come of filling part after part up to a share of the limits."""
        max_rate, max_bytes = self._max_rate * share, self._max_bytes * share
        cuts: list[int] = []
        before, rate, throughput = points[0]
        for place, more, larger in points[1:]:
            if rate > max_rate or throughput > max_bytes or rate + more > max_rate or throughput + larger > max_bytes:
                cuts.append(before + (place - before) // 2 + 1)
                rate, throughput = more, larger
            else:
                rate += more
                throughput += larger
            before = place
        return cuts

    def _upstream_points(self, topics: Sequence[TopicLoad]) -> tuple[Sequence[Point], bool]:
        if len(topics) <= 1:
            return [], False
        loads = [point for point in map(_point, topics) if not (point.msg_rate <= 0 and point.throughput <= 0)]
        last = {point.position: point for point in loads}
        if len(last) < 2:  # noqa: PLR2004
            return [], False
        return [last[place] for place in sorted(point.position for point in loads)], self._is_over(loads)


def _point(topic: TopicLoad) -> Point:
    return Point(
        topic.position, topic.msg_rate_in + topic.msg_rate_out, topic.msg_throughput_in + topic.msg_throughput_out
    )


def _points(topics: Sequence[TopicLoad]) -> list[Point]:
    """Traffic by hash; what is no amount does not count."""
    found: dict[int, Point] = {}
    for topic in topics:
        point = _point(topic)
        if not (is_amount(point.msg_rate) and is_amount(point.throughput)) or not point.msg_rate + point.throughput:
            continue
        known = found.get(point.position, Point(point.position, 0.0, 0.0))
        found[point.position] = Point(
            point.position, known.msg_rate + point.msg_rate, known.throughput + point.throughput
        )
    return [found[place] for place in sorted(found)]
