"""An operation that ended while this broker had left its view: whoever waits for it is told."""

import orjson

from statechannel.core import codec
from statechannel.core.commands import AwaitOperation, Done, Lookup, Owned, Started, Unload
from tests.support.lone_engine import LoneEngine

NAMESPACE = b"t/n"
BUNDLE = b"t/n/0x00000000_0xffffffff"
CREATED = orjson.dumps(
    {
        "format": 1,
        "kind": "proposal",
        "id": "ns1",
        "covers": -1,
        "by": {"broker": "z", "incarnation": "z-1"},
        "version": 1,
        "base": None,
        "state": "Active",
        "action": "create",
        "flow": "namespace",
        "operation": "op1",
        "children": ["0x00000000_0xffffffff"],
    }
)


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
    by = {"broker": "b", "incarnation": "b-1"}
    alone.put(codec.COLD_START_KEY, orjson.dumps({"through": len(alone.channel) - 1, "by": by}))
    assert alone.restarts == 1
    alone.let_through()
    assert ended == []
    at = len(alone.channel) - 1
    beat = {"format": 1, "kind": "heartbeat", "id": "h1", "covers": at, "clean_to": at, "by": by}
    alone.put(codec.HEARTBEAT_KEY, orjson.dumps(beat))
    assert alone.engine.caught_up
    assert ended == [Done("op2", "unloaded", {"bundle": BUNDLE.decode(), "flow": "unload", "offset": at})]
