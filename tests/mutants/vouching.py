"""Planted bugs in what a log vouches for by itself: joins without a word, and cold starts.

That half the lag is enough, and that gaps and marks above count too, makes up for clocks that are apart: here all clocks are one,
and a twin holds it to the record (`tests/property/test_core_vouching.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statechannel.engine.maintenance import Maintenance
from statechannel.protocol.codec import COLD_START_KEY
from statechannel.protocol.debts import Debts
from statechannel.protocol.joiner import Aside
from statechannel.protocol.replica import Replica
from tests.mutants.planting import Patcher, nothing, plant

PROTOCOL, ENGINE = "protocol", "engine"


@plant(ENGINE, "no log vouches by itself: who hears nobody starts cold")
def _log_not_believed(patcher: Patcher) -> None:
    patcher.bend(Aside, "vouched_by_log", lambda _: lambda _aside, _ended_ms: False)


@plant(PROTOCOL, "how old a record is counts from the newest record, not by Kafka's clock")
def _age_from_the_newest_record(patcher: Patcher) -> None:
    def make(vouched: Callable[..., Any]) -> Callable[..., Any]:
        return lambda aside, _ended_ms: vouched(aside, aside._newest_ms)

    patcher.bend(Aside, "vouched_by_log", make)


@plant(PROTOCOL, "a log vouches by itself whatever the age of the records above")
def _any_age_believed(patcher: Patcher) -> None:
    def make(init: Callable[..., Any]) -> Callable[..., Any]:
        def bent(aside: Aside, *args: Any, half_lag_ms: float, **kwargs: Any) -> None:
            init(aside, *args, half_lag_ms=1000 * half_lag_ms, **kwargs)

        return bent

    patcher.bend(Aside, "__init__", make)


@plant(ENGINE, "debts are left for their age and the next tick, however long nothing was clean")
def _debts_left_for_the_tick(patcher: Patcher) -> None:
    patcher.bend(Maintenance, "_is_urgent", lambda _: lambda _duties, _replica, *, joining: joining)
    patcher.bend(Maintenance, "pay_what_was_read", nothing)


@plant(ENGINE, "debts are left for the next tick while somebody joins")
def _debts_left_while_one_joins(patcher: Patcher) -> None:
    def make(pay: Callable[..., Any]) -> Callable[..., Any]:
        return lambda duties: None if duties._joining else pay(duties)

    patcher.bend(Maintenance, "pay_what_was_read", make)


@plant(PROTOCOL, "an assert that a mark makes count settles its key, whatever its writer has seen")
def _late_assert_settles_anything(patcher: Patcher) -> None:
    patcher.bend(Debts, "settles", lambda _: lambda _debts, _key, _covers, _version: True)


@plant(PROTOCOL, "whatever stands on the key of the marks makes a strict reader start over")
def _any_bytes_are_a_mark(patcher: Patcher) -> None:
    def make(look_at: Callable[..., Any]) -> Callable[..., Any]:
        def bent(replica: Replica, record: Any) -> None:
            look_at(replica, record)
            if record.key == COLD_START_KEY:
                replica._start_over("something stands on the key of the marks")

        return bent

    patcher.bend(Replica, "_look_at", make)


@plant(PROTOCOL, "whoever starts over for whatever reason reads leniently from then on")
def _lenient_once_started_over(patcher: Patcher) -> None:
    def make(start_over: Callable[..., Any]) -> Callable[..., Any]:
        def bent(replica: Replica, why: str, **how: Any) -> None:
            start_over(replica, why, **how)
            replica._has_gap = True

        return bent

    patcher.bend(Replica, "_start_over", make)
