"""Where partitions begin and end, asked again and again, also of a Kafka that was away."""

import pytest

from statechannel.embedded import KafkaServer
from statechannel.kafka.admin import BoundsAsker, OffsetBounds
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError, TopicMissingError
from statechannel.kafka.light_topic import LightTuning, LightWriter
from statechannel.kafka.topic_policy import LoadTopics
from statechannel.kafka.topics import create_topics
from tests.support.waits import WAIT_S


def test_it_answers_again_when_kafka_does(own_kafka: KafkaServer) -> None:
    client, topics = ClientSettings(own_kafka.bootstrap_servers), LoadTopics("c")
    create_topics(client, topics, replication_factor=1, timeout_s=WAIT_S)
    places = [(topics.broker_load, 0), (topics.top_bundles, 0)]
    asker = BoundsAsker(client, timeout_s=WAIT_S)
    assert asker.ask(places) == dict.fromkeys(places, OffsetBounds(0, 0))
    writer = LightWriter(client, tuning=LightTuning(linger_ms=0))
    for _ in range(3):
        writer.write(topics.broker_load, b"b1", b"x")
    assert writer.close(60.0)
    assert asker.ask(places) == {places[0]: OffsetBounds(0, 3), places[1]: OffsetBounds(0, 0)}
    with pytest.raises(TopicMissingError, match="nowhere"):
        asker.ask([("nowhere", 0)])

    own_kafka.kill()
    with pytest.raises(KafkaUnavailableError, match=topics.broker_load):
        BoundsAsker(client, timeout_s=1.0).ask(places)
    own_kafka.start()
    assert asker.ask(places) == {places[0]: OffsetBounds(0, 3), places[1]: OffsetBounds(0, 0)}, (
        "its leader has another epoch now"
    )
