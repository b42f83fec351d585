"""Control records of the channel as they come by, in whatever phase the reader is: nobody judges them."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import orjson

from statechannel.protocol import codec
from statechannel.protocol.codec import CLOSING_PREFIX

if TYPE_CHECKING:
    from statechannel.engine.engine import Engine
    from statechannel.protocol.log import RecordRead


MARKS_BEFORE_CLEANING = 1_000


class ClosingMarks:
    """The marks that were read and have not expired."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._marks: dict[str, tuple[int, int]] = {}  # offset of the mark, and log time of its end

    def read(self, key: bytes, value: bytes, offset: int, timestamp_ms: int) -> None:
        """Take a mark in; one that is malformed or too long is no mark."""
        name = key.removeprefix(CLOSING_PREFIX).decode(errors="replace")
        try:
            for_ms = orjson.loads(value).get("for_ms", 0)
        except (orjson.JSONDecodeError, AttributeError):
            return
        if type(for_ms) is int and 0 < for_ms <= self._engine.config.closing_mark_s * 1000:
            self._marks[name] = offset, timestamp_ms + for_ms
            if len(self._marks) > MARKS_BEFORE_CLEANING:
                self._marks = {ns: mark for ns, mark in self._marks.items() if mark[1] > timestamp_ms}

    def holds(self, namespace: str) -> bool:
        """Whether the namespace is being deleted."""
        mark = self._marks.get(namespace)
        if mark is None:
            return False
        engine = self._engine
        offset, until_ms = mark
        key = engine.key(namespace)
        # A record of the namespace that follows the mark deleted it, or created it anew; seen live or by a later join.
        ended = key is not None and key.offset > offset
        if ended or engine.replicas[engine.partition_of(namespace)].timestamp_ms >= until_ms:
            del self._marks[namespace]
            return False
        return True


class Controls:
    """Hands heartbeats and closing marks to the parts that go by them, and knows when a partition was last heard of."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._heard_ms = [-1] * engine.config.partitions
        self._spoke_s = [-inf] * engine.config.partitions

    def look_at(self, event: RecordRead) -> None:
        """A record of the channel was read."""
        engine = self._engine
        engine.provenance.look_at(event)
        if event.key == codec.HEARTBEAT_KEY:
            heartbeat = codec.decode_heartbeat(event.value, engine.config.newest_format)
            if heartbeat is None:
                return
            if heartbeat.incarnation == engine.identity.incarnation:
                sent_at_s = engine.candidacy.echo.read_back(event.partition, heartbeat.id)
                if sent_at_s is not None:
                    self._spoke_s[event.partition] = max(self._spoke_s[event.partition], sent_at_s)
            self._heard_ms[event.partition] = event.timestamp_ms
            if event.offset >= engine.replicas[event.partition].end_offset:
                engine.duties.heartbeat_read(event.partition, clean=0 <= heartbeat.clean_to < event.offset)
                engine.cold_start.heartbeat_read(event.partition, heartbeat.incarnation)
            if not self.is_silent(event.partition):
                engine.proposals.release(event.partition)
        elif event.key is not None and event.key.startswith(codec.CLOSING_PREFIX) and event.value is not None:
            engine.closing_marks.read(event.key, event.value, event.offset, event.timestamp_ms)

    def is_silent(self, partition: int) -> bool:
        """Whether the newest heartbeat that was read is so old that somebody may be starting cold.

        By Kafka's clock: a process that was paused reads old heartbeats late. One that does so writes a heartbeat and reads it
        back before it writes anything else to the partition, or what it writes could lie between a view that is taken for the
        truth and its mark, without a word that makes the mark void. An own one counts from when it was sent, by the own clock:
        who does not hear the registry any more may take Kafka's clock for later than it is.
        """
        engine = self._engine
        ahead_ms = engine.presence.clock_ahead_ms
        if ahead_ms is None or partition in engine.cold_start.running:
            return False
        now_s, bound_s = engine.now.mono_s, engine.config.cold_start_after_s
        if now_s - self._spoke_s[partition] <= bound_s:
            return False
        return now_s * 1000 + ahead_ms - self._heard_ms[partition] > bound_s * 1000
