"""Control records of the channel as they are read, in whatever phase the reader is: they have no verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.protocol import codec

if TYPE_CHECKING:
    from statechannel.engine.closing_marks import ClosingMarks
    from statechannel.engine.cold_start import ColdStart
    from statechannel.engine.context import Context
    from statechannel.engine.maintenance import Maintenance
    from statechannel.engine.proposals import Proposals
    from statechannel.engine.seat import Echo
    from statechannel.engine.silence import Silence
    from statechannel.protocol.log import RecordRead


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
