"""The lease option: an owner that cannot hear itself stops serving before anybody may take its place (protocol.md section 8).

Only who is silent may be replaced. An owner whose lease has run out serves nothing, but its heartbeats may arrive all the
same: it reads the registry no more, or cannot write to the channel. So it suspends them, and the others repair. It goes on
writing probes at the same interval, which no other member takes for heartbeats: once it reads those back it writes heartbeats
again. A probe does not prolong the lease: whoever may take its place, or its id, counts its silence from its last heartbeat.

A process that never heard itself suspends its heartbeats too, with the lease or without it: it serves nothing, and the bundles
of its predecessor under the same id would wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.engine.reactions import DueReaction

if TYPE_CHECKING:
    from statechannel.engine.engine import Engine
    from statechannel.protocol.keys import KeyState


class Lease:
    """Unless `lease_s` is set it never runs out; counted from the send time of the newest own heartbeat that was read back.

    Attributes:
        ran_out: Whether it ran out, and was not taken up again: nothing is begun that would end in serving a bundle.
        suspended: Whether this process writes probes instead of heartbeats.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.ran_out = False
        self._mute_since_s: float | None = None
        self.suspended = False

    def tick(self) -> None:
        """Stop serving when it runs out; take up again what is still ours when the log is back."""
        engine = self._engine
        if not engine.presence.announced:
            return
        self._suspend()
        if engine.config.lease_s is None:
            return
        # Who tells the others that its channel records are lost may be forced out as a source: it has stopped by then.
        if not self.holds(engine.now.mono_s):
            if not self.ran_out:
                self.ran_out = True
                engine.emit("lease.ran-out", silence_s=engine.presence.silence_s)
                engine.reactions.release_all()
        elif self.ran_out and engine.may_write:
            self.ran_out = False
            engine.emit("lease.resumed", serving=engine.reactions.serving_count)
            for replica in engine.replicas:
                if engine.judges(replica.partition):
                    engine.reactions.view_replaced(replica.view)

    def _suspend(self) -> None:
        engine, now_s = self._engine, self._engine.now.mono_s
        silence_s, expiry_s = engine.presence.silence_s, engine.config.member_expiry_s
        if engine.config.lease_s is None:  # a serving broker keeps its heartbeats
            self._set_suspended(not engine.registered and silence_s > expiry_s, silence_s, 0.0)
            return
        mute = not engine.candidacy.seat.writes and engine.presence.members.others_fit(engine.identity.broker)
        if not mute:
            self._mute_since_s = None
        elif self._mute_since_s is None:
            self._mute_since_s = now_s
        # Where all are cut off from the channel, all say so within an expiry, and nobody could do any better.
        mute_s = 0.0 if self._mute_since_s is None else now_s - self._mute_since_s
        self._set_suspended(silence_s > engine.config.lease_s or mute_s > expiry_s, silence_s, mute_s)

    def _set_suspended(self, suspended: bool, silence_s: float, mute_s: float) -> None:
        if suspended is self.suspended:
            return
        self.suspended = suspended
        if suspended:
            self._engine.emit("membership.suspended", silence_s=silence_s, mute_s=mute_s)
        else:
            self._engine.emit("membership.resumed")
            self._engine.presence.announce_change()

    def holds(self, now_s: float) -> bool:
        """Whether it has not run out at this moment; `tick` comes to know that a moment later, after a pause long after.

        Args:
            now_s: The engine's clock (`Now.mono_s`) now, which may be ahead of the engine's.
        """
        engine = self._engine
        lease_s = engine.config.lease_s
        if lease_s is None:
            return True
        return engine.presence.heartbeat_age_at_s(now_s) <= lease_s and engine.candidacy.seat.writes

    def serves_at(self, name: str, now_s: float) -> int | None:
        """Generation by which this process may serve a bundle at this very moment; None if it may not."""
        engine = self._engine
        return engine.reactions.generation(name) if engine.stopped is None and self.holds(now_s) else None

    def wait_s(self, key: KeyState, due: DueReaction) -> float:
        """How long whoever is forced in, or takes over, waits before it serves."""
        lease_s = self._engine.config.lease_s
        if lease_s is None:
            return 0.0
        forced_in = due is DueReaction.RETURN and key.forced
        inherits = due in (
            DueReaction.RESUME,
            DueReaction.GIVE_UP,
            DueReaction.TAKE_BACK,
            DueReaction.LET_GO,
        ) and not self._engine.reactions.serves(key)
        return lease_s if forced_in or (self._engine.config.take_over and inherits) else 0.0
