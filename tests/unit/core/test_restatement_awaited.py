"""A broker that starts on a log whose head was deleted says once that it waits, and joins behind a restatement."""

from statechannel.engine.engine import Engine
from tests.support.lone_engine import CREATED, NAMESPACE, LoneEngine, heartbeat
from tests.unit.audit.test_lost_head import FIRST, RESTATED, ROWS, head_mark

AWAITED = "log.restatement-awaited"


def lost(engine: Engine) -> bool:
    return engine.head.is_lost(0, FIRST)


def test_it_says_once_that_it_waits_until_the_head_is_restated() -> None:
    alone = LoneEngine([(*row, 100_000) for row in ROWS], deleted=FIRST)
    alone.run(5)
    assert (alone.events.count(AWAITED), alone.engine.caught_up, lost(alone.engine)) == (1, False, True)
    for row in (*RESTATED, head_mark(FIRST)):
        alone.put(*row)
    alone.hear("b")
    alone.put(b"!heartbeat", heartbeat("b-1", len(alone.channel) - 1))
    alone.run(1)
    assert (alone.events.count(AWAITED), alone.engine.caught_up, lost(alone.engine)) == (1, True, False)


def test_a_log_with_its_head_keeps_nobody_waiting() -> None:
    alone = LoneEngine([(NAMESPACE, CREATED, 100_000)])
    alone.run(5)
    assert AWAITED not in alone.events
