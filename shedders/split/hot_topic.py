"""One hot topic: no split makes it smaller (decision record 44).

Where topics are known, the heaviest one is looked at. Where they are not, what splits achieved is: each child remembers what its
parent had, and how often in a row a split took next to nothing off.
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
    """What a bundle should have at most; None: no limit. Rates are a second, in both directions."""

    topics: int
    sessions: int | None
    msg_rate: int
    throughput: int


def hot_topic(bundle: Bundle, reason: str, limits: BundleLimits, worth_percent: float) -> str | None:
    """Which topic makes splitting useless, for people; None if none does, or its topics are not known.

    That is: the heaviest topic alone is over the limit, so that the part with it will be, too, and all the others together have
    less than `worth_percent` of the limit, so that the other parts would have next to nothing.

    Args:
        reason: Upstream's; only `MsgRate` and `Bandwidth` have figures by topic.
    """
    if reason not in ("MsgRate", "Bandwidth") or not bundle.topics:
        return None
    limit = limits.msg_rate if reason == "MsgRate" else limits.throughput
    loads = [(_load(topic, reason), topic.name) for topic in bundle.topics]
    loads = [one for one in loads if is_amount(one[0])]
    if not loads:
        return None
    most, name = max(loads, key=lambda one: (one[0], one[1]))
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
    """What a bundle comes from.

    Attributes:
        parent: The bundle that was split.
        reason: Why.
        size: What the parent had, in that reason's measure.
        vain: Splits in a row, up to the parent's, that had taken next to nothing off.
    """

    parent: str
    reason: str
    size: float
    vain: int


class Lineage:
    """Ancestry of bundles that came of automatic splits."""

    def __init__(self, found: dict[str, Ancestry]) -> None:
        self._found = found
        self._vain: dict[str, int] = {}

    @classmethod
    def remembered(cls, memory: object) -> Lineage:
        """Out of a strategy's memory; what cannot be read is forgotten."""
        found: dict[str, Ancestry] = {}
        for name, one in memory.items() if isinstance(memory, Mapping) else ():
            try:
                ancestry = Ancestry(str(one["parent"]), str(one["reason"]), float(one["size"]), int(one["vain"]))
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            if is_amount(ancestry.size) and ancestry.vain >= 0:
                found[str(name)] = ancestry
        return cls(found)

    def in_vain(self, name: str, reason: str, size: float, percent: float) -> int:
        """How many splits in a row, up to the one it came of, took less than a share off.

        Args:
            size: What it has now, in the reason's measure.
            percent: The share.
        """
        ancestry = self._found.get(name)
        if ancestry is None or ancestry.reason != reason:
            return 0
        little = size > ancestry.size * (1 - percent / 100)
        self._vain[name] = ancestry.vain + 1 if little else 0
        return self._vain[name]

    def split(self, name: str, children: Sequence[str], reason: str, size: float) -> None:
        """A split is planned."""
        for child in children:
            self._found[child] = Ancestry(name, reason, size, self._vain.get(name, 0))

    def dumped(self, bundles: Collection[str]) -> dict[str, Any]:
        """What is to be remembered: of bundles that are there, and of children whose parent is there still."""
        return {
            name: {"parent": one.parent, "reason": one.reason, "size": one.size, "vain": one.vain}
            for name, one in sorted(self._found.items())
            if name in bundles or one.parent in bundles
        }
