"""Repairs and hand-overs go by windows: so many in flight, the next ones when half are back, none twice while the log is slow."""

from collections import Counter

import orjson
import pytest

from statechannel.engine.commands import Done, Lookup, Outcome, Owned, Shutdown
from statechannel.engine.effects import Append
from statechannel.engine.inputs import KafkaLimited
from statechannel.engine.kafka_limits import ClientKind, ThrottledClient
from statechannel.protocol.log import Topic
from statechannel.protocol.states import State
from tests.support.lone_engine import LoneEngine
from tests.unit.core.test_floods import leader, ring

BUNDLES = 100


def keys_of(appends: list[Append], state: State) -> Counter[str]:
    """Bundles whose proposals of this state wait to land, with how many there are of each."""
    records = [(append.key or b"", append.value) for append in appends if append.topic is Topic.CHANNEL]
    named = [(key.decode(), orjson.loads(value)) for key, value in records if value is not None and key[:1] != b"!"]
    return Counter(key for key, record in named if record["state"] == state)


def let_through(engine: LoneEngine, count: int) -> None:
    """The first so many land (and all heartbeats), and what is written in answer is held again."""
    beats = [append for append in engine.held if append.key == b"!heartbeat"]
    bundles = [append for append in engine.held if append.key != b"!heartbeat"]
    landing, engine.held = beats + bundles[:count], bundles[count:]
    for append in landing:
        engine._land(append)
    engine._pump()


THROTTLED = ThrottledClient("statechannel-a", ClientKind.PRODUCER, 4_200, 10_000, 1, 1)


def orphans(*, repair_batch_max: int = 20, throttled: bool = False) -> LoneEngine:
    """A leader that begins to repair 100 bundles of `b`, and whose records are held."""
    engine = leader(repair_batch_max=repair_batch_max)
    if throttled:
        engine.report(KafkaLimited(THROTTLED, None))
    bundles, outcomes = ring(engine, BUNDLES), list[Outcome]()
    engine.hear("b")
    engine.engine.placer.placement = Choice("b")
    for bundle in bundles:
        engine.ask(Lookup(bundle, 1.0), outcomes.append)
    engine.engine.placer.placement = Choice("a")
    engine.hold = True
    for _ in range(100):
        engine.run(0.1)
        if keys_of(engine.held, State.ASSIGNING):
            return engine
    raise AssertionError("no repair began")


class Choice:
    """Places every bundle on one broker."""

    def __init__(self, broker: str) -> None:
        self._broker = broker

    def choose(self, *_: object) -> str | None:
        return self._broker


def test_repairs_in_flight_are_bounded_and_the_next_begin_when_half_are_back() -> None:
    engine = orphans()
    engine.run(0.5)
    assert len(keys_of(engine.held, State.ASSIGNING)) == 20
    let_through(engine, 9)
    engine.run(0.05)
    assert len(keys_of(engine.held, State.ASSIGNING)) == 11
    let_through(engine, 1)
    engine.run(0.1)  # no interval of repair passes
    assert len(keys_of(engine.held, State.ASSIGNING)) == 20
    engine.let_through()
    engine.run(5)
    assert {key.owner for key in engine.engine.replicas[0].view.live() if key.namespace == "t/m"} == {"a"}


def test_a_broker_that_kafka_throttles_has_few_repairs_in_flight_and_repairs_all() -> None:
    """More of them would only lengthen the queue in which its other records wait for the quota."""
    engine = orphans(repair_batch_max=1_000, throttled=True)
    engine.run(0.5)
    few = len(keys_of(engine.held, State.ASSIGNING))
    assert 0 < few < BUNDLES // 4
    let_through(engine, few)
    engine.run(0.5)
    assert 0 < len(keys_of(engine.held, State.ASSIGNING)) <= few
    engine.let_through()
    engine.run(10)
    assert {key.owner for key in engine.engine.replicas[0].view.live() if key.namespace == "t/m"} == {"a"}


