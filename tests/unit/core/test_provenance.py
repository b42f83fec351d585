"""Records that bear a process's name and are not its own: who is told of them, and what nobody does because of them."""

from typing import Any

import orjson
import pytest
from ulid import ULID

from statechannel.engine.commands import CreateNamespace, Lookup
from statechannel.engine.membership import decode_member
from statechannel.engine.provenance import OwnIds
from statechannel.protocol.bundle import namespace_bounds
from statechannel.protocol.log import RecordRead, Topic
from tests.scenarios.world import World

BUNDLE = "t/n/0x00000000_0xffffffff"
FOREIGN_ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.mark.parametrize("first", [0, 1, 2**80 - 2, 2**79])
def test_a_process_knows_the_ids_that_it_has_made(first: int) -> None:
    ids = OwnIds(first.to_bytes(10, "big"))
    before = ids.new_id(1)
    assert ids.issued(before)
    results = [ids.new_id(wall_ms) for wall_ms in (5, 5, 2**48 - 1)]
    assert len({before, *results}) == 4
    assert all(ids.issued(item) for item in [before, *results])
    other = OwnIds(((first + 2**40) % 2**80).to_bytes(10, "big"))
    for strange in (other.new_id(1), FOREIGN_ID, "", "id-1", "0" + results[0], results[0][:-1], None, 7):
        assert not ids.issued(strange)


@pytest.mark.parametrize("first", [0, 2**80 - 1_500, 2**79 - 1_000, 1023])
def test_ids_are_ulids_of_time_and_counter(first: int) -> None:
    ids = OwnIds(first.to_bytes(10, "big"))
    for count in range(1, 3_000):  # past the last two letters, and past the end of the random part
        wall_ms = 1_700_000_000_000 + count // 7
        assert ids.new_id(wall_ms) == str(ULID.from_int(wall_ms << 80 | (first + count) % 2**80))
    assert ids.new_id(2**48 + 5) == str(ULID.from_int(5 << 80 | (first + 3_000) % 2**80))


def test_an_id_that_comes_next_is_not_made_yet() -> None:
    ids, twin = OwnIds(b"0123456789"), OwnIds(b"0123456789")
    ids.new_id(1)
    twin.new_id(1)
    assert not ids.issued(twin.new_id(1))


