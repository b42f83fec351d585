"""The engine's context alone: what follows from the facts that its parts write, each condition in turn."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.context import WORK_GAP_S, Context, Mode
from statechannel.engine.effects import Complete, Emit
from statechannel.engine.inputs import Now
from statechannel.protocol.bundle import partition_of
from statechannel.protocol.replica import Phase
from statechannel.protocol.verdict import Verdict

PARTITIONS = 2
NAMESPACE = next(name for name in map("t/n{}".format, range(99)) if partition_of(name, PARTITIONS) == 1)
"""Of the partition that the changes below are about."""
BUNDLE = f"{NAMESPACE}/0x00000000_0xffffffff"


def replica(partition: int, phase: Phase = Phase.CAUGHT_UP) -> Any:
    return SimpleNamespace(
        partition=partition,
        phase=phase,
        caught_up=phase is Phase.CAUGHT_UP,
        why="format 9",
        view={NAMESPACE: "the namespace", BUNDLE: "the bundle"},
    )


def healthy() -> Context:
    """Leads, may do everything, and has listened for longer than the expiry."""
    context = Context(Identity("a", "a-1", b"0123456789", 1000), EngineConfig(partitions=PARTITIONS))
    context.begin_step(Now(100.0, 5))
    context.replicas = [replica(0), replica(1)]
    context.members = SimpleNamespace(
        alive={"b": SimpleNamespace(accepting=True)}, lost=set(), overflowed=lambda _: False
    )
    context.registry_mode, context.announced, context.term = Mode.NORMAL, True, 7
    context.listening_since_s = 100.0 - context.config.member_expiry_s
    context.deputy.acting = True
    return context


def fail_to_catch_up(context: Context) -> None:
    context.replicas[1] = replica(1, Phase.READING)


def meet_newer_format(context: Context) -> None:
    context.replicas[1] = replica(1, Phase.STOPPED)


def be_in_doubt(context: Context) -> None:
    context.doubtful = {1}


def start_cold(context: Context) -> None:
    context.cold_starting = {0}


def be_starting(context: Context) -> None:
    context.registry_mode = Mode.STARTING


def be_safe(context: Context) -> None:
    context.registry_mode = Mode.SAFE


def settle(context: Context) -> None:
    context.registry_mode = Mode.SETTLING


def be_unannounced(context: Context) -> None:
    context.announced = False


def be_unelected(context: Context) -> None:
    context.term = -1


def be_unfit(context: Context) -> None:
    context.seat.fit = False


def be_mute(context: Context) -> None:
    context.seat.writes = False


def lose_lease(context: Context) -> None:
    context.lease_ran_out = True


def drain(context: Context) -> None:
    context.draining = True


def stop_deputizing(context: Context) -> None:
    context.deputy.acting = False


ALL = (
    fail_to_catch_up, meet_newer_format, be_in_doubt, start_cold, be_starting, be_safe, settle, be_unannounced, be_unelected,
    be_unfit, be_mute, lose_lease, drain, stop_deputizing,
)  # fmt: skip
UNSURE = {fail_to_catch_up, meet_newer_format, be_in_doubt, start_cold}
"""What leaves a partition unjudged."""
FALSE_AFTER = {
    "caught_up": UNSURE,
    "registered": {be_starting},
    "may_write": {be_unannounced, be_safe, be_starting, meet_newer_format},
    "is_elected": {be_unelected, be_safe, settle, be_starting},
    "leading": UNSURE | {be_unelected, be_safe, settle, be_starting},
    "could_lead": UNSURE | {be_unannounced, be_safe, settle, be_starting, be_unfit, drain},
    "deputizing": UNSURE | {be_unannounced, be_safe, settle, be_starting, be_unfit, drain, stop_deputizing},
    "accepting": UNSURE | {be_unannounced, be_safe, settle, be_starting, be_mute, lose_lease, drain},
}
"""The facts of which each alone makes a property of a healthy leader false."""


@pytest.mark.parametrize("name", FALSE_AFTER)
@pytest.mark.parametrize("change", ALL, ids=lambda change: change.__name__)
def test_each_condition_alone(name: str, change: Any) -> None:
    context = healthy()
    assert getattr(context, name) is True
    change(context)
    assert getattr(context, name) is (change not in FALSE_AFTER[name])


def test_the_duties_of_a_leader_are_those_of_the_leader_or_of_its_deputy() -> None:
    context = healthy()
    context.deputy.acting = False
    assert context.acts_as_leader  # leads
    be_unelected(context)
    assert not context.acts_as_leader
    context.deputy.acting = True
    assert context.acts_as_leader  # deputizes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (meet_newer_format, Verdict.UNSUPPORTED_FORMAT),
        (fail_to_catch_up, "joining"),
        (be_in_doubt, "joining"),
        (be_safe, "safe-mode"),
        (settle, "settling-mode"),
        (drain, "draining"),
    ],
)
def test_the_reason_why_no_operation_starts(change: Any, reason: str) -> None:
    context = healthy()
    assert context.refusal() is None
    change(context)
    refused = context.refusal()
    assert refused is not None
    assert refused.reason == reason


def test_a_new_context_knows_nothing_and_may_nothing() -> None:
    context = Context(Identity("a", "a-1", b"0123456789", 1000), EngineConfig(partitions=PARTITIONS))
    assert context.now == Now(0.0, 0)
    assert (context.wake_at_s, context.ready_since_s, context.tells_all) == (0.0, 0.0, False)
    assert (context.registry_mode, context.announced, context.term) == (Mode.STARTING, False, -1)
    assert (context.lease_ran_out, context.suspended, context.draining, context.stopped) == (False, False, False, None)
    assert [context.new_token(), context.new_token()] == [1, 2]
    assert [replica.partition for replica in context.replicas] == [0, 1]


def test_effects_and_postponed_calls_are_taken_once() -> None:
    context = healthy()
    context.wake_at_s = 100.5
    context.emit("happened", size=1)
    context.complete(3, "done")  # type: ignore[arg-type]
    calls = [lambda: None, lambda: None]
    context.wake_soon(calls[0])
    assert context.wake_at_s == 100.0 + WORK_GAP_S
    context.wake_soon(calls[1], 0.3)
    context.wake_soon(calls[0], 0.3)
    assert context.wake_at_s == 100.0 + WORK_GAP_S
    assert context.take_effects() == [Emit("happened", {"size": 1}), Complete(3, "done")]  # type: ignore[arg-type]
    assert list(context.take_postponed()) == calls
    assert context.take_effects() == []
    assert list(context.take_postponed()) == []


@pytest.mark.parametrize(
    ("change", "readable"),
    [(meet_newer_format, True), (fail_to_catch_up, False), (be_in_doubt, False), (lambda _: None, True)],
)
def test_a_key_is_read_from_a_judged_or_a_stopped_partition(change: Any, readable: bool) -> None:
    context = healthy()
    change(context)
    assert context.key(NAMESPACE) == ("the namespace" if readable else None)
    assert context.key(BUNDLE) == ("the bundle" if readable else None)
    assert context.key("no key") is None


def test_only_a_member_that_is_heard_and_says_so_accepts() -> None:
    context = healthy()
    assert context.accepts("a")
    assert context.accepts("b")
    assert not context.accepts("c")
    context.members.alive["b"].accepting = False
    assert not context.accepts("b")
    drain(context)
    assert not context.accepts("a")


def test_absence_is_known_after_an_expiry_of_listening_in_normal_mode() -> None:
    context = healthy()
    assert context.knows_absence()
    context.listening_since_s += 0.01  # type: ignore[operator]
    assert not context.knows_absence()
    context.listening_since_s = None
    assert not context.knows_absence()
    for change in (be_safe, settle, be_starting):
        context = healthy()
        change(context)
        assert not context.knows_absence()
    context = healthy()
    context.members.overflowed = lambda now_s: now_s == 100.0
    assert not context.knows_absence()


def test_who_is_lost() -> None:
    context = healthy()
    assert context.is_lost("c")  # never heard
    assert not context.is_lost("a")
    assert not context.is_lost("b")
    context.members.lost = {"a", "b", "c"}
    assert not context.is_lost("a")
    assert not context.is_lost("b")
    context.listening_since_s = 100.0  # too short: only what the log says
    assert context.is_lost("c")
    assert not context.is_lost("d")
    be_safe(context)
    assert not context.is_lost("c")


def test_a_namespace_is_bound_to_a_living_broker_of_a_bound_tenant() -> None:
    context = healthy()
    tenant = next(iter(context.config.bound_tenants))
    assert context.bound_broker(f"{tenant}/b") == "b"
    assert context.bound_broker(f"{tenant}/c") is None
    assert context.bound_broker("t/b") is None


def test_an_observer_begins_nothing() -> None:
    context = healthy()
    context.config = replace(context.config, observes=True)
    refusal = context.refusal()
    assert refusal is not None
    assert refusal.reason == "read-only"