@pytest.mark.parametrize("round_trip_s", [0.0, 3.0])
def test_a_slow_log_gets_more_time_before_repairs_in_flight_count_as_lost(round_trip_s: float) -> None:
    engine = orphans()
    engine.engine.candidacy.echo._newest_trip_s[0] = round_trip_s
    engine.run(1.5)
    assert keys_of(engine.held, State.ASSIGNING).total() == 20
    engine.run(2.5)
    assert keys_of(engine.held, State.ASSIGNING).total() == (20 if round_trip_s else 40)


def test_a_scan_that_was_interrupted_by_another_join_forces_nothing_of_the_former_view() -> None:
    engine = orphans()
    written = keys_of(engine.held, State.ASSIGNING).total()
    repair = engine.engine.repair
    former = [key for key in engine.engine.replicas[0].view.live() if key.to == "b"]
    engine.away = True
    engine.between_steps(lambda: engine.engine.transitions.start_over(0, "a gap"))
    engine.between_steps(lambda: repair._force(former[-1], "it is of the former view"))
    engine.run(0.1)
    engine.away = False
    engine.run(0.1)
    engine.between_steps(lambda: repair._force(former[-1], "it is of the former view"))
    assert keys_of(engine.held, State.ASSIGNING).total() == written


def leaving(window: int) -> tuple[LoneEngine, list[Outcome]]:
    """A broker that leaves with 100 bundles; its records are held, `b` takes everything."""
    engine, ended = leader(handover_window=window), list[Outcome]()
    bundles, outcomes = ring(engine, BUNDLES), list[Outcome]()
    for bundle in bundles:
        engine.ask(Lookup(bundle, 1.0), outcomes.append)
    assert all(isinstance(outcome, Owned) for outcome in outcomes)
    engine.hear("b")
    engine.hold = True
    engine.ask(Shutdown(60.0), ended.append)
    return engine, ended


def test_hand_overs_in_flight_are_bounded_and_none_is_written_twice_while_the_log_is_slow() -> None:
    engine, _ = leaving(20)
    engine.engine.candidacy.echo._newest_trip_s[0] = 2.0
    for _ in range(4):
        engine.hear("b")
        engine.run(1)
    assert keys_of(engine.held, State.RELEASING).total() == len(keys_of(engine.held, State.RELEASING)) == 20


def test_the_next_hand_overs_begin_when_half_of_the_window_are_back() -> None:
    engine, ended = leaving(20)
    assert len(keys_of(engine.held, State.RELEASING)) == 20
    let_through(engine, 20)  # released; the hooks end at once, and Assigning is written
    assert len(keys_of(engine.held, State.ASSIGNING)) == 20
    assert not keys_of(engine.held, State.RELEASING)
    landed = [append for append in engine.held if append.key != b"!heartbeat"][:10]
    let_through(engine, 9)
    take(engine, [append.key or b"" for append in landed[:9]])
    assert not keys_of(engine.held, State.RELEASING)
    let_through(engine, 1)
    take(engine, [append.key or b"" for append in landed[9:]])
    assert len(keys_of(engine.held, State.RELEASING)) == 10
    assert not ended


def take(engine: LoneEngine, bundles: list[bytes]) -> None:
    """`b` takes bundles that are assigned to it."""
    for bundle in bundles:
        key = engine.engine.key(bundle.decode())
        assert key.state is State.ASSIGNING
        engine.move(
            key.name, "b-1", State.ASSIGNED, **{"from": "a", "to": "b", "flow": key.flow, "operation": key.operation}
        )


def test_all_bundles_leave_and_then_the_broker() -> None:
    engine, ended = leaving(20)
    for _ in range(200):
        engine.hear("b")
        held = engine.held
        let_through(engine, len(held))
        view = engine.engine.replicas[0].view
        take(engine, [key.key for key in view.live() if key.state is State.ASSIGNING and key.to == "b"])
        engine.run(0.1)
        if ended:
            break
    assert [type(outcome) for outcome in ended] == [Done]
    owned = Counter(key.owner for key in engine.engine.replicas[0].view.live() if key.namespace == "t/m")
    assert owned == {"b": BUNDLES}
