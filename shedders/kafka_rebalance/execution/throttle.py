"""Kafka's replication throttle (KIP-73) of an execution: settings to set and to restore.

Settings: `leader.replication.throttled.rate` and `follower.replication.throttled.rate` of brokers, and the lists
`leader.replication.throttled.replicas` and `follower.replication.throttled.replicas` of topics ("partition:broker"). A replica
in sync is never throttled, so entries may stay until their topic is done. Settings of others are kept or restored. Moves between
log directories have a throttle of their own, `replica.alter.log.dirs.io.max.bytes.per.second` of the broker (KIP-113).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shedders.kafka_rebalance.execution.values import (
    CallAnswer,
    CallOutcome,
    Effect,
    ExecutionEvent,
    JournalWrite,
    SetConfigs,
    resource_text,
)

if TYPE_CHECKING:
    from shedders.kafka_rebalance.execution.values import Configs, ExecutionHistory, Key, Observation, Resource
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
    from shedders.kafka_rebalance.settings import PaceSettings


LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
DIR_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
EVERY_RATE: Final = (*RATES, DIR_RATE)
LISTS: Final = (LEADERS, FOLLOWERS)
EVERYTHING: Final = "*"
BROKER: Final = "broker"
TOPIC: Final = "topic"
REMOVALS_MAX: Final = 2
"""Removals of a setting by others after which nothing new starts."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy of a partition, with its sources and destinations."""

    key: Key
    sources: frozenset[int]
    adding: frozenset[int]


def copies_in_flight(seen: Observation, moving: Iterable[Key]) -> list[Copy]:
    partitions = ((key, seen.at(key)) for key in moving)
    return [
        Copy(key, frozenset(partition.replicas) - frozenset(partition.adding), frozenset(partition.adding))
        for key, partition in partitions
        if partition.adding
    ]


def resources_of(plan: ReassignmentPlan) -> tuple[Resource, ...]:
    """Brokers and topics whose throttle the plan may change."""
    brokers = {broker for move in plan.moves if move.added for broker in (*move.before, *move.after)}
    brokers |= {move.broker for move in plan.dir_moves}
    topics = {move.topic for move in plan.moves if move.added}
    return (*((BROKER, str(broker)) for broker in sorted(brokers)), *((TOPIC, topic) for topic in sorted(topics)))


def needed_settings(
    rate: int, copies: Iterable[Copy], alive: frozenset[int], disks: Iterable[int] = ()
) -> dict[Resource, dict[str, str]]:
    """Settings that these copies need, and brokers that copy between their disks, without regard to present ones."""
    settings: dict[Resource, dict[str, str]] = {}
    lists: dict[str, dict[str, set[str]]] = defaultdict(lambda: {name: set() for name in LISTS})
    for copy in copies:
        for broker in (copy.sources | copy.adding) & alive:
            settings[BROKER, str(broker)] = dict.fromkeys(RATES, str(rate))
        topic, partition = copy.key
        lists[topic][LEADERS] |= {f"{partition}:{broker}" for broker in copy.sources}
        lists[topic][FOLLOWERS] |= {f"{partition}:{broker}" for broker in copy.adding}
    for broker in frozenset(disks) & alive:
        settings.setdefault((BROKER, str(broker)), {})[DIR_RATE] = str(rate)
    for topic, named in lists.items():
        settings[TOPIC, topic] = {name: ",".join(sorted(entries)) for name, entries in named.items()}
    return settings


def rates_in_force(throttled: Configs, present: Configs) -> dict[int, int | None]:
    """Least rate that Kafka has on each throttled broker that answers; None: one that was set is missing.

    Args:
        throttled: Resources with the names of the settings that were set.
    """
    rates: dict[int, int | None] = {}
    for resource, names in throttled.items():
        if resource[0] == BROKER and resource in present:
            values = [present[resource].get(name) for name in names if name in EVERY_RATE]
            rates[int(resource[1])] = min((int(value or 0) for value in values), default=0) or None
    return rates


def settings_to_add(
    needed: Mapping[Resource, Mapping[str, str]], current: Configs
) -> dict[Resource, dict[str, str | None]]:
    """Changes that add the needed settings to the present ones; lists only grow here."""
    changes: dict[Resource, dict[str, str | None]] = {}
    for resource, settings in needed.items():
        now = current.get(resource, {})
        for name, value in settings.items():
            present = now.get(name)
            to_be = _joined(present, value) if name in LISTS else value
            if to_be != present:
                changes.setdefault(resource, {})[name] = to_be
    return changes


