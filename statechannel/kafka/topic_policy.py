"""The topics, as data: name, required settings, key and writers of each (protocol.md section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Protocol

from statechannel.protocol.log import Topic
from statechannel.settings.groups_cluster import DAY_MS, HOUR_MS, MINUTE_MS, ChannelSettings

LEADER: Final = "leader"
"""Role of the election topic, which no engine reads or writes."""

LARGEST_RECORD_BYTES: Final = 1_000_000
"""A value may have 900,000 bytes (format 1); key, headers and batch overhead come on top."""


class SettingRule(StrEnum):
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
class TopicPolicy:
    """Policy of one topic.

    Attributes:
        role: Its part in a channel, such as `registry`.
        partitions: How many of its partitions are used, from 0 on, and are created; None: all, fixed at creation.
        requirements: Compared one by one, in this order.
    """

    role: str
    requirements: tuple[Requirement, ...]
    partitions: int | None = 1

    def creation_settings(self) -> dict[str, str]:
        return {r.setting: r.wanted for r in self.requirements}


class TopicSet(Protocol):
    """Topics that are created and verified together.

    Attributes:
        refusal: What it means if a topic has a hard difference.
    """

    @property
    def policies(self) -> Mapping[str, TopicPolicy]: ...

    @property
    def refusal(self) -> str: ...

    @property
    def remedy(self) -> str: ...


_REFUSAL: Final = "The topics' settings void the protocol's guarantees"
_REMEDY: Final = "Run the commands above, then start again."

_LOG_TIME = Requirement("message.timestamp.type", SettingRule.EXACTLY, "LogAppendTime")
_CLEAN_ELECTION = Requirement("unclean.leader.election.enable", SettingRule.EXACTLY, "false")
_DELETE = Requirement("cleanup.policy", SettingRule.EXACTLY, "delete")
_COMPACT = Requirement("cleanup.policy", SettingRule.EXACTLY, "compact")


# --- the channel's own topics ---------------------------------------------------------------------------------------


def channel_policy(t: ChannelSettings) -> TopicPolicy:
    ratio = f"{t.min_cleanable_dirty_ratio:g}"
    return TopicPolicy(
        role=Topic.CHANNEL,
        partitions=None,
        requirements=(
            _COMPACT,
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


@dataclass(frozen=True, slots=True)
class ChannelTopics:
    """Names and policies of the four topics of one channel.

    Attributes:
        channel: Name of the channel; the other topics have it as prefix.
    """

    channel: str = "bundle-state"
    settings: ChannelSettings = field(default_factory=ChannelSettings)
    refusal: ClassVar[str] = _REFUSAL
    remedy: ClassVar[str] = _REMEDY

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
        return f"{self.channel}-leader"

    @property
    def leader_group(self) -> str:
        """The consumer group of the election; within the prefix, so that one ACL covers both."""
        return f"{self.channel}-leader"

    @property
    def reader_group(self) -> str:
        return _reader_group(self.channel)

    @property
    def policies(self) -> Mapping[str, TopicPolicy]:
        return {
            self.names[Topic.CHANNEL]: channel_policy(self.settings),
            self.names[Topic.REGISTRY]: registry_policy(),
            self.names[Topic.REQUESTS]: requests_policy(),
            self.leader_topic: TopicPolicy(role=LEADER, requirements=()),
        }


@dataclass(frozen=True, slots=True)
class ObservedTopics:
    """Names and policies of the two topics of a channel that say who owns what: all that an observer reads."""

    topics: ChannelTopics
    refusal: ClassVar[str] = _REFUSAL
    remedy: ClassVar[str] = _REMEDY

    @property
    def names(self) -> Mapping[Topic, str]:
        return {role: name for role, name in self.topics.names.items() if role is not Topic.REQUESTS}

    @property
    def policies(self) -> Mapping[str, TopicPolicy]:
        return {name: self.topics.policies[name] for name in self.names.values()}


# --- side topics: of the balancer and of the planner of Kafka's partitions --------------------------------------------

BROKER_LOAD: Final = "broker-load"
TOP_BUNDLES: Final = "top-bundles"
POLICIES: Final = "policies"
DECISIONS: Final = "decisions"
PARTITION_SAMPLES: Final = "partition-samples"
PARTITION_PLANS: Final = "partition-plans"

DECISIONS_RETENTION_MS: Final = 7 * DAY_MS
DECISIONS_SEGMENT_MS: Final = DAY_MS


@dataclass(frozen=True, slots=True)
class SideTopic:
    """One topic beside the channel's own.

    Attributes:
        reader_group: A group name that librdkafka asks for; nothing is ever committed to it.
    """

    name: str
    policy: TopicPolicy
    reader_group: str
    refusal: str = _REFUSAL
    remedy: str = _REMEDY

    @property
    def policies(self) -> Mapping[str, TopicPolicy]:
        return {self.name: self.policy}


@dataclass(frozen=True, slots=True)
class LightLags:
    """Times of a light topic; shorter ones are for tests that watch the cleaner.

    Attributes:
        retention_ms: A record older than this may be gone: at least twice the age at which reports are renewed.
    """

    retention_ms: int = HOUR_MS
    segment_ms: int = 10 * MINUTE_MS
    delete_retention_ms: int = HOUR_MS


def _light_policy(role: str, times: LightLags) -> TopicPolicy:
    """One partition, compact and delete, the log's own time: offsets and times of different keys can be compared.

    Records may be lost. Upstream keeps load data in non-persistent topics; here such a topic is short-lived instead, so that
    a reader who comes late finds the newest record of each key.
    """
    return TopicPolicy(
        role=role,
        requirements=(
            Requirement("cleanup.policy", SettingRule.EXACTLY, "compact,delete"),
            _LOG_TIME,
            Requirement("retention.ms", SettingRule.AT_LEAST, str(times.retention_ms)),
            Requirement("delete.retention.ms", SettingRule.AT_LEAST, str(times.delete_retention_ms)),
            Requirement("segment.ms", SettingRule.AT_MOST, str(times.segment_ms), hard=False),
            Requirement("max.message.bytes", SettingRule.AT_LEAST, str(LARGEST_RECORD_BYTES)),
        ),
    )


@dataclass(frozen=True, slots=True)
class LoadTopics:
    """The two load topics of a channel (upstream `loadbalancer-broker-load-data`, `-top-bundles-`).

    Key is the broker, which writes; the leader, or the Spark job, writes tombstones.
    """

    channel: str
    light: LightLags = LightLags()
    refusal: ClassVar[str] = _REFUSAL
    remedy: ClassVar[str] = _REMEDY

    @property
    def broker_load(self) -> str:
        return f"{self.channel}-{BROKER_LOAD}"

    @property
    def top_bundles(self) -> str:
        return f"{self.channel}-{TOP_BUNDLES}"

    @property
    def reader_group(self) -> str:
        return _reader_group(self.channel)

    @property
    def policies(self) -> Mapping[str, TopicPolicy]:
        return {
            self.broker_load: _light_policy(BROKER_LOAD, self.light),
            self.top_bundles: _light_policy(TOP_BUNDLES, self.light),
        }


def policies_topic(channel: str) -> SideTopic:
    """The policies: key is kind and name; operators write, by commands."""
    requirements = (
        _COMPACT,
        _LOG_TIME,
        Requirement("delete.retention.ms", SettingRule.AT_LEAST, str(7 * DAY_MS)),  # longer away: a reader starts over
        _CLEAN_ELECTION,
        Requirement("max.message.bytes", SettingRule.AT_LEAST, "200000"),
        Requirement("segment.ms", SettingRule.AT_MOST, str(DAY_MS), hard=False),
    )
    return SideTopic(
        f"{channel}-{POLICIES}",
        TopicPolicy(POLICIES, requirements),
        _reader_group(channel),
        refusal="The topic of policies has unsuitable settings",
    )


def decisions_topic(
    channel: str, retention_ms: int = DECISIONS_RETENTION_MS, segment_ms: int = DECISIONS_SEGMENT_MS
) -> SideTopic:
    """The decisions of the balancer: key is the decision's id; the leader writes.

    Args:
        retention_ms: A decision older than this may be gone.
        segment_ms: Retention drops whole segments: a record may live this much longer.
    """
    requirements = (
        _DELETE,
        _LOG_TIME,
        Requirement("max.message.bytes", SettingRule.AT_LEAST, str(LARGEST_RECORD_BYTES)),
        Requirement("retention.ms", SettingRule.AT_LEAST, str(retention_ms), hard=False),
        Requirement("segment.ms", SettingRule.AT_MOST, str(segment_ms), hard=False),
    )
    return SideTopic(f"{channel}-{DECISIONS}", TopicPolicy(DECISIONS, requirements), _reader_group(channel))


def samples_topic(name: str, window_ms: int) -> SideTopic:
    """The loads of Kafka's partitions: key is topic and partition; samplers write.

    Args:
        window_ms: Longest window that is to be averaged; old samples are deleted a bit later.
    """
    retention_ms = window_ms + window_ms // 4 + HOUR_MS
    segment_ms = max(10 * MINUTE_MS, retention_ms // 8)
    requirements = (
        _DELETE,
        _LOG_TIME,
        Requirement("retention.ms", SettingRule.AT_LEAST, str(retention_ms), hard=False),
        Requirement("segment.ms", SettingRule.AT_MOST, str(segment_ms), hard=False),
    )
    return SideTopic(name, TopicPolicy(PARTITION_SAMPLES, requirements, partitions=None), _reader_group(name))


def plans_topic(name: str) -> SideTopic:
    """Plans for Kafka's partitions and their events: key is the plan's id; executors and operators write.

    Policy delete, not compact: all events of a key count, not only the last.
    """
    requirements = (
        _DELETE,
        _LOG_TIME,
        Requirement("max.message.bytes", SettingRule.AT_LEAST, str(LARGEST_RECORD_BYTES)),
        Requirement("retention.ms", SettingRule.AT_LEAST, str(30 * DAY_MS), hard=False),
    )
    return SideTopic(
        name,
        TopicPolicy(PARTITION_PLANS, requirements),
        _reader_group(name),
        refusal="the topic of partition plans has invalid settings",
        remedy="Run the commands above, or use another topic: extensions.partitions.state_topic.",
    )


def _reader_group(prefix: str) -> str:
    """A group name that librdkafka asks for, within the prefix of the channel's ACLs; nothing is ever committed to it."""
    return f"{prefix}-reader"
