"""First and end offsets of partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from statechannel.kafka.admin import AdminHandle
from statechannel.kafka.errors import TopicMissingError, kafka_error_of, more_specific, translate
from statechannel.kafka.retries import ask_patiently

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings

Place = tuple[str, int]
"""Topic name and partition."""

_SLACK_S = 2.0


class OffsetBounds(NamedTuple):
    """Current bounds of a partition.

    Attributes:
        low: First available offset.
        high: End offset, one after the last record.
    """

    low: int
    high: int


class BoundsAsker:
    """Query of bounds through one long-lived admin client.

    Args:
        timeout_s: Bound of one answer.
    """

    def __init__(self, settings: ClientSettings, *, timeout_s: float = 10.0) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._errors: deque[KafkaError] = deque(maxlen=1)
        self._admin = AdminHandle(settings, self._errors.append)

    def ask(self, places: Iterable[Place]) -> dict[Place, OffsetBounds]:
        """The bounds of each.

        Raises:
            KafkaUnavailableError: Kafka did not answer in time.
            TopicMissingError: A topic or partition does not exist, or has no leader.
        """
        wanted = list(places)
        self._errors.clear()
        try:
            return ask_patiently(lambda left_s: self._ask(wanted, left_s), timeout_s=self._timeout_s, topic_grace_s=0.0)
        except (KafkaException, FutureTimeoutError) as error:
            names = ", ".join(sorted({topic for topic, _ in wanted}))
            kafka_error = kafka_error_of(error)
            if kafka_error is not None and kafka_error.code() == KafkaError._NOENT:  # noqa: SLF001 - a public code
                raise TopicMissingError(
                    f"a partition of {names} has no leader",
                    hint="Create the topics with `statechannel init`, or wait until the Kafka cluster has come up.",
                ) from None
            problem = more_specific(kafka_error, self._errors[-1] if self._errors else None) or error
            raise translate(problem, f"querying the bounds of {names}", secrets=self._settings.secrets()) from None

    def _ask(self, wanted: list[Place], left_s: float) -> dict[Place, OffsetBounds]:
        partitions = [TopicPartition(topic, number) for topic, number in wanted]
        try:
            # The beginning first: what is deleted in between only makes it too low.
            low = self._offsets(partitions, OffsetSpec.earliest(), left_s)  # type: ignore[no-untyped-call]
            high = self._offsets(partitions, OffsetSpec.latest(), left_s)  # type: ignore[no-untyped-call]
        except KafkaException:
            self._admin.client.poll(0)  # serves error_cb
            # After a change of leaders the client goes on asking with the epoch that it knew, and is refused for ever.
            self._admin = AdminHandle(self._settings, self._errors.append)
            raise
        return {place: OffsetBounds(low[place], high[place]) for place in wanted}

    def _offsets(self, partitions: list[TopicPartition], spec: Any, left_s: float) -> dict[Place, int]:
        futures = self._admin.client.list_offsets(dict.fromkeys(partitions, spec), request_timeout=left_s)
        return {
            (place.topic, place.partition): int(future.result(timeout=left_s + _SLACK_S).offset)
            for place, future in futures.items()
        }
