"""Facts of a healthy cluster for the checks of `statechannel doctor`, and ways to make it ill."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from statechannel.cli.doctor.checks import ClockFacts, DoctorFacts, EmbeddedFacts, JavaFacts, WantedTopic
from statechannel.embedded import BrokerState
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import GroupMember, KafkaCluster, KafkaNode, PartitionPlace, TopicInfo
from statechannel.protocol.log import RecordRead, Topic
from statechannel.settings import load
from statechannel.stories.processes import RegistryStory
from statechannel.stories.registry import RegistryFold

GIB = 1024**3
NOW_MS = 1_750_000_000_000
NODE = {
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "log.cleaner.enable": "true",
    "auto.create.topics.enable": "false",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "group.coordinator.rebalance.protocols": "classic,consumer",
}
STANDING: Mapping[str, Any] = {
    "at_ms": NOW_MS,
    "leader": "b1",
    "term": 7,
    "leading_for_ms": 60_000,
    "no_leader_for_ms": None,
    "tentative": False,
    "stopped": {},
    "bundles": 4,
    "assigned": 4,
    "unassigned": 0,
    "orphans": 0,
    "debts": [],
    "oldest_debt_ms": None,
    "in_flight": [],
    "repair_paused": [],
    "declined_bundles": [],
    "brokers": [],
}


def heartbeat(broker: str, **fields: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "kind": "member",
        "broker": broker,
        "incarnation": f"{broker}-1",
        "seq": 1,
        "since": 0,
        "software": "0.1.0",
        "formats": [1],
        "phase": "caught-up",
        "mode": "normal",
        "accepting": True,
        "leading": broker == "b1",
        "expiry_s": 6.0,
        **fields,
    }


def registry(*beats: tuple[float, dict[str, Any]], now_s: float = 0.0) -> dict[str, Any]:
    """Registry and story of heartbeats, each so many seconds ago."""
    story = RegistryStory(6.0)
    fold = RegistryFold(6.0, observe=story.observe, clock=lambda: NOW_MS + round(now_s * 1_000))
    fold.take(
        RecordRead(Topic.REGISTRY, 0, offset, NOW_MS - round(ago_s * 1_000), b"k", json.dumps(info).encode())
        for offset, (ago_s, info) in enumerate(sorted(beats, key=lambda beat: -beat[0]))
    )
    fold.listened()
    return {"registry": fold.registry(), "story": story}


def healthy(*flags: str, **changes: Any) -> DoctorFacts:
    """Three Kafka brokers, two of ours, b1 leads."""
    topics = ChannelTopics()
    wanted = [WantedTopic(name, policy) for name, policy in topics.policies.items()]
    described = {
        topic.name: TopicInfo(topic.name, "id", 1, 3, {**topic.policy.creation_settings(), "min.insync.replicas": "2"})
        for topic in wanted
    }
    facts = DoctorFacts(
        load(flags=flags),
        address="kafka:9092",
        versions={"confluent-kafka": "2.16.1", "librdkafka": "2.16.0"},
        java=JavaFacts("/usr/bin/java", 17),
        embedded=EmbeddedFacts(
            BrokerState.STOPPED, Path("/k"), Path("/k/broker.log"), None, False, False, 50 * GIB, 100 * GIB, 0, 64 << 20
        ),
        cluster=KafkaCluster("c1", 2, tuple(KafkaNode(node, f"k{node}:9092", None) for node in (1, 2, 3))),
        nodes={1: NODE, 2: NODE, 3: NODE},
        wanted=wanted,
        topics=described,
        first_offsets={0: 0},
        places={topic.name: (PartitionPlace(0, 1, (1, 2, 3), (1, 2, 3)),) for topic in wanted},
        group=(GroupMember("statechannel-b1", "10.0.0.1"), GroupMember("statechannel-b2", "10.0.0.2")),
        clock=ClockFacts(ahead_ms=12, newest_ahead_ms=500),
        status=STANDING,
        keys=5,
        **registry((0.5, heartbeat("b1")), (0.4, heartbeat("b2"))),
    )
    return replace(facts, **changes)


def with_topic(facts: DoctorFacts, name: str, **settings: str) -> DoctorFacts:
    """One topic with other settings; underscores stand for dots."""
    info = facts.topics[name]
    changed = {**info.settings, **{key.replace("_", "."): value for key, value in settings.items()}}
    return replace(facts, topics={**facts.topics, name: replace(info, settings=changed)})


def with_partitions(facts: DoctorFacts, number: int) -> DoctorFacts:
    """The channel's topic with so many partitions."""
    name = next(iter(facts.topics))
    return replace(facts, topics={**facts.topics, name: replace(facts.topics[name], partitions=number)})


def with_place(facts: DoctorFacts, name: str, *places: PartitionPlace) -> DoctorFacts:
    return replace(facts, places={**facts.places, name: places})


def with_standing(facts: DoctorFacts, **changes: Any) -> DoctorFacts:
    return replace(facts, status={**facts.status, **changes})


def with_nodes(facts: DoctorFacts, **settings: str) -> DoctorFacts:
    node = {**NODE, **{key.replace("_", "."): value for key, value in settings.items()}}
    return replace(facts, nodes={1: node})


def with_embedded(facts: DoctorFacts, **changes: Any) -> DoctorFacts:
    return replace(facts, embedded=replace(facts.embedded, used=True, exists=True, **changes))


def heard(*beats: tuple[float, dict[str, Any]], now_s: float = 0.0, **member: Any) -> DoctorFacts:
    """Facts of a cluster of which these heartbeats were read."""
    return replace(with_standing(healthy(), **member), **registry(*beats, now_s=now_s))
