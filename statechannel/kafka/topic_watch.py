"""Non-blocking check that the topics are still the opened ones."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType

from statechannel.kafka.admin import AdminHandle, Place
from statechannel.kafka.errors import is_topic_missing, kafka_error_of
from statechannel.kafka.topics import differences_of, info_of, missing_topic, settings_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from concurrent.futures import Future

    from confluent_kafka.admin._topic import TopicDescription

    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import TopicPolicy
    from statechannel.kafka.topics import TopicInfo, TopicSettingDifference

_SETTINGS_S = 30.0
"""Time between two queries for settings."""
_CONFIRMATIONS = 2
"""Answers in a row that must agree: a broker that has just come back may know less for a moment."""


@dataclass(frozen=True, slots=True)
class TopicFindings:
    """Result of one round of queries.

    Attributes:
        asked_s: Monotonic time of the queries.
        answered: Some broker answered.
        broken: Partitions that are no longer what was opened, with the reason.
        doubtful: Partitions that look changed, and need another answer unless they are in `broken`.
        ends: End offsets of the partitions, if Kafka answered.
        first_offsets: Of partitions that must begin at offset 0 and do not: records were deleted from their heads.
        differences: Of all topics with a policy, by the last answers, the hard ones first.
        recreated: Topics with a policy whose id has changed since the round before.
    """

    asked_s: float
    answered: bool
    broken: Mapping[Place, str] = field(default_factory=dict)
    doubtful: frozenset[Place] = frozenset()
    ends: Mapping[Place, int] = field(default_factory=dict)
    first_offsets: Mapping[Place, int] = field(default_factory=dict)
    differences: tuple[TopicSettingDifference, ...] = ()
    recreated: tuple[str, ...] = ()

    def clears(self, place: Place, since_s: float) -> bool:
        """Whether the partition was confirmed unchanged by queries after `since_s`."""
        return self.answered and self.asked_s >= since_s and place not in self.broken and place not in self.doubtful


class TopicWatch:
    """One round of queries at a time; `poll` starts it, and collects it when it is complete.

    Args:
        topics: Opened topics; of others only the ends are queried.
        interval_s: Time between two rounds while all is well.
        retry_s: Time between two rounds after one without an answer, or with findings.
        compacted: Names of topics whose logs must begin at offset 0: compaction alone never moves the start of a log.
        policies: Of the topics whose settings are compared, by name; may change, in any thread.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topics: Iterable[TopicInfo],
        *,
        interval_s: float,
        retry_s: float = 0.5,
        timeout_s: float = 3.0,
        compacted: Collection[str] = (),
        policies: Mapping[str, TopicPolicy] = MappingProxyType({}),
    ) -> None:
        self._admin = AdminHandle(settings)
        self._topics = {info.name: info for info in topics}
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._timeout_s = timeout_s
        self._compacted = frozenset(compacted)
        self._compared = _ComparedTopics(self._topics, policies, settings.bootstrap_servers)
        self._settings_next_s = 0.0
        self._next_s = 0.0
        self._asked_s = 0.0
        self._asked: dict[Place, int] = {}
        self._identities: dict[str, Future[Any]] = {}
        self._settings: dict[ConfigResource, Future[Any]] = {}
        self._ends: dict[TopicPartition, Future[Any]] = {}
        self._firsts: dict[TopicPartition, Future[Any]] = {}
        self._suspicions: dict[Place, int] = {}

    def hurry(self) -> None:
        self._next_s = 0.0

    def due(self, now_s: float) -> bool:
        """Whether `poll` has something to do: a round to start or to collect."""
        return bool(self._ends) or now_s >= self._next_s

    def poll(self, now_s: float, positions: Mapping[Place, int]) -> TopicFindings | None:
        """Start or collect a round.

        Args:
            now_s: Monotonic time.
            positions: Next offset of each open partition; none of them may end before it.
        """
        if not self._ends:
            if now_s >= self._next_s and positions:
                self._asked_s = now_s
                self._ask(positions)
            return None
        if not all(future.done() for future in self._under_way()):
            return None
        findings = self._collect()
        calm = findings.answered and not (self._suspicions or findings.recreated or self._compared.suspects)
        if findings.recreated:
            self._settings_next_s = 0.0
        self._next_s = now_s + (self._interval_s if calm else self._retry_s)
        self._identities, self._settings, self._ends, self._firsts = {}, {}, {}, {}
        return findings

    def close(self) -> None:
        wait(self._under_way(), timeout=self._timeout_s + 1.0)

    def _under_way(self) -> list[Future[Any]]:
        asked = (self._identities, self._settings, self._ends, self._firsts)
        return [future for futures in asked for future in futures.values()]

    def _ask(self, positions: Mapping[Place, int]) -> None:
        self._asked = dict(positions)
        compared = self._compared.begin()
        names = sorted(({name for name, _ in positions} & self._topics.keys()) | compared)
        if names:
            self._identities = self._admin.client.describe_topics(
                TopicCollection(names), request_timeout=self._timeout_s
            )
        if compared and (self._asked_s >= self._settings_next_s or self._compared.is_new):
            self._settings_next_s = self._asked_s + _SETTINGS_S
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(compared)]
            self._settings = self._admin.client.describe_configs(resources, request_timeout=self._timeout_s)
        self._ends = self._offsets(positions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        compacted = [place for place in positions if place[0] in self._compacted]
        if compacted:
            self._firsts = self._offsets(compacted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _offsets(self, places: Iterable[Place], spec: OffsetSpec) -> dict[TopicPartition, Future[Any]]:
        wanted = {TopicPartition(*place): spec for place in places}
        return self._admin.client.list_offsets(wanted, request_timeout=self._timeout_s)

    def _collect(self) -> TopicFindings:
        answered = False
        certain: dict[Place, str] = {}
        likely: dict[Place, str] = {}
        ends: dict[Place, int] = {}
        for name, future in self._identities.items():
            places = [place for place in self._asked if place[0] == name]
            description, error = _outcome(future)
            answered |= _is_answer(error)
            if name not in self._topics:
                continue
            if is_topic_missing(error):
                likely |= dict.fromkeys(places, f"topic {name} no longer exists")
            elif description is not None:
                topic_id, opened = str(description.topic_id), self._topics[name].topic_id
                if topic_id != opened:
                    detail = f"topic {name} was re-created (id {topic_id}, was {opened})"
                    certain |= dict.fromkeys(places, detail)
        for partition, future in self._ends.items():
            place = (partition.topic, partition.partition)
            end, error = _outcome(future)
            answered |= _is_answer(error)
            if end is not None and end.offset >= 0:
                ends[place] = end.offset
            if end is not None and 0 <= end.offset < self._asked[place]:
                likely[place] = (
                    f"{place[0]}-{place[1]} ends at {end.offset}, before the position "
                    f"{self._asked[place]} that was already read"
                )
        if answered:
            self._suspicions = {place: self._suspicions.get(place, 0) + 1 for place in likely}
        confirmed = {p: d for p, d in likely.items() if self._suspicions.get(p, 0) >= _CONFIRMATIONS}
        return TopicFindings(
            self._asked_s,
            answered=answered,
            broken={**confirmed, **certain},
            doubtful=frozenset(likely),
            ends=ends,
            first_offsets=self._lost_heads(),
            recreated=self._compare(),
            differences=self._compared.differences(),
        )

    def _compare(self) -> tuple[str, ...]:
        """Note what was answered about topics with a policy; returns those that were re-created."""
        for resource, future in self._settings.items():
            entries, _ = _outcome(future)
            if entries is not None:
                self._compared.note_settings(resource.name, settings_of(entries))
        recreated = []
        for name, future in self._identities.items():
            description, error = _outcome(future)
            if is_topic_missing(error):
                self._compared.note_missing(name)
            elif description is not None and self._compared.note_description(name, description):
                recreated.append(name)
        return tuple(recreated)

    def _lost_heads(self) -> dict[Place, int]:
        firsts = {(at.topic, at.partition): _outcome(future)[0] for at, future in self._firsts.items()}
        return {place: first.offset for place, first in firsts.items() if first is not None and first.offset > 0}


class _ComparedTopics:
    """What is known of the topics with a policy, by the last answers about each.

    Args:
        opened: Topics whose number of partitions was fixed when they were opened.
        server: Addresses for the commands in differences.

    Attributes:
        is_new: There are topics that the round before did not have.
    """

    def __init__(self, opened: Mapping[str, TopicInfo], policies: Mapping[str, TopicPolicy], server: str) -> None:
        self._opened = opened
        self._policies = policies
        self._server = server
        self._compared: dict[str, TopicPolicy] = {}
        self._descriptions: dict[str, TopicDescription] = {}
        self._settings: dict[str, Mapping[str, str]] = {}
        self._missing: dict[str, int] = {}
        self.is_new = False

    def begin(self) -> set[str]:
        before, self._compared = self._compared, dict(self._policies)
        self.is_new = not before.keys() >= self._compared.keys()
        return set(self._compared)

    @property
    def suspects(self) -> bool:
        """Whether one more answer decides that a topic is missing."""
        return any(count < _CONFIRMATIONS for count in self._missing.values())

    def note_settings(self, name: str, settings: Mapping[str, str]) -> None:
        self._settings[name] = settings

    def note_missing(self, name: str) -> None:
        if name not in self._opened:
            self._missing[name] = self._missing.get(name, 0) + 1

    def note_description(self, name: str, description: TopicDescription) -> bool:
        """Whether it is another topic than before; its settings are unknown then."""
        self._missing.pop(name, None)
        before = self._descriptions.get(name)
        self._descriptions[name] = description
        recreated = before is not None and str(before.topic_id) != str(description.topic_id)
        if recreated:
            self._settings.pop(name, None)
        return recreated and name in self._compared

    def differences(self) -> tuple[TopicSettingDifference, ...]:
        """All of them, the hard ones first."""
        differences = [
            difference for name, policy in self._compared.items() for difference in self._differences_of(name, policy)
        ]
        return tuple(sorted(differences, key=lambda difference: not difference.hard))

    def _differences_of(self, name: str, policy: TopicPolicy) -> list[TopicSettingDifference]:
        if self._missing.get(name, 0) >= _CONFIRMATIONS:
            return [missing_topic(name, policy, self._server)]
        description, settings, opened = self._descriptions.get(name), self._settings.get(name), self._opened.get(name)
        if description is None or settings is None:
            return []
        if opened is not None and policy.partitions is None:
            policy = replace(policy, partitions=opened.partitions)
        return differences_of(info_of(name, description, settings), policy, self._server)


def _outcome(future: Future[Any]) -> tuple[Any, KafkaError | None]:
    try:
        return future.result(timeout=0), None
    except KafkaException as error:
        return None, kafka_error_of(error)


def _is_answer(error: KafkaError | None) -> bool:
    """Codes above zero are a broker's; those below are the client's own (time-outs)."""
    return error is None or error.code() > 0
