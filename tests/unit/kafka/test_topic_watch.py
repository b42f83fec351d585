"""What the watch over topics finds while a member runs."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec

from statechannel.kafka import topic_watch
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import Requirement, SettingRule, TopicPolicy
from statechannel.kafka.topic_watch import TopicFindings, TopicWatch
from statechannel.kafka.topics import TopicInfo
from tests.support.scripted_admin import answered, refusal

CHANNEL, REQUESTS, SIDE = "c", "c-requests", "c-side"
SIDE_POLICY = TopicPolicy(
    "side",
    (
        Requirement("cleanup.policy", SettingRule.EXACTLY, "compact,delete"),
        Requirement("segment.ms", SettingRule.AT_MOST, "10", hard=False),
    ),
)
CHANNEL_POLICY = TopicPolicy("channel", (Requirement("cleanup.policy", SettingRule.EXACTLY, "compact"),), None)
POLICIES = {CHANNEL: CHANNEL_POLICY, SIDE: SIDE_POLICY}


class Cluster:
    """An admin client of a Kafka whose topics a test changes; None as an offset: that query gets no answer."""

    def __init__(self) -> None:
        self.ids = {CHANNEL: "C", REQUESTS: "R", SIDE: "S"}
        self.partitions = {CHANNEL: 2, REQUESTS: 1, SIDE: 1}
        self.settings = {
            CHANNEL: {"cleanup.policy": "compact"},
            SIDE: {"cleanup.policy": "delete,compact", "segment.ms": "10"},
        }
        self.settings_asked = 0
        self.firsts: dict[tuple[str, int], int | None] = {}
        self.end: int | None = 100

    def describe_topics(self, names: Any, **_: object) -> dict[str, Future[Any]]:
        return {name: self._describe(name) for name in names.topic_names}

    def _describe(self, name: str) -> Future[Any]:
        if name not in self.ids:
            return answered(refusal(KafkaError.UNKNOWN_TOPIC_OR_PART))
        partitions = [SimpleNamespace(replicas=[object()])] * self.partitions[name]
        return answered(SimpleNamespace(topic_id=self.ids[name], partitions=partitions))

    def describe_configs(self, resources: list[ConfigResource], **_: object) -> dict[ConfigResource, Future[Any]]:
        self.settings_asked += 1
        return {
            resource: answered(
                {k: SimpleNamespace(value=v) for k, v in self.settings[resource.name].items()}
                if resource.name in self.ids
                else refusal(KafkaError.UNKNOWN_TOPIC_OR_PART)
            )
            for resource in resources
        }

    def list_offsets(
        self, wanted: Mapping[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        earliest = OffsetSpec.earliest()._value  # type: ignore[no-untyped-call]
        return {
            at: self._offset(self.firsts.get((at.topic, at.partition), 0) if spec._value == earliest else self.end)
            for at, spec in wanted.items()
        }

    @staticmethod
    def _offset(offset: int | None) -> Future[Any]:
        if offset is None:
            return answered(refusal(KafkaError._TIMED_OUT))
        return answered(SimpleNamespace(offset=offset))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(topic_watch, "AdminHandle", lambda _: SimpleNamespace(client=made))
    return made


def opened(*names: str) -> list[TopicInfo]:
    known = {CHANNEL: ("C", 2), REQUESTS: ("R", 1)}
    return [TopicInfo(name, *known[name], 1, {}) for name in names]


def watch(names: Iterable[str] = (CHANNEL, REQUESTS), **how: Any) -> TopicWatch:
    return TopicWatch(ClientSettings("127.0.0.1:1"), opened(*names), interval_s=5.0, compacted={CHANNEL}, **how)


POSITIONS = {(CHANNEL, 0): 7, (CHANNEL, 1): 0, (REQUESTS, 0): 3}


def look(watching: TopicWatch, now_s: float = 0.0) -> TopicFindings:
    """One round, from its queries to its findings."""
    assert watching.poll(now_s, POSITIONS) is None
    return watching.poll(now_s, POSITIONS)


# --- the head of a log ----------------------------------------------------------------------------------------------


def test_a_log_that_begins_at_zero_has_its_head(cluster: Cluster) -> None:
    assert not look(watch()).first_offsets


def test_a_partition_of_the_channel_that_begins_later_has_lost_its_head(cluster: Cluster) -> None:
    watching = watch()
    cluster.firsts[CHANNEL, 1] = 1
    assert look(watching).first_offsets == {(CHANNEL, 1): 1}
    assert look(watching, 5.0).first_offsets == {(CHANNEL, 1): 1}, "as long as it is so"


def test_retention_of_the_other_topics_is_no_loss(cluster: Cluster) -> None:
    cluster.firsts[REQUESTS, 0] = 3
    assert not look(watch()).first_offsets


def test_without_an_answer_about_the_head_nothing_is_known(cluster: Cluster) -> None:
    cluster.firsts[CHANNEL, 0] = None
    findings = look(watch())
    assert findings.answered
    assert not findings.first_offsets


# --- settings and partitions ----------------------------------------------------------------------------------------


def differing(findings: TopicFindings) -> list[tuple[str, str, str, bool]]:
    return [(d.topic, d.setting, d.actual, d.hard) for d in findings.differences]


def test_topics_as_they_should_be_have_no_differences(cluster: Cluster) -> None:
    assert not look(watch(policies=POLICIES)).differences


def test_a_setting_that_changes_while_the_process_runs_is_found_and_so_is_its_return(cluster: Cluster) -> None:
    watching = watch(policies=POLICIES)
    look(watching, 0.0)
    cluster.settings[CHANNEL] = {"cleanup.policy": "delete"}
    cluster.settings[SIDE]["segment.ms"] = "99"
    found = [(CHANNEL, "cleanup.policy", "delete", True), (SIDE, "segment.ms", "99", False)]
    assert not look(watching, 10.0).differences, "settings are asked for less often"
    assert differing(look(watching, 30.0)) == found, "the hard ones first"
    assert differing(look(watching, 40.0)) == found, "as long as it is so"
    cluster.settings[CHANNEL] = {"cleanup.policy": "compact"}
    assert differing(look(watching, 60.0)) == found[1:]


def test_partitions_added_to_the_channel_are_said_and_harmless(cluster: Cluster) -> None:
    watching = watch(policies=POLICIES)
    cluster.partitions[CHANNEL] = 3
    findings = look(watching)
    assert differing(findings) == [(CHANNEL, "partitions", "3", False)]
    assert not findings.broken


def test_partitions_added_to_another_topic_are_found(cluster: Cluster) -> None:
    cluster.partitions[SIDE] = 2
    assert differing(look(watch(policies=POLICIES))) == [(SIDE, "partitions", "2", False)]


def test_a_side_topic_that_comes_back_with_other_settings_is_found_in_the_next_rounds(cluster: Cluster) -> None:
    watching = watch(policies=POLICIES)
    cluster.settings[SIDE]["segment.ms"] = "99"
    first = look(watching, 0.0)
    assert not first.recreated
    assert differing(first) == [(SIDE, "segment.ms", "99", False)]
    cluster.ids[SIDE], cluster.settings[SIDE] = "T", {"cleanup.policy": "delete"}
    again = look(watching, 5.0)
    assert again.recreated == (SIDE,)
    assert not again.differences, "the settings of the new one are not known yet"
    assert watching.due(6.0), "the next round comes soon"
    findings = look(watching, 6.0)
    assert not findings.recreated, "that is said once"
    assert (SIDE, "cleanup.policy", "delete", True) in differing(findings)
    assert not findings.broken


def test_a_side_topic_that_is_gone_for_two_answers_is_missing(cluster: Cluster) -> None:
    watching = watch(policies=POLICIES)
    look(watching, 0.0)
    gone = cluster.ids.pop(SIDE)
    assert not look(watching, 5.0).differences
    (missing,) = look(watching, 6.0).differences
    assert (missing.topic, missing.actual, missing.hard) == (SIDE, "missing", True)
    assert "cleanup.policy=compact,delete" in missing.command
    assert not watching.due(6.0 + 4.9), "that is certain, and asked no sooner than all else"
    cluster.ids[SIDE] = gone
    assert not look(watching, 11.0).differences


def test_a_topic_of_the_channel_that_is_gone_is_broken_as_before(cluster: Cluster) -> None:
    watching = watch(policies=POLICIES)
    look(watching, 0.0)
    del cluster.ids[CHANNEL]
    look(watching, 5.0)
    findings = look(watching, 6.0)
    assert set(findings.broken) == {(CHANNEL, 0), (CHANNEL, 1)}
    assert not findings.differences


def test_topics_that_are_used_later_are_watched_from_then_on(cluster: Cluster) -> None:
    policies = {CHANNEL: CHANNEL_POLICY}
    watching = watch(policies=policies)
    cluster.settings[SIDE] = {"cleanup.policy": "delete", "segment.ms": "1"}
    assert not look(watching, 0.0).differences
    policies[SIDE] = SIDE_POLICY
    assert differing(look(watching, 5.0)) == [(SIDE, "cleanup.policy", "delete", True)]


def test_without_an_answer_what_was_known_stays(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = watch(policies=POLICIES)
    cluster.partitions[CHANNEL] = 3
    before = look(watching, 0.0).differences
    for call, silent in SILENT_CALLS.items():
        monkeypatch.setattr(Cluster, call, silent)
    for now_s in (30.0, 35.0, 40.0):
        assert look(watching, now_s).differences == before


@pytest.mark.parametrize("call", ["_describe", "describe_configs"])
def test_of_a_topic_that_is_half_known_nothing_is_said(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, call: str):
    watching = watch(policies=POLICIES)
    cluster.settings[SIDE]["segment.ms"] = "99"
    with monkeypatch.context() as silent:
        silent.setattr(Cluster, call, SILENT_CALLS[call])
        assert not look(watching, 0.0).differences
    assert differing(look(watching, 30.0)) == [(SIDE, "segment.ms", "99", False)]


SILENT = refusal(KafkaError._TIMED_OUT)
SILENT_CALLS: dict[str, Any] = {
    "_describe": lambda *_: answered(SILENT),
    "describe_configs": lambda _, resources, **__: dict.fromkeys(resources, answered(SILENT)),
}


def test_any_number_of_partitions_is_right_where_the_policy_leaves_it_open(cluster: Cluster) -> None:
    cluster.partitions[SIDE] = 7
    assert not look(watch(policies={SIDE: replace(SIDE_POLICY, partitions=None)})).differences


def test_partitions_that_were_too_many_when_the_topic_was_opened_are_so_still(cluster: Cluster) -> None:
    cluster.partitions[SIDE] = 3
    info = TopicInfo(SIDE, "S", 3, 1, {})
    watching = TopicWatch(ClientSettings("127.0.0.1:1"), [info], interval_s=5.0, policies={SIDE: SIDE_POLICY})
    watching.poll(0.0, {(SIDE, 0): 0})
    findings = watching.poll(0.0, {(SIDE, 0): 0})
    assert differing(findings) == [(SIDE, "partitions", "3", False)]


def test_a_watch_without_policies_asks_for_no_settings(cluster: Cluster) -> None:
    look(watch())
    assert cluster.settings_asked == 0


# --- identity and ends ----------------------------------------------------------------------------------------------


def test_a_topic_that_was_made_anew_is_broken_at_once(cluster: Cluster) -> None:
    watching = watch()
    look(watching)
    cluster.ids[REQUESTS] = "S"
    findings = look(watching, 5.0)
    assert list(findings.broken) == [(REQUESTS, 0)]
    assert not findings.recreated, "it has no policy"


def test_an_end_before_the_position_counts_when_it_is_seen_twice_in_a_row(cluster: Cluster) -> None:
    watching = watch()
    cluster.end = 5
    assert not look(watching, 0.0).broken
    cluster.end = 100
    assert not look(watching, 10.0).broken
    cluster.end = 5
    assert not look(watching, 20.0).broken, "twice ever is not twice in a row"
    assert list(look(watching, 30.0).broken) == [(CHANNEL, 0)]
