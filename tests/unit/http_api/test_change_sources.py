"""What the topics beside the channel say in the stream of changes: brokers' events from heartbeats, and decisions."""

import orjson

from shedders.http_api import decision_document
from statechannel.http_api.change_sources import BrokerEvents
from statechannel.protocol.log import RecordRead, Topic
from tests.support.decision_records import record as made_record


def heartbeat(offset: int, broker: str, at_ms: int, **fields) -> RecordRead:
    info = {"format": 1, "kind": "member", "broker": broker, "incarnation": f"{broker}-1", "seq": offset + 1}
    info |= {"since": 0, "sent_at_ms": at_ms, "mode": "normal", "leading": False, "expiry_s": 2.0, **fields}
    return RecordRead(Topic.REGISTRY, 0, offset, at_ms, broker.encode(), orjson.dumps(info))


def kinds(document) -> list[tuple[str, str]]:
    return [] if document is None else [(event["kind"], event["broker"]) for event in document["events"]]


def test_heartbeats_by_which_something_happened_are_events():
    read = BrokerEvents(expiry_s=2.0)
    course = [
        (heartbeat(0, "b1", 1_000, seq=1), [("started", "b1")]),
        (heartbeat(1, "b2", 1_100, seq=1), [("started", "b2")]),
        (heartbeat(2, "b1", 1_200, leading=True), [("leader", "b1")]),
        (heartbeat(3, "b2", 1_300), []),
        (heartbeat(4, "b2", 1_600), []),
        (heartbeat(5, "b2", 2_500), []),
        (heartbeat(6, "b2", 3_400), [("lost", "b1")]),
        (heartbeat(7, "b2", 3_500, draining=True), [("left", "b2")]),
        (heartbeat(8, "b2", 3_600, draining=True, leaving=True), [("left", "b2")]),
        (RecordRead(Topic.REGISTRY, 0, 9, 3_700, b"b2", b"junk"), []),
    ]
    for record, wanted in course:
        assert kinds(read(record)) == wanted, record.offset


def test_a_reader_that_begins_later_says_the_same_of_what_comes():
    records = [heartbeat(0, "b1", 1_000, seq=1), heartbeat(1, "b1", 1_900), heartbeat(2, "b1", 2_800, draining=True)]
    whole, later = BrokerEvents(2.0), BrokerEvents(2.0)
    first = [whole(record) for record in records]
    assert [later(record) for record in records[1:]] == first[1:]


def test_decisions_come_without_what_is_for_the_next_leader():
    record = made_record()
    value = record.model_dump_json().encode()
    document = decision_document(RecordRead(Topic.REQUESTS, 0, 5, 1_000, record.id.encode(), value))
    assert (document["id"], document["kind"], document["offset"]) == (record.id, "decision", 5)
    assert not {"memory", "settings"} & document.keys()
    unreadable = decision_document(RecordRead(Topic.REQUESTS, 0, 6, 1_000, b"x", b"{"))
    assert unreadable["unreadable"] == "not-json"
