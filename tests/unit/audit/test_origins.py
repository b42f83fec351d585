"""What asked for each operation: by the log, and by what the topics of requests, decisions and heartbeats have."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shedders.cli.plugins import Decisions
from shedders.decisions.builder import Executed
from shedders.decisions.record import PlacedEntry, SplitEntry
from statechannel.audit import local
from statechannel.audit.engine import AuditQuestion, ExportSource, Wants
from statechannel.audit.origins import origins_document, without_origin
from statechannel.audit.transfer.export_file import write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.cli.audit import origins as origins_command
from statechannel.cli.audit.origins import Requests, Shutdowns
from statechannel.operations.request_record import TIMEOUT_MAX_S, Request
from statechannel.protocol.codec import IMPORT_KEY
from statechannel.protocol.log import RecordRead, Topic
from tests.spark.asking import no_bar
from tests.support.decision_records import AT_MS, LOWER, NAMESPACE, UPPER, WHOLE, ChannelLog, move, record
from tests.support.request_world import logged, stories

LATE_MS = AT_MS + 3_600_000


def audited(log: ChannelLog, folder: Path) -> dict[str, Any]:
    path = folder / "log.jsonl"
    write_export(path, ExportHeader("c", {0: len(log.records)}, 0), log.records, now_ms=lambda: log.at_ms)
    origins = local.answer(AuditQuestion(ExportSource(path), wants=Wants(origins=True)), progress=no_bar).origins
    return dict(origins)


def asked(*requests: Request) -> Requests:
    return Requests(stories(*requests, at_ms=AT_MS, step_ms=0))


def request(operation: str, command: str, **args: Any) -> Request:
    return Request(operation, command, 0, args, "ann@desk")


def decided() -> Decisions:
    """A move of the leader, a split that the balancer made by itself, a placement."""
    decisions = Decisions()
    moved = record(1, moves=[move(f"{NAMESPACE}/{LOWER}")], executed={f"{NAMESPACE}/{LOWER}": Executed("op-move")})
    empty = record(2).model_copy(update={"label": "Success"})
    cut = SplitEntry(bundle=f"{NAMESPACE}/{UPPER}", why="said", operation="op-split", positions=[], reason="Msgrate")
    split = empty.model_copy(update={"subject": "split", "splits": [cut], "id": record(3).id})
    entry = PlacedEntry(
        bundle=WHOLE, why="said", broker="b1", score=None, best=[], best_count=0, removed={}, operation=None
    )
    placed = empty.model_copy(
        update={"subject": "place", "placed": [entry], "id": record(4).id, "at_ms": AT_MS + 2_000}
    )
    for offset, item in enumerate((moved, split, placed)):
        decisions.take(offset, AT_MS, item)
    return decisions


def life() -> ChannelLog:
    """Everything that a log has operations of, and one that nobody asked for."""
    log = ChannelLog()
    log.created()
    log.assigned()
    log.split(WHOLE, "b1", LOWER, UPPER, operation="op-asked")
    lower, upper = f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"
    log.moved(lower, "b1", "b2", operation="op-move")
    middle = "0xc0000000"
    log.split(upper, "b1", f"0x80000000_{middle}", f"{middle}_0xffffffff", operation="op-split")
    lost = {"broker": "b2", "incarnation": "b2-i", "last_heard_ms": log.at_ms}
    repaired = {"flow": "repair", "operation": "op-repair"}
    log.write(lower, "Assigning", to="b1", forced=True, lost=lost, **repaired)
    log.write(lower, "Assigned", to="b1", **repaired)
    log.write(lower, "Releasing", **{"from": "b1"}, to="b2")  # a console producer, in the owner's name
    log.write(lower, "Assigning", **{"from": "b1"}, to="b2")
    log.write(lower, "Assigned", by="b2", **{"from": "b1"}, to="b2")
    return log


REQUESTS = (request("create-1", "create-namespace", namespace=NAMESPACE), request("op-asked", "split", name=WHOLE))


def rows(document: dict[str, Any]) -> list[tuple[str, str | None, str, int]]:
    return [
        (operation["origin"], operation["operation"], operation["name"], operation["records"])
        for operation in document["operations"]
    ]


def test_each_operation_has_what_asked_for_it_and_one_has_nothing(tmp_path: Path) -> None:
    document = origins_document(audited(life(), tmp_path), [decided(), asked(*REQUESTS), Shutdowns(6_000)])
    lower, upper = f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"
    assert rows(document) == [
        ("request", "create-1", NAMESPACE, 1),
        ("decision", None, WHOLE, 2),
        ("request", "op-asked", WHOLE, 2),
        ("decision", "op-move", lower, 3),
        ("decision", "op-split", upper, 2),
        ("repair", "op-repair", lower, 2),
        ("none", None, lower, 3),
    ]
    assert document["counts"] == {"decision": 3, "request": 2, "repair": 1, "none": 1}
    (nobody,) = without_origin(document)
    assert (nobody["state"], nobody["by"], nobody["to"], nobody["offset"]) == ("Releasing", "b1", "b2", 12)
    by_command = document["operations"][2]["asked"]
    assert by_command == {"id": "op-asked", "by": "ann@desk", "at_ms": AT_MS, "what": "split", "name": WHOLE}
    assert document["operations"][3]["asked"]["what"] == "shed (transfer)"


@pytest.mark.parametrize(("since_ms", "origin"), [(AT_MS, "none"), (LATE_MS, "unknown")])
def test_what_is_older_than_a_topic_is_unknown(since_ms: int, origin: str, tmp_path: Path) -> None:
    requests = asked(*REQUESTS)
    requests.since_ms = since_ms
    document = origins_document(audited(life(), tmp_path), [requests])
    assert document["operations"][-1]["origin"] == origin
    assert document["operations"][2]["origin"] == "request"
    assert document["sources"] == [{"name": "requests", "since_ms": since_ms}]


@pytest.mark.parametrize(
    ("given", "doubt"),
    [
        (
            request("op-move", "transfer", name=f"{NAMESPACE}/{UPPER}", destination="b2"),
            f"transfer of {NAMESPACE}/{UPPER}",
        ),
        (request("op-move", "transfer", name=f"{NAMESPACE}/{LOWER}", destination="b3"), "requested transfer to b3"),
        (request("op-move", "split", name=f"{NAMESPACE}/{LOWER}"), "requested split, but it begins with Releasing"),
        (request("op-move", "transfer", name="x/y", destination="b2"), "requested transfer of x/y"),
    ],
)
def test_an_id_that_was_asked_for_something_else_is_no_origin(given: Request, doubt: str, tmp_path: Path) -> None:
    document = origins_document(audited(life(), tmp_path), [asked(given)])
    (row,) = (operation for operation in document["operations"] if operation["operation"] == "op-move")
    assert (row["origin"], row["asked"]) == ("none", None)
    assert [doubt in item for item in row["doubts"]] == [True]
    assert row in list(without_origin(document))


def test_a_request_that_names_a_topic_or_only_the_broker_fits(tmp_path: Path) -> None:
    result = audited(life(), tmp_path)
    for fitting in (
        request("op-move", "transfer", name=f"{NAMESPACE}", destination="b2"),
        request("op-move", "extension", extension="balancer", ask="drain", broker="b1"),
    ):
        document = origins_document(result, [asked(fitting)])
        (row,) = (operation for operation in document["operations"] if operation["operation"] == "op-move")
        assert row["origin"] == "request"


def test_what_a_joining_reader_finds_under_way_began_before(tmp_path: Path) -> None:
    """The beginnings were cleaned: nobody can tell what they were, but those with an id are found by it."""
    log = ChannelLog()
    log.created(LOWER, UPPER)
    lower, upper = f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"
    for bundle in (lower, upper):
        log.assigned(bundle)
    log.write(lower, "Releasing", **{"from": "b1"}, to="b2", operation="op-1")
    log.write(upper, "Releasing", **{"from": "b1"}, to="b2")
    beat = {
        "format": 1,
        "kind": "heartbeat",
        "id": "h",
        "covers": 6,
        "by": {"broker": "b1", "incarnation": "b1-i"},
        "clean_to": 6,
    }
    log.records.append(RecordRead(Topic.CHANNEL, 0, 7, log.at_ms, b"!heartbeat", json.dumps(beat).encode()))
    log.write(lower, "Assigning", **{"from": "b1"}, to="b2", operation="op-1")
    log.write(upper, "Assigning", **{"from": "b1"}, to="b2")
    lag_ms = log.at_ms - log.records[2].timestamp_ms
    log.records = [record for record in log.records if record.offset not in (1, 2)]
    path = tmp_path / "log.jsonl"
    write_export(path, ExportHeader("c", {0: 10}, 0), log.records, now_ms=lambda: log.at_ms)
    question = AuditQuestion(ExportSource(path), compaction_lag_ms=lag_ms, wants=Wants(origins=True))
    origins = local.answer(question, progress=no_bar).origins
    transfer = request("op-1", "transfer", name=lower, destination="b2")
    document = origins_document(origins, [asked()])
    assert {operation["origin"] for operation in document["operations"]} == {"unknown"}
    assert origins_document(origins, [asked(transfer)])["counts"] == {"request": 1, "unknown": 1}


def test_an_import_is_named_by_its_mark(tmp_path: Path) -> None:
    log = ChannelLog()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER], operation="import-1")
    mark = json.dumps({"import": "import-1", "state": "begun"}).encode()
    log.records.append(RecordRead(Topic.CHANNEL, 0, 1, log.at_ms, IMPORT_KEY, mark))
    document = origins_document(audited(log, tmp_path), [asked()])
    assert rows(document) == [("import", "import-1", NAMESPACE, 1)]


def heartbeat(at_ms: int, *, draining: bool = True, incarnation: str = "b1-i") -> RecordRead:
    info = {"format": 1, "kind": "member", "broker": "b1", "incarnation": incarnation, "seq": 1, "since": 0}
    value = json.dumps(info | {"draining": draining, "leaving": False}).encode()
    return RecordRead(Topic.REGISTRY, 0, 0, at_ms, b"b1", value)


@pytest.mark.parametrize(
    ("beats", "origin"),
    [
        ((heartbeat(AT_MS + 13_000),), "shutdown"),
        ((heartbeat(AT_MS + 13_000, draining=False),), "none"),
        ((heartbeat(AT_MS + 13_000, incarnation="other"),), "none"),
        ((heartbeat(AT_MS + 6_999),), "none"),
        ((heartbeat(AT_MS + 19_001),), "none"),
        ((heartbeat(AT_MS + 7_000), heartbeat(AT_MS + 30_000)), "shutdown"),
        ((), "none"),
    ],
)
def test_what_a_leaving_broker_lets_go_of_was_asked_for_by_its_shutdown(
    beats: tuple[RecordRead, ...], origin: str, tmp_path: Path
) -> None:
    leaving = Shutdowns(slack_ms=6_000)
    leaving.take(beats)
    document = origins_document(audited(life(), tmp_path), [decided(), asked(*REQUESTS), leaving])
    nobody = document["operations"][-1]
    assert (nobody["began_ms"], nobody["origin"]) == (AT_MS + 13_000, origin)


@pytest.mark.parametrize(("low", "since_ms"), [(0, 0), (9, AT_MS + int(TIMEOUT_MAX_S * 1_000))])
def test_what_a_deleted_request_may_have_asked_for_is_not_said_to_have_no_origin(monkeypatch, low: int, since_ms: int):
    (oldest,) = logged(request("op-1", "transfer", name="t/n/topic", destination="b2"), at_ms=AT_MS)

    @contextmanager
    def tail(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(span=lambda: SimpleNamespace(low=low), records=lambda _: iter([oldest]))

    monkeypatch.setattr(origins_command, "open_tail", tail)
    requests = origins_command.requests(SimpleNamespace())  # type: ignore[arg-type]
    assert requests.since_ms == since_ms
    assert requests.asker({"operation": "op-1"}) is not None
