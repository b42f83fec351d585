"""What the job load-views asks Kafka itself: whether the load topics are still the same, and where they begin and end."""

from __future__ import annotations

from collections.abc import Mapping

from loaddata.report.record import ReportKind
from spark.errors import TopicBrokenError
from statechannel.kafka.admin import BoundsAsker, OffsetBounds
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError, TopicMissingError
from statechannel.kafka.topic_policy import LoadTopics
from statechannel.kafka.topics import TopicAdmin

ACCEPT_HINT = (
    "If that was meant, start the job once with --accept-new-topic: its view of this topic starts again, empty."
)


class LoadTopicsAsker:
    """One admin client for both topics.

    Args:
        channel: Name of the channel; the topics have it as prefix.
        timeout_s: Bound of one answer.
    """

    def __init__(self, client: ClientSettings, channel: str, *, timeout_s: float = 10.0) -> None:
        topics = LoadTopics(channel)
        self.names: Mapping[ReportKind, str] = {
            ReportKind.BROKER_LOAD: topics.broker_load,
            ReportKind.TOP_BUNDLES: topics.top_bundles,
        }
        self._admin = TopicAdmin(client, timeout_s=timeout_s)
        self._asker = BoundsAsker(client, timeout_s=timeout_s)

    def ids(self) -> dict[ReportKind, str]:
        """Id of each topic.

        Raises:
            TopicBrokenError: One is missing, has several partitions, or not the log's own time.
            KafkaUnavailableError: Kafka did not answer in time.
        """
        topics = self._admin.describe(self.names.values(), created=True)
        for name in self.names.values():
            if name not in topics:
                raise TopicBrokenError(
                    f"the topic {name} does not exist",
                    hint="The brokers create the load topics when they start; name the channel with --channel.",
                )
            if topics[name].partitions != 1:
                raise TopicBrokenError(
                    f"the topic {name} has {topics[name].partitions} partitions; a load topic has one",
                    hint="Delete it; the brokers create it again when they start.",
                )
            if topics[name].settings.get("message.timestamp.type") != "LogAppendTime":
                raise TopicBrokenError(
                    f"the topic {name} does not have the log's own time: ages are unknown",
                    hint=f"Set message.timestamp.type=LogAppendTime of {name}.",
                )
        return {kind: topics[name].topic_id for kind, name in self.names.items()}

    def bounds(self) -> dict[ReportKind, OffsetBounds]:
        """Where each topic begins and ends now.

        Raises:
            TopicBrokenError: One is missing.
            KafkaUnavailableError: Kafka did not answer in time.
        """
        places = [(name, 0) for name in self.names.values()]
        try:
            bounds = self._asker.ask(places)
        except TopicMissingError as error:
            self.ids()
            raise KafkaUnavailableError(
                str(error), hint="Check that the Kafka brokers that have the topic run."
            ) from None
        return {kind: bounds[name, 0] for kind, name in self.names.items()}
