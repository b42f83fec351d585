"""What a replica tells of itself: digest and dump are of one offset each, and of nothing that it does not know."""

from hashlib import sha256

import orjson
import pytest

from statechannel.broker.observe import replica_digest
from statechannel.broker.observe.replica_digest import (
    CopyTimeoutError,
    ReplicaDigests,
    copy_replicas,
    digest_document,
    dump_lines,
)
from statechannel.engine.engine import Engine
from statechannel.protocol.digest import digest
from statechannel.protocol.replica import Phase
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine


@pytest.fixture
def engine() -> Engine:
    lone = LoneEngine([(NAMESPACE, CREATED, 1)])
    lone.run(3.0)
    return lone.engine


async def test_digest_and_dump_say_the_same(engine: Engine) -> None:
    copy = await copy_replicas(engine)
    document = digest_document(copy)
    replica = engine.replicas[0]
    assert document["digest"] == digest([replica.view]) == document["partitions"]["0"]["digest"]
    expected = {"applied": replica.applied, "digest": "", "keys": 2, "phase": "caught-up", "why": ""}
    assert document["partitions"]["0"] | {"digest": "", "why": ""} == expected
    head, *lines = dump_lines(copy)
    assert orjson.loads(head) == document
    assert sha256("".join(lines).encode()).hexdigest() == document["digest"]
    assert [orjson.loads(line)[0] for line in lines] == [NAMESPACE.decode(), BUNDLE.decode()]


async def test_a_copy_does_not_change_with_its_engine() -> None:
    lone = LoneEngine([(NAMESPACE, CREATED, 1)])
    lone.run(3.0)
    copy = await copy_replicas(lone.engine)
    before = digest_document(copy)
    deleted = orjson.loads(CREATED) | {"id": "ns2", "version": 2, "base": "ns1", "state": "Deleted", "children": None}
    del deleted["children"]
    lone.put(NAMESPACE, orjson.dumps(deleted))
    assert digest_document(copy) == before
    assert digest_document(await copy_replicas(lone.engine))["digest"] != before["digest"]


async def test_what_is_not_known_has_no_digest(engine: Engine) -> None:
    engine.replicas[0].phase = Phase.WAITING
    engine.replicas[0].why = "waiting for a heartbeat"
    document = digest_document(await copy_replicas(engine))
    assert document["digest"] is None
    assert document["partitions"]["0"]["digest"] is None
    assert document["partitions"]["0"]["why"] == "waiting for a heartbeat"


async def test_those_who_ask_at_once_share_a_copy(engine: Engine) -> None:
    digests = ReplicaDigests(engine, min_interval_s=30.0)
    first = await digests.copy()
    assert await digests.copy() is first
    assert await ReplicaDigests(engine).copy() is not first


async def test_copying_has_an_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_digest.ViewCopier, "step", lambda _: None)
    with pytest.raises(CopyTimeoutError, match="partition 0"):
        await copy_replicas(engine, timeout_s=0.01)