def _joined(present: str | None, more: str) -> str | None:
    if present == EVERYTHING:
        return present
    there = set(_entries(present))
    return present if set(_entries(more)) <= there else ",".join(sorted(there | set(_entries(more))))


def restoration(
    resource: Resource,
    before: Mapping[str, str | None],
    current: Mapping[str, str | None],
    rates: frozenset[str],
    own: frozenset[str],
) -> dict[str, str | None]:
    """Changes that restore the former settings of a broker or topic; later changes of others stay.

    Args:
        rates: All rates that the execution set.
        own: Entries of lists that the execution may have added.
    """
    changes: dict[str, str | None] = {}
    for name in EVERY_RATE if resource[0] == BROKER else LISTS:
        old, present = before.get(name), current.get(name)
        if present is None or present == EVERYTHING:
            continue
        if name in EVERY_RATE:
            to_be = old if present in rates else present
        else:
            kept = [entry for entry in _entries(present) if entry not in own or entry in _entries(old)]
            to_be = ",".join(kept) or (old or None)
        if to_be != present and set(_entries(to_be)) != set(_entries(present)):
            changes[name] = to_be
    return changes


def own_entries(plan: ReassignmentPlan) -> dict[str, frozenset[str]]:
    """All list entries that an execution of the plan may add, by topic."""
    by_topic: dict[str, set[str]] = defaultdict(set)
    for move in plan.moves:
        by_topic[move.topic].update(f"{move.partition}:{broker}" for broker in {*move.before, *move.after})
    return {topic: frozenset(entries) for topic, entries in by_topic.items()}


def _entries(value: str | None) -> list[str]:
    return [entry.strip() for entry in (value or "").split(",") if entry.strip()]


def removed_text(resource: Resource) -> str:
    return f"another tool removes the throttle of {' '.join(resource)} again and again"


