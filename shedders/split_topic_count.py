"""`topic-count-equally-divide`: as many topics on one side as on the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from shedders.cluster import Bundle
from shedders.cuts import ends, inside, topics_in
from shedders.strategy import StrategySettings


class SplitTopicCountSettings(StrategySettings):
    """What `topic-count-equally-divide` can be told."""

    upstream: bool = Field(
        default=False,
        description="Answer as Pulsar does where the topics in the middle lie on neighbouring hashes, or on one.",
    )


class SplitTopicCount:
    """Cuts between the two topics in the middle.

    Hashes h sorted, n of them: s = h[n div 2 - 1], e = h[n div 2], cut at `s + (e - s) div 2`; topics below the cut go left.
    Where that is s itself (e - s = 1), the topic at s would go right: ours cuts at e. Where s = e, ours cuts at the nearest
    place in the list where hashes differ, the lower of two. Upstream's cut may be the bundle's own lower end, which ends its
    whole cycle with an error (decision record 43). With fewer than two hashes nothing is cut.

    Worked example: hashes 0x10, 0x20, 0x30, 0x61, 0x70 in 0x00_0x80: s = 0x20, e = 0x30, cut at 0x28: two left, three right.
    Hashes 0x00, 0x01 in 0x00_0x80: ours cuts at 0x01, upstream at 0x00, which is refused.

    Source: upstream `TopicCountEquallyDivideBundleSplitAlgorithm`.
    """

    name: ClassVar[str] = "topic-count-equally-divide"
    Settings: ClassVar[type[StrategySettings]] = SplitTopicCountSettings

    def __init__(self, settings: SplitTopicCountSettings) -> None:
        self.settings = settings

    def positions(self, bundle: Bundle) -> Sequence[int]:
        """Where to cut; empty where its topics are not known, or all on one hash. With `upstream` not always strictly inside.

        Raises:
            CannotSplitError: The bundle's name is none.
        """
        lower, upper = ends(bundle)
        if self.settings.upstream:
            return _upstream(sorted(topic.position for topic in bundle.topics))
        places = [topic.position for topic in topics_in(bundle, lower, upper)]
        # The last hash of the ring cannot begin a part, so nothing parts the last two.
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
