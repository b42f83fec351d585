"""Acknowledgements of forged records: their records, which record they are about, and that they hide nothing."""

from typing import Any

import orjson
import pytest

from statechannel.audit.acknowledgements import (
    Acknowledgement,
    Acknowledgements,
    acknowledged_sentence,
    decode,
    encode,
)
from statechannel.audit.forgeries import ForgeryCheck, forged_sentence
from statechannel.audit.incident import Incident, IncidentKind, without_listed
from statechannel.audit.incidents import ChannelIncidents
from statechannel.audit.writers import Disowned, ForgedRecords
from statechannel.broker import request_record
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.view import View
from tests.support.report_logs import forged_beside

AT_MS = 1_750_000_000_000
SEEN = Acknowledgement("channel", 0, 337, 1_000, "ann@desk", "a drill, ticket 12")


def record_of(item: Acknowledgement, at_ms: int = AT_MS) -> RecordRead:
    return RecordRead(Topic.REQUESTS, 0, 5, at_ms, b"id-1", encode(item, "id-1", 7))


def row(offset: int = 337, timestamp_ms: int = 1_000, partition: int = 0) -> dict[str, Any]:
    text = {"key": "t/n", "state": "Active", "version": 1, "by": "b2", "verdict": "accepted", "note": "strange"}
    return {"offset": offset, "timestamp_ms": timestamp_ms, "partition": partition, **text}


def test_a_record_of_the_requests_topic_that_is_no_request() -> None:
    record = record_of(SEEN)
    read = decode(record.value, record.timestamp_ms)
    assert read is not None
    assert read.fields() == {"by": "ann@desk", "at_ms": AT_MS, "reason": "a drill, ticket 12"}
    assert read.place == ("channel", 0, 337)
    assert request_record.decode(record.value, record.timestamp_ms) is None


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"kind": "request"},
        {"topic": None},
        {"by": ""},
        {"reason": 7},
        {"partition": "0"},
        {"offset": True},
        {"offset": 1.5},
        {"timestamp_ms": "now"},
    ],
)
def test_anybody_may_write_one_so_a_malformed_one_is_none(change: dict[str, Any]) -> None:
    value = orjson.dumps(orjson.loads(encode(SEEN, "id-1", 7)) | change)
    assert decode(value, AT_MS) is None


@pytest.mark.parametrize(
    "value", [None, b"", b"\xff", b'"acknowledgement"', b'["acknowledgement"]', b'{"acknowledgement"']
)
def test_junk_is_none(value: bytes | None) -> None:
    assert decode(value, AT_MS) is None


def test_it_is_about_one_record_and_the_first_counts() -> None:
    later = Acknowledgement("channel", 0, 337, 1_000, "eve@desk", "nothing to see")
    seen = Acknowledgements.of_records([record_of(SEEN), record_of(later, AT_MS + 1)])
    found = seen.of("channel", 0, 337, 1_000)
    assert found is not None
    assert found.by == "ann@desk"
    others = (("channel", 1, 337, 1_000), ("channel", 0, 338, 1_000), ("registry", 0, 337, 1_000))
    assert [seen.of(*place) for place in others] == [None] * 3
    assert seen.of("channel", 0, 337, 1_001) is None  # the topic was created again
    assert seen.of("channel", 0, 337, None) is found  # a broker's report of an earlier version has no time


def test_the_list_keeps_what_was_acknowledged() -> None:
    seen = Acknowledgements.of_records([record_of(SEEN)])
    marked = seen.marked({"records": 3, "newest": [row(), row(400)]})
    assert (marked["records"], marked["acknowledged"]) == (3, 1)
    first, second = marked["newest"]
    assert second["acknowledged"] is None
    assert forged_sentence(first).endswith(
        "; strange; acknowledged by ann@desk at 2025-06-15 15:06:40Z: a drill, ticket 12"
    )
    assert forged_sentence(second).endswith("; strange")
    assert "9999999999999999ms" in acknowledged_sentence({"by": "a", "at_ms": 9_999_999_999_999_999, "reason": "x"})


def test_a_report_of_a_broker_is_open_again_with_its_next_record() -> None:
    seen = Acknowledgements([Acknowledgement("registry", 0, 9, None, "ann@desk", "a drill", AT_MS)])
    report = ForgedRecords(1, "registry", 0, 9, 2_000)
    said = Incident(5, IncidentKind.FORGED, "b2 has read 1 record", Disowned("b2", report))
    (shown,) = without_listed([said], [], seen)
    assert shown.message.startswith("b2 has read 1 record; acknowledged by ann@desk at ")
    more = said._replace(disowned=Disowned("b2", report._replace(records=2, offset=10)))
    assert without_listed([more], [], seen) == [more]


def test_an_incident_says_who_acknowledged_it() -> None:
    log = forged_beside()
    incidents, view = ChannelIncidents(1_000, check=ForgeryCheck()), View(0, 1)
    for record in log.records:
        incidents.observe(record, view.read(record.offset, record.key, record.value))
    (forged,) = incidents.forged_rows()["newest"]
    assert forged["acknowledged"] is None
    place = Acknowledgement(
        "channel", forged["partition"], forged["offset"], forged["timestamp_ms"], "ann", "seen", AT_MS
    )
    incidents.acknowledged = Acknowledgements([place])
    (incident,) = [item for item in incidents.all() if item.kind is IncidentKind.FORGED]
    assert incident.message.endswith("acknowledged by ann at 2025-06-15 15:06:40Z: seen")
