"""Control records of the channel as they are read, in whatever phase the reader is: they have no verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.protocol import codec
from statechannel.protocol.side_record import json_object

if TYPE_CHECKING:
    from statechannel.engine.cold_start import ColdStart
    from statechannel.engine.context import Context
    from statechannel.engine.maintenance import Maintenance
    from statechannel.engine.proposals import Proposals, Silence
    from statechannel.engine.seat import Echo
    from statechannel.protocol.log import RecordRead


MARKS_BEFORE_CLEANING = 1_000


class ClosingMarks:
    """Namespaces that are being deleted: their marks on the channel that were read and have not expired."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._marks: dict[str, tuple[int, int]] = {}  # offset of the mark, and log time of its end

    def read(self, key: bytes, value: bytes, offset: int, timestamp_ms: int) -> None:
        """Take a mark in; ignore one that is malformed or too long."""
        name = key.removeprefix(codec.CLOSING_PREFIX).decode(errors="replace")
        for_ms = (json_object(value) or {}).get("for_ms")
        if type(for_ms) is int and 0 < for_ms <= self._context.config.closing_mark_s * 1000:
            self._marks[name] = offset, timestamp_ms + for_ms
            if len(self._marks) > MARKS_BEFORE_CLEANING:
                # In one go: other threads drop ended marks meanwhile.
                marks = list(self._marks.items())
                self._marks = {ns: mark for ns, mark in marks if mark[1] > timestamp_ms}

    def mentions(self, namespace: str) -> bool:
        """Whether there is a mark of the namespace, perhaps one that has ended; from any thread."""
        return namespace in self._marks

    def holds(self, namespace: str) -> bool:
        """Whether the namespace is being deleted; from any thread. A mark that has ended is dropped."""
        mark = self._marks.get(namespace)
        if mark is None:
            return False
        context = self._context
        offset, until_ms = mark
        key = context.key(namespace)
        # A record of the namespace that follows the mark deleted it, or created it again; seen live or by a later join.
        ended = key is not None and key.offset > offset
        if ended or context.replicas[context.partition_of(namespace)].timestamp_ms >= until_ms:
            if self._marks.get(namespace) is mark:  # not one that was read meanwhile
                self._marks.pop(namespace, None)
            return False
        return True


class Controls:
    """Hands heartbeats and closing marks to the parts that use them."""

    def __init__(
        self,
        context: Context,
        echo: Echo,
        silence: Silence,
        closing_marks: ClosingMarks,
        proposals: Proposals,
        cold_start: ColdStart,
        duties: Maintenance,
    ) -> None:
        self._context = context
        self._echo = echo
        self._silence = silence
        self._closing_marks = closing_marks
        self._proposals = proposals
        self._cold_start = cold_start
        self._duties = duties

    def read(self, event: RecordRead) -> None:
        """A record of the channel was read; those without a control key are ignored."""
        if event.key == codec.HEARTBEAT_KEY:
            self._heartbeat_read(event)
        elif event.key is not None and event.key.startswith(codec.CLOSING_PREFIX) and event.value is not None:
            self._closing_marks.read(event.key, event.value, event.offset, event.timestamp_ms)

    def _heartbeat_read(self, event: RecordRead) -> None:
        context, silence, partition = self._context, self._silence, event.partition
        heartbeat = codec.decode_heartbeat(event.value, context.config.newest_format)
        if heartbeat is None:
            return
        if heartbeat.incarnation == context.identity.incarnation:
            sent_at_s = self._echo.read_back(partition, heartbeat.id, self._context.now.mono_s)
            if sent_at_s is not None:
                silence.spoke(partition, sent_at_s)
        silence.heard(partition, event.timestamp_ms)
        if event.offset >= context.replicas[partition].end_offset:
            self._duties.heartbeat_read(partition, clean=0 <= heartbeat.clean_to < event.offset)
            self._cold_start.heartbeat_read(partition, heartbeat.incarnation)
        if not silence.is_silent(partition):
            self._proposals.release(partition)
