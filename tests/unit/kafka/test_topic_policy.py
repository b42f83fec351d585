"""The comparison of a topic with its policy: which differences are hard, and what mends them."""

from dataclasses import replace

import pytest

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.topic_policy import ChannelTopics, Requirement, SettingRule
from statechannel.kafka.topics import TopicInfo, inspect

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
    ],
)
def test_each_wrong_setting_is_one_difference_with_its_command(
    topic: str, setting: str, expected: str, hard: bool
) -> None:
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
    ("setting", "better"),
    [
        ("min.compaction.lag.ms", "7200000"),
        ("segment.ms", "1000"),
        ("delete.retention.ms", "999999999"),
        ("max.compaction.lag.ms", "7200000"),
    ],
)
def test_better_than_wanted_is_no_difference(setting: str, better: str) -> None:
    assert inspect(with_setting("c", setting, better), SETTINGS, TOPICS).differences == ()


def test_no_limit_counts_as_the_largest_value() -> None:
    assert Requirement("retention.ms", SettingRule.AT_LEAST, "10").met_by("-1")
    assert not Requirement("segment.ms", SettingRule.AT_MOST, "10").met_by("-1")


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


def test_topics_that_do_not_exist_are_named_together() -> None:
    result = good()
    del result["c"], result["c-leader"]
    with pytest.raises(TopicMissingError, match="c, c-leader") as caught:
        inspect(result, SETTINGS, TOPICS)
    assert "statechannel init" in caught.value.hint
