"""The comparison of a topic with its policy: which differences are hard, and what mends them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.topic_policy import (
    HOUR_MS,
    MINUTE_MS,
    ChannelTopics,
    ObservedTopics,
    Requirement,
    SettingRule,
    SideTopic,
    TopicSet,
    decisions_topic,
    plans_topic,
    policies_topic,
    samples_topic,
)
from statechannel.kafka.topics import TopicInfo, alter_command, inspect

SETTINGS = ClientSettings("h:1")
TOPICS = ChannelTopics("c")


def good() -> dict[str, TopicInfo]:
    return {
        name: TopicInfo(name, "id", policy.partitions or 1, 1, policy.creation_settings())
        for name, policy in TOPICS.policies.items()
    }


def with_setting(topic: str, setting: str, value: str, **changes: int) -> dict[str, TopicInfo]:
    result = good()
    info = result[topic]
    result[topic] = replace(info, settings={**info.settings, setting: value}, **changes)
    return result


def test_created_as_wanted_is_without_difference() -> None:
    assert inspect(good(), SETTINGS, TOPICS).differences == ()


@pytest.mark.parametrize(
    ("topic", "setting", "expected", "hard"),
    [
        ("c", "cleanup.policy", "delete", True),
        ("c", "cleanup.policy", "compact,delete", True),
        ("c", "message.timestamp.type", "CreateTime", True),
        ("c", "min.compaction.lag.ms", "3599999", True),
        ("c", "max.compaction.lag.ms", "9223372036854775807", True),
        ("c", "segment.ms", "604800000", True),
        ("c", "delete.retention.ms", "86400000", True),
        ("c", "unclean.leader.election.enable", "true", True),
        ("c", "max.message.bytes", "900000", True),
        ("c", "min.cleanable.dirty.ratio", "0.5", False),
        ("c", "segment.bytes", "1073741824", False),
        ("c-registry", "cleanup.policy", "compact", True),
        ("c-registry", "message.timestamp.type", "CreateTime", True),
        ("c-registry", "retention.ms", "60000", True),
        ("c-requests", "retention.ms", "3600000", True),
        ("c-requests", "message.timestamp.type", "CreateTime", True),
        ("c-registry", "segment.ms", "600001", False),
        ("c-requests", "segment.ms", "86400001", False),
    ],
)
def test_each_wrong_setting_is_one_difference_with_its_command(topic: str, setting: str, expected: str, hard: bool):
    inspection = inspect(with_setting(topic, setting, expected), SETTINGS, TOPICS)
    (difference,) = inspection.differences
    assert (difference.topic, difference.setting, difference.actual) == (topic, setting, expected)
    assert difference.hard is hard
    wanted = TOPICS.policies[topic].creation_settings()[setting]
    assert difference.command == (
        f"kafka-configs.sh --bootstrap-server h:1 --alter --entity-type topics "
        f"--entity-name {topic} --add-config {setting}={wanted}"
    )


@pytest.mark.parametrize(
    ("topic", "setting", "enough"),
    [
        ("c", "min.compaction.lag.ms", "7200000"),
        ("c", "segment.ms", "1000"),
        ("c", "delete.retention.ms", "999999999"),
        ("c", "max.compaction.lag.ms", "7200000"),
        ("c-registry", "retention.ms", "3600000"),
        ("c-registry", "segment.ms", "600000"),
        ("c-requests", "retention.ms", "604800000"),
        ("c-requests", "segment.ms", "86400000"),
    ],
)
def test_what_is_enough_or_better_is_no_difference(topic: str, setting: str, enough: str) -> None:
    assert inspect(with_setting(topic, setting, enough), SETTINGS, TOPICS).differences == ()


def test_no_limit_counts_as_the_largest_value() -> None:
    assert Requirement("retention.ms", SettingRule.AT_LEAST, "10").met_by("-1")
    assert not Requirement("segment.ms", SettingRule.AT_MOST, "10").met_by("-1")
    assert not Requirement("retention.ms", SettingRule.AT_LEAST, "10").met_by("0")
    assert Requirement("segment.ms", SettingRule.AT_MOST, "10").met_by("0")


def test_a_setting_that_cannot_be_read_is_not_met() -> None:
    for rule in SettingRule:
        assert not Requirement("x", rule, "10").met_by(None)
    assert not Requirement("x", SettingRule.AT_LEAST, "10").met_by("ten")


@pytest.mark.parametrize("topic", ["c-registry", "c-requests", "c-leader"])
def test_partitions_that_are_not_used_harm_nothing(topic: str) -> None:
    result = good()
    result[topic] = replace(result[topic], partitions=3)
    (difference,) = inspect(result, SETTINGS, TOPICS).differences
    assert not difference.hard
    assert (difference.setting, difference.actual, difference.wanted) == ("partitions", "3", "1")
    assert "--delete" not in str(difference)


def test_the_channel_may_have_any_number_of_partitions() -> None:
    result = good()
    result["c"] = replace(result["c"], partitions=12)
    assert inspect(result, SETTINGS, TOPICS).differences == ()


@pytest.mark.parametrize(
    ("replicas", "required", "expected"),
    [
        (1, "1", []),
        (2, "1", []),
        (3, "2", []),
        (3, "1", [False]),  # acks=all then means one copy
        (3, "3", [False]),  # one lost replica stops all writes
        (2, "2", [False]),
        (1, "2", [True]),  # nothing can ever be written
    ],
)
def test_the_relation_of_replicas_and_required_ones(replicas: int, required: str, expected: list[bool]) -> None:
    result = with_setting("c", "min.insync.replicas", required, replicas=replicas)
    differences = inspect(result, SETTINGS, TOPICS).differences
    assert [d.hard for d in differences] == expected
    assert all(d.command.endswith(f"min.insync.replicas={2 if replicas == 3 else 1}") for d in differences)


SIDE_TOPICS: dict[str, Callable[[], SideTopic]] = {
    "policies": lambda: policies_topic("c"),
    "decisions": lambda: decisions_topic("c"),
    "partition-samples": lambda: samples_topic("samples", 8 * HOUR_MS),
    "partition-plans": lambda: plans_topic("plans"),
}


@pytest.mark.parametrize(
    ("role", "setting", "value", "hard"),
    [
        ("policies", "delete.retention.ms", "1", True),
        ("policies", "max.message.bytes", "100", True),
        ("policies", "segment.ms", "604800000", False),
        ("decisions", "cleanup.policy", "compact", True),
        ("decisions", "retention.ms", "1", False),
        ("decisions", "segment.ms", "604800000", False),
        ("partition-samples", "message.timestamp.type", "CreateTime", True),
        ("partition-samples", "retention.ms", "1", False),
        ("partition-samples", "segment.ms", "604800000", False),
        ("partition-plans", "cleanup.policy", "compact", True),
        ("partition-plans", "retention.ms", "2591999999", False),
    ],
)
def test_of_a_side_topic_what_loses_records_is_hard_and_what_costs_room_is_not(
    role: str, setting: str, value: str, hard: bool
) -> None:
    topic = SIDE_TOPICS[role]()
    assert topic.policy.role == role
    info = TopicInfo(topic.name, "id", 1, 1, topic.policy.creation_settings())
    assert inspect({topic.name: info}, SETTINGS, topic).differences == ()
    wrong = replace(info, settings={**info.settings, setting: value})
    (difference,) = inspect({topic.name: wrong}, SETTINGS, topic).differences
    assert (difference.setting, difference.hard) == (setting, hard)


@pytest.mark.parametrize(
    ("window_ms", "retention_ms", "segment_ms"),
    [(0, HOUR_MS, 10 * MINUTE_MS), (8 * HOUR_MS, 11 * HOUR_MS, 11 * HOUR_MS // 8)],
)
def test_samples_outlive_their_window_and_are_deleted_in_small_parts(
    window_ms: int, retention_ms: int, segment_ms: int
) -> None:
    created = samples_topic("samples", window_ms).policy.creation_settings()
    assert (created["retention.ms"], created["segment.ms"]) == (str(retention_ms), str(segment_ms))
    assert samples_topic("samples", 1).policy.partitions is None


@pytest.mark.parametrize(
    ("topics", "names"),
    [(TOPICS, {"c", "c-registry", "c-requests", "c-leader"}), (ObservedTopics(TOPICS), {"c", "c-registry"})],
)
def test_an_observer_needs_only_what_says_who_owns_what(topics: TopicSet, names: set[str]) -> None:
    assert topics.policies.keys() == names


def test_a_value_with_a_comma_is_one_value_of_the_command() -> None:
    assert alter_command("h:1", "t", "cleanup.policy", "compact,delete").endswith("cleanup.policy=[compact,delete]")
    assert alter_command("h:1", "t", "segment.ms", "7").endswith("segment.ms=7")


def test_topics_that_do_not_exist_are_named_together() -> None:
    result = good()
    del result["c"], result["c-leader"]
    with pytest.raises(TopicMissingError, match="c, c-leader") as caught:
        inspect(result, SETTINGS, TOPICS)
    assert "statechannel init" in caught.value.hint
