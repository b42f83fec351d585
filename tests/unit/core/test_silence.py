"""Who was silent writes a heartbeat and reads it back before anything else (protocol.md section 5)."""

import orjson

from statechannel.engine.commands import Lookup
from statechannel.engine.context import Mode
from statechannel.engine.inputs import Appended, AppendFailed
from statechannel.engine.proposals import ProposalStatus
from statechannel.protocol.codec import COLD_START_KEY
from statechannel.protocol.states import State
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine, heartbeat, mark

HEARTBEAT = b"!heartbeat"
WHOLE = [(NAMESPACE, CREATED, 1)]


def woken() -> tuple[LoneEngine, list]:
    """A process that nobody has heard for longer than the bound, when it is asked to write; its heartbeat is on its way."""
    alone = LoneEngine(WHOLE)
    alone.run(12)
    alone.sleep(30)
    alone.hold = True
    answers: list = []
    alone.ask(Lookup(BUNDLE.decode(), 60.0), answers.append)
    alone.run(0.5)
    return alone, answers


def keys(alone: LoneEngine) -> list[bytes]:
    return [append.key for append in alone.held]


def test_a_heartbeat_goes_before_everything_else() -> None:
    alone, answers = woken()
    assert set(keys(alone)) == {HEARTBEAT}
    alone.let_through()
    assert alone.written(BUNDLE)
    assert min(alone.written(BUNDLE)) > max(alone.written(HEARTBEAT)[-1:])
    alone.run(2)
    assert len(answers) == 1


def test_somebody_elses_heartbeat_is_as_good() -> None:
    alone, _ = woken()
    alone.put(HEARTBEAT, heartbeat("b-1", 0))
    assert BUNDLE in keys(alone)


def test_an_old_heartbeat_that_is_read_late_is_not() -> None:
    alone, _ = woken()
    alone.put(HEARTBEAT, heartbeat("b-1", 0), late_s=20)
    assert BUNDLE not in keys(alone)
    alone.put(HEARTBEAT, b"junk")
    assert BUNDLE not in keys(alone)


def holding_back() -> tuple[LoneEngine, list]:
    """A process that was silent and has an assert that waits for a heartbeat; how that assert ends."""
    alone = LoneEngine(WHOLE)
    alone.run(12)
    alone.sleep(30)
    alone.hold = True
    alone.run(0.1)
    bundle = next(iter(alone.engine.replicas[0].view.live()))
    ends: list = []
    alone.between_steps(lambda: alone.engine.proposals.restate(bundle, ends.append))
    return alone, ends


def test_what_was_held_back_when_the_view_is_replaced_was_never_written() -> None:
    alone, ends = holding_back()
    assert ends == []
    alone.engine.proposals.view_replaced(0)
    assert [end.status for end in ends] == [ProposalStatus.NOT_WRITTEN]
    assert not alone.engine.proposals.holds_back(0)


def test_who_hears_heartbeats_writes_at_once() -> None:
    alone = LoneEngine(WHOLE)
    alone.run(12)
    alone.hold = True
    alone.ask(Lookup(BUNDLE.decode(), 60.0), lambda _: None)
    assert BUNDLE in keys(alone)
    assert orjson.loads(alone.held[0].value or b"")["state"] == "Assigning"


def test_who_takes_kafkas_clock_for_later_than_it_is_goes_by_its_own_heartbeat() -> None:
    """Its newest registry record took long to arrive, and none has come since."""
    alone = LoneEngine(WHOLE)
    alone.run(12)
    alone.deaf = True
    assert alone.engine.presence.clock_ahead_ms is not None
    alone.engine.presence.clock_ahead_ms += 60_000
    alone.ask(Lookup(BUNDLE.decode(), 60.0), lambda _: None)
    alone.run(2)
    assert alone.written(BUNDLE)


def test_what_was_let_go_of_does_not_wait_for_the_registry() -> None:
    """In safe mode it writes a heartbeat that vouches for nothing, reads it back, and says that it has released."""
    alone = LoneEngine(WHOLE)
    alone.run(12)
    bundle = BUNDLE.decode()
    alone.ask(Lookup(bundle, 60.0), lambda _: None)
    alone.run(1)
    key = alone.engine.key(bundle)
    assert key.state is State.ASSIGNED
    alone.deaf = True
    alone.run(20)
    assert alone.engine.mode is Mode.SAFE
    read = len(alone.channel)
    alone.move(bundle, "b-1", "Releasing", **{"from": "a"})
    alone.run(5)
    assert key.state is State.UNASSIGNED
    spoken = [orjson.loads(value or b"") for name, value, _ in alone.channel[read:] if name == HEARTBEAT]
    assert spoken
    assert {heartbeat["clean_to"] for heartbeat in spoken} == {-1}


def test_the_heartbeat_that_let_it_go_does_not_prove_that_it_was_never_written() -> None:
    """It went to the log after that heartbeat, although it was made before it: its own error leaves its end open."""
    alone, ends = holding_back()
    alone.run(2)
    (first, *_) = [append for append in alone.held if append.key == HEARTBEAT]
    alone.held = [append for append in alone.held if append is not first]
    alone.put(HEARTBEAT, first.value)
    alone.report(Appended(first.token, len(alone.channel) - 1, 1))
    (restating,) = [append for append in alone.held if append.key == BUNDLE]
    alone.report(AppendFailed(restating.token, "timed out", 1, never_written=False))
    alone.run(1)
    assert ends == []
    alone.run(90)
    assert [end.status for end in ends] == [ProposalStatus.UNKNOWN]


def test_nothing_that_waits_goes_out_while_a_cold_start_is_in_doubt() -> None:
    """The first heartbeat behind a mark is that of whoever has started cold: it knows another history, perhaps."""
    alone = LoneEngine(WHOLE, cold_start_after_s=1.0)
    alone.run(12)
    alone.sleep(30)
    alone.hold = True
    alone.run(0.1)
    bundle = next(iter(alone.engine.replicas[0].view.live()))
    alone.between_steps(lambda: alone.engine.proposals.restate(bundle, lambda _: None))
    assert alone.engine.proposals.holds_back(0)
    alone.put(COLD_START_KEY, mark("b-1", len(alone.channel) - 1))
    assert alone.engine.context.in_doubt
    alone.put(HEARTBEAT, heartbeat("b-1", len(alone.channel) - 1))
    assert BUNDLE not in keys(alone)
