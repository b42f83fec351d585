"""What Kafka says of the channel's topics now: settings that differ, and partitions whose first records were deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.live_log import describe_topic, open_tail
from statechannel.engine.membership import Member
from statechannel.engine.proven_positions import ProvenPositions
from statechannel.errors import StateChannelError
from statechannel.http_api.documents import partitions_of
from statechannel.kafka.admin import BoundsAsker, OffsetBounds
from statechannel.kafka.topic_policy import TopicPolicy
from statechannel.kafka.topics import TopicAdmin, differences_of, missing_topic
from statechannel.protocol.cold_start_marks import Marks
from statechannel.protocol.log import Topic


def log_bounds(connection: Connection) -> dict[int, OffsetBounds]:
    """First and end offset of each partition that the channel uses.

    Raises:
        KafkaAdapterError: Kafka did not answer in time, or refused to; or the topic is missing, or is another one.
    """
    channel = describe_topic(connection, Topic.CHANNEL)
    places = [(channel.name, partition) for partition in range(channel.partitions)]
    bounds = BoundsAsker(connection.client, timeout_s=connection.timeout_s).ask(places)
    return {partition: bounds[name, partition] for name, partition in places}


def positions_lost(
    connection: Connection, positions: ProvenPositions | None, bounds: Mapping[int, OffsetBounds]
) -> dict[int, int]:
    """Highest offset that brokers have read and that the log does not have, by partition; without what was restated since.

    Args:
        positions: Of the registry, read before `bounds` were asked; None: they are not known.
    """
    if positions is None:
        return {}
    lost = positions.lost({partition: each.high for partition, each in bounds.items()})
    return {
        partition: known for partition, known in sorted(lost.items()) if not _restates(connection, partition, known)
    }


def _restates(connection: Connection, partition: int, known: int) -> bool:
    """Whether a mark in the log says that it was restated or given up."""
    marks = Marks()
    with open_tail(connection, Topic.CHANNEL, partition) as tail:
        for record in tail.records(tail.span()):
            marks.control_read(record)
    return marks.restates(0, known)


def partition_counts(alive: Mapping[str, Member]) -> dict[int, list[str]]:
    """The brokers by the number of partitions of the channel that they read."""
    counts: dict[int, list[str]] = {}
    for broker, member in sorted(alive.items()):
        number = partitions_of(member)
        if number is not None:
            counts.setdefault(number, []).append(broker)
    return counts


def is_restated(fields: Mapping[str, Any], partition: int, first_offset: int) -> bool:
    """Whether the log says that what was deleted below an offset was restated, or given up.

    Args:
        fields: Of `status`, as far as the log was read.
    """
    rows = (row for row in fields.get("partitions", ()) if row["partition"] == partition)
    return any((row["restated_below"] or 0) >= first_offset for row in rows)


def unknown_topics(counts: Mapping[str, list[str]]) -> dict[str, Any]:
    """The key `topics` of `status` where Kafka has not answered.

    Args:
        counts: Brokers that are alive, by the number of partitions by which they distribute keys.
    """
    return {"partition_counts": counts, "heads_lost": {}, "positions_lost": {}, "differences": []}


def topic_state(
    connection: Connection,
    others: Iterable[tuple[str, TopicPolicy]],
    alive: Mapping[str, Member],
    positions: ProvenPositions | None = None,
) -> dict[str, Any]:
    """The key `topics` of `status`; of Kafka nothing where it does not answer, which `doctor` reports.

    Args:
        others: Names and policies of topics beside the channel's own.
        alive: The brokers that are alive.
        positions: How far brokers had read the channel, by the registry.
    """
    counts = {str(number): brokers for number, brokers in sorted(partition_counts(alive).items())}
    policies = {**connection.topics.policies, **dict(others)}
    admin = TopicAdmin(connection.client, timeout_s=connection.timeout_s)
    try:
        infos = admin.describe(policies.keys())
        bounds = log_bounds(connection)
        lost = positions_lost(connection, positions, bounds)
    except StateChannelError:
        return unknown_topics(counts)
    server = connection.client.bootstrap_servers
    differences = [item for name, info in infos.items() for item in differences_of(info, policies[name], server)]
    differences += [
        missing_topic(name, policy, server) for name, policy in connection.topics.policies.items() if name not in infos
    ]
    return {
        "partition_counts": counts,
        "heads_lost": {str(partition): each.low for partition, each in bounds.items() if each.low > 0},
        "positions_lost": {str(partition): known for partition, known in lost.items()},
        "differences": [
            {
                "topic": item.topic,
                "setting": item.setting,
                "actual": item.actual,
                "wanted": item.wanted,
                "hard": item.hard,
                "command": item.command,
            }
            for item in sorted(differences, key=lambda item: not item.hard)
        ],
    }
