"""What the load topics must be like."""

from dataclasses import replace

import pytest

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import LightLags, LoadTopics
from statechannel.kafka.topics import TopicInfo, inspect

TOPICS = LoadTopics("c")
SETTINGS = ClientSettings("h:1")


def good() -> dict[str, TopicInfo]:
    return {name: TopicInfo(name, "id", 1, 1, policy.creation_settings()) for name, policy in TOPICS.policies.items()}


def test_names_and_creation() -> None:
    assert set(TOPICS.policies) == {"c-broker-load", "c-top-bundles"}
    assert inspect(good(), SETTINGS, TOPICS).differences == ()
    made = LoadTopics("c", light=LightLags(retention_ms=7_200_000)).policies["c-broker-load"].creation_settings()
    assert (made["cleanup.policy"], made["retention.ms"]) == ("compact,delete", "7200000")
    assert TOPICS.policies["c-broker-load"].partitions == 1


@pytest.mark.parametrize(
    ("setting", "found", "hard"),
    [
        ("cleanup.policy", "compact", True),
        ("cleanup.policy", "delete", True),
        ("message.timestamp.type", "CreateTime", True),
        ("retention.ms", "1000", True),
        ("delete.retention.ms", "1", True),
        ("max.message.bytes", "1000", True),
        ("segment.ms", "604800000", False),
    ],
)
def test_what_will_not_do(setting: str, found: str, hard: bool) -> None:
    infos = good()
    info = infos["c-top-bundles"]
    infos["c-top-bundles"] = replace(info, settings={**info.settings, setting: found})
    [difference] = inspect(infos, SETTINGS, TOPICS).differences
    assert (difference.setting, difference.hard) == (setting, hard)
    assert "--alter" in difference.command
