"""An operation that ended while this broker had left its view: whoever waits for it is told."""

from statechannel.core import codec
from statechannel.core.commands import AwaitOperation, Done, Lookup, Owned, Started, Unload
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine, heartbeat, mark


def test_it_is_told_after_the_join():
    alone = LoneEngine([(NAMESPACE, CREATED, 1)])
    alone.hear("b", phase="joining")
    alone.run(5)
    served, started, ended = [], [], []
    alone.ask(Lookup(BUNDLE.decode(), 60.0), served.append)
    assert isinstance(served[0], Owned)

    def began(outcome):
        started.append(outcome)
        alone.hold = True

    alone.ask(Unload(BUNDLE.decode(), "op2", 60.0), began)
    alone.ask(AwaitOperation("op2", 60.0), ended.append)
    assert isinstance(started[0], Started)
    alone.put(codec.COLD_START_KEY, mark("b-1", len(alone.channel) - 1))
    assert alone.restarts == 1
    alone.let_through()
    assert ended == []
    at = len(alone.channel) - 1
    alone.put(codec.HEARTBEAT_KEY, heartbeat("b-1", at))
    assert alone.engine.caught_up
    assert ended == [Done("op2", "unloaded", {"bundle": BUNDLE.decode(), "flow": "unload", "offset": at})]