class Served:
    """Two brokers; one of them, `owner`, serves a bundle."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        for broker in ("a", "b"):
            self.world.start(broker, **settings)
        self.world.run(8)
        self.world.ask("a", CreateNamespace("t/n", tuple(namespace_bounds(1)), "op1", 5.0), "create")
        self.world.run(1)
        self.world.ask("a", Lookup("t/n/topic", 5.0), "lookup")
        self.world.run(2)
        self.owner = next(item for item in ("a", "b") if self.engine(item).serving())
        self.other = "b" if self.owner == "a" else "a"

    def engine(self, broker: str) -> Any:
        return self.world.process(broker).engine

    def entries(self, topic: Topic) -> list[Any]:
        return [entry for entry in self.world.logs[topic, 0].entries if entry is not None]

    def forge(self, state: str, *, key: str = BUNDLE, record_id: str = FOREIGN_ID, **fields: Any) -> None:
        engine = self.engine(self.owner)
        held = engine.key(BUNDLE)
        record = {
            "format": 1,
            "kind": "proposal",
            "id": record_id,
            "covers": engine.replicas[0].applied,
            "by": {"broker": engine.identity.broker, "incarnation": engine.identity.incarnation},
            "version": held.version + 1,
            "base": held.accepted_id,
            "state": state,
            "from": None,
            "to": None,
        }
        self.world.append(Topic.CHANNEL, 0, key.encode(), orjson.dumps(record | fields))
        self.world.run(0.3)

    def forged(self, broker: str) -> int:
        return self.engine(broker).provenance.forged

    def own_id(self) -> str:
        """Id of a record that the owner has written itself."""
        return self.engine(self.owner).key(BUNDLE).accepted_id


@pytest.fixture
def served() -> Served:
    return Served()


def test_nothing_is_forged_where_everybody_writes_for_himself(served: Served) -> None:
    served.world.run(30)
    assert (served.forged("a"), served.forged("b")) == (0, 0)
    assert served.engine("a").status()["forged"] is None


def test_a_forged_release_is_obeyed_as_the_log_demands_and_told(served: Served) -> None:
    served.forge("Releasing", **{"from": served.owner, "to": served.other})
    served.world.run(3)
    assert (served.forged(served.owner), served.forged(served.other)) == (1, 0)
    assert served.engine(served.other).serving()
    assert not served.engine(served.owner).serving()
    result = served.engine(served.owner).status()["forged"]
    assert (result["records"], result["topic"], result["partition"]) == (1, Topic.CHANNEL, 0)


def test_who_reads_an_assigned_in_its_name_serves_only_by_a_record_of_its_own(served: Served) -> None:
    generation = served.engine(served.owner).serving()[BUNDLE]
    served.forge("Assigned", to=served.owner)
    served.world.run(3)
    assert served.forged(served.owner) == 1
    assert served.engine(served.owner).serving() == {BUNDLE: generation + 2}


def test_a_copied_id_does_not_make_a_record_an_own_one(served: Served) -> None:
    served.forge("Releasing", record_id=served.own_id(), **{"from": served.owner, "to": served.other})
    assert served.forged(served.owner) == 1


def test_a_replay_of_an_own_record_is_no_forgery(served: Served) -> None:
    own = [entry for entry in served.entries(Topic.CHANNEL) if entry.key == BUNDLE.encode()]
    for entry in own:
        served.world.append(Topic.CHANNEL, 0, entry.key or b"", entry.value)
    served.world.run(2)
    assert (served.forged("a"), served.forged("b")) == (0, 0)


def test_also_what_is_rejected_or_cannot_be_decoded_is_forged(served: Served) -> None:
    served.forge("Assigned", version=1)
    served.forge("Nonsense")
    served.forge("Assigned", key="t/n/0x00000000_0x00000001")
    assert served.forged(served.owner) == 3
    assert served.engine(served.owner).serving()


def test_a_forged_heartbeat_of_the_channel_is_told(served: Served) -> None:
    served.forge("", key="!heartbeat", kind="heartbeat", clean_to=0)
    assert served.forged(served.owner) == 1


def test_who_reads_the_log_again_does_not_count_again(served: Served) -> None:
    served.forge("Assigned", version=1)
    for offset, entry in enumerate(served.entries(Topic.CHANNEL)):
        record = RecordRead(Topic.CHANNEL, 0, offset, entry.timestamp_ms, entry.key, entry.value)
        served.engine(served.owner).provenance.look_at(record)
    assert served.forged(served.owner) == 1


@pytest.mark.parametrize("key", [b"!cold-start", b"!closing/t/n", b"!other"])
def test_a_control_record_that_bears_the_name_of_who_did_not_write_it_is_forged(served: Served, key: bytes) -> None:
    identity = served.engine(served.owner).identity
    by = {"broker": identity.broker, "incarnation": identity.incarnation}
    served.world.append(Topic.CHANNEL, 0, key, orjson.dumps({"through": 0, "by": by}))
    served.world.run(0.5)
    assert (served.forged(served.owner), served.forged(served.other)) == (1, 0)


def heartbeats(served: Served, broker: str) -> list[dict[str, Any]]:
    results = [decode_member(entry.value) for entry in served.entries(Topic.REGISTRY)]
    return [item for item in results if item is not None and item["broker"] == broker]


def test_the_registry_says_it_to_everybody(served: Served) -> None:
    assert heartbeats(served, served.owner)[-1]["forged"] is None
    served.forge("Assigned", version=1)
    served.world.run(2)
    heartbeat = heartbeats(served, served.owner)[-1]["forged"]
    assert (heartbeat["records"], heartbeat["topic"]) == (1, "channel")
    assert heartbeats(served, served.other)[-1]["forged"] is None


@pytest.mark.parametrize(
    "change", [{"leaving": True}, {"seq": 1_000_000}, {"accepting": False}, {"kind": "probe", "seq": 1_000_000}]
)
def test_a_registry_record_that_says_what_the_process_never_said_is_forged(served: Served, change: dict[str, Any]):
    newest = heartbeats(served, served.owner)[-1]
    served.world.append(Topic.REGISTRY, 0, served.owner.encode(), orjson.dumps(newest | change))
    served.world.run(0.5)
    assert served.forged(served.owner) == 1
    assert served.forged(served.other) == 0


def test_a_second_copy_of_an_own_heartbeat_is_no_forgery(served: Served) -> None:
    newest = next(entry for entry in reversed(served.entries(Topic.REGISTRY)) if entry.key == served.owner.encode())
    served.world.append(Topic.REGISTRY, 0, served.owner.encode(), newest.value)
    served.world.run(0.5)
    assert served.forged(served.owner) == 0


def test_a_copy_of_an_own_heartbeat_whose_hash_is_no_longer_retained_is_no_forgery() -> None:
    served = Served(remembered_max=4)
    oldest = next(entry for entry in served.entries(Topic.REGISTRY) if entry.key == served.owner.encode())
    served.world.append(Topic.REGISTRY, 0, served.owner.encode(), oldest.value)
    served.world.run(0.5)
    assert served.forged(served.owner) == 0
