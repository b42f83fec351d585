"""Records that were deleted from the channel's log: the leader restates what it knows, and no member joins before that.

Compaction never moves the first offset of a log, so that one above 0 proves a deletion. That the whole log is another one, or
that its end was truncated, is proved by the registry: members say there how far they have read, of which topic, and which of
Kafka's leaders had taken the last record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statechannel.engine.proposals import Restating
from statechannel.protocol.codec import HEAD_KEY
from statechannel.protocol.replica import Phase

if TYPE_CHECKING:
    from statechannel.engine.cold_start import PartitionJoins
    from statechannel.engine.context import Context
    from statechannel.engine.inputs import HeadLost, LeaderEpochBegan
    from statechannel.engine.proposals import Proposals
    from statechannel.engine.proven_positions import ProvenPositions
    from statechannel.protocol.replica import Replica

RESTATE_GAP_S: Final = 10.0
"""Between two rounds of a partition: while a wrong policy goes on deleting, each look may find a later first offset."""

COMPARED_EVERY_S: Final = 1.0

KEEP_RUNNING: Final = (
    "Keep the brokers that were caught up running: they restate what they know within seconds, and others join then."
)
KEPT: Final = "Keep the brokers running: if none has read more, they go on from what they had read, within seconds."
ACCEPTS: Final = "This broker accepts the loss once it leads, if no broker is alive that knows what was deleted."
RESTORE: Final = (
    "import an export into a channel of a new name (`statechannel init` and `import`, with `--channel`) and start all brokers "
    "on it; or, to keep the name, import it into the topic made again, or give up what was deleted, and start one of the "
    "brokers with `statechannel broker run --accept-lost-head`."
)


class _Round:
    """One restatement of a partition.

    Attributes:
        first: Asserted is what has no clean record of its own at or above this offset.
        through: Offset through which the partition was applied at the beginning.
        marked_at_s: When the mark was written; None before.
    """

    def __init__(self, replica: Replica, first: int) -> None:
        self.first = first
        self.through = replica.applied
        view = replica.view
        names = [key.name for key in view.existing() if not key.derived and key.settled < first]
        self.keys = len(names)
        self.restating = Restating(names)
        self.marked_at_s: float | None = None


class LogHead:
    """What this process knows of deleted records, partition by partition.

    Attributes:
        unproven: Partitions in which others had read further than this process has, so far.
    """

    def __init__(
        self, context: Context, proposals: Proposals, positions: ProvenPositions, joins: PartitionJoins
    ) -> None:
        self._context = context
        self._proposals = proposals
        self._positions = positions
        self._joins = joins
        self._firsts: dict[int, int] = {}
        self._rounds: dict[int, _Round] = {}
        self._next_s: dict[int, float] = {}
        self._is_listening = False
        self._compared_s = 0.0
        self._compared_until_s = 0.0
        self._waiting: set[int] = set()
        self.unproven: dict[int, int] = {}
        context.unproven = self.unproven

    def lost(self, event: HeadLost) -> None:
        if event.partition < len(self._context.replicas):
            self._firsts[event.partition] = max(event.first_offset, self._firsts.get(event.partition, 0))

    def epoch_began(self, event: LeaderEpochBegan) -> None:
        """Records of another leader: members that had read others in their place say so for as long as they are members."""
        if event.partition < len(self._context.replicas):
            self._positions.epochs[event.partition].begin(event.offset, event.epoch)
            self._compared_until_s = self._context.now.mono_s + self._context.config.member_expiry_s

    def is_lost(self, partition: int, first_offset: int) -> bool:
        """Whether what was deleted below an offset is missing; False until the partition was read to its end. In any thread."""
        replicas = self._context.replicas
        replica = replicas[partition] if partition < len(replicas) else None
        has_read = replica is not None and replica.phase in (Phase.WAITING, Phase.CAUGHT_UP)
        return has_read and replica is not None and not replica.marks.restates(first_offset, -1)

    def tick(self) -> None:
        """Compare with the registry once it is read; restate, as leader, what the log has lost."""
        context = self._context
        if not self._is_listening and context.listening_since_s is not None:
            self._is_listening = True
            self._compare_positions()
        elif self._compared_s + COMPARED_EVERY_S <= context.now.mono_s < self._compared_until_s:
            self._compare_epochs()
        for partition in list(self.unproven):
            self._look(context.replicas[partition])
        for replica in context.replicas:
            self._report_wait(replica)
            first = max(replica.first_offset, self._firsts.get(replica.partition, 0))
            if not (first or replica.known >= 0) or replica.marks.restates(first, replica.known):
                self._finish(replica.partition)
            elif context.acts_as_leader and context.may_write and context.judges(replica.partition):
                self._restate(replica, first)

    def _report_wait(self, replica: Replica) -> None:
        """Report once that this process waits: without that it seems to hang."""
        context, partition = self._context, replica.partition
        if replica.phase is not Phase.WAITING or not replica.is_headless:
            self._waiting.discard(partition)
        elif partition not in self._waiting:
            self._waiting.add(partition)
            context.emit(
                "log.restatement-awaited",
                partition=partition,
                first=replica.first_offset,
                known=replica.known,
                kept=-1 if replica.kept is None else replica.kept.applied,
                why=replica.why,
                hint=self._hint(replica),
            )

    def _hint(self, replica: Replica) -> str:
        if replica.kept is not None:
            return KEPT
        return ACCEPTS if self._context.config.accept_lost_head else f"{KEEP_RUNNING} If none is alive: {RESTORE}"

    def _compare_positions(self) -> None:
        context = self._context
        for replica in context.replicas:
            foreign = self._positions.foreign.get(replica.partition, -1)
            if foreign >= 0:
                self._miss(replica, foreign, "brokers have read other records under this name")
            replica.versions_below = self._positions.versions_below
            same = self._positions.same.get(replica.partition, -1)
            if same >= (0 if replica.phase is Phase.READING else replica.position):
                self.unproven[replica.partition] = same
            elif replica.phase in (Phase.WAITING, Phase.CAUGHT_UP):
                self._look_for_truncation(replica)
        if self.unproven:
            self._joins.caught_up_changed()

    def _compare_epochs(self) -> None:
        """Whether a member has read records that were truncated before this process came to them."""
        context = self._context
        self._compared_s = context.now.mono_s
        for member in context.members.alive.values():
            self._positions.take(member.info)
        for replica in context.replicas:
            if replica.phase in (Phase.WAITING, Phase.CAUGHT_UP):
                self._look_for_truncation(replica)

    def _look_for_truncation(self, replica: Replica) -> None:
        known = self._positions.truncated(replica.partition)
        if known >= 0 and not (replica.is_truncated and replica.known >= known):
            replica.is_truncated = True
            self._miss(replica, known, f"brokers have read it through offset {known}, and Kafka has truncated it since")

    def _look(self, replica: Replica) -> None:
        """Whether this process has come to where others were, or knows that there is nothing more to read."""
        context, partition = self._context, replica.partition
        listening_s, current_s = context.listening_since_s, replica.current_at_s
        is_over = replica.position > self.unproven[partition]
        if is_over and replica.phase is Phase.READING:
            return  # a mark at its end may restate what was truncated
        if not is_over and (listening_s is None or current_s is None or current_s <= listening_s):
            return
        known = self.unproven.pop(partition)
        if not is_over:
            self._miss(replica, known, f"brokers have read it through offset {known}, and it ends before that")
        self._look_for_truncation(replica)
        if context.settled(partition) and replica.caught_up:
            self._joins.joined(replica)
        self._joins.caught_up_changed()

    def _miss(self, replica: Replica, known: int, why: str) -> None:
        replica.known = max(replica.known, known)
        if replica.is_headless:
            self._context.emit(
                "log.shorter", partition=replica.partition, known=known, position=replica.position, why=why
            )
            if replica.phase in (Phase.READING, Phase.CAUGHT_UP):
                self._joins.start_over(replica.partition, f"records were deleted from the log: {why}")

    def _restate(self, replica: Replica, first: int) -> None:
        context, partition = self._context, replica.partition
        now_s = context.now.mono_s
        round_ = self._rounds.get(partition)
        if round_ is None or (round_.marked_at_s is not None and round_.first < first):
            if now_s < self._next_s.get(partition, 0.0):
                return
            self._next_s[partition] = now_s + RESTATE_GAP_S
            round_ = self._rounds[partition] = _Round(replica, first)
            context.emit("log.restating", partition=partition, first=first, keys=round_.keys)
        if not round_.restating.go_on(context, self._proposals, partition, since=round_.first):
            return
        if round_.marked_at_s is None or now_s - round_.marked_at_s > RESTATE_GAP_S:
            round_.marked_at_s = now_s
            identity = context.identity
            by = {"broker": identity.broker, "incarnation": identity.incarnation}
            through = max(round_.through, replica.marks.newest)
            earlier = -1 if replica.marks.head is None else replica.marks.head[1].known
            mark = {"through": through, "first": round_.first, "known": max(replica.known, earlier), "by": by}
            self._proposals.control(partition, HEAD_KEY, mark)

    def _finish(self, partition: int) -> None:
        round_ = self._rounds.pop(partition, None)
        if round_ is not None:
            self._context.emit("log.restated", partition=partition, first=round_.first, keys=round_.keys)

    def view_replaced(self, partition: int) -> None:
        """The reader left its view: what was asserted of it counts no more."""
        self._rounds.pop(partition, None)
