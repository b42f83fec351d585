"""Required settings of each topic, as data (protocol.md section 6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from statechannel.protocol.log import Topic

if TYPE_CHECKING:
    from collections.abc import Mapping

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
MIB: Final = 1024 * 1024

LEADER: Final = "leader"
"""Role of the election topic, which no engine reads or writes."""

LARGEST_RECORD_BYTES: Final = 1_000_000
"""A value may have 900,000 bytes (format 1); key, headers and batch overhead come on top."""


class SettingRule(StrEnum):
    """Comparison of an actual setting with the required one."""

    EXACTLY = "exactly"
    AT_LEAST = "at least"
    AT_MOST = "at most"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One setting of a topic.

    Attributes:
        wanted: Required value; also that of a new topic.
        hard: A difference voids the protocol's guarantees: the topic is refused.
    """

    setting: str
    rule: SettingRule
    wanted: str
    hard: bool = True

    def met_by(self, value: str | None) -> bool:
        """Whether the actual value satisfies the requirement."""
        if value is None:
            return False
        if self.rule is SettingRule.EXACTLY:
            return _as_set(value) == _as_set(self.wanted)
        try:
            have, want = float(value), float(self.wanted)
        except ValueError:
            return False
        if have < 0:  # -1 stands for "no limit" wherever Kafka allows it
            have = float("inf")
        return have >= want if self.rule is SettingRule.AT_LEAST else have <= want


def _as_set(value: str) -> frozenset[str]:
    """Lists have no order: `compact,delete` is `delete,compact`."""
    return frozenset(part.strip().lower() for part in value.split(","))


@dataclass(frozen=True, slots=True)
class ChannelLags:
    """The times of the channel topic; the defaults are those of protocol.md section 6.

    Shorter ones are for tests that need the cleaner to run.
    """

    min_compaction_lag_ms: int = HOUR_MS
    max_compaction_lag_ms: int = DAY_MS
    segment_ms: int = 10 * MINUTE_MS
    delete_retention_ms: int = 7 * DAY_MS
    min_cleanable_dirty_ratio: float = 0.1
    segment_bytes: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """Policy of one topic.

    Attributes:
        role: `channel`, `registry`, `requests` or `leader`.
        partitions: The number that it must have; None: any, fixed at creation.
        requirements: Compared one by one, in this order.
    """

    role: str
    requirements: tuple[Requirement, ...]
    partitions: int | None = 1

    def creation_settings(self) -> dict[str, str]:
        """The settings that a new topic gets."""
        return {r.setting: r.wanted for r in self.requirements}


_LOG_TIME = Requirement("message.timestamp.type", SettingRule.EXACTLY, "LogAppendTime")
_CLEAN_ELECTION = Requirement("unclean.leader.election.enable", SettingRule.EXACTLY, "false")
_DELETE = Requirement("cleanup.policy", SettingRule.EXACTLY, "delete")


def channel_policy(lags: ChannelLags | None = None) -> TopicPolicy:
    """Policy of the compacted channel topic (protocol.md section 6)."""
    t = lags or ChannelLags()
    ratio = f"{t.min_cleanable_dirty_ratio:g}"
    return TopicPolicy(
        role=Topic.CHANNEL,
        partitions=None,
        requirements=(
            Requirement("cleanup.policy", SettingRule.EXACTLY, "compact"),
            _LOG_TIME,
            Requirement("min.compaction.lag.ms", SettingRule.AT_LEAST, str(t.min_compaction_lag_ms)),
            Requirement("max.compaction.lag.ms", SettingRule.AT_MOST, str(t.max_compaction_lag_ms)),
            Requirement("segment.ms", SettingRule.AT_MOST, str(t.segment_ms)),
            Requirement("delete.retention.ms", SettingRule.AT_LEAST, str(t.delete_retention_ms)),
            _CLEAN_ELECTION,
            Requirement("max.message.bytes", SettingRule.AT_LEAST, str(LARGEST_RECORD_BYTES)),
            Requirement("min.cleanable.dirty.ratio", SettingRule.AT_MOST, ratio, hard=False),
            Requirement("segment.bytes", SettingRule.AT_MOST, str(t.segment_bytes), hard=False),
        ),
    )


def registry_policy() -> TopicPolicy:
    """Policy of the registry, with the brokers' heartbeats: an hour is more than any expiry needs."""
    return TopicPolicy(
        role=Topic.REGISTRY,
        requirements=(
            _DELETE,
            _LOG_TIME,
            Requirement("retention.ms", SettingRule.AT_LEAST, str(HOUR_MS)),
            _CLEAN_ELECTION,
            Requirement("segment.ms", SettingRule.AT_MOST, str(10 * MINUTE_MS), hard=False),
        ),
    )


def requests_policy() -> TopicPolicy:
    """Policy of the requests topic; kept for a week so that tickets can be looked up."""
    return TopicPolicy(
        role=Topic.REQUESTS,
        requirements=(
            _DELETE,
            _LOG_TIME,
            Requirement("retention.ms", SettingRule.AT_LEAST, str(7 * DAY_MS)),
            _CLEAN_ELECTION,
            Requirement("segment.ms", SettingRule.AT_MOST, str(DAY_MS), hard=False),
        ),
    )


def leader_policy() -> TopicPolicy:
    """Policy of the election topic: one empty partition, assigned to the leader by the consumer group."""
    return TopicPolicy(role=LEADER, requirements=())


@dataclass(frozen=True, slots=True)
class ChannelTopics:
    """Names and policies of the four topics of one channel.

    Attributes:
        channel: Name of the channel; the other topics have it as prefix.
    """

    channel: str = "bundle-state"
    lags: ChannelLags = field(default_factory=ChannelLags)

    @property
    def names(self) -> Mapping[Topic, str]:
        """The topics that engines read and write, by role."""
        return {
            Topic.CHANNEL: self.channel,
            Topic.REGISTRY: f"{self.channel}-registry",
            Topic.REQUESTS: f"{self.channel}-requests",
        }

    @property
    def leader_topic(self) -> str:
        """The election topic."""
        return f"{self.channel}-leader"

    @property
    def leader_group(self) -> str:
        """The consumer group of the election; within the prefix, so that one ACL covers both."""
        return f"{self.channel}-leader"

    @property
    def reader_group(self) -> str:
        """A group name that librdkafka asks for; nothing is ever committed to it."""
        return f"{self.channel}-reader"

    @property
    def policies(self) -> Mapping[str, TopicPolicy]:
        """Topic name to policy, all four."""
        return {
            self.names[Topic.CHANNEL]: channel_policy(self.lags),
            self.names[Topic.REGISTRY]: registry_policy(),
            self.names[Topic.REQUESTS]: requests_policy(),
            self.leader_topic: leader_policy(),
        }
