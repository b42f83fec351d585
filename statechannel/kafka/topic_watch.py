"""Non-blocking check that the topics are still the opened ones."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from statechannel.kafka.admin import AdminHandle, Place
from statechannel.kafka.errors import is_topic_missing, kafka_error_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from concurrent.futures import Future

    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topics import TopicInfo

_CONFIRMATIONS = 2
"""Answers in a row that must agree: a broker that has just come back may know less for a moment."""


@dataclass(frozen=True, slots=True)
class TopicFindings:
    """Result of one round of queries.

    Attributes:
        asked_s: Monotonic time of the queries.
        answered: Some broker answered.
        broken: Partitions that are no longer what was opened, with the reason.
        doubtful: Partitions that need another answer.
        ends: End offsets of the partitions, if Kafka answered.
        first_offsets: Of partitions that must begin at offset 0 and do not: records were deleted from their heads.
    """

    asked_s: float
    answered: bool
    broken: Mapping[Place, str] = field(default_factory=dict)
    doubtful: frozenset[Place] = frozenset()
    ends: Mapping[Place, int] = field(default_factory=dict)
    first_offsets: Mapping[Place, int] = field(default_factory=dict)

    def clears(self, place: Place, since_s: float) -> bool:
        """Whether the partition was confirmed unchanged by queries after `since_s`."""
        return self.answered and self.asked_s >= since_s and place not in self.broken and place not in self.doubtful


class TopicWatch:
    """One round of queries at a time; `poll` starts it, and collects it when it is complete.

    Args:
        topics: Opened topics; of others only the ends are queried.
        interval_s: Time between two rounds while all is well.
        retry_s: Time between two rounds after one without an answer, or with findings.
        timeout_s: Bound of one round.
        compacted: Names of topics whose logs must begin at offset 0: compaction alone never moves the start of a log.
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
    ) -> None:
        self._admin = AdminHandle(settings)
        self._topics = {info.name: info for info in topics}
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._timeout_s = timeout_s
        self._compacted = frozenset(compacted)
        self._next_s = 0.0
        self._asked_s = 0.0
        self._asked: dict[Place, int] = {}
        self._identities: dict[str, Future[Any]] = {}
        self._ends: dict[TopicPartition, Future[Any]] = {}
        self._firsts: dict[TopicPartition, Future[Any]] = {}
        self._suspicions: dict[Place, int] = {}

    def hurry(self) -> None:
        """Ask again as soon as possible."""
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
        calm = findings.answered and not self._suspicions
        self._next_s = now_s + (self._interval_s if calm else self._retry_s)
        self._identities, self._ends, self._firsts = {}, {}, {}
        return findings

    def close(self) -> None:
        """Wait for the round under way."""
        wait(self._under_way(), timeout=self._timeout_s + 1.0)

    def _under_way(self) -> list[Future[Any]]:
        return [*self._identities.values(), *self._ends.values(), *self._firsts.values()]

    def _ask(self, positions: Mapping[Place, int]) -> None:
        self._asked = dict(positions)
        names = sorted({name for name, _ in positions} & self._topics.keys())
        if names:
            self._identities = self._admin.client.describe_topics(
                TopicCollection(names), request_timeout=self._timeout_s
            )
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
            if error is not None and is_topic_missing(error):
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
            ends=ends,
            first_offsets=self._lost_heads(),
        )

    def _lost_heads(self) -> dict[Place, int]:
        firsts = {(at.topic, at.partition): _outcome(future)[0] for at, future in self._firsts.items()}
        return {place: first.offset for place, first in firsts.items() if first is not None and first.offset > 0}


def _outcome(future: Future[Any]) -> tuple[Any, KafkaError | None]:
    """The answer, or the error instead of it."""
    try:
        return future.result(timeout=0), None
    except KafkaException as error:
        return None, kafka_error_of(error)


def _is_answer(error: KafkaError | None) -> bool:
    """Codes above zero are a broker's; those below are the client's own (time-outs)."""
    return error is None or error.code() > 0
