"""Cold start: no member is caught up, so the elected leader takes what it reads for the truth (protocol.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from statechannel.engine.proposals import Restating
from statechannel.protocol import codec
from statechannel.protocol.bounded import remember
from statechannel.protocol.cold_start_marks import decode_mark
from statechannel.protocol.replica import Phase

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.presence import Presence
    from statechannel.engine.proposals import Proposals
    from statechannel.engine.streams import Streams
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.replica import Replica


# Log times of the registry and the channel come from two brokers of Kafka: so far their clocks may be apart.
_REGISTRY_SLACK_MS = 2_000


@dataclass(slots=True)
class ColdStartRun:
    """The cold start of one partition, from the moment its view is assumed until the mark is read back.

    Attributes:
        through: Offset through which the log was read when it was taken for the truth.
        marked: `!cold-start` was written, and no error was reported.
    """

    through: int
    restating: Restating
    marked: bool = False


class PartitionJoins(Protocol):
    """What follows for the other parts where a cold start changes what is judged."""

    def start_over(self, partition: int, why: str) -> None: ...

    def joined(self, replica: Replica) -> None: ...

    def caught_up_changed(self) -> None: ...


class ColdStart:
    """Decides whether a cold start is due, and carries it out key by key.

    No member acts on an assumed view before its mark is in the log: until then a caught-up member that was only paused may
    still be heard, and then its history is the one that counts.

    Attributes:
        running: Partitions whose mark was not read back yet.
        is_candidate: This process stands for leader, to start cold.
    """

    def __init__(
        self, context: Context, presence: Presence, proposals: Proposals, streams: Streams, joins: PartitionJoins
    ) -> None:
        self._context = context
        self._presence = presence
        self._proposals = proposals
        self._streams = streams
        self._joins = joins
        self.running: dict[int, ColdStartRun] = {}
        self._waiting_since_s: float | None = None
        # When each partition that is not judged ceased to be: one that was left just now is waited for again.
        self._left_s: dict[int, float] = {}
        # Others' marks, by partition and writer, until we know whether those are members: log time, and when it was read.
        self._doubtful: dict[int, dict[str, tuple[int, float]]] = {}
        self.is_candidate = False
        context.cold_starting, context.doubtful = self.running, self._doubtful

    def heartbeat_read(self, partition: int, writer: str) -> None:
        """A caught-up member lives where this process waits, or takes its own view for the truth: join on its word."""
        if partition in self.running:
            # Its own one, too: that was on its way since it was caught up, and others will see it where it is.
            self._joins.start_over(partition, "a caught-up member is heard: no cold start, join on its word")
        elif writer != self._context.identity.incarnation and self._context.replicas[partition].phase is Phase.WAITING:
            self._waiting_since_s = None
            self.is_candidate = False

    def read(self, event: RecordRead, *, live: bool) -> None:
        """A member took what it read for the truth: a reader that judged on has another history, and joins that one.

        A mark is void where a member vouched for the log between the offset that the mark's writer had read and the mark: the log
        alone says so, and neither a cold start that was given up while its mark was in flight nor a late copy of an old
        mark overturns anything.

        A forged mark must not send everybody back to the start, so its writer has to be, or have been, a member. This
        process may have read the channel further than the registry: until that is settled it does not act here.

        Args:
            live: The partition had caught up before it came: who judges from the first record on has taken it over.
        """
        context, partition = self._context, event.partition
        mark, replica = decode_mark(event.value), context.replicas[partition]
        if mark is None:
            return
        void = replica.marks.newest != event.offset
        for difference in replica.overruled:
            key, held, asserted = difference
            context.emit("cold-start.overruled", partition=partition, bundle=key, held=held, asserted=asserted)
        replica.overruled = ()
        if not (live and replica.caught_up):
            return
        if mark.writer == context.identity.incarnation:
            run = self.running.get(partition)
            if run is not None and void:
                self._joins.start_over(partition, "another member's heartbeat came before the mark of this cold start")
            elif run is not None and run.marked:
                self._end(partition)
        elif not void:
            marks = self._doubtful.setdefault(partition, {})
            remember(marks, mark.writer, (event.timestamp_ms, context.now.mono_s), context.config.remembered_max)
            self._judge_marks()
            self._streams.check()

    def _judge_marks(self) -> None:
        """Start over where another member started cold; a mark whose writer the registry does not know is junk.

        A member that starts cold was registered for its whole wait before that, which lasts at least as long as this process's
        own would: a registry that was read to there knows it. So does one that was read to its end since, whatever the clocks
        of the two topics' brokers in Kafka say.
        """
        context = self._context
        waited_ms = min(context.config.cold_start_after_s, context.config.member_expiry_s) * 1000
        for partition, marks in list(self._doubtful.items()):
            known = next((writer for writer in marks if context.members.knows(writer)), None)
            if known is not None:
                self._joins.start_over(partition, f"process {known} took what it read for the truth (cold start)")
                continue
            for writer, (timestamp_ms, read_at_s) in list(marks.items()):
                read_to_wait = self._presence.last_ms >= timestamp_ms - waited_ms + _REGISTRY_SLACK_MS
                if read_to_wait or self._presence.has_read_since(read_at_s):
                    del marks[writer]
            if not marks:
                del self._doubtful[partition]
                if context.settled(partition):
                    self._joins.joined(context.replicas[partition])
                    self._joins.caught_up_changed()

    def due(self) -> bool:
        """Whether no member is caught up, none vouched for the log for long enough, and this process waits for it."""
        context = self._context
        stuck = any(self._is_stuck(replica) for replica in context.replicas)
        ready = all(replica.phase in (Phase.WAITING, Phase.CAUGHT_UP) for replica in context.replicas)
        others = any(member.caught_up for member in context.members.alive.values())
        if not stuck or not ready or others or not context.knows_absence():
            self._waiting_since_s = None
            return False
        if self._waiting_since_s is None:
            self._waiting_since_s = context.now.mono_s
        return context.now.mono_s - self._waiting_since_s >= context.config.cold_start_after_s

    def _is_stuck(self, replica: Replica) -> bool:
        """Whether only a cold start can end a partition's wait.

        What was deleted is given up only where an operator says so, or where no living member had read more than this one.
        """
        if replica.phase is not Phase.WAITING:
            return False
        if not replica.is_headless or self._context.config.accept_lost_head:
            return True
        own, first = replica.kept, replica.first_offset
        others = self._context.members.alive.values()
        return own is not None and not any(own.applied < other.kept(replica.partition) < first for other in others)

    def _is_awaited(self, partition: int) -> bool:
        """Whether a partition was left so lately that a heartbeat may still come, however long another one has waited."""
        left_s = self._left_s.get(partition)
        return left_s is not None and self._context.now.mono_s - left_s < self._context.config.cold_start_after_s

    def tick(self) -> None:
        """Stand for leader when due; as leader, assume and assert."""
        context = self._context
        if self._doubtful:
            self._judge_marks()
        if self.running:
            for partition, run in list(self.running.items()):
                self._continue(partition, run)
            return
        self.is_candidate = self.due()
        if not self.is_candidate or not context.is_elected:
            return
        for replica in context.replicas:
            if not self._is_stuck(replica) or self._is_awaited(replica.partition):
                continue
            through = replica.applied
            names = replica.assume()
            # What is on its way from an earlier view must not take the places that the asserts need.
            self._proposals.view_replaced(replica.partition, assumed=True)
            run = self.running[replica.partition] = ColdStartRun(through, Restating(names))
            context.emit("cold-start.began", partition=replica.partition, through=through)
            self._continue(replica.partition, run)

    def abandon(self, partition: int) -> None:
        """The reader left its view, or came to another one: nothing counts that was assumed or doubted of it."""
        if self._context.replicas[partition].caught_up:
            self._left_s.pop(partition, None)
        else:
            self._left_s.setdefault(partition, self._context.now.mono_s)
        self._doubtful.pop(partition, None)
        if self.running.pop(partition, None) is not None:
            self._waiting_since_s = None
            self.is_candidate = False
            self._context.emit("cold-start.abandoned", partition=partition)

    def _continue(self, partition: int, run: ColdStartRun) -> None:
        context = self._context
        is_asserted = run.restating.go_on(context, self._proposals, partition)
        if not is_asserted or run.marked or not self._may_mark(partition):
            return
        identity = context.identity
        by = {"broker": identity.broker, "incarnation": identity.incarnation}
        run.marked = True
        self._proposals.control(
            partition,
            codec.COLD_START_KEY,
            {"through": run.through, "highest": context.replicas[partition].view.highest, "by": by},
            failed=lambda: _not_marked(run),
        )

    def _may_mark(self, partition: int) -> bool:
        """The last look before this view becomes the one history."""
        context = self._context
        own = context.identity.incarnation
        if any(member.caught_up and member.incarnation != own for member in context.members.alive.values()):
            self._joins.start_over(partition, "the registry knows a caught-up member: no cold start, join on its word")
            return False
        return context.is_elected and context.may_write and partition not in self._doubtful

    def _end(self, partition: int) -> None:
        """The mark is in the log: from here on this view is the one history, and is acted on."""
        context = self._context
        run = self.running.pop(partition)
        context.replicas[partition].kept = None
        self._left_s.pop(partition, None)
        context.emit("cold-start.ended", partition=partition, through=run.through)
        if context.settled(partition):
            self._joins.joined(context.replicas[partition])
        if not self.running:
            self.is_candidate = False
            self._joins.caught_up_changed()


def _not_marked(run: ColdStartRun) -> None:
    run.marked = False  # perhaps it is in the log all the same: a second mark says nothing new
