"""How much of a log an audit question over HTTP reads, and where it says that it stopped; the form of its answers."""

import asyncio
import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from statechannel.audit.engine import LOCAL, ExportSource, ReadMode
from statechannel.errors import NotFoundError, StateChannelError
from statechannel.http_api.problems import ProblemError
from statechannel.http_api.routes import ApiCall, Caller, TopicAnswers
from statechannel.kafka.tail import Span
from statechannel.protocol.log import RecordRead, Topic
from statechannel.queries import audit, live_log
from statechannel.queries.audit import QUERIES, from_log
from statechannel.queries.audit_log import AuditLog
from statechannel.queries.connection import Notes
from statechannel.queries.live_log import ExportBounds
from statechannel.queries.query import Query
from statechannel.settings import load
from statechannel.settings.groups_cluster import AccessRole
from tests.support.http_fakes import described, http_settings


@pytest.mark.parametrize(
    ("sizes", "records_max", "ends", "stopped_at"),
    [
        ([10, 20], 30, [10, 20], {}),
        ([10, 20], 29, [10, 19], {1: 19}),
        ([2, 100, 100], 50, [2, 24, 24], {1: 24, 2: 24}),
        ([5, 5], 1, [0, 1], {0: 0, 1: 1}),
        ([0], 1, [0], {}),
    ],
)
def test_each_partition_has_its_share(sizes, records_max, ends, stopped_at):
    bounds = ExportBounds(records_max, 60.0)
    spans = [Span(0, 0, size) for size in sizes]
    assert [span.end for span in bounds.spans(spans)] == ends
    assert bounds.stopped_at == stopped_at


@pytest.mark.parametrize(("time_s", "read", "stopped_at"), [(60.0, 4, {}), (0.0, 1, {0: 1, 1: 3})])
def test_where_the_time_is_up_the_rest_is_left_out(time_s, read, stopped_at):
    bounds = ExportBounds(100, time_s)
    spans = bounds.spans([Span(0, 0, 2), Span(3, 3, 5)])
    records = [
        RecordRead(Topic.CHANNEL, part, offset, 0, None, None) for part, offset in ((0, 0), (0, 1), (1, 3), (1, 4))
    ]
    assert len(list(bounds.within(records, spans))) == read
    assert bounds.stopped_at == stopped_at


@pytest.mark.parametrize("size", [5, 2_000_000])
async def test_what_a_part_of_the_log_does_not_have_is_not_said_to_have_been_missing(size, monkeypatch, tmp_path):
    monkeypatch.setattr(live_log, "export_live", lambda _, __, bounds: bounds.spans([Span(0, 0, size)]))

    def look(asked, _):
        asked.source.export(tmp_path)
        raise NotFoundError("t/n did not exist then", hint="see its history")

    route = TopicAnswers(http_settings(audit_records_max=1_000)).route(Query("q", "", "/q", from_log(look), dict))
    with pytest.raises(StateChannelError) as refused:
        await route.handler(ApiCall(Caller("ann", AccessRole.READ, "192.0.2.1"), {}, None, None, {}))
    if size == 5:
        assert not isinstance(refused.value, ProblemError)
    else:
        document = refused.value.document()
        assert (document["reason"], document["retryable"]) == ("answer-late", False)
        assert document["log"] == {"complete": False, "stopped_at": {"0": 1_000}}


def test_kafka_properties_are_read_once_and_waits_are_no_notes(tmp_path: Path) -> None:
    properties = tmp_path / "kafka.properties"
    properties.write_text("client.id=x\n")
    kafka = {"bootstrap_servers": "127.0.0.1:1", "properties_file": str(properties)}
    answers = TopicAnswers(load(overrides={"kafka": kafka, "http": {"port": 0}}))
    for _ in range(2):
        assert asyncio.run(
            answers.of(lambda connection: {"shows waits": not connection.notified, "notes": ["odd"]})
        ) == {"shows waits": False, "notes": ["odd"]}
        properties.unlink(missing_ok=True)


GOLDEN = Path(__file__).parents[2] / "golden" / "channel-record"


@pytest.mark.parametrize("log", ["honest-1", "junk-2", "compacted-junk-3", "stopped-1"])
def test_answers_have_the_keys_that_are_described(log):
    path = GOLDEN / f"{log}.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    connection = SimpleNamespace(settings=http_settings())
    asked = AuditLog(ExportSource(path), None, ReadMode.AUTO, 0, LOCAL, {}, lambda: connection, Notes())
    names = sorted({line["key"] for line in lines if "/" in line.get("key", "!") and "!" not in line["key"]})
    moments = [f"{line['timestamp_ms']}ms" for line in lines[3 :: len(lines) // 4]]
    questions = [("audit", audit.AuditQuery()), ("audit", audit.AuditQuery(as_of=moments[1]))]
    questions += [("audit-gaps", audit.GapsQuery()), ("audit-diff", audit.DifferenceQuery(earlier=moments[0]))]
    questions += [("audit-history", audit.HistoryQuery(name=name)) for name in names]
    questions += [("audit-owner", audit.OwnerQuery(name=name, as_of=at)) for name in names for at in moments]
    answers = {"audit": audit._state, "audit-gaps": audit._gaps, "audit-diff": audit._difference}
    answers |= {"audit-history": audit._history, "audit-owner": audit._owner}
    checks = {query.name: described(query.document) for query in QUERIES}
    seen = set()
    for name, query in questions:
        with contextlib.suppress(StateChannelError):
            document = answers[name](asked, query) | {"log": {"complete": True, "stopped_at": {}}, "notes": []}
            checks[name](document)
            seen.add(name)
    assert seen >= answers.keys() - {"audit-diff"}
