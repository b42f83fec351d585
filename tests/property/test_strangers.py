"""Records and files that strangers wrote: each decodes or is refused as declared, and what decodes can be folded and shown."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaddata.report import record as load_record
from loaddata.report.record import TopBundlesReport, encode_broker_load, encode_top_bundles
from loaddata.samples import sample_topic
from loaddata.samples.averages import Averager, Window
from loaddata.samples.partitions import PartitionSample
from loaddata.samples.sample_topic import InvalidSampleReason
from loaddata.view.table_view import Arrival, TableView, ViewRules, decoder
from shedders.decisions import record as decision_record
from shedders.decisions.explanation import why_not
from shedders.decisions.history import DecisionBook
from shedders.decisions.record import DecisionRecord
from shedders.kafka_rebalance.execution import state_topic
from shedders.kafka_rebalance.execution.state_topic import StateBook, plan_records
from shedders.kafka_rebalance.execution.values import ExecutionEvent, recorded
from shedders.policies import record as policy_record
from shedders.policies.book import PolicyBook
from shedders.policies.kinds import PolicyKind, complete
from shedders.policies.record import PolicyKey, PolicyRecord
from shedders.policies.topic import policy_changes
from statechannel.audit.history import control_writer
from statechannel.audit.transfer import import_run
from statechannel.cli.doctor.command import CHECKS
from statechannel.conditions.facts import broker_rows, pauses_of
from statechannel.engine import membership
from statechannel.engine.controls import ClosingMarks
from statechannel.operations import request_record
from statechannel.operations.request_record import Progress, ProgressStage, Reply, Request
from statechannel.protocol import codec as channel_record
from statechannel.protocol import cold_start_marks
from statechannel.protocol.cold_start_marks import Marks
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.side_record import SideRecord
from statechannel.protocol.view import View
from statechannel.stories.requests import stories_of
from tests.property.test_core_codec import SOUND
from tests.property.test_loaddata_junk import places, replaced
from tests.support import decision_records, doctor_facts
from tests.support.load_reports import NOW_MS, header, report

BY = {"broker": "b", "incarnation": "i"}
MARK = {"through": 4, "highest": 3, "first": 2, "known": 3, "by": BY, "for_ms": 5, "import": "import-1"}
PLAN = {"v": 1, "plan": "p", "executor": "e", "wish": "go", "host": "h", "pid": 1, "by": "x", "throttle": 5}
EVENT = orjson.loads(
    """{"n": 1, "at_ms": 5, "executor": "e", "batch": 1, "partitions": [["t", 0]], "dirs": [["t", 0, 1]], "topic": "t",
    "partition": 0, "reason": "r", "before": {"broker/1": {"a": null}}, "rate": 5, "resources": ["broker/1"], "hint": "",
    "pace": {"moves_per_broker": 2}, "bytes_done": 5, "busy_s": 1.5, "text": "x", "kind": "done"}"""
)
BEAT = orjson.loads(
    """{"format": 1, "kind": "member", "broker": "b1", "incarnation": "b1-1", "seq": 1, "since": 0, "software": "0.1.0",
    "formats": [1], "phase": "caught-up", "mode": "normal", "accepting": true, "leading": true, "expiry_s": 6.0, "log": "x",
    "kept": {"0": 5}, "known": {"0": 5}, "epochs": {"0": 5}, "applied": {"0": 5}, "listeners": {"http": "http://h:1"},
    "http": "http://h", "api": "http://h", "extensions": ["e"], "checks": ["c"], "versions_below": 8, "safe_since_ms": 8,
    "term": 8, "started_at_ms": 8, "sent_at_ms": 8, "lag_records": 8, "draining": false, "repair_paused": "many",
    "forged": {"records": 2, "topic": "t", "partition": 0, "offset": 1, "timestamp_ms": 5},
    "differs": [{"partition": 0, "offset": 3, "broker": "b2", "equal_at": 1}],
    "blocked": {"since_ms": 5, "ms": 3, "message": "x"}, "refused": {"reason": "r", "code": "c", "times": 2, "ms": 3},
    "unplaced": {"bundles": 2, "bundle": "t/n", "reason": "full", "message": "x"}, "throttled": {"ms": 3, "client": "c"},
    "hooks_failed": {"own": {"times": 2, "bundle": "t/n", "message": "x", "ms": 5}}}"""
)
ID = "01J00000000000000000000000"


class Codec(NamedTuple):
    """The modules with the decoders of a kind of record, examples of its values, and what is done with the values of a log."""

    decoders: tuple[ModuleType, ...]
    values: Sequence[bytes | Mapping[str, Any]]
    fold: Callable[[list[bytes]], None]

    @property
    def examples(self) -> list[Any]:
        return [orjson.loads(value) if isinstance(value, bytes) else value for value in self.values]


def reads(topic: Topic, values: list[bytes], key: bytes | None) -> list[RecordRead]:
    return [RecordRead(topic, 0, offset, NOW_MS + 700 * offset, key, value) for offset, value in enumerate(values)]


def fold_channel(values: list[bytes]) -> None:
    for key in (b"a/b", b"a/b/0x00000000_0xffffffff", b"!heartbeat", b"!cold-start", b"!head"):
        view, marks = View(0, 1), Marks()
        for record in reads(Topic.CHANNEL, values, key):
            view.read(record.offset, record.key, record.value)
            marks.control_read(record)


def fold_marks(values: list[bytes]) -> None:
    fold_channel(values)
    closing = ClosingMarks(SimpleNamespace(config=SimpleNamespace(closing_mark_s=60.0)))  # type: ignore[arg-type]
    for value in values:
        closing.read(b"!closing/a/b", value, 0, 0)
        control_writer(value), import_run.decode_mark(value), cold_start_marks.decode_head(value)


def fold_registry(values: list[bytes]) -> None:
    beats = []
    for value in values:
        membership.decode_probe(value)
        beats.append((0.5, orjson.loads(value)))
    facts = replace(HEALTHY, **doctor_facts.registry(*beats))
    for check in CHECKS:
        list(check.look(facts))
    members = facts.registry.members
    orjson.dumps(broker_rows(members, {}, {0: 5}, lambda _: 700))
    orjson.dumps(pauses_of(members, lambda _: 700, NOW_MS))
    orjson.dumps([(item.at_ms, item.message) for item in facts.story.incidents])


def fold_requests(values: list[bytes]) -> None:
    stories = stories_of(reads(Topic.REQUESTS, values, ID.encode()))
    for story in stories.values():
        orjson.dumps(
            [story.destination, story.reason, story.flow, story.subject, story.result, story.answer, story.bundle]
        )
        assert story.message is None or story.status(NOW_MS)
        assert story.is_timed_out in {True, False}


def fold_loads(values: list[bytes]) -> None:
    for decode in (load_record.decode_broker_load, load_record.decode_top_bundles):
        view: TableView[Any] = TableView(ViewRules(brokers_max=2))
        for offset, value in enumerate(values):
            item = SideRecord(b"b1", value, (), offset, NOW_MS)
            view.read(item, decoder(decode)(item), Arrival(float(offset), NOW_MS, NOW_MS))
        view.seen(100.0)


def fold_policies(values: list[bytes]) -> None:
    for kind, name, _ in POLICIES:
        book, key = PolicyBook(), PolicyKey(kind, name).encode()
        records = reads(Topic.REQUESTS, values, key)
        for record in records:
            book.take(record.offset, record.timestamp_ms, record.key, record.value)
        book.at(NOW_MS)
        orjson.dumps([change.fields() for change in policy_changes(records, low=0, end=len(records)).rows])


def fold_decisions(values: list[bytes]) -> None:
    book = DecisionBook()
    for value in values:
        book.add(record := decision_record.decode(DECISION.id.encode(), value))
        if isinstance(record, DecisionRecord):
            why_not(decision_records.WHOLE, "b1", book, now_ms=record.at_ms)


def fold_samples(values: list[bytes]) -> None:
    averager = Averager(Window.until(NOW_MS, window_s=3_600.0, interval_s=60.0))
    for value in values:
        sample = sample_topic.decode(value)
        if not isinstance(sample, InvalidSampleReason):
            averager.add(sample)
            sample_topic.encode(sample)
    averager.loads()


def fold_plans(values: list[bytes]) -> None:
    book = StateBook(5_000)
    for number, value in enumerate(values):
        book.take(NOW_MS + number, value)
    for plan in book.plans.values():
        plan.plan_bytes()
        events = plan.in_order()
        orjson.dumps(asdict(recorded(events))["pace"])
        orjson.dumps(events)


HEALTHY = doctor_facts.with_standing(doctor_facts.healthy(), stopped={"0": {"offset": 9, "format": 2}})
POLICIES = [
    (PolicyKind.ISOLATION, "gold", {"namespaces": ["t/n"], "primary": ["b1"]}),
    (PolicyKind.PIN, "t/n", {"broker": "b1"}),
    (PolicyKind.WEIGHTS, "cluster", {"cpu": 3}),
    (PolicyKind.SETTING, "filters.max_topics", {"value": 5}),
]
DECISION = decision_records.record()
SAMPLE = PartitionSample(cluster="c", broker=1, topic="t", partition=0, taken_at_ms=NOW_MS, disk_bytes=5, cpu_share=0.5)
ASKED = Request(ID, "transfer", 0, {"name": "t/n", "broker": "b1"}, "ann")
RAN, REPLIED = (
    Progress(ID, ProgressStage.STARTED, "b1", "i", -1, {}),
    Reply(ID, "b1", "i", {"answer": "accepted", "facts": {}}),
)
CODECS = {
    "channel": Codec((channel_record,), [record for _, record in SOUND], fold_channel),
    "marks": Codec((cold_start_marks, import_run), [MARK], fold_marks),
    "registry": Codec(
        (membership,), [BEAT, BEAT | {"leaving": True}, BY | {"format": 1, "kind": "probe", "seq": 1}], fold_registry
    ),
    "requests": Codec(
        (request_record,), [request_record.encode(item, timeout_s=5.0) for item in (ASKED, RAN, REPLIED)], fold_requests
    ),
    "loads": Codec(
        (load_record,), [encode_broker_load(report()), encode_top_bundles(TopBundlesReport(header(), ()))], fold_loads
    ),
    "policies": Codec(
        (policy_record,),
        [
            policy_record.encode(PolicyRecord(PolicyKey(kind, name), complete(kind, value), "ann", "", NOW_MS, 1))
            for kind, name, value in POLICIES
        ],
        fold_policies,
    ),
    "decisions": Codec((decision_record,), [decision_record.encode(DECISION)], fold_decisions),
    "samples": Codec((sample_topic,), [sample_topic.encode(SAMPLE)], fold_samples),
    "plans": Codec(
        (state_topic,),
        [
            *plan_records("p", b"{}"),
            *(PLAN | {"kind": kind} for kind in ("claim", "beat", "leave", "control")),
            *(PLAN | {"kind": "events", "events": [EVENT | {"event": str(event)}]} for event in ExecutionEvent),
        ],
        fold_plans,
    ),
}
REMOVED = object()
ODD = (
    REMOVED,
    *orjson.loads(
        """[null, true, 0, -1, 9223372036854775808, -9223372036854775808, 0.5, 1e300, "", "x", "\\u0000", [], [[]],
        ["x", 5], {}, {"x": {}}]"""
    ),
)
JSON = st.recursive(
    st.sampled_from(ODD[1:]) | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda item: st.lists(item, max_size=3) | st.dictionaries(st.text(max_size=5), item, max_size=3),
    max_leaves=6,
)


def bent(value: Any, at: tuple[Any, ...], by: Any) -> Any:
    """A value with another one, or nothing, at a place."""
    if by is not REMOVED or not at:
        return replaced(value, at, None if by is REMOVED else by)
    inside = value
    for step in at[:-1]:
        inside = inside[step]
    rest = list(inside) if isinstance(inside, list) else dict(inside)
    del rest[at[-1]]
    return replaced(value, at[:-1], rest)


@st.composite
def values(draw: st.DrawFn, examples: Sequence[Any]) -> bytes:
    value = draw(st.sampled_from(examples))
    for _ in range(draw(st.integers(0, 3))):
        value = bent(
            value, draw(st.sampled_from(places(value))), draw(st.just(REMOVED) | JSON | st.sampled_from(examples))
        )
    return orjson.dumps(value)


def test_every_decoder_is_in_the_table() -> None:
    known = {module.__name__ for codec in CODECS.values() for module in codec.decoders}
    files = [path for top in ("loaddata", "shedders", "spark", "statechannel") for path in Path(top).rglob("*.py")]
    defined = {
        ".".join(path.with_suffix("").parts)
        for path in files
        if re.search(r"^def decode(_|\()", path.read_text(), re.MULTILINE)
    }
    assert defined == known


@pytest.mark.parametrize("name", CODECS)
def test_any_value_in_any_field_is_refused_or_can_be_folded(name: str) -> None:
    codec = CODECS[name]
    for example in codec.examples:
        for at in places(example):
            for odd in ODD:
                written = [orjson.dumps(item) for item in (example, bent(example, at, odd)) * 2]
                try:
                    codec.fold(written)
                except Exception as raised:
                    raise AssertionError((at, odd)) from raised


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=60)
@given(st.data())
def test_logs_of_strangers_can_be_folded(name: str, data: st.DataObject) -> None:
    codec = CODECS[name]
    codec.fold(data.draw(st.lists(values(codec.examples), min_size=1, max_size=4)))
