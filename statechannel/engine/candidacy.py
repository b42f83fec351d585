"""Whether this process stands for leader, or acts for one that is not heard: judged by its health, each tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from statechannel.engine.context import Mode
from statechannel.engine.effects import StandForLeader
from statechannel.engine.seat import Health

if TYPE_CHECKING:
    from statechannel.engine.cold_start import ColdStart
    from statechannel.engine.context import Context
    from statechannel.engine.presence import Presence
    from statechannel.engine.seat import Echo


class Candidacy:
    """Enters and leaves the election, and keeps `Context.seat` and `Context.deputy` up to date.

    Attributes:
        echo: Own channel records that were not read back.
    """

    def __init__(
        self,
        context: Context,
        presence: Presence,
        echo: Echo,
        cold_start: ColdStart,
        leadership_changed: Callable[[], None],
    ) -> None:
        self._context = context
        self._presence = presence
        self._cold_start = cold_start
        self._leadership_changed = leadership_changed
        self.echo = echo
        self.seat = context.seat
        self.stands = False

    def must_probe(self, partition: int) -> bool:
        """Whether a heartbeat is due only to find out whether this process can write and read a partition."""
        return self.echo.age_s(partition, self._context.now.mono_s) > self.seat.bounds.probe_s

    def tick(self) -> None:
        """Give the seat up, or stand again; act for a leader that is not heard, or cease to."""
        context, seat, deputy = self._context, self.seat, self._context.deputy
        now_s = context.now.mono_s
        if context.registry_mode is Mode.STARTING or not context.announced:
            return
        members, own = context.members, context.identity.broker
        before = (seat.withdrawn is None, seat.fit, seat.writes)
        health = Health(
            normal=context.registry_mode is Mode.NORMAL,
            registry_silence_s=self._presence.silence_s,
            echo_age_s=self.echo.oldest_s(now_s),
            unheard_s=max(now_s - replica.read_at_s for replica in context.replicas),
            others_fit=members.others_fit(own),
        )
        seat.check(now_s, health)
        after = (seat.withdrawn is None, seat.fit, seat.writes)
        if after[0] and not before[0]:
            context.emit("leader.fit-again")
        elif before[0] and not after[0]:
            context.emit("leader.withdrew", why=seat.withdrawn)
        led = context.leading or members.led(own)
        turned = deputy.check(now_s, able=context.could_lead, led=led, rank=members.fit_rank(own))
        if turned:
            if deputy.acting:
                context.emit("deputy.began")
            else:
                context.emit("deputy.ended")
            self._leadership_changed()
        if turned or before != after:
            self._presence.announce_change()

    def check(self) -> None:
        """Enter the election, or leave it: only healthy, caught-up members stand (but for a cold start), and none that drains."""
        context, cold_start = self._context, self._cold_start
        fit = (context.caught_up or cold_start.is_candidate or bool(cold_start.running)) and not context.draining
        registered = context.announced and context.registry_mode is not Mode.STARTING
        stands = fit and registered and self.seat.withdrawn is None
        if stands != self.stands:
            self.stands = stands
            context.perform(StandForLeader(stand=stands))
