"""What Kafka answers about topics, its nodes and groups, as the commands show it (a scripted admin client)."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaAccessDeniedError, KafkaUnavailableError, TopicPolicyError
from statechannel.kafka.topic_policy import ChannelTopics, plans_topic, samples_topic
from statechannel.kafka.topics import (
    GroupMember,
    KafkaNode,
    PartitionPlace,
    TopicAdmin,
    client_versions,
    inspect_topics,
    missing_topic,
    open_topics,
    server_version,
    verify_topics,
)
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.scripted_admin import ALWAYS, ScriptedAdmin, node, part, scripted_admin

SETTINGS = ClientSettings("h:1", tuning=KafkaSettings.model_construct(topic_grace_s=0.05))


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> ScriptedAdmin:
    return scripted_admin(monkeypatch)


def open_admin(timeout_s: float = 0.3) -> TopicAdmin:
    return TopicAdmin(SETTINGS, timeout_s=timeout_s)


# --- the cluster ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("controller", "expected"), [(node(2), 2), (node(0), 0), (node(-1), None), (None, None)])
def test_the_cluster_with_its_nodes_in_order(admin: ScriptedAdmin, controller: Any, expected: int | None) -> None:
    admin.controller = controller
    cluster = open_admin().cluster()
    assert (cluster.cluster_id, cluster.controller) == ("C1", expected)
    assert cluster.nodes == (KafkaNode(1, "kafka1:9092", "a"), KafkaNode(2, "kafka2:9092", "b"))


def test_the_settings_of_a_node_are_without_secrets_and_empty_ones(admin: ScriptedAdmin) -> None:
    admin.settings["1"] = {"log.dirs": "/d", "ssl.key.password": "hush", "authorizer": "", "listeners": None}
    assert open_admin().node_settings(1) == {"log.dirs": "/d"}


def test_members_of_a_group_are_in_order_and_their_hosts_plain(admin: ScriptedAdmin) -> None:
    admin.members = [
        SimpleNamespace(client_id="b2", host="/10.0.0.2"),
        SimpleNamespace(client_id="b1", host="10.0.0.9"),
    ]
    assert open_admin().group_members("g") == (GroupMember("b1", "10.0.0.9"), GroupMember("b2", "10.0.0.2"))


def test_places_of_the_topics_that_exist(admin: ScriptedAdmin) -> None:
    leaders = [node(0), node(7), node(-1), None]
    admin.topics["c"] = [part(number, leader, (2, 1), (2, 1)) for number, leader in enumerate(leaders)]
    expected = tuple(PartitionPlace(number, led, (1, 2), (1, 2)) for number, led in enumerate([0, 7, None, None]))
    assert open_admin().places(["c", "gone"]) == {"c": expected}
    assert open_admin().places([]) == {}


# --- topics ---------------------------------------------------------------------------------------------------------


def test_a_topic_is_described_by_its_weakest_partition_and_its_settings(admin: ScriptedAdmin) -> None:
    admin.add("c", {"a": "1", "empty": ""}, [part(0, node(1), (1, 2, 3)), part(1, node(1), (1, 2))])
    (info,) = open_admin().describe(["c", "gone"]).values()
    assert (info.name, info.topic_id, info.partitions, info.replicas) == ("c", "id of c", 2, 2)
    assert info.settings == {"a": "1"}
    assert open_admin().describe([]) == {}


def test_a_topic_that_is_deleted_between_two_questions_is_left_out(admin: ScriptedAdmin) -> None:
    admin.add("c", {}, [part(0, node(1))])
    del admin.settings["c"]
    assert open_admin().describe(["c"]) == {}


def test_a_topic_that_was_just_created_is_asked_for_again_for_a_while(admin: ScriptedAdmin) -> None:
    admin.add("c", {}, [part(0, node(1))])
    assert open_admin().describe(["c", "late"], created=True).keys() == {"c"}
    assert 1 < admin.calls.count("configs") < 20
    assert open_admin().describe(["c"], created=True).keys() == {"c"}


def test_settings_that_may_not_be_read_are_an_error(admin: ScriptedAdmin) -> None:
    admin.add("c", {}, [part(0, node(1))])
    admin.refusals["configs"] = (ALWAYS, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaAccessDeniedError):
        open_admin().describe(["c"])


CREATED = [(-1, None), (1, "1"), (2, "1"), (3, "2"), (5, "2")]


@pytest.mark.parametrize(("replicas", "in_sync"), CREATED)
def test_new_topics_have_their_partitions_and_what_their_replicas_need(
    admin: ScriptedAdmin, replicas: int, in_sync: str | None
) -> None:
    names = ChannelTopics("c")
    opened = open_topics(SETTINGS, names, create=True, replication_factor=replicas, partitions=4, timeout_s=5.0)
    assert {name: info.partitions for name, info in opened.items()} == dict.fromkeys(names.policies, 1) | {"c": 4}
    for name, (_, factor, config) in admin.created.items():
        assert factor == replicas
        assert config.get("min.insync.replicas") == in_sync
        assert names.policies[name].creation_settings().items() <= config.items()


def test_creation_takes_a_topic_that_another_process_created_meanwhile(admin: ScriptedAdmin) -> None:
    admin.refusals["create"] = (ALWAYS, KafkaError.TOPIC_ALREADY_EXISTS)
    assert set(open_topics(SETTINGS, plans_topic("p"), create=True, timeout_s=5.0)) == {"p"}


@pytest.mark.parametrize("call", ["create", "offsets"])
def test_creation_that_is_refused_ends_at_once(admin: ScriptedAdmin, call: str) -> None:
    admin.refusals[call] = (ALWAYS, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaAccessDeniedError):
        open_topics(SETTINGS, plans_topic("p"), create=True, timeout_s=5.0)
    assert admin.calls.count(call) == 1


@pytest.mark.parametrize(
    "partitions", [[], [part(0, None)], [part(0, node(-1))], [part(0, node(1)), part(1, node(-1))]], ids=len
)
def test_a_topic_without_a_leader_for_each_partition_is_not_usable(
    admin: ScriptedAdmin, monkeypatch: pytest.MonkeyPatch, partitions: list[Any]
) -> None:
    monkeypatch.setattr(ScriptedAdmin, "add", lambda self, name, *_: self.topics.__setitem__(name, partitions))
    with pytest.raises(KafkaUnavailableError, match="without a leader"):
        open_topics(SETTINGS, plans_topic("p"), create=True, timeout_s=0.2)
    assert admin.calls.count("describe") < 20, "with a pause between two questions"


def test_what_exists_is_not_created_and_what_is_unfit_is_refused(admin: ScriptedAdmin) -> None:
    topic = plans_topic("p")
    admin.add("p", topic.policy.creation_settings() | {"retention.ms": "1"}, [part(0, node(1))])
    for create in (True, False):
        assert set(open_topics(SETTINGS, topic, create=create)) == {"p"}
    assert [(d.setting, d.hard) for d in verify_topics(SETTINGS, topic).differences] == [("retention.ms", False)]
    admin.settings["p"]["cleanup.policy"] = "compact"
    assert len(inspect_topics(SETTINGS, topic).hard) == 1
    with pytest.raises(TopicPolicyError):
        verify_topics(SETTINGS, topic)
    assert "create" not in admin.calls


def test_a_missing_topic_comes_with_the_line_that_creates_it() -> None:
    one = missing_topic("p", plans_topic("p").policy, "h:1")
    assert (one.topic, one.setting, one.hard) == ("p", "topic", True)
    assert "--create --topic p --partitions 1 " in one.command
    assert "--config cleanup.policy=delete" in one.command
    assert "--partitions 1 " in missing_topic("s", samples_topic("s", 1).policy, "h:1").command


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "version"),
    [
        ({"inter.broker.protocol.version": "3.9-IV0", "share.coordinator.append.linger.ms": "1"}, "3.9-IV0"),
        ({"group.coordinator.rebalance.protocols": "classic"}, "4.0"),
        ({"share.coordinator.append.linger.ms": "1"}, "4.0"),
        ({"log.dirs": "/d"}, "unknown"),
    ],
)
def test_the_version_of_a_node_follows_from_its_settings(settings: dict[str, str], version: str) -> None:
    assert version in server_version(settings)


def test_the_versions_of_the_client_library_are_texts() -> None:
    assert all(version.count(".") >= 2 for version in client_versions().values())
