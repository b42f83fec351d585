"""State topic: plans, their progress and requests of operators, in one partition, so that its order decides who executes.

Policy delete, not compact: all events of a key count, not only the last. Retention is long; an executor writes the
plan again when it starts. A lost topic only ends control from other hosts: the journal is on the executor's disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shedders.kafka_rebalance.execution.planner_topic import PlannerTopic
from shedders.kafka_rebalance.execution.state_records import StateBook
from statechannel.kafka.topic_policy import plans_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statechannel.kafka.client_settings import ClientSettings


class StateTopic(PlannerTopic):
    """Reader and writer of the topic.

    Args:
        settings: Connection settings of Kafka.
        name: Name of the topic.
        away_s: Time without heartbeats after which a holder expires.
        timeout_s: Time limit of one answer.
    """

    def __init__(self, settings: ClientSettings, name: str, *, away_s: float, timeout_s: float = 20.0) -> None:
        super().__init__(settings, plans_topic(name), timeout_s)
        self.book = StateBook(round(away_s * 1_000))

    def read(self) -> StateBook:
        """Read new records up to the present end.

        Raises:
            KafkaAdapterError: Kafka is out of reach, or the topic is missing.
        """
        for record in self._new_records():
            self.book.take(record.timestamp_ms, record.value)
        return self.book

    def append(self, plan_id: str, values: Iterable[bytes]) -> None:
        """Write records and wait for their acknowledgement.

        Raises:
            AppendOutcomeUnknownError: No answer in time; the records may have been written or not.
            KafkaAdapterError: Kafka refused a record.
        """
        self._write((plan_id.encode(), value) for value in values)
