"""Whether this process stands for leader, leads in place of one that is not heard, or takes bundles: its health, each tick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from statechannel.core.echo import Echo
from statechannel.core.effects import StandForLeader
from statechannel.core.presence import Mode
from statechannel.core.seat import Deputy, Health, Seat, SeatBounds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from statechannel.core.cold_start import ColdStart
    from statechannel.core.config import EngineConfig, Identity
    from statechannel.core.effects import Effect
    from statechannel.core.inputs import Now
    from statechannel.core.presence import Presence
    from statechannel.core.replica import Replica


class Candidate(Protocol):
    """What must be known of the process whose candidacy it is."""

    @property
    def now(self) -> Now:
        """The clocks of the step under way."""

    @property
    def identity(self) -> Identity:
        """Who it is."""

    @property
    def replicas(self) -> Sequence[Replica]:
        """Its partitions."""

    @property
    def presence(self) -> Presence:
        """Its place in the registry."""

    @property
    def cold_start(self) -> ColdStart:
        """Its cold start, if any."""

    @property
    def caught_up(self) -> bool:
        """Whether every partition is judged."""

    @property
    def draining(self) -> bool:
        """Whether it is on its way out."""

    @property
    def leading(self) -> bool:
        """Whether it leads and may act on it."""

    def perform(self, effect: Effect) -> None:
        """Have an effect done."""

    def emit(self, event: str, **facts: Any) -> None:
        """Tell the world."""

    def leadership_changed(self) -> None:
        """This process began or ceased to act as leader."""


class Candidacy:
    """Seat, deputy and echo of one process.

    Attributes:
        echo: Own channel records that were not read back.
        seat: What the health of this process allows.
        stands: Whether it is a candidate now.
    """

    def __init__(self, candidate: Candidate, config: EngineConfig) -> None:
        self._candidate = candidate
        self.bounds = SeatBounds.of(config)
        self.echo = Echo(config.partitions)
        self.seat = Seat(self.bounds)
        self._deputy = Deputy(self.bounds)
        self.stands = False

    @property
    def deputizing(self) -> bool:
        """Whether this process acts for a leader that is not heard."""
        return self._deputy.acting and self._could_lead

    @property
    def _could_lead(self) -> bool:
        it = self._candidate
        return it.caught_up and it.presence.mode is Mode.NORMAL and self.seat.fit and not it.draining

    def must_probe(self, partition: int) -> bool:
        """Whether a heartbeat is due only to find out whether this process can write and read a partition."""
        return self.echo.age_s(partition, self._candidate.now.mono_s) > self.bounds.probe_s

    def tick(self) -> None:
        """Give the seat up, or stand again; act for a leader that is not heard, or cease to."""
        it, seat = self._candidate, self.seat
        presence, now_s = it.presence, it.now.mono_s
        if presence.mode is Mode.STARTING:
            return
        members, own = presence.members, it.identity.broker
        before = (seat.withdrawn is None, seat.fit, seat.writes)
        health = Health(
            normal=presence.mode is Mode.NORMAL,
            registry_silence_s=presence.silence_s,
            echo_age_s=self.echo.oldest_s(now_s),
            unheard_s=max(now_s - replica.read_at_s for replica in it.replicas),
            others_fit=members.others_fit(own),
        )
        seat.check(now_s, health)
        after = (seat.withdrawn is None, seat.fit, seat.writes)
        if after[0] and not before[0]:
            it.emit("leader.fit-again")
        elif before[0] and not after[0]:
            it.emit("leader.withdrew", why=seat.withdrawn)
        led = it.leading or members.led(own)
        turned = self._deputy.check(now_s, able=self._could_lead, led=led, rank=members.fit_rank(own))
        if turned:
            if self._deputy.acting:
                it.emit("deputy.began")
            else:
                it.emit("deputy.ended")
            it.leadership_changed()
        if turned or before != after:
            presence.announce_change()

    def check(self) -> None:
        """Enter the election, or leave it: only healthy, caught-up members stand (but for a cold start), and none that drains."""
        it = self._candidate
        fit = (it.caught_up or it.cold_start.standing or bool(it.cold_start.running)) and not it.draining
        registered = it.presence.announced and it.presence.mode is not Mode.STARTING
        stands = fit and registered and self.seat.withdrawn is None
        if stands != self.stands:
            self.stands = stands
            it.perform(StandForLeader(stand=stands))
