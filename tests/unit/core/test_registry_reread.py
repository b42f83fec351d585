"""The registry read from its beginning once more, as after the reader's thread was restarted."""

import orjson
import pytest

from statechannel.engine.inputs import PartitionOpened
from statechannel.protocol.log import RecordRead, Topic
from tests.support.presence_bench import EXPIRY_S, PresenceBench


def heard_of_b(bench: PresenceBench, offset: int, at_ms: int) -> RecordRead:
    info = {"format": 1, "kind": "member", "broker": "b", "incarnation": "b-1", "seq": 1 + offset, "sent_at_ms": at_ms}
    value = orjson.dumps(info | {"since": 0, "applied": {}})
    return RecordRead(Topic.REGISTRY, 0, offset, at_ms, b"b", value)


@pytest.mark.parametrize("together", [False, True])
def test_a_stream_that_begins_again_brings_no_lost_member_back(together: bool) -> None:
    """The reader opens the registry from its beginning once more: what it delivers again was written before the loss."""
    bench = PresenceBench()
    bench.normal()
    old = [heard_of_b(bench, bench.offset + number, bench.context.now.wall_ms) for number in range(3)]
    bench.presence.read_many(old)
    end = old[-1].offset + 1
    bench.later(EXPIRY_S + 0.1, tick=False)
    bench.presence.members.expire(bench.now_s, keep="a-1")
    assert "b" not in bench.presence.members.alive
    bench.presence.opened(PartitionOpened(Topic.REGISTRY, 0, 0, end))
    if together:
        bench.presence.read_many(old)
    else:
        for record in old:
            bench.presence.read(record)
    assert "b" not in bench.presence.members.alive
    bench.presence.read_many([heard_of_b(bench, end, bench.context.now.wall_ms)])
    assert bench.presence.members.alive["b"].heard_at_s == bench.now_s


def test_a_registry_that_was_made_anew_is_read_from_its_beginning() -> None:
    bench = PresenceBench()
    bench.normal()
    bench.presence.read_many([heard_of_b(bench, 50, bench.context.now.wall_ms)])
    bench.later(EXPIRY_S + 0.1, tick=False)
    bench.presence.members.expire(bench.now_s, keep="a-1")
    bench.presence.opened(PartitionOpened(Topic.REGISTRY, 0, 0, 7))
    bench.presence.read_many([heard_of_b(bench, 7, bench.context.now.wall_ms)])
    assert "b" in bench.presence.members.alive
