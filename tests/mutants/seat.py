"""Planted bugs in what a process makes of its own health: the leader's seat, its deputy, the lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from statechannel.engine import freshness
from statechannel.engine.candidacy import Candidacy
from statechannel.engine.engine import Engine
from statechannel.engine.lease import Lease
from statechannel.engine.membership import Member
from statechannel.engine.presence import Presence
from statechannel.engine.seat import Deputy, Seat
from statechannel.sim import wire
from statechannel.sim.process import SimProcess
from tests.mutants.planting import Patcher, plant

ENGINE = "engine"


def _sickness_without(**facts: Any) -> Callable[[Patcher], None]:
    def bend(patcher: Patcher) -> None:
        def make(sickness: Callable[..., Any]) -> Callable[..., Any]:
            return lambda seat, now_s, health: sickness(seat, now_s, health._replace(**facts))

        patcher.bend(Seat, "_sickness", make)

    return bend


@plant(ENGINE, "a leader that does not hear itself in the registry keeps the seat")
def _seat_kept_when_silent(patcher: Patcher) -> None:
    def make(sickness: Callable[..., Any]) -> Callable[..., Any]:
        def bent(seat: Any, now_s: float, health: Any) -> Any:
            seat._normal_at_s = now_s
            return sickness(seat, now_s, health._replace(registry_silence_s=0.0))

        return bent

    patcher.bend(Seat, "_sickness", make)


@plant(ENGINE, "a leader whose channel records do not come back keeps the seat")
def _seat_kept_without_the_channel(patcher: Patcher) -> None:
    _sickness_without(echo_age_s=0.0)(patcher)


@plant(ENGINE, "who gave the seat up never stands again")
def _seat_given_up_for_good(patcher: Patcher) -> None:
    def make(check: Callable[..., Any]) -> Callable[..., Any]:
        def bent(seat: Any, now_s: float, health: Any) -> None:
            before = seat.withdrawn
            check(seat, now_s, health)
            seat.withdrawn = seat.withdrawn or before

        return bent

    patcher.bend(Seat, "check", make)


@plant(ENGINE, "nobody writes to find out whether it can write again")
def _no_probe(patcher: Patcher) -> None:
    patcher.bend(Candidacy, "must_probe", lambda _: lambda _candidacy, _partition: False)


@plant(ENGINE, "the election knows nothing of the loop that acts on the seat")
def _election_not_tied_to_the_loop(patcher: Patcher) -> None:
    patcher.put(SimProcess, "halts_election", False)


@plant(ENGINE, "nobody acts for a leader that is not heard", end="sick")
def _no_deputy(patcher: Patcher) -> None:
    patcher.bend(Deputy, "check", lambda _: lambda _deputy, _now_s, **_how: False)


@plant(ENGINE, "a source that says it cannot write is waited for as long as it is heard")
def _mute_source_waited_for(patcher: Patcher) -> None:
    patcher.put(Member, "writable", True)


@plant(ENGINE, "the lease, and safe mode, count from the receipt of a heartbeat instead of its sending")
def _lease_from_receipt(patcher: Patcher) -> None:
    def make(heard: Callable[..., Any]) -> Callable[..., Any]:
        def bent(presence: Any, record: Any, info: Any) -> None:
            if info["seq"] in presence._sent_at_s:
                presence._sent_at_s[info["seq"]] = presence._context.now.mono_s
            heard(presence, record, info)

        return bent

    patcher.bend(Presence, "_heard_self", make)


@plant(ENGINE, "an owner keeps sending heartbeats after its lease has expired for good", end="sick_owners")
def _heard_though_it_serves_nothing(patcher: Patcher) -> None:
    patcher.bend(Lease, "_suspend", lambda _: lambda _lease: None)


@plant(ENGINE, "without the lease who never heard itself keeps the place of its predecessor", end="sick_starters")
def _place_kept_unheard(patcher: Patcher) -> None:
    def make(suspend: Callable[..., Any]) -> Callable[..., Any]:
        def bent(lease: Any) -> None:
            if lease._context.config.lease_s is not None:
                suspend(lease)

        return bent

    patcher.bend(Lease, "_suspend", make)


@plant(ENGINE, "who suspended its heartbeats writes nothing at all", end="sick_owners")
def _no_probes(patcher: Patcher) -> None:
    def make(send: Callable[..., Any]) -> Callable[..., Any]:
        def bent(presence: Any, *, leaving: bool = False) -> None:
            if leaving or not presence._context.suspended:
                send(presence, leaving=leaving)

        return bent

    patcher.bend(Presence, "_send", make)


@plant(ENGINE, "registry and channel wait in one lane")
def _one_lane(patcher: Patcher) -> None:
    patcher.bend(wire, "lane_of", lambda _: lambda _event: wire.FloodLane.LOG)


@plant(ENGINE, "a view counts as complete when that is taken in, however long the news waited")
def _old_view_called_current(patcher: Patcher) -> None:
    def make(reached: Callable[..., Any]) -> Callable[..., Any]:
        def bent(engine: Any, event: Any) -> None:
            reached(engine, replace(event, as_of_s=engine.now.mono_s))

        return bent

    patcher.bend(Engine, "_position_reached", make)


@plant(ENGINE, "a view counts as complete while records of it arrive, however far behind they are")
def _lagging_view_called_current(patcher: Patcher) -> None:
    patcher.bend(freshness, "lag_s", lambda _: lambda now, replica: now.mono_s - replica.read_at_s)
