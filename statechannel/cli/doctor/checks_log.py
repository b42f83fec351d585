"""Checks of what the log stands on: it has all its records, and all brokers read the same of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from statechannel.broker.observe.topic_conditions import head_lost_hint, head_lost_sentence, positions_lost_sentence
from statechannel.cli.doctor.checks import DoctorCheck, DoctorFacts, DoctorFinding, Severity
from statechannel.cli.kit.topic_state import is_restated, partition_counts
from statechannel.engine.log_head import KEEP_RUNNING, RESTORE
from statechannel.engine.replica_differences import REPLICA_DIFFERS_HINT, replica_differences, reported_differences
from statechannel.protocol.log import Topic

if TYPE_CHECKING:
    from statechannel.kafka.topics import TopicInfo


def head(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether the channel's log still has its first records, or brokers have restated what was deleted."""
    channel = channel_of(facts)
    alive = {} if facts.registry is None else facts.registry.members.alive
    is_served = any(member.caught_up for member in alive.values())
    for partition, first_offset in sorted(facts.first_offsets.items()):
        if channel is None or first_offset <= 0:
            continue
        if is_restated(facts.status, partition, first_offset):
            yield DoctorFinding(
                Severity.INFO,
                f"{channel.name}-{partition} begins at offset {first_offset}: what was deleted was restated or given up since",
            )
            continue
        yield DoctorFinding(
            Severity.CRITICAL,
            head_lost_sentence(channel.name, partition, first_offset),
            "Brokers that are caught up know more than the log; one that starts waits until they have restated it."
            if is_served
            else "No broker is caught up. One that starts waits for a broker that knows what was deleted.",
            head_lost_hint(channel.name, is_served=is_served),
        )
    for partition, known in facts.positions_lost.items():
        name = facts.settings.channel.name
        yield DoctorFinding(
            Severity.CRITICAL,
            positions_lost_sentence(name, partition, known),
            "A broker that starts waits until one that knows what was lost has restated it.",
            KEEP_RUNNING if is_served else f"No broker knows what was lost: {RESTORE}",
        )


def partitions(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether all brokers read the same number of partitions, and whether Kafka has more."""
    channel = channel_of(facts)
    if channel is None or facts.registry is None:
        return
    counts = partition_counts(facts.registry.members.alive)
    if len(counts) > 1:
        words = "; ".join(f"{number}: {', '.join(brokers)}" for number, brokers in sorted(counts.items()))
        yield DoctorFinding(
            Severity.CRITICAL,
            f"brokers read different numbers of partitions of {channel.name} ({words})",
            "They look for a bundle in different partitions: two of them may serve it.",
            "Stop those that read more: the number of a channel is that with which it began.",
        )
    elif channel.partitions > len(facts.first_offsets):
        yield DoctorFinding(
            Severity.INFO,
            f"{channel.name} has {channel.partitions} partitions, of which the channel uses {len(facts.first_offsets)}: the "
            "others are unused",
        )


def states(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Brokers that hold other accepted states than others, by what their heartbeats say."""
    alive = {} if facts.registry is None else facts.registry.members.alive
    reports = {name: reported_differences(member.info.get("differs")) for name, member in alive.items()}
    for difference in replica_differences(reports):
        yield DoctorFinding(
            Severity.CRITICAL,
            difference.sentence,
            "Two of them may serve one bundle, or each expects the other to serve it.",
            REPLICA_DIFFERS_HINT,
        )


def log(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether the log is complete."""
    status = facts.status
    is_lost = any(
        first_offset > 0 and not is_restated(status, partition, first_offset)
        for partition, first_offset in facts.first_offsets.items()
    )
    if is_lost or facts.positions_lost:
        yield DoctorFinding(Severity.INFO, "the log has lost records", checked=False)
        return
    if facts.misplaced:
        yield DoctorFinding(
            Severity.WARNING,
            f"{facts.misplaced} records lie in partitions in which their namespaces do not belong (wrong-partition)",
            "They do not count. The program that wrote them used another number of partitions.",
            "`statechannel audit rejected` lists them with their writers.",
        )
    if status.get("tentative"):
        yield DoctorFinding(
            Severity.WARNING,
            "the log was compacted, and no heartbeat vouches for the remaining records",
            "Owners are tentative; a broker that starts alone accepts them as the truth (cold start).",
            "Start a broker, or find out why the running ones write no clean heartbeat (keys awaiting repair, no leader).",
        )
        return
    many, assigned, waiting = (status.get(name, 0) for name in ("bundles", "assigned", "unassigned"))
    moving = many - assigned - waiting
    on_their_way = f", {moving} in flight" if moving > 0 else ""
    yield DoctorFinding(
        Severity.OK, f"the log is complete: {many} bundles, {assigned} assigned, {waiting} not{on_their_way}"
    )


def channel_of(facts: DoctorFacts) -> TopicInfo | None:
    """The channel's topic, as Kafka describes it."""
    name = next((topic.name for topic in facts.wanted if topic.policy.role == Topic.CHANNEL), None)
    return None if name is None else facts.topics.get(name)


CHECKS = (
    DoctorCheck("head", "the log has its first records", head, needs=("kafka", "topics", "head")),
    DoctorCheck(
        "partitions", "all brokers read the same partitions", partitions, needs=("kafka", "topics", "head", "registry")
    ),
    DoctorCheck("brokers-states", "brokers hold the same accepted states", states, needs=("kafka", "registry")),
    DoctorCheck("log", "the log is complete", log, needs=("kafka", "log")),
)
