"""Policy of light topics, whose records may be lost: settings, creation and verification.

Load data is the model: upstream keeps it in non-persistent topics. Here such a topic is short-lived instead: compacted by
key, and deleted after a while whatever it holds, so that a reader who comes late finds the newest record of each key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from statechannel.kafka.topic_policy import HOUR_MS, MINUTE_MS, ChannelTopics, Requirement, SettingRule, TopicPolicy
from statechannel.kafka.topics import create_topics, verify_topics

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topics import Inspection, TopicInfo

BROKER_LOAD: Final = "broker-load"
TOP_BUNDLES: Final = "top-bundles"


@dataclass(frozen=True, slots=True)
class LightLags:
    """Times of a light topic; shorter ones are for tests that watch the cleaner.

    Attributes:
        retention_ms: A record older than this may be gone: at least twice the age at which reports are renewed.
        delete_retention_ms: Retention of a tombstone.
    """

    retention_ms: int = HOUR_MS
    segment_ms: int = 10 * MINUTE_MS
    delete_retention_ms: int = HOUR_MS


def light_policy(role: str, lags: LightLags | None = None) -> TopicPolicy:
    """One partition, compact and delete, the log's own time: offsets and times of different keys can be compared."""
    times = lags or LightLags()
    return TopicPolicy(
        role=role,
        requirements=(
            Requirement("cleanup.policy", SettingRule.EXACTLY, "compact,delete"),
            Requirement("message.timestamp.type", SettingRule.EXACTLY, "LogAppendTime"),
            Requirement("retention.ms", SettingRule.AT_LEAST, str(times.retention_ms)),
            Requirement("delete.retention.ms", SettingRule.AT_LEAST, str(times.delete_retention_ms)),
            Requirement("segment.ms", SettingRule.AT_MOST, str(times.segment_ms), hard=False),
            Requirement("max.message.bytes", SettingRule.AT_LEAST, "1000000"),
        ),
    )


@dataclass(frozen=True, slots=True)
class LoadTopics(ChannelTopics):
    """Names and policies of the two load topics of a channel (upstream `loadbalancer-broker-load-data`, `-top-bundles-`)."""

    light: LightLags = LightLags()

    @property
    def broker_load(self) -> str:
        return f"{self.channel}-{BROKER_LOAD}"

    @property
    def top_bundles(self) -> str:
        """Topic of the heaviest bundles of each broker."""
        return f"{self.channel}-{TOP_BUNDLES}"

    @property
    def policies(self) -> Mapping[str, TopicPolicy]:
        """Topic name to policy, both; the channel's own topics are not among them."""
        return {
            self.broker_load: light_policy(BROKER_LOAD, self.light),
            self.top_bundles: light_policy(TOP_BUNDLES, self.light),
        }


def open_load_topics(
    settings: ClientSettings,
    topics: LoadTopics,
    *,
    create: bool,
    replication_factor: int = -1,
    timeout_s: float = 20.0,
) -> Mapping[str, TopicInfo]:
    """Create missing topics if requested, verify, and refuse topics with a hard difference.

    Raises:
        TopicMissingError: One does not exist and was not to be created.
        TopicPolicyError: At least one hard difference; the message has the commands that fix it.
        KafkaUnavailableError: Kafka did not answer in time.
    """
    if create:
        return create_topics(settings, topics, replication_factor=replication_factor, timeout_s=timeout_s)
    return check_load_topics(settings, topics, timeout_s=timeout_s).topics


def check_load_topics(settings: ClientSettings, topics: LoadTopics, *, timeout_s: float = 20.0) -> Inspection:
    """As `open_load_topics`, with soft differences as well."""
    return verify_topics(settings, topics, timeout_s=timeout_s)
