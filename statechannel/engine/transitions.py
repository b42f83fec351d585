"""Changes that concern several parts of an engine: each part reports one, and here stands which parts act on it, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.engine.context import Mode
from statechannel.engine.effects import RestartReading, StandForLeader, StopEngine
from statechannel.protocol.log import Topic
from statechannel.protocol.replica import Phase

if TYPE_CHECKING:
    from statechannel.engine.candidacy import Candidacy
    from statechannel.engine.cold_start import ColdStart
    from statechannel.engine.context import Context
    from statechannel.engine.log_head import LogHead
    from statechannel.engine.lookups import Lookups
    from statechannel.engine.maintenance import Maintenance
    from statechannel.engine.membership import LostMember
    from statechannel.engine.operation_fold import OperationFold
    from statechannel.engine.presence import Presence
    from statechannel.engine.proposals import Proposals
    from statechannel.engine.reactions import Reactions
    from statechannel.engine.repair import Repair
    from statechannel.engine.streams import Streams
    from statechannel.protocol.replica import Replica


class Transitions:
    """The ports `RegistryListener` and `PartitionJoins`, and what else several parts act on.

    It is made before the parts that report to it; `Engine` sets each part that acts as soon as it is made.
    """

    presence: Presence
    proposals: Proposals
    reactions: Reactions
    lookups: Lookups
    operations: OperationFold
    duties: Maintenance
    repair: Repair
    cold_start: ColdStart
    candidacy: Candidacy
    streams: Streams
    head: LogHead

    def __init__(self, context: Context) -> None:
        self._context = context
        self._was_caught_up = False

    def stop(self, reason: str, detail: str) -> None:
        """End the engine: it serves nothing and writes nothing from here on."""
        context = self._context
        if context.stopped is None:
            self.reactions.release_all()
            context.stopped = StopEngine(reason, detail)
            if self.candidacy.stands:
                context.perform(StandForLeader(stand=False))
            context.perform(context.stopped)

    # --- the registry -----------------------------------------------------------------------------------------------

    def announce_change(self) -> None:
        """The registry record of this process is out of date."""
        self.presence.announce_change()

    def want_heartbeat(self) -> None:
        """A record waits for a heartbeat of this process."""
        self._context.wake_soon(self.duties.tick)

    def members_lost(self, lost: list[LostMember]) -> None:
        """Members expired that had been heard live."""
        self.repair.members_lost(lost)

    def members_changed(self) -> None:
        self.repair.wanted()
        self.reactions.recheck()
        self.lookups.recheck_all()

    def mode_changed(self, before: Mode) -> None:
        """The log went away, or came back; or this process was registered just now and may begin to act."""
        if before is Mode.STARTING:
            for replica in self._context.replicas:
                if self._context.judges(replica.partition):
                    self.reactions.view_replaced(replica.view)
        self.repair.wanted()
        self.lookups.recheck_all()

    def leadership_changed(self) -> None:
        """This process began or ceased to act as leader."""
        self.repair.wanted()

    # --- the channel ------------------------------------------------------------------------------------------------

    def start_over(self, partition: int, why: str) -> None:
        replica = self._context.replicas[partition]
        before = replica.phase
        replica.start_over(why)
        self.phase_changed(replica, before)

    def phase_changed(self, replica: Replica, before: Phase) -> None:
        """A partition's reader came a step further, or fell back."""
        context = self._context
        if replica.phase is before:
            return
        context.emit("replica.phase", partition=replica.partition, before=before, phase=replica.phase, why=replica.why)
        self.cold_start.abandon(replica.partition)
        self.head.view_replaced(replica.partition)
        match replica.phase:
            case Phase.CAUGHT_UP:
                self.joined(replica)
            case Phase.START_OVER:
                context.perform(RestartReading(Topic.CHANNEL, replica.partition))
            case Phase.BROKEN:
                self.stop("topic-broken", f"channel partition {replica.partition}: {replica.why}")
            case Phase.STOPPED:
                replica.stopped_at_s = context.now.mono_s
                context.emit(
                    "replica.stopped", partition=replica.partition, format=replica.newer_format, why=replica.why
                )
            case _:
                pass
        self.caught_up_changed()

    def joined(self, replica: Replica) -> None:
        """A partition is judged from here on: act on everything in it that names this broker."""
        self.candidacy.echo.restarted(replica.partition)
        self.operations.seed(replica.view)
        self.duties.view_replaced(replica.partition)
        self.proposals.view_replaced(replica.partition)
        self.reactions.view_replaced(replica.view)

    def caught_up_changed(self) -> None:
        """A partition was joined or lost."""
        context = self._context
        self.streams.check()
        if context.caught_up and not self._was_caught_up:
            context.ready_since_s = context.now.mono_s
            context.emit("replica.caught-up", why="; ".join(replica.why for replica in context.replicas))
        self._was_caught_up = context.caught_up
        self.presence.announce_change()
        self.repair.wanted()
        self.lookups.recheck_all()
        self.candidacy.check()
