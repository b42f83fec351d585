"""Kafka's replication throttle (KIP-73) for what moves: what to set, and what to put back.

Four settings: `leader.replication.throttled.rate` and `follower.replication.throttled.rate` of brokers, and the lists
`leader.replication.throttled.replicas` and `follower.replication.throttled.replicas` of topics ("partition:broker"). A replica
in sync is never throttled, so entries may stay until their topic is done. What others have set is kept, or put back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shedders.partitions.execution.seen import Configs, Key, Resource
    from shedders.partitions.plan import Plan

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
LISTS: Final = (LEADERS, FOLLOWERS)
EVERYTHING: Final = "*"
BROKER: Final = "broker"
TOPIC: Final = "topic"


@dataclass(frozen=True, slots=True)
class Copy:
    """A partition that is copied: from where, to where."""

    key: Key
    sources: frozenset[int]
    adding: frozenset[int]


def resources_of(plan: Plan) -> tuple[Resource, ...]:
    """Brokers and topics whose throttle the plan may touch."""
    brokers = {one for move in plan.moves if move.added for one in (*move.before, *move.after)}
    topics = {move.topic for move in plan.moves if move.added}
    return (*((BROKER, str(one)) for one in sorted(brokers)), *((TOPIC, one) for one in sorted(topics)))


def wanted(rate: int, copies: Iterable[Copy], alive: frozenset[int]) -> dict[Resource, dict[str, str]]:
    """The settings that these copies need, as if nobody had set any."""
    found: dict[Resource, dict[str, str]] = {}
    lists: dict[str, dict[str, set[str]]] = defaultdict(lambda: {name: set() for name in LISTS})
    for one in copies:
        for broker in (one.sources | one.adding) & alive:
            found[BROKER, str(broker)] = dict.fromkeys(RATES, str(rate))
        topic, partition = one.key
        lists[topic][LEADERS] |= {f"{partition}:{broker}" for broker in one.sources}
        lists[topic][FOLLOWERS] |= {f"{partition}:{broker}" for broker in one.adding}
    for topic, named in lists.items():
        found[TOPIC, topic] = {name: ",".join(sorted(entries)) for name, entries in named.items()}
    return found


def missing(needed: Mapping[Resource, Mapping[str, str]], current: Configs) -> dict[Resource, dict[str, str | None]]:
    """What has to be changed so that at least the needed holds; lists only grow here."""
    changes: dict[Resource, dict[str, str | None]] = {}
    for resource, settings in needed.items():
        now = current.get(resource, {})
        for name, value in settings.items():
            has = now.get(name)
            to_be = _joined(has, value) if name in LISTS else value
            if to_be != has:
                changes.setdefault(resource, {})[name] = to_be
    return changes


def _joined(has: str | None, more: str) -> str | None:
    if has == EVERYTHING:
        return has
    there = set(_entries(has))
    return has if set(_entries(more)) <= there else ",".join(sorted(there | set(_entries(more))))


def restoration(
    resource: Resource,
    before: Mapping[str, str | None],
    current: Mapping[str, str | None],
    rates: frozenset[str],
    own: frozenset[str],
) -> dict[str, str | None]:
    """What brings a broker or topic back to what it had; what others have changed meanwhile stays.

    Args:
        before: Its settings before the execution.
        current: As they are.
        rates: All rates that the execution has set.
        own: Entries of lists that may be the execution's.
    """
    changes: dict[str, str | None] = {}
    for name in RATES if resource[0] == BROKER else LISTS:
        old, has = before.get(name), current.get(name)
        if has is None or has == EVERYTHING:
            continue
        if name in RATES:
            to_be = old if has in rates else has
        else:
            kept = [one for one in _entries(has) if one not in own or one in _entries(old)]
            to_be = ",".join(kept) or (old or None)
        if to_be != has and set(_entries(to_be)) != set(_entries(has)):
            changes[name] = to_be
    return changes


def own_entries(plan: Plan) -> dict[str, frozenset[str]]:
    """By topic, all entries that an execution of the plan could put into its lists."""
    found: dict[str, set[str]] = defaultdict(set)
    for move in plan.moves:
        found[move.topic].update(f"{move.partition}:{broker}" for broker in {*move.before, *move.after})
    return {topic: frozenset(entries) for topic, entries in found.items()}


def _entries(value: str | None) -> list[str]:
    return [one.strip() for one in (value or "").split(",") if one.strip()]
