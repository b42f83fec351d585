"""Asks where partitions begin and end."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from statechannel.kafka.errors import kafka_error_of, telling, translate

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings

Place = tuple[str, int]
"""Topic name and partition."""

_SLACK_S = 2.0


class Bounds(NamedTuple):
    """Where a partition begins and ends now.

    Attributes:
        low: Offset of the first record that may be left.
        high: Offset behind the last.
    """

    low: int
    high: int


class BoundsAsker:
    """One admin client that is asked again and again.

    Args:
        timeout_s: Bound of one answer.
    """

    def __init__(self, settings: ClientSettings, *, timeout_s: float = 10.0) -> None:
        self._secrets = settings.secrets()
        self._timeout_s = timeout_s
        self._last_error: KafkaError | None = None
        try:
            config = {**settings.admin_config(), "error_cb": self._on_error}
            self._admin = AdminClient(config)
        except (KafkaException, TypeError, ValueError) as error:
            raise translate(error, "making the admin client", secrets=self._secrets) from None

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error

    def ask(self, places: Iterable[Place]) -> dict[Place, Bounds]:
        """The bounds of each.

        Raises:
            KafkaUnavailableError: Kafka did not answer in time.
            TopicMissingError: A topic or partition does not exist.
        """
        wanted = list(places)
        partitions = [TopicPartition(topic, number) for topic, number in wanted]
        self._last_error = None
        # The beginning first: what is deleted in between only makes it too low.
        low = self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        high = self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {place: Bounds(low[place], high[place]) for place in wanted}

    def _offsets(self, partitions: list[TopicPartition], spec: Any) -> dict[Place, int]:
        futures = self._admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=self._timeout_s)
        return {(one.topic, one.partition): self._answer(future, one.topic) for one, future in futures.items()}

    def _answer(self, future: Future[Any], topic: str) -> int:
        doing = f"asking where topic {topic} begins and ends"
        try:
            return int(future.result(timeout=self._timeout_s + _SLACK_S).offset)
        except FutureTimeoutError as error:
            raise translate(error, doing) from None
        except KafkaException as error:
            self._admin.poll(0)  # serves error_cb
            raise translate(
                telling(kafka_error_of(error), self._last_error) or error, doing, secrets=self._secrets
            ) from None
