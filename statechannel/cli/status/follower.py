"""Follower of channel and registry for `status --watch`: read once from the beginning, then followed."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from statechannel.audit.incidents import Incident
from statechannel.audit.views import LogViews
from statechannel.cli.kit.channel_follower import FollowedPartition, open_followed
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.kafka_wait import ANSWER_S, BEAT_S, NOTIFY_AFTER_S, notify_if_slow
from statechannel.cli.kit.live_log import open_tail
from statechannel.cli.kit.log_clock import LogClock
from statechannel.cli.kit.registry import RegistryFold
from statechannel.cli.kit.remarks import Remarks, remarks
from statechannel.cli.status.drains import drains_seen
from statechannel.cli.status.figures import StatusInputs, figures
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase
from statechannel.replay.part import PartitionAudit
from statechannel.replay.survey import FormatStop

_REMARKS_EVERY_S = 15.0


class Lookout:
    """A context manager. Nothing is read twice, except where a broker would also rejoin: after a gap in the log or a cold start.

    Args:
        inputs: Observers of everything that is read.

    Attributes:
        blind_since_ms: Time by the log's clock since which Kafka does not answer; None while it does.
    """

    def __init__(self, connection: Connection, inputs: StatusInputs) -> None:
        self.blind_since_ms: int | None = None
        self._connection = connection
        self._inputs = inputs
        self._clock = LogClock()
        expiry_s = connection.settings.membership.expiry_s
        self._fold = RegistryFold(expiry_s, observe=inputs.story.observe, clock=self._seen_ms)
        self._remarks = Remarks()
        self._drains: list[Incident] = []
        self._asked: Future[tuple[Remarks, list[Incident]]] | None = None
        self._asked_s = 0.0
        self._answered_s = self._beat_s = time.monotonic()
        self._stack = ExitStack()

    def __enter__(self) -> Lookout:
        with self._stack as stack:
            connection = self._connection
            self._registry: PartitionTail = stack.enter_context(open_tail(connection, Topic.REGISTRY, 0))
            self._parts = open_followed(connection, stack)
            with notify_if_slow(connection):
                span = self._registry.span()
            self._registry_end = span.end
            self._heartbeats = self._registry.follow(span.start)
            stack.callback(_close, self._heartbeats)
            self._pool = ThreadPoolExecutor(len(self._parts) + 2, thread_name_prefix="follower")
            stack.callback(self._pool.shutdown, cancel_futures=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def ready(self) -> bool:
        """Whether log and registry were read to their ends as of the start."""
        return self._registry_end <= 0 and all(part.following for part in self._parts)

    def turn(self) -> None:
        """Apply new records; waits briefly if there are none.

        Raises:
            CommandError: The topic was re-created or truncated.
        """
        self._ask_for_remarks()
        waits = [self._pool.submit(part.wait) for part in self._parts]
        self._read_registry(self._pool.submit(next, self._heartbeats, []).result())
        for part, wait in zip(self._parts, waits, strict=True):
            self._take(part, wait.result())
        self._beat()

    def _read_registry(self, records: Sequence[RecordRead]) -> None:
        self._fold.take(records)
        if records and records[-1].offset + 1 >= self._registry_end:
            if self._registry_end <= 0:
                self._clock.heard(records[-1].timestamp_ms)
            self._registry_end = 0
        elif not records:
            self._registry_end = 0  # a quiet moment: its end was reached, whatever retention took away meanwhile

    def _take(self, part: FollowedPartition, records: list[RecordRead]) -> None:
        judged = part.read(records) if part.following else part.open()
        try:
            for record, judgement in judged:
                self._inputs.observe(record, judgement)
        except KafkaUnavailableError:
            if not part.opened:
                raise
        part.refuse_broken()

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s - self._beat_s < BEAT_S:
            return
        answers = self._registry.answers(ANSWER_S)
        self._beat_s = time.monotonic()
        if answers:
            if self.blind_since_ms is not None:
                self._fold.hear_all()  # we were cut off: earlier silence does not count for any broker
            self._answered_s, self.blind_since_ms = self._beat_s, None
        elif self.blind_since_ms is None and self._beat_s - self._answered_s >= NOTIFY_AFTER_S:
            self.blind_since_ms = self._clock.now_ms() - round((self._beat_s - self._answered_s) * 1_000)

    def _seen_ms(self) -> int:
        """The log's estimated time: it stops while Kafka does not answer, so that no broker looks lost meanwhile."""
        return self._clock.now_ms() if self.blind_since_ms is None else self.blind_since_ms

    def _ask_for_remarks(self) -> None:
        """Refresh remarks in another thread: other packages query Kafka themselves."""
        if self._asked is not None:
            if not self._asked.done():
                return
            (self._remarks, self._drains), self._asked = self._asked.result(), None
            self._asked_s = time.monotonic()
        if self.blind_since_ms is None and (not self._asked_s or time.monotonic() - self._asked_s > _REMARKS_EVERY_S):
            self._asked = self._pool.submit(_others, self._connection)

    def figures(self, incidents: int) -> dict[str, Any]:
        """Document of `status`, as of now."""
        waiting = [part for part in self._parts if part.replica.phase not in (Phase.CAUGHT_UP, Phase.STOPPED)]
        reasons = [f"partition {part.partition}: {part.replica.why or 'is being read'}" for part in waiting]
        views = LogViews(
            tuple(_audited(part) for part in self._parts), tuple(part.replica.timestamp_ms for part in self._parts)
        )
        fields = figures(
            views,
            self._fold.registry(),
            self._inputs,
            Remarks([*reasons, *self._remarks.cluster], self._remarks.brokers),
            channel=self._connection.topics.channel,
            bootstrap_servers=self._connection.client.bootstrap_servers,
            drains=self._drains,
            incidents=incidents,
        )
        return fields | {"at_ms": self._clock.now_ms(), "blind_since_ms": self.blind_since_ms}


def _others(connection: Connection) -> tuple[Remarks, list[Incident]]:
    return remarks(connection), drains_seen(connection)


def _close(batches: Iterator[list[RecordRead]]) -> None:
    if isinstance(batches, Generator):
        batches.close()


def _audited(part: FollowedPartition) -> PartitionAudit:
    replica = part.replica
    stopped = replica.phase is Phase.STOPPED
    return PartitionAudit(
        replica.view,
        stop=FormatStop(replica.position, replica.newer_format) if stopped else None,
        tentative=not stopped and not replica.caught_up,
    )
