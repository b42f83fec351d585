"""Readers of a live channel's topics: a whole topic, or an export to a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from statechannel.audit.engine import LiveSource
from statechannel.audit.transfer.export_file import write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.kafka_wait import naming_address, notify_if_slow
from statechannel.cli.kit.output import progress
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.tail import PartitionTail, Span
from statechannel.kafka.topics import TopicAdmin, TopicInfo
from statechannel.protocol.log import RecordRead, Topic

_EVERY = 1_000


def describe_topic(connection: Connection, topic: Topic) -> TopicInfo:
    """The cluster's description of a topic of the channel.

    Raises:
        TopicMissingError: It does not exist.
    """
    name = connection.topics.names[topic]
    with notify_if_slow(connection):
        topics = TopicAdmin(connection.client, timeout_s=connection.timeout_s).describe([name])
    if name not in topics:
        raise TopicMissingError(
            f"the topic {name} does not exist at {connection.client.bootstrap_servers}",
            hint="Check --channel and --bootstrap-servers, or create the topics with `statechannel init`.",
        )
    return topics[name]


@contextmanager
def open_tail(connection: Connection, topic: Topic, partition: int) -> Iterator[PartitionTail]:
    """A reader of one partition."""
    tail = PartitionTail(
        connection.client,
        topic,
        connection.topics.names[topic],
        partition,
        group_id=connection.topics.reader_group,
        timeout_s=connection.timeout_s,
    )
    with naming_address(connection), tail:
        yield tail


def export_live(connection: Connection, path: Path) -> ExportHeader:
    """Write the channel's topic to an export file: all records below the end offsets as of the start."""
    info = describe_topic(connection, Topic.CHANNEL)
    with ExitStack() as stack:
        tails = [
            stack.enter_context(open_tail(connection, Topic.CHANNEL, partition)) for partition in range(info.partitions)
        ]
        spans = [tail.span() for tail in tails]
        header = ExportHeader(info.name, {number: span.end for number, span in enumerate(spans)}, now_ms())
        total = sum(span.end - span.start for span in spans)
        advance = stack.enter_context(progress(f"reading {info.name}", total, unit="offsets"))
        return write_export(path, header, _all(tails, spans, advance), now_ms=now_ms)


def live_source(connection: Connection) -> LiveSource:
    """The channel's topic as a source of audits."""
    return LiveSource(
        connection.client.bootstrap_servers,
        connection.topics.names[Topic.CHANNEL],
        connection.client.properties,
        lambda path: export_live(connection, path),
    )


def _all(tails: list[PartitionTail], spans: list[Span], advance: Callable[[int], None]) -> Iterator[RecordRead]:
    before = 0
    for tail, span in zip(tails, spans, strict=True):
        for number, record in enumerate(tail.records(span)):
            if number % _EVERY == 0:
                advance(before + record.offset - span.start)
            yield record
        before += span.end - span.start
        advance(before)


def now_ms() -> int:
    """Wall clock, milliseconds since 1970; for display and for file headers only."""
    return time.time_ns() // 1_000_000
