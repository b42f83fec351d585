"""The lease option: an owner that cannot hear itself stops serving before another may take its place (protocol.md section 8).

Only a silent owner may be replaced. An owner whose lease has run out serves nothing, but its heartbeats may arrive all the
same: it reads the registry no more, or cannot write to the channel. So it suspends them, and the others repair. It goes on
writing probes at the same interval, which no other member takes for heartbeats: once it reads those back it writes heartbeats
again. A probe does not prolong the lease: a member that may take its place, or its id, counts from its last heartbeat.

A process that never heard itself suspends its heartbeats too, with the lease or without it: it serves nothing, and the bundles
of its predecessor under the same id would wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.presence import Presence
    from statechannel.engine.reactions import Reactions


class Lease:
    """Unless `lease_s` is set it never runs out; counted from the send time of the newest own heartbeat that was read back.

    It writes `Context.lease_ran_out` and `Context.suspended`.
    """

    def __init__(self, context: Context, presence: Presence, reactions: Reactions) -> None:
        self._context = context
        self._presence = presence
        self._reactions = reactions
        self._mute_since_s: float | None = None

    def tick(self) -> None:
        """Stop serving when it runs out; take up again what is still ours when the log is back."""
        context = self._context
        if not context.announced:
            return
        self._suspend()
        if context.config.lease_s is None:
            return
        # Who tells the others that its channel records are lost may be forced out as a source: it has stopped by then.
        if not self.holds(context.now.mono_s):
            if not context.lease_ran_out:
                context.lease_ran_out = True
                context.emit("lease.ran-out", silence_s=self._presence.silence_s)
                self._reactions.release_all()
        elif context.lease_ran_out and context.may_write:
            context.lease_ran_out = False
            context.emit("lease.resumed", serving=self._reactions.serving_count)
            for replica in context.replicas:
                if context.judges(replica.partition):
                    self._reactions.view_replaced(replica.view)

    def _suspend(self) -> None:
        context, now_s = self._context, self._context.now.mono_s
        silence_s, expiry_s = self._presence.silence_s, context.config.member_expiry_s
        if context.config.lease_s is None:  # a serving broker keeps its heartbeats
            self._set_suspended(not context.registered and silence_s > expiry_s, silence_s, 0.0)
            return
        mute = not context.seat.writes and context.members.others_fit(context.identity.broker)
        if not mute:
            self._mute_since_s = None
        elif self._mute_since_s is None:
            self._mute_since_s = now_s
        # Where all are cut off from the channel, all say so within an expiry, and no member could do better.
        mute_s = 0.0 if self._mute_since_s is None else now_s - self._mute_since_s
        self._set_suspended(silence_s > context.config.lease_s or mute_s > expiry_s, silence_s, mute_s)

    def _set_suspended(self, suspended: bool, silence_s: float, mute_s: float) -> None:
        if suspended is self._context.suspended:
            return
        self._context.suspended = suspended
        if suspended:
            self._context.emit("membership.suspended", silence_s=silence_s, mute_s=mute_s)
        else:
            self._context.emit("membership.resumed")
            self._presence.announce_change()

    def holds(self, now_s: float) -> bool:
        """Whether it has not run out at this moment; `tick` comes to know that a moment later, after a pause long after.

        Args:
            now_s: The engine's clock (`Now.mono_s`) now, which may be ahead of the engine's.
        """
        context = self._context
        lease_s = context.config.lease_s
        if lease_s is None:
            return True
        return self._presence.heartbeat_age_at_s(now_s) <= lease_s and context.seat.writes

    def serves_at(self, name: str, now_s: float) -> int | None:
        """Generation by which this process may serve a bundle at this very moment; None if it may not."""
        return self._reactions.generation(name) if self._may(now_s) else None

    def accepts_writes_at(self, name: str, now_s: float) -> int | None:
        """Generation by which it may take writes to a bundle at this very moment; None if it may not."""
        return self._reactions.writing_generation(name) if self._may(now_s) else None

    def _may(self, now_s: float) -> bool:
        return self._context.stopped is None and self.holds(now_s)
