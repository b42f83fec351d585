"""What the side topics must be like, and how they are opened."""

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.kafka import topics
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import TopicMissingError, TopicPolicyError
from statechannel.kafka.topic_policy import LightLags, LoadTopics, TopicSet, plans_topic
from statechannel.kafka.topics import TopicInfo, inspect, open_topics

TOPICS = LoadTopics("c")
SETTINGS = ClientSettings("h:1")


def good() -> dict[str, TopicInfo]:
    return {name: TopicInfo(name, "id", 1, 1, policy.creation_settings()) for name, policy in TOPICS.policies.items()}


def test_names_and_creation() -> None:
    assert set(TOPICS.policies) == {"c-broker-load", "c-top-bundles"}
    assert inspect(good(), SETTINGS, TOPICS).differences == ()
    result = LoadTopics("c", light=LightLags(retention_ms=7_200_000)).policies["c-broker-load"].creation_settings()
    assert (result["cleanup.policy"], result["retention.ms"]) == ("compact,delete", "7200000")
    assert TOPICS.policies["c-broker-load"].partitions == 1


@pytest.mark.parametrize(
    ("setting", "value", "hard"),
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
def test_what_will_not_do(setting: str, value: str, hard: bool) -> None:
    infos = good()
    info = infos["c-top-bundles"]
    infos["c-top-bundles"] = replace(info, settings={**info.settings, setting: value})
    [difference] = inspect(infos, SETTINGS, TOPICS).differences
    assert (difference.setting, difference.hard) == (setting, hard)
    assert "--alter" in difference.command


class Admin:
    """A cluster of two nodes with these topics."""

    def __init__(self, there: dict[str, TopicInfo]) -> None:
        self.there = there
        self.created: list[int] = []

    def describe(self, names: Collection[str], *, created: bool = False) -> dict[str, TopicInfo]:
        return {name: self.there[name] for name in names if name in self.there}

    def cluster(self) -> Any:
        return SimpleNamespace(nodes=(1, 2))

    def create(self, wanted: TopicSet, *, partitions: int, replication_factor: int) -> None:
        self.created.append(replication_factor)
        for name, policy in wanted.policies.items():
            self.there[name] = TopicInfo(name, "id", 1, 1, policy.creation_settings())


def admin_of(monkeypatch: pytest.MonkeyPatch, there: dict[str, TopicInfo]) -> Admin:
    admin = Admin(there)
    monkeypatch.setattr(topics, "TopicAdmin", lambda *_, **__: admin)
    return admin


def test_existing_topics_are_verified_without_a_request_to_create_them(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = admin_of(monkeypatch, good())
    assert open_topics(SETTINGS, TOPICS, create=True) == good()
    assert admin.created == []


def test_missing_topics_are_created_with_no_more_replicas_than_nodes_if_requested(monkeypatch: pytest.MonkeyPatch):
    admin = admin_of(monkeypatch, {})
    with pytest.raises(TopicMissingError):
        open_topics(SETTINGS, TOPICS, create=False)
    assert set(open_topics(SETTINGS, TOPICS, create=True, replication_factor=3)) == set(TOPICS.policies)
    open_topics(SETTINGS, plans_topic("plans"), create=True, replication_factor=3, fit_nodes=True)
    assert admin.created == [3, 2]


def test_the_refusal_says_which_topic_it_is_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = plans_topic("plans")
    info = TopicInfo("plans", "id", 1, 1, {**topic.policy.creation_settings(), "cleanup.policy": "compact"})
    admin_of(monkeypatch, {"plans": info})
    with pytest.raises(TopicPolicyError, match=r"(?s)invalid settings:.*--alter") as refused:
        open_topics(SETTINGS, topic, create=True)
    assert "extensions.partitions.state_topic" in refused.value.hint
