"""Hot topics, which no split makes smaller: a bundle with one is left whole (decision record 44). Pure.

If topics are known, the heaviest one is examined. If not, the effect of earlier splits is: each child remembers its parent's
load, and how many splits in a row took next to nothing off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shedders.model.amounts import BYTES, MESSAGES, rate
from shedders.model.cluster import Bundle, TopicLoad
from shedders.model.readings import is_amount


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """Limits of a bundle; None: no limit. Rates are per second, in both directions."""

    topics: int
    sessions: int | None
    msg_rate: int
    throughput: int


def hot_topic(bundle: Bundle, reason: str, limits: BundleLimits, worth_percent: float) -> str | None:
    """A sentence on the topic that makes splitting useless; None if there is none, or the topics are not known.

    Splitting is useless if the heaviest topic alone is over the limit, so that the part with it will be as well, and all the
    others together have less than `worth_percent` of the limit, so that the other parts would have next to nothing.

    Args:
        reason: Upstream's; only `MsgRate` and `Bandwidth` have figures by topic.
    """
    if reason not in ("MsgRate", "Bandwidth") or not bundle.topics:
        return None
    limit = limits.msg_rate if reason == "MsgRate" else limits.throughput
    loads = [(_load(topic, reason), topic.name) for topic in bundle.topics]
    loads = [(load, name) for load, name in loads if is_amount(load)]
    if not loads:
        return None
    most, name = max(loads)
    rest = sum(load for load, other in loads if other != name)
    if most > limit and rest < limit * worth_percent / 100:
        unit = MESSAGES if reason == "MsgRate" else BYTES
        others = rate(rest, unit)
        return (
            f"topic {name} alone has {rate(most, unit)}, the others together {others}: only partitions make it smaller"
        )
    return None


def _load(topic: TopicLoad, reason: str) -> float:
    if reason == "MsgRate":
        return topic.msg_rate_in + topic.msg_rate_out
    return topic.msg_throughput_in + topic.msg_throughput_out


@dataclass(frozen=True, slots=True)
class Ancestry:
    """The origin of a bundle.

    Attributes:
        size: The parent's load, in that reason's measure.
        vain: Number of splits in a row, up to the parent's, that took next to nothing off.
    """

    parent: str
    reason: str
    size: float
    vain: int


class Lineage:
    """Ancestry of bundles that automatic splits created."""

    def __init__(self, ancestries: dict[str, Ancestry]) -> None:
        self._ancestries = ancestries
        self._vain: dict[str, int] = {}

    @classmethod
    def remembered(cls, memory: object) -> Lineage:
        """The lineage from a strategy's memory; invalid entries are dropped."""
        ancestries: dict[str, Ancestry] = {}
        for name, entry in memory.items() if isinstance(memory, Mapping) else ():
            try:
                ancestry = Ancestry(
                    str(entry["parent"]), str(entry["reason"]), float(entry["size"]), int(entry["vain"])
                )
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            if is_amount(ancestry.size) and ancestry.vain >= 0:
                ancestries[str(name)] = ancestry
        return cls(ancestries)

    def in_vain(self, name: str, reason: str, size: float, percent: float) -> int:
        """How many splits in a row, up to the one that created the bundle, took less than a share off.

        Args:
            size: Its present load, in the reason's measure.
        """
        ancestry = self._ancestries.get(name)
        if ancestry is None or ancestry.reason != reason:
            return 0
        little = size > ancestry.size * (1 - percent / 100)
        self._vain[name] = ancestry.vain + 1 if little else 0
        return self._vain[name]

    def split(self, name: str, children: Sequence[str], reason: str, size: float) -> None:
        for child in children:
            self._ancestries[child] = Ancestry(name, reason, size, self._vain.get(name, 0))

    def dumped(self, bundles: Collection[str]) -> dict[str, Any]:
        """The memory: of bundles that exist, and of children whose parent still exists."""
        return {
            name: {"parent": ancestry.parent, "reason": ancestry.reason, "size": ancestry.size, "vain": ancestry.vain}
            for name, ancestry in sorted(self._ancestries.items())
            if name in bundles or ancestry.parent in bundles
        }
