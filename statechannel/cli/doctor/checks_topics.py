"""Checks of the topics: existence, settings, replication, leaders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statechannel.cli.doctor.facts import DoctorFacts, WantedTopic
from statechannel.cli.doctor.findings import DoctorCheck, DoctorFinding, Severity
from statechannel.kafka.topic_policy import LEADER
from statechannel.kafka.topics import TopicSettingDifference, differences_of
from statechannel.protocol.log import Topic

WHY: dict[str, str] = {
    "cleanup.policy": "The only record of a key may be deleted, or nothing is ever compacted.",
    "message.timestamp.type": "With producer timestamps a slow clock voids the compaction lag, on which late joins depend.",
    "min.compaction.lag.ms": "Records are compacted before debts are paid and joins have ended: late joiners may be wrong.",
    "max.compaction.lag.ms": "A quiet topic is compacted late, joins read more, and a tombstone may go before every replica "
    "has removed the records before it.",
    "segment.ms": "Only closed segments are compacted.",
    "delete.retention.ms": "A reader that was offline may miss tombstones; below max.compaction.lag.ms one replica "
    "of the topic may bring back records that another has removed.",
    "retention.ms": "Records are deleted before all their readers have read them.",
    "unclean.leader.election.enable": "A replica that lacks acknowledged records may become leader: they are lost.",
    "max.message.bytes": "Records of a size that the format allows are refused.",
    "min.insync.replicas": "With too few acknowledged records may be lost; with all replicas required, one that is "
    "offline stops all writes.",
    "min.cleanable.dirty.ratio": "Compaction runs later, and joins read more.",
    "segment.bytes": "Segments are closed, and so compacted, later.",
    "partitions": "Ordering, and the election of one leader, depend on it.",
}


def settings(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Each topic's settings compared with the required ones."""
    well = 0
    missing = [topic for topic in facts.wanted if topic.name not in facts.topics]
    yield from _missing(missing)
    for wanted in facts.wanted:
        info = facts.topics.get(wanted.name)
        if info is None:
            continue
        differences = differences_of(info, wanted.policy, facts.address or "HOST:PORT")
        well += not differences
        for difference in differences:
            yield _different(wanted, difference)
    if well:
        yield DoctorFinding(Severity.OK, f"{well} of {len(facts.wanted)} topics have the required settings")


def _missing(missing: Sequence[WantedTopic]) -> Iterator[DoctorFinding]:
    needed = [topic.name for topic in missing if not topic.optional]
    if needed:
        yield DoctorFinding(
            Severity.CRITICAL,
            f"topics that do not exist: {', '.join(needed)}",
            "Brokers do not start without them, and running ones stop.",
            "Check --channel; `statechannel init` creates them. If they were deleted, restore the channel from an export.",
        )
    optional = [f"{topic.name} ({topic.owner})" for topic in missing if topic.optional]
    if optional:
        yield DoctorFinding(Severity.INFO, f"topics that have not been needed yet: {', '.join(optional)}")


def _different(wanted: WantedTopic, difference: TopicSettingDifference) -> DoctorFinding:
    rests = wanted.policy.role in (Topic.CHANNEL, LEADER)
    hard = Severity.CRITICAL if rests else Severity.ERROR
    return DoctorFinding(
        hard if difference.hard else Severity.WARNING,
        f"{difference.topic}: {difference.setting} is {difference.actual}, required {difference.wanted}",
        WHY.get(difference.setting, "The protocol depends on it.")
        + (" Brokers refuse to start with it." if difference.hard and not wanted.optional else ""),
        difference.command,
    )


def replicas(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Leaders and replicas of every partition."""
    single: list[str] = []
    partitions = 0
    for wanted in facts.wanted:
        info = facts.topics.get(wanted.name)
        for place in facts.places.get(wanted.name, ()):
            partitions += 1
            name = f"{wanted.name}-{place.partition}"
            required = int(info.settings.get("min.insync.replicas", "1")) if info is not None else 1
            away = sorted(set(place.replicas) - set(place.in_sync))
            if place.leader is None:
                yield DoctorFinding(
                    Severity.CRITICAL,
                    f"partition {name} has no leader; its replicas are on Kafka brokers {_these(place.replicas)}",
                    "It can be neither read nor written.",
                    f"Bring Kafka broker {_these(place.in_sync or place.replicas)} back.",
                )
            elif len(place.in_sync) < required <= len(place.replicas):  # with more `topics` says so
                yield DoctorFinding(
                    Severity.CRITICAL,
                    f"partition {name} has {len(place.in_sync)} replicas in sync, and min.insync.replicas is {required}",
                    "All writes to it are refused.",
                    f"Bring Kafka broker {_these(away)} back.",
                )
            elif away:
                yield DoctorFinding(
                    Severity.WARNING,
                    f"partition {name} is under-replicated: Kafka broker {_these(away)} is behind or offline",
                    "It tolerates one failure less. A replica that is offline for longer than delete.retention.ms may bring back "
                    "deleted records.",
                    f"Bring Kafka broker {_these(away)} back, or find out why it lags.",
                )
            if len(place.replicas) == 1 and place.leader is not None:
                single.append(wanted.name)
    nodes = 0 if facts.cluster is None else len(facts.cluster.nodes)
    if single:
        names = ", ".join(dict.fromkeys(single))
        yield DoctorFinding(
            Severity.WARNING if nodes > 1 else Severity.INFO,
            f"only one of {nodes} Kafka brokers holds {names}" if nodes > 1 else "one Kafka broker holds everything",
            "If its disk is lost, the channel is lost.",
            "Raise the number of replicas to 3 (kafka-reassign-partitions.sh)." if nodes > 1 else "",
        )
    elif partitions:
        yield DoctorFinding(Severity.OK, f"all {partitions} partitions have leaders and replicas")


def _these(nodes: tuple[int, ...] | list[int]) -> str:
    return " and ".join(str(node) for node in nodes) or "?"


CHECKS = (
    DoctorCheck("topics", "the topics' settings", settings, needs=("kafka", "topics")),
    DoctorCheck("replicas", "partitions' leaders and replicas", replicas, needs=("kafka", "topics")),
)
