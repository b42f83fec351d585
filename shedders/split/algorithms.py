"""Split algorithms: where a bundle is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, NamedTuple

from pydantic import BeforeValidator, Field

from shedders.model.cluster import Bundle, TopicLoad
from shedders.model.cuts import CannotSplitError, ends, inside, topics_in
from shedders.model.readings import is_amount
from shedders.model.strategy import StrategySettings
from statechannel.protocol.bundle import FULL_UPPER

MIB = 1024 * 1024
_STEPS = 30


class SplitFlowOrQpsSettings(StrategySettings):
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
        description="A bundle is cut only if it exceeds a limit by this percentage (flowOrQpsDifferenceThresholdPercentage).",
    )


class HashTraffic(NamedTuple):
    """Traffic at one hash, a second."""

    position: int
    msg_rate: float
    throughput: float


class SplitFlowOrQps:
    """Cuts so that no part has more traffic than a bundle should have, as far as single topics allow.

    Topics without traffic do not count. A bundle is cut only if at least two hashes have traffic, and messages or bytes a
    second exceed a limit by `difference_percent`. Then, by hash, a part takes topics as long as it stays within both limits;
    the cut is at `h[i-1] + (h[i] - h[i-1]) div 2 + 1`. That gives the number of parts; ours then finds the smallest
    share of the limits with which as many parts are enough, so that they are about equal, where upstream leaves
    a rest of any size (decision record 43). Ours adds up topics on one hash; upstream takes the last one's traffic for each.

    Worked example: limit 100 messages/s, 5 topics of 30 at hashes 10, 20, 30, 40, 50 in 0_128: 150 >= 110. Filled to the limit:
    10, 20, 30 | 40, 50, cut at 36. Two parts; 90 is the least with which two are enough, and it gives the same cut. Topics of
    30, 30, 30, 30 (120): filled 10, 20, 30 | 40, cut at 36 (upstream); 60 is enough for two: 10, 20 | 30, 40, cut at 26 (ours).

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
            CannotSplitError: The bundle's name is not valid.
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

    def _is_over(self, points: Sequence[HashTraffic]) -> bool:
        factor = 1 + self.settings.difference_percent / 100.0
        rate, throughput = 0.0, 0.0
        for point in points:
            rate += point.msg_rate
            throughput += point.throughput
        return not (rate < self._max_rate * factor and throughput < self._max_bytes * factor)

    def _filled(self, points: Sequence[HashTraffic], share: float) -> list[int]:
        """Cuts when part after part is filled up to a share of the limits."""
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

    def _upstream_points(self, topics: Sequence[TopicLoad]) -> tuple[Sequence[HashTraffic], bool]:
        if len(topics) <= 1:
            return [], False
        loads = [point for point in map(_point, topics) if not (point.msg_rate <= 0 and point.throughput <= 0)]
        last = {point.position: point for point in loads}
        if len(last) < 2:  # noqa: PLR2004
            return [], False
        return [last[place] for place in sorted(point.position for point in loads)], self._is_over(loads)


def _point(topic: TopicLoad) -> HashTraffic:
    return HashTraffic(
        topic.position, topic.msg_rate_in + topic.msg_rate_out, topic.msg_throughput_in + topic.msg_throughput_out
    )


def _points(topics: Sequence[TopicLoad]) -> list[HashTraffic]:
    """Traffic by hash; invalid figures do not count."""
    points: dict[int, HashTraffic] = {}
    for topic in topics:
        point = _point(topic)
        if not (is_amount(point.msg_rate) and is_amount(point.throughput)) or not point.msg_rate + point.throughput:
            continue
        known = points.get(point.position, HashTraffic(point.position, 0.0, 0.0))
        points[point.position] = HashTraffic(
            point.position, known.msg_rate + point.msg_rate, known.throughput + point.throughput
        )
    return [points[place] for place in sorted(points)]


class SplitRangeSettings(StrategySettings):
    upstream: bool = Field(
        default=False,
        description="Take 0xffffffff for the end of the ring, as Pulsar does, so that the last half is one hash short.",
    )


