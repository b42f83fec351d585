"""Creating and refusing topics on a real broker."""

import subprocess
import time

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError, TopicMissingError, TopicPolicyError
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import create_topics, inspect_topics, verify_topics
from tests.support.kafka_adapter import Channel, make_channel
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S, wait_until


@pytest.fixture
def channel(kafka: Kafka, topic_prefix: str) -> Channel:
    return make_channel(kafka.bootstrap_servers, topic_prefix)


def alter(channel: Channel, topic: str, setting: str, value: str) -> None:
    admin = AdminClient(channel.settings.admin_config())
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_S)
    until_s = time.monotonic() + WAIT_S
    while True:  # a busy broker describes the former value for a moment
        (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        if described.result(WAIT_S)[setting].value == value:
            return
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_created_topics_pass_and_a_second_creation_changes_nothing(channel: Channel) -> None:
    inspection = verify_topics(channel.settings, channel.topics)
    assert inspection.differences == ()
    again = create_topics(channel.settings, channel.topics, replication_factor=1)
    assert {n: i.topic_id for n, i in again.items()} == {n: i.topic_id for n, i in channel.infos.items()}
    assert len({info.topic_id for info in again.values()}) == 4


def test_the_number_of_partitions_is_that_of_the_creation(kafka: Kafka, topic_prefix: str) -> None:
    first = make_channel(kafka.bootstrap_servers, topic_prefix)
    settings, topics = first.settings, first.topics
    create_topics(settings, topics, partitions=5, replication_factor=1)
    result = verify_topics(settings, topics).topics
    assert result[topics.channel].partitions == 1


@pytest.mark.parametrize(
    ("suffix", "setting", "wrong"),
    [
        ("", "cleanup.policy", "delete"),
        ("", "cleanup.policy", "compact,delete"),
        ("", "message.timestamp.type", "CreateTime"),
        ("", "min.compaction.lag.ms", "1000"),
        ("", "max.compaction.lag.ms", "9223372036854775807"),
        ("", "segment.ms", "604800000"),
        ("", "delete.retention.ms", "1000"),
        ("", "unclean.leader.election.enable", "true"),
        ("", "max.message.bytes", "500000"),
        ("", "min.insync.replicas", "2"),
        ("-registry", "cleanup.policy", "compact"),
        ("-registry", "message.timestamp.type", "CreateTime"),
        ("-registry", "retention.ms", "1000"),
        ("-requests", "retention.ms", "1000"),
    ],
)
def test_each_wrong_policy_is_refused_with_a_command_that_mends_it(
    channel: Channel, suffix: str, setting: str, wrong: str
) -> None:
    topic = channel.topics.channel + suffix
    alter(channel, topic, setting, wrong)
    with pytest.raises(TopicPolicyError) as caught:
        verify_topics(channel.settings, channel.topics)
    (difference,) = inspect_topics(channel.settings, channel.topics).hard
    assert (difference.topic, difference.setting) == (topic, setting)
    assert difference.command in str(caught.value)
    # What the command says is what mends it; Kafka's shell scripts are not among the jars.
    name, _, value = difference.command.rpartition("--add-config ")[2].partition("=")
    alter(channel, topic, name, value)
    assert verify_topics(channel.settings, channel.topics).differences == ()


def test_a_soft_difference_is_told_and_not_refused(channel: Channel) -> None:
    alter(channel, channel.topics.channel, "min.cleanable.dirty.ratio", "0.9")
    (difference,) = verify_topics(channel.settings, channel.topics).differences
    assert not difference.hard


def test_extra_partitions_of_side_topics_are_not_refused(channel: Channel) -> None:
    side_topics = [name for name, policy in channel.topics.policies.items() if policy.partitions == 1]
    admin = AdminClient(channel.settings.admin_config())
    for future in admin.create_partitions([NewPartitions(name, 2) for name in side_topics]).values():
        future.result(WAIT_S)
    wanted = [(name, "partitions") for name in side_topics]

    def differences() -> list[tuple[str, str]]:
        return [(each.topic, each.setting) for each in verify_topics(channel.settings, channel.topics).differences]

    wait_until(lambda: differences() == wanted, differences)  # a broker's own metadata follows the controller's


def test_missing_topics_are_named(kafka: Kafka, topic_prefix: str) -> None:
    channel = make_channel(kafka.bootstrap_servers, topic_prefix)
    admin = AdminClient(channel.settings.admin_config())
    for future in admin.delete_topics([f"{topic_prefix}-requests"]).values():
        future.result(WAIT_S)
    with pytest.raises(TopicMissingError, match=f"{topic_prefix}-requests"):
        verify_topics(channel.settings, channel.topics)


def test_no_kafka_is_one_clear_error_in_time(topic_prefix: str) -> None:
    settings = ClientSettings("127.0.0.1:9")
    with pytest.raises(KafkaUnavailableError, match="Connection refused"):
        verify_topics(settings, ChannelTopics(topic_prefix), timeout_s=2.0)


def test_the_mending_command_is_one_shell_line(channel: Channel) -> None:
    alter(channel, channel.topics.channel, "segment.ms", "604800000")
    (difference,) = inspect_topics(channel.settings, channel.topics).hard
    parsed = subprocess.run(
        ["/bin/sh", "-n", "-c", difference.command], capture_output=True, check=False, timeout=WAIT_S
    )
    assert parsed.returncode == 0
