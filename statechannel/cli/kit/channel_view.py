"""Bundles of a live channel, for commands, which do not join: one by its name, or all followed."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack

from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.output import say
from statechannel.errors import ExitCode
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.view import Judgement
from statechannel.queries.channel_view import locate, read_channel
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import describe_topic, open_tail


def locate_served(connection: Connection, name: str) -> KeyState:
    """The live bundle of a name, if a broker owns it."""
    key = locate(read_channel(connection), name)
    if key.owner is None:
        raise CommandError(
            f"no broker serves {key.name}", hint=f"`statechannel lookup {key.name}` assigns it.", code=ExitCode.REJECTED
        )
    return key


def bundle_of(connection: Connection, topic: str) -> str:
    """The live bundle of a topic, which is named on standard error."""
    bundle = locate(read_channel(connection), topic).name
    say(f"{topic} is in {bundle}")
    return bundle


class FollowedPartition:
    """One partition.

    Attributes:
        replica: The states that were read, and how reliable they are.
        tail: Its reader.
        opened: How often it was read from its beginning.
        began_at: End of the log when it was first opened: records below it were written before.
    """

    def __init__(self, connection: Connection, tail: PartitionTail, partition: int, partitions: int) -> None:
        self.tail = tail
        self.partition = partition
        self.opened = 0
        self.began_at = 0
        self._judged = -1
        self.replica = Replica(
            partition,
            partitions,
            compaction_lag_s=connection.settings.channel.min_compaction_lag_ms / 1_000,
            kept_records_max=connection.settings.limits.kept_records_max,
            kept_max_bytes=connection.settings.limits.kept_max_mib * 2**20,
        )
        self._batches: Iterator[list[RecordRead]] | None = None

    @property
    def following(self) -> bool:
        """Whether the end as of the start was reached: later records are new."""
        return self._batches is not None

    def wait(self) -> list[RecordRead]:
        """The next batch; waits briefly if there is none. May be called in a separate thread."""
        return [] if self._batches is None else next(self._batches)

    def read(self, records: list[RecordRead]) -> Iterator[tuple[RecordRead, Judgement]]:
        """Apply a batch; returns records that were judged strictly for the first time."""
        replica = self.replica
        for record in records:
            was_caught_up = replica.caught_up
            yield from self._judge(record)
            if was_caught_up and replica.caught_up and replica.marks.newest == record.offset and replica.marks.mark:
                # Whoever reads the log without being a member of the channel has no mark of its own to expect.
                replica.start_over(
                    f"process {replica.marks.mark.writer} accepted what it read as the truth (cold start)"
                )
        if replica.phase is Phase.START_OVER:
            self._batches = None

    def _judge(self, record: RecordRead) -> Iterator[tuple[RecordRead, Judgement]]:
        judgement = self.replica.read(time.monotonic(), record)
        if judgement is not None and record.offset > self._judged:
            self._judged = record.offset
            yield record, judgement

    def open(self) -> Iterator[tuple[RecordRead, Judgement]]:
        """Read the partition from its beginning to its current end; returns records judged strictly for the first time."""
        span = self.tail.span()
        if not self.opened:
            self.began_at = span.end
        self.opened += 1
        replica, newest_ms = self.replica, 0
        replica.opened(time.monotonic(), span.low, span.end)
        for record in self.tail.records(span):
            newest_ms = max(newest_ms, record.timestamp_ms)
            yield from self._judge(record)
            if replica.phase is Phase.START_OVER:
                return
        # Records must not look younger than they are: where this machine's clock is slow, the log's own newest time counts, also
        # one from the future, as Kafka's cleaner used the clock that stamped it.
        replica.learn_clock(max(time.time() * 1_000, newest_ms) - time.monotonic() * 1_000)
        replica.reached(time.monotonic(), span.end)
        self._batches = self.tail.follow(span.end)

    def refuse_broken(self) -> None:
        """Raise if the partition cannot be followed any more.

        Raises:
            CommandError: The topic was re-created or truncated.
        """
        if self.replica.phase is Phase.BROKEN:
            raise CommandError(
                f"partition {self.partition}: {self.replica.why}",
                hint="The topic was re-created or truncated; start again.",
                code=ExitCode.TOPIC_BROKEN,
            )

    def close(self) -> None:
        batches, self._batches = self._batches, None
        if isinstance(batches, Generator):
            batches.close()


def open_followed(connection: Connection, stack: ExitStack) -> list[FollowedPartition]:
    """Every partition of the channel; `stack` closes their resources."""
    count = describe_topic(connection, Topic.CHANNEL).partitions
    opened: list[FollowedPartition] = []
    for partition in range(count):
        tail = stack.enter_context(open_tail(connection, Topic.CHANNEL, partition))
        opened.append(FollowedPartition(connection, tail, partition, count))
    for followed in opened:
        stack.callback(followed.close)  # before its reader's connections go
    return opened