class Throttling:
    """Throttle of an execution. Pure: configurations come in by `learn`, changes go out as effects.

    Args:
        recorded: State of earlier executors, to which the owner adds the events of this one.

    Attributes:
        rate: Bytes per second of each broker; None: no throttle.
        refusals: Consecutive changes that were not accepted; `reason` of the last.
        remarks: Sentences for the journal; the owner takes them.
        removed_again: Resource whose throttle another tool has removed twice; None: none.
    """

    def __init__(self, plan: ReassignmentPlan, pace: PaceSettings, recorded: ExecutionHistory) -> None:
        self._own = own_entries(plan)
        self.rate = pace.throttle_bytes_per_s
        self._settle_s = pace.settle_s
        # Whether the rate was asked for, and so replaces those that others have set; else theirs stay.
        self._asked = recorded.throttle_asked or str(self.rate) not in recorded.rates
        self._put: dict[tuple[Resource, str], tuple[str, float]] = {}
        self._removals: Counter[tuple[Resource, str]] = Counter()
        # Updated with recorded events, never before: a step may end between an effect and its event.
        self._before = recorded.throttle_before
        self._rates = recorded.rates
        self._known: dict[Resource, dict[str, str | None]] = {}
        self._resources = frozenset(resources_of(plan))
        self._fresh: frozenset[Resource] = frozenset()
        self.refusals = 0
        self.reason = ""
        self.remarks: list[str] = []
        self.removed_again: Resource | None = None

    @property
    def left(self) -> tuple[Resource, ...]:
        return tuple(sorted(self._before))

    @property
    def unknown(self) -> tuple[Resource, ...]:
        """Resources whose configuration must be read before a change."""
        wanted_ones = self._resources if self.rate is not None else frozenset[tuple[str, str]]()
        return tuple(sorted((wanted_ones | set(self._before)) - set(self._known)))

    def to_read(self, *, full: bool) -> tuple[Resource, ...]:
        """Resources whose configuration an observation must have: a full one all that are throttled, as others change them."""
        return tuple(sorted({*self.unknown, *self._before})) if full else self.unknown

    def change(self, rate: int | None) -> None:
        self.rate, self._asked = rate, True

    def learn(self, configs: Configs) -> None:
        """Take in present configurations; called for each observation, even without any."""
        self._fresh = frozenset(configs)
        self._known.update({resource: dict(settings) for resource, settings in configs.items()})

    def take_result(self, effect: SetConfigs, answer: CallAnswer, now_s: float) -> None:
        """Take in the result of a change: accepted ones are known, all others must be read again."""
        for resource, changes in effect.changes.items():
            if answer.outcome is CallOutcome.ACCEPTED and resource not in answer.refused:
                self._known.setdefault(resource, {}).update(changes)
                self._put.update({(resource, name): (value or "", now_s) for name, value in changes.items()})
            else:
                self._known.pop(resource, None)
        failed = answer.outcome is not CallOutcome.ACCEPTED or bool(answer.refused)
        self.refusals = self.refusals + 1 if failed else 0
        if failed:
            self.reason = answer.reason or "; ".join(sorted(set(answer.refused.values())))

    def needed(
        self, now_s: float, copies: Iterable[Copy], alive: frozenset[int], disks: Iterable[int] = ()
    ) -> list[Effect] | None:
        """Effects that throttle these copies, in order; None: configurations are unknown, so no move may start.

        Args:
            disks: Brokers that copy between their log directories.
        """
        if self.rate is None:
            return []
        needed = needed_settings(self.rate, copies, alive, disks)
        for resource, former in self._before.items():
            if resource[0] != TOPIC and resource in self._known and int(resource[1]) in alive:
                rates = {name: str(self.rate) for name in former if name in EVERY_RATE}
                needed[resource] = rates | needed.get(resource, {})
        changes = self._missing(now_s, needed)
        if not changes:
            self._asked = False
            return []
        if not self._seen_now(changes):
            return None
        before = {
            resource_text(change): {name: self._known[change].get(name) for name in needed[change]}
            for change in changes
            if not needed[change].keys() <= self._before.get(change, {}).keys()
        }
        write = JournalWrite(event=ExecutionEvent.THROTTLE, facts={"rate": self.rate, "before": before})
        known = not before and str(self.rate) in self._rates
        return [*(() if known else (write,)), SetConfigs(changes=changes)]

    def _missing(
        self, now_s: float, needed: Mapping[Resource, Mapping[str, str]]
    ) -> dict[Resource, dict[str, str | None]]:
        """Changes that are needed, without what others have set, or what may not be visible yet. What others removed is noted."""
        result: dict[Resource, dict[str, str | None]] = {}
        for resource, settings in settings_to_add(needed, self._known).items():
            former, known, removed = self._before.get(resource, {}), self._known.get(resource, {}), []
            for name, value in settings.items():
                present, wanted = known.get(name), set(_entries(needed[resource][name]))
                text, at_s = self._put.get((resource, name), ("", -self._settle_s))
                put = set(_entries(text))
                theirs = name in former and present not in {None, *self._rates} and (put or present != former[name])
                if now_s - at_s < self._settle_s and wanted <= put:
                    continue
                if theirs and name in EVERY_RATE and not self._asked:
                    continue
                result.setdefault(resource, {})[name] = value
                missing = wanted & put - set(_entries(present))
                if missing and former and resource in self._known and (name in LISTS or present is None):
                    removed.append(name)
            if removed:
                self._note_removed(resource, removed)
        return result

    def _note_removed(self, resource: Resource, names: list[str]) -> None:
        for name in names:
            self._removals[resource, name] += 1
            del self._put[resource, name]  # counted
        if max(self._removals[resource, name] for name in names) == REMOVALS_MAX:
            self.removed_again = resource
            self.remarks.append(f"{removed_text(resource)}: nothing new starts")
        elif self.removed_again != resource:
            self.remarks.append(f"another tool removed {', '.join(names)} of {' '.join(resource)}: set again")

    def restore(self, resources: Iterable[Resource]) -> list[Effect]:
        """Effects that restore these resources; call again until `left` has none of them.

        Each is read again before it is changed.
        """
        back: list[Resource] = []
        changes: dict[Resource, Mapping[str, str | None]] = {}
        for resource in resources:
            if resource not in self._before or resource not in self._known:
                continue
            own = self._own.get(resource[1], frozenset()) if resource[0] == TOPIC else frozenset[str]()
            change = restoration(resource, self._before[resource], self._known[resource], frozenset(self._rates), own)
            if not change:
                back.append(resource)
            elif self._seen_now([resource]):
                changes[resource] = change
        effects: list[Effect] = []
        if back:
            texts = [resource_text(resource) for resource in back]
            effects.append(JournalWrite(event=ExecutionEvent.UNTHROTTLED, facts={"resources": texts}))
        if changes:
            effects.append(SetConfigs(changes=changes))
        return effects

    def _seen_now(self, resources: Iterable[Resource]) -> bool:
        """Whether this observation has them all, as others may have changed earlier ones; if not, the next one reads them."""
        wanted_ones = set(resources)
        fresh = wanted_ones <= self._fresh
        if not fresh:  # all of them, so that the next observation has them together
            for resource in wanted_ones:
                self._known.pop(resource, None)
        return fresh