class SplitRange:
    """Cuts at `lower + (upper - lower) div 2`.

    The last bundle of a ring includes 0xffffffff, so its upper end counts as 2^32: halves are halves, and a namespace of one
    bundle is cut where one of two bundles would be. Upstream takes 0xffffffff: one short (decision record 43).

    Worked example: 0x40000000_0x80000000 is cut at 0x60000000; 0x00000000_0xffffffff at 0x80000000 (upstream: 0x7fffffff).
    A bundle of one hash (0x00000005_0x00000006) is not cut.

    Source: upstream `RangeEquallyDivideBundleSplitAlgorithm`.
    """

    name: ClassVar[str] = "range-equally-divide"
    Settings: ClassVar[type[StrategySettings]] = SplitRangeSettings

    def __init__(self, settings: SplitRangeSettings) -> None:
        self.settings = settings

    def positions(self, bundle: Bundle) -> Sequence[int]:
        """Where to cut; empty if the range is too narrow.

        Raises:
            CannotSplitError: The bundle's name is not valid.
        """
        lower, upper = ends(bundle)
        end = upper + 1 if upper == FULL_UPPER and not self.settings.upstream else upper
        return inside([lower + (end - lower) // 2], lower, upper)


def _hash(value: object) -> object:
    """A hash as people write it: `0x...`, or a decimal number."""
    if isinstance(value, str):
        return int(value, 16) if value.strip().lower().startswith("0x") else int(value)
    return value


Position = Annotated[int, BeforeValidator(_hash), Field(ge=0, le=FULL_UPPER, strict=True)]


class SplitSpecifiedSettings(StrategySettings):
    upstream: bool = Field(
        default=False, description="Keep duplicate hashes, as Pulsar does, although such a cut is refused."
    )
    positions: tuple[Position, ...] = Field(
        default=(), description="Hashes to cut at, 0x... or decimal; `statechannel positions` shows the topics' hashes."
    )
    forced: bool = Field(default=False, description="Cut bundles with fewer than two topics as well.")


class SplitSpecified:
    """Cuts at the given hashes that lie strictly inside the bundle, ascending, each once.

    A bundle with fewer than two topics is left whole, unless `forced`. Without any position it refuses (upstream throws).

    Worked example: positions 0x60, 0x20, 0x60, 0x80 on 0x00_0x80 with two topics: cuts at 0x20 and 0x60 (upstream: 0x20, 0x60,
    0x60, which is refused later).

    Source: upstream `SpecifiedPositionsBundleSplitAlgorithm`.
    """

    name: ClassVar[str] = "specified-positions-divide"
    Settings: ClassVar[type[StrategySettings]] = SplitSpecifiedSettings

    def __init__(self, settings: SplitSpecifiedSettings) -> None:
        self.settings = settings

    def positions(self, bundle: Bundle) -> Sequence[int]:
        """Where to cut; empty if none of the positions is inside, or it has too few topics.

        Raises:
            CannotSplitError: No position was given, or the bundle's name is not valid.
        """
        wanted = self.settings.positions
        if not wanted:
            raise CannotSplitError(
                bundle.name, f"{self.name} has no positions", hint="Set `positions`, or choose another algorithm."
            )
        lower, upper = ends(bundle)
        known = max(len(bundle.topics), 0 if bundle.stats is None else bundle.stats.topics)
        if known <= 1 and not self.settings.forced:
            return []
        if self.settings.upstream:
            return sorted(position for position in wanted if lower < position < upper)
        return inside(wanted, lower, upper)


class SplitTopicCountSettings(StrategySettings):
    upstream: bool = Field(
        default=False,
        description="Cut as Pulsar does if the topics in the middle have adjacent hashes, or the same one.",
    )


class SplitTopicCount:
    """Cuts between the two topics in the middle.

    Hashes h sorted, n of them: s = h[n div 2 - 1], e = h[n div 2], cut at `s + (e - s) div 2`; topics below the cut go left.
    If that is s itself (e - s = 1), the topic at s would go right: ours cuts at e. If s = e, ours cuts at the nearest
    place in the list where hashes differ, the lower of two. Upstream's cut may be the bundle's own lower end, which ends its
    whole cycle with an error (decision record 43). With fewer than two hashes the bundle is not cut.

    Worked example: hashes 0x10, 0x20, 0x30, 0x61, 0x70 in 0x00_0x80: s = 0x20, e = 0x30, cut at 0x28: two left, three right.
    Hashes 0x00, 0x01 in 0x00_0x80: ours cuts at 0x01, upstream at 0x00, which is refused.

    Source: upstream `TopicCountEquallyDivideBundleSplitAlgorithm`.
    """

    name: ClassVar[str] = "topic-count-equally-divide"
    Settings: ClassVar[type[StrategySettings]] = SplitTopicCountSettings

    def __init__(self, settings: SplitTopicCountSettings) -> None:
        self.settings = settings

    def positions(self, bundle: Bundle) -> Sequence[int]:
        """Where to cut; empty if its topics are not known, or all on one hash. With `upstream` not always strictly inside.

        Raises:
            CannotSplitError: The bundle's name is not valid.
        """
        lower, upper = ends(bundle)
        if self.settings.upstream:
            return _upstream(sorted(topic.position for topic in bundle.topics))
        places = [topic.position for topic in topics_in(bundle, lower, upper)]
        # The last hash of the ring cannot begin a part, so the last two cannot be separated.
        gaps = [index for index in range(1, len(places)) if places[index - 1] < min(places[index], upper - 1)]
        if not gaps:
            return []
        middle = len(places) // 2
        index = min(gaps, key=lambda gap: (abs(gap - middle), gap))
        before, after = places[index - 1], places[index]
        cut = before + (after - before) // 2
        return inside([cut if cut > before else after], lower, upper)


def _upstream(places: Sequence[int]) -> list[int]:
    if len(places) <= 1:
        return []
    middle = len(places) // 2
    before, after = places[max(middle - 1, 0)], places[middle]
    return [before + (after - before) // 2]
