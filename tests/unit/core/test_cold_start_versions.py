"""A cold start goes on above every version that can have been accepted: no generation is served twice."""

import orjson
import pytest

from statechannel.protocol.codec import MAX_INT
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.states import State
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE

NOW_S, LAG_S = 10_000.0, 100.0
HIGHEST = 40
BY = {"broker": "b", "incarnation": "b-1"}


def value(kind: str, covers: int, **fields: object) -> bytes:
    return orjson.dumps({"format": 1, "kind": kind, "id": f"{kind}-{covers}", "covers": covers, "by": BY} | fields)


VOUCHES = value("heartbeat", 1, clean_to=1, partitions=1, keys=1, digest="0" * 16, highest=HIGHEST)
"""Of a member that had read offsets 0 and 1, and had seen version 40."""
DELETED = value("proposal", -1, version=2, base="zz", state="Deleted")
MOVED = value("proposal", 2, version=7, base="zz", state="Assigned", **{"from": None, "to": "b"})


def assumed(*records: tuple[bytes, bytes]) -> Replica:
    """A reader that has taken a log for the truth of which a record is missing behind offset 0, and no clock is known."""
    replica = Replica(0, 1, compaction_lag_s=LAG_S, kept_records_max=100)
    log = [(b"!heartbeat", VOUCHES), *records]
    replica.opened(NOW_S, 0, len(log) + 2)
    for offset, (key, content) in enumerate(log, 2):
        replica.read(NOW_S, RecordRead(Topic.CHANNEL, 0, offset, 1_000 + offset, key, content))
    assert replica.phase is Phase.WAITING
    assert NAMESPACE.decode() in replica.assume()
    return replica


@pytest.mark.parametrize(
    "records",
    [((NAMESPACE, CREATED), (NAMESPACE, DELETED)), ((NAMESPACE, b"junk"),), ((BUNDLE, MOVED),)],
    ids=["deleted by junk", "nothing but junk", "its record is not there any more"],
)
def test_a_namespace_that_is_not_there_may_be_created_again_only_above_all_that_was_served(records) -> None:
    replica = assumed(*records)
    key = replica.view.get(NAMESPACE.decode())
    assert key.state is State.DELETED
    again = {"version": key.version + 1, "base": key.accepted_id, "state": "Active"}
    created = value("proposal", 9, **again, children=["0x00000000_0x80000000", "0x80000000_0xffffffff"])
    replica.read(NOW_S, RecordRead(Topic.CHANNEL, 0, replica.position, 2_000, NAMESPACE, created))
    versions = [live.version for live in replica.view.live()]
    assert versions
    assert min(versions) > HIGHEST


def test_a_live_bundle_goes_on_above_all_that_was_served() -> None:
    replica = assumed((NAMESPACE, CREATED))
    assert min(key.version for key in replica.view.live()) > HIGHEST
    namespace = replica.view.get(NAMESPACE.decode())
    assert namespace.version == 1, "its deletion will be above its bundles"


def test_a_reader_of_the_whole_log_ends_with_the_same_keys_and_reports_none_that_was_not_there() -> None:
    """The asserts of the mark's writer count, and a namespace that nobody knew is no change."""
    replica = assumed((NAMESPACE, b"junk"))
    key = replica.view.get(NAMESPACE.decode())
    strict = Replica(0, 1, compaction_lag_s=LAG_S, kept_records_max=100)
    asserted = value("assert", 1, version=key.version, asserts=key.accepted_id, state="Deleted")
    mark = orjson.dumps({"through": 0, "by": BY})
    log = [(NAMESPACE, b"junk"), (NAMESPACE, asserted), (b"!cold-start", mark)]
    strict.opened(NOW_S, 0, len(log))
    for offset, (name, content) in enumerate(log):
        strict.read(NOW_S, RecordRead(Topic.CHANNEL, 0, offset, 1_000 + offset, name, content))
    held = strict.view.get(NAMESPACE.decode())
    assert (held.state, held.version) == (State.DELETED, key.version)
    assert not strict.overruled


def test_junk_of_the_highest_version_does_not_keep_other_bundles_from_going_on() -> None:
    """Its own bundle ends there; what an older version vouched for names no highest version, so that all that was read counts."""
    junk = value("proposal", 2, version=MAX_INT, base="zz", state="Assigned", **{"from": None, "to": "b"})
    bundles = [f"{NAMESPACE.decode()}/{part}".encode() for part in ("0x00000000_0x80000000", "0x80000000_0xffffffff")]
    replica = Replica(0, 1, compaction_lag_s=LAG_S, kept_records_max=100)
    created = value(
        "proposal", 1, version=1, base=None, state="Active", children=[key[-21:].decode() for key in bundles]
    )
    replica.opened(NOW_S, 0, 4)
    for offset, (key, content) in enumerate([(NAMESPACE, created), (bundles[0], junk)], 2):
        replica.read(NOW_S, RecordRead(Topic.CHANNEL, 0, offset, 1_000 + offset, key, content))
    replica.assume()
    other = replica.view.get(bundles[1].decode())
    assert 3 < other.version < MAX_INT
