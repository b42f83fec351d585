"""`decisions`, `why` and `why-not`: on records that are spelled out, and against a real Kafka."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from shedders.cli import decisions
from shedders.cli.decisions import done_count
from shedders.decision.dry_run import CheckedMove
from shedders.decisions.builder import Executed, outcome_record, place_record, shed_record, skipped_record
from shedders.decisions.history import DecisionRead, RecallBounds
from shedders.decisions.record import (
    AnyRecord,
    DecisionRecord,
    DistancePart,
    InvalidDecisionReason,
    OutcomeRecord,
    decode,
    encode,
    key_of,
)
from shedders.decisions.topic import DecisionReader, DecisionWriter, describe_decision_topic
from shedders.model.amounts import MESSAGES
from shedders.model.plan import Left, Placed
from shedders.queries import decisions as decision_queries
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.audit.views import read_views
from statechannel.cli import main
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import TopicMissingError, TopicPolicyError
from statechannel.kafka.tail import append_and_wait
from statechannel.kafka.topic_policy import decisions_topic
from statechannel.kafka.topics import TopicAdmin, open_topics
from statechannel.operations.request_record import Request
from statechannel.protocol.side_record import InvalidRecord
from tests.support.decision_records import (
    AT_MS,
    IDS,
    LOWER,
    NAMESPACE,
    UPPER,
    WHOLE,
    ChannelLog,
    decision,
    move,
    occasion,
    record,
)
from tests.support.kafka_lanes import Kafka
from tests.support.request_world import stories
from tests.support.waits import WAIT_S

ONE = f"{NAMESPACE}/{LOWER}"
POINTS = {
    "decisions": "shedders.cli.decisions:app",
    "why": "shedders.cli.decisions:why_app",
    "why-not": "shedders.cli.decisions:why_not_app",
}
HERE = ("--bootstrap-servers", "127.0.0.1:1")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed, the commands of this tree."""
    points = {name: EntryPoint(name, value, main.COMMANDS_GROUP) for name, value in POINTS.items()}
    monkeypatch.setattr(main, "_registered", lambda: points)


def _held(read: DecisionRead, wanted: Callable[[Any], bool], behind: Callable[[Any], bool]) -> bool:
    return wanted(read.record) or behind(read.record)


class Injected:
    """Reads what it is given, as `DecisionReader` does the topic."""

    def __init__(self, records: Sequence[AnyRecord | InvalidRecord]) -> None:
        self.reads = [DecisionRead(number, AT_MS, record) for number, record in enumerate(records)]
        self.since_ms: int | None = None
        self.about: list[str] | None = None
        self.ended = ""

    def read(self, *, since_ms: int | None = None, about: Sequence[str] | None = None) -> Iterator[DecisionRead]:
        self.since_ms, self.about = since_ms, None if about is None else list(about)
        for read in self.reads:
            text = "" if isinstance(read.record, InvalidRecord) else encode(read.record).decode()
            if about is None or any(name in text for name in about):
                yield read

    def newest(self, count: int, wanted: Callable[[Any], bool], *, behind: Any = None) -> Sequence[DecisionRead]:
        return [
            read
            for read in self.reads
            if behind is None or isinstance(read.record, InvalidRecord) or _held(read, wanted, behind)
        ]

    def follow(self, *, since_ms: int | None, stop: Callable[[], bool]) -> Iterator[Sequence[DecisionRead]]:
        yield self.reads
        yield []


RECORDS: list[AnyRecord | InvalidRecord] = [
    skipped_record(occasion(1), "shedding-off", "shedding is off (ann: sale)"),
    record(
        2,
        moves=[move(), CheckedMove(replace(move(ONE), destination=None), "b3", "cordon: disk")],
        executed={WHOLE: Executed("op-1")},
        left=[Left("b3", "outdated", "its report is 1900 s old")],
        scores={"b1": 0.8, "b2": 0.2},
        stats={"std": 0.3},
        why="1 bundle from b1",
    ),
    outcome_record(
        IDS[2], WHOLE, "transferred", "b2 has it", operation="op-1", at_ms=AT_MS + 5, term=7, leader="b1", took_ms=300.0
    ),
    InvalidRecord(InvalidDecisionReason.FORMAT, "format is not 1"),
]


def inject(monkeypatch: pytest.MonkeyPatch, *records: AnyRecord | InvalidRecord) -> Injected:
    injected = Injected(records)

    @contextmanager
    def reader(_: object) -> Iterator[Injected]:
        yield injected

    monkeypatch.setattr(decisions, "decision_reader", reader)
    monkeypatch.setattr(decision_queries, "reader_if_any", reader)
    return injected


def channel(monkeypatch: pytest.MonkeyPatch, folder: Path, log: ChannelLog) -> None:
    """A channel's log in place of the live one."""
    path = folder / "log.jsonl"
    header = ExportHeader("chan", {0: len(log.records)}, log.at_ms)
    write_export(path, header, iter(log.records), now_ms=lambda: log.at_ms)
    monkeypatch.setattr(
        decision_queries, "read_channel", lambda _, observers=(): read_views(read_export(path), observers=observers)
    )
    asked = stories(Request("op-9", "transfer", 0, {}, "ann@desk"))
    monkeypatch.setattr(decision_queries, "read_requests", lambda _: asked)


def two_moves() -> ChannelLog:
    log = ChannelLog()
    log.created()
    log.assigned(to="b1")
    log.moved(WHOLE, "b1", "b2", operation="op-1")
    return log


def lines(result: Result, code: int = 0) -> str:
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout


# --- decisions ------------------------------------------------------------------------------------------------------


def test_the_list_says_what_was_decided_and_why_not(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch):
    injected = inject(monkeypatch, *RECORDS)
    result = run("decisions", *HERE, "--since", "2023-11-14T00:00:00Z")
    shown = lines(result)
    assert injected.since_ms == 1_699_920_000_000
    assert "shedding-off" in shown
    assert "shedding is off (ann: sale)" in shown
    assert IDS[2] in shown
    assert "records that this version cannot read: 1 format" in result.stderr


def test_moves_only_has_a_line_for_each_bundle_with_its_end(run: Callable[..., Result], monkeypatch):
    inject(monkeypatch, *RECORDS)
    shown = lines(run("decisions", *HERE, "--moves-only")).splitlines()
    moved = next(line for line in shown if WHOLE in line)
    assert "transferred: b2 has it" in moved
    assert next(line for line in shown if ONE in line).split()[5:9] == ["stays", "Overloaded", "1.0", "kB/s"]
    assert not any("shedding-off" in line for line in shown)


PLACED = [Placed(name, "b3", "the least used", scores={"b3": 12.5}) for name in (ONE, f"{NAMESPACE}/{UPPER}")]
MIXED = [
    record(
        3, moves=[move(why="1000 messages/s of it", load_unit=MESSAGES)], placed=[Placed(WHOLE, "b2", "the idlest")]
    ),
    place_record(occasion(4), decision().cluster, PLACED),
]


def test_a_move_and_its_placement_are_counted_once(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, *MIXED)
    drained, placed = lines(run("decisions", *HERE)).splitlines()[1:]
    assert [done_count(item) for item in MIXED] == [1, 2]
    assert " Overloaded     1 " in drained
    assert "2 placed" in placed


def test_moves_and_placements_are_listed_apart(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, *MIXED)
    moves = lines(run("decisions", *HERE, "--moves-only")).splitlines()
    assert len(moves) == 2
    assert "load" in moves[0].split()
    assert "score" not in moves[0].split()
    assert "  1000 messages/s  " in moves[1]
    placements = lines(run("decisions", *HERE, "--placements")).splitlines()
    assert len(placements) == 3
    assert "score" in placements[0].split()
    assert all("Placed" in line and " 12.5 " in line for line in placements[1:])
    assert len(lines(run("decisions", *HERE, "--placements", "--moves-only")).splitlines()) == 4
    assert len(json.loads(lines(run("decisions", *HERE, "--moves-only", "--output", "json")))["decisions"]) == 1
    followed = lines(run("decisions", *HERE, "--follow", "--moves-only"))
    assert WHOLE in followed
    assert "b3" not in followed
    assert "score" in lines(run("decisions", "show", IDS[4], *HERE))


def test_the_list_as_json_has_whole_records(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, *RECORDS)
    document = json.loads(lines(run("decisions", *HERE, "--since", "1h", "--output", "json")))
    assert document.keys() == {"since_ms", "decisions", "unreadable"}
    skipped, moved = document["decisions"]
    assert (skipped["skipped"], skipped["inputs"]["channel"]) == ("shedding-off", {"0": 41})
    assert [(move["result"], move["took_ms"]) for move in moved["moves"]] == [("transferred", 300.0), (None, None)]
    assert document["unreadable"] == {"format": 1}
    plain = {name: value for name, value in skipped.items() if name != "moves"}
    read_back = decode(IDS[1].encode(), json.dumps({**plain, "moves": []}).encode())
    assert read_back == RECORDS[0]


def test_nothing_known_is_said(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch)
    assert lines(run("decisions", *HERE)).startswith("no decision since ")
    assert lines(run("decisions", *HERE, "--moves-only")).startswith("no bundle was moved or split since ")
    missing = run("decisions", "show", IDS[5], *HERE)
    lines(missing, 5)
    assert f"decision {IDS[5]} not found" in missing.stderr
    assert "hint: `statechannel decisions --since 7d`" in missing.stderr
    lines(run("decisions", "show", "last", *HERE), 5)


def test_follow_prints_records_as_they_come(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, *RECORDS)
    result = run("decisions", *HERE, "--follow", "--output", "json")
    results = [json.loads(line) for line in lines(result).splitlines()]
    assert [(item["offset"], item["kind"]) for item in results] == [(0, "decision"), (1, "decision"), (2, "outcome")]
    assert "the record at offset 3 cannot be read (format)" in result.stderr
    shown = lines(run("decisions", *HERE, "--follow", "--moves-only"))
    assert "shedding-off" not in shown
    assert f"    {WHOLE}  b1 -> b2 [started]" in shown
    assert f"{IDS[2]}  {WHOLE}: transferred (b2 has it)" in shown


def test_the_distance_to_the_best_is_one_plain_line(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch):
    distance = DistancePart(
        largest_use=0.62, broker="b3", resource="cpu", bound=0.6, gap_percent=3.3, any_load_bound=0.58, load_moved=1e6
    )
    entry = RECORDS[1]
    assert isinstance(entry, DecisionRecord)
    inject(monkeypatch, entry.model_copy(update={"distance": distance}))
    shown = lines(run("decisions", "show", "last", *HERE))
    assert "largest use 0.62 after the moves (CPU of b3)" in " ".join(shown.split())
    document = json.loads(lines(run("decisions", "show", "last", *HERE, "--output", "json")))
    assert document["distance"] == distance.model_dump()


@pytest.mark.parametrize("name", [IDS[2], IDS[2].lower(), "last"])
def test_one_decision_is_shown_whole(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    inject(monkeypatch, *RECORDS)
    shown = lines(run("decisions", "show", name, *HERE))
    for words in (
        "b1 (term 7, cycle 2, cycle)",
        "Success, Overloaded",
        "0: 41",
        "transferred: b2 has it",
        "cordon: disk",
    ):
        assert words in shown, words
    assert "its report is 1900 s old" in shown
    document = json.loads(lines(run("decisions", "show", name, *HERE, "--output", "json")))
    assert (document["id"], document["moves"][0]["result_why"]) == (IDS[2], "b2 has it")


def test_decisions_can_be_limited_to_a_window_and_a_leader(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch):
    inject(monkeypatch, *RECORDS)
    leaders = {record.leader for record in RECORDS if isinstance(record, DecisionRecord)}
    every = listed(run("decisions", *HERE, "--since", "1ms", "--output", "json"))
    assert {row["leader"] for row in every} == leaders
    by_leader = [listed(run("decisions", *HERE, "--since", "1ms", "--by", who, "--output", "json")) for who in leaders]
    assert sum(map(len, by_leader)) == len(every)
    assert listed(run("decisions", *HERE, "--since", "1ms", "--by", "none-of-them", "--output", "json")) == []
    last_ms = max(row["at_ms"] for row in every)
    early = listed(run("decisions", *HERE, "--since", "1ms", "--until", f"{last_ms - 1}ms", "--output", "json"))
    assert early == [row for row in every if row["at_ms"] < last_ms]
    assert len(early) < len(every)


def listed(result: Result) -> list[dict[str, Any]]:
    return list(json.loads(lines(result))["decisions"])


# --- why ------------------------------------------------------------------------------------------------------------


def test_why_tells_the_decision_of_each_move(run: Callable[..., Result], monkeypatch, tmp_path):
    injected = inject(monkeypatch, *RECORDS)
    channel(monkeypatch, tmp_path, two_moves())
    shown = lines(run("why", WHOLE, *HERE))
    assert shown.startswith(f"{WHOLE} is assigned to b2\n")
    assert f"    decision {IDS[2]} of b1 (term 7, cycle 2, transfer), Overloaded: b1 has 80 %, b2 20 %" in shown
    assert "    result in the balancer's log: transferred" in shown
    assert injected.about == [WHOLE]
    topic = lines(run("why", f"{NAMESPACE}/topic", *HERE))
    assert topic.startswith(f"the bundle of persistent://{NAMESPACE}/topic: {WHOLE} is assigned to b2")
    document = json.loads(lines(run("why", WHOLE, *HERE, "--output", "json", "--limit", "2")))
    assert [(step["what"], step["decision"]) for step in document["steps"]] == [("assigned", None), ("moved", IDS[2])]
    assert (document["asked"], document["owner"], document["left_out"], document["whole"]) == (WHOLE, "b2", 1, True)


def test_why_tells_who_asked_by_command(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    inject(monkeypatch)
    log = two_moves()
    log.moved(WHOLE, "b2", "b3", operation="op-9")
    channel(monkeypatch, tmp_path, log)
    assert "    requested by ann@desk (transfer)" in lines(run("why", WHOLE, *HERE))


def test_why_goes_on_without_any_decision(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    channel(monkeypatch, tmp_path, two_moves())

    @contextmanager
    def missing(_: object) -> Iterator[Any]:
        raise TopicMissingError("the topic chan-decisions does not exist")
        yield

    monkeypatch.setattr(decision_queries, "decision_reader", missing)
    result = run("why", WHOLE, *HERE)
    assert "no decision record mentions its operation" in lines(result)
    assert "no decisions available: the topic chan-decisions does not exist" in result.stderr
    result = run("why-not", WHOLE, *HERE)
    assert "there is no decision record" in lines(result)


def test_what_was_split_or_never_was(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    inject(monkeypatch, *RECORDS)
    log = two_moves()
    log.split(WHOLE, "b2", LOWER, UPPER, operation="op-2")
    channel(monkeypatch, tmp_path, log)
    assert f"{WHOLE} was split into {ONE}, {NAMESPACE}/{UPPER}" in lines(run("why", WHOLE, *HERE))
    assert f"    as bundle {WHOLE}" in lines(run("why", ONE, *HERE))
    for command in ("why", "why-not"):
        for name in ("t/n/0x00000000_0x10000000", "t/other/0x00000000_0xffffffff", "t/other/topic"):
            result = run(command, name, *HERE)
            lines(result, 5)
            assert "hint: " in result.stderr
        for name in ("t/n", "nonsense", ""):
            result = run(command, name, *HERE)
            lines(result, 2)
            assert "neither a bundle nor a topic" in result.stderr
    lines(run("why-not", WHOLE, *HERE), 5)


def test_why_not_says_what_the_newest_decision_says(run: Callable[..., Result], monkeypatch, tmp_path):
    log = two_moves()
    log.split(WHOLE, "b2", LOWER, UPPER, operation="op-2")
    channel(monkeypatch, tmp_path, log)
    inject(monkeypatch, *RECORDS)
    shown = lines(run("why-not", ONE, *HERE))
    assert f"{ONE}, served by b2" in shown
    assert "it was to go from b1 to b3, but was refused: cordon: disk" in shown
    assert f"before that (decision {IDS[1]}): no decision was made (`shedding-off`)" in shown
    document = json.loads(lines(run("why-not", f"{NAMESPACE}/topic", *HERE, "--output", "json")))
    assert document.keys() == {"asked", "bundle", "owner", "messages", "verdicts", "same"}
    assert document["owner"] == "b2"


def test_why_not_knows_what_a_decision_could_not_know(run: Callable[..., Result], monkeypatch, tmp_path):
    log = two_moves()
    channel(monkeypatch, tmp_path, log)
    early = replace(occasion(1), at_ms=log.at_ms - 1)
    inject(monkeypatch, shed_record(early, decision(why="even")))
    assert ": it was not at b2 yet" in lines(run("why-not", WHOLE, *HERE))


# --- against a real Kafka -------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_from_the_writer_to_the_commands(kafka: Kafka, topic_prefix: str, run: Callable[..., Result]) -> None:
    client = ClientSettings(kafka.bootstrap_servers)
    topics = decisions_topic(topic_prefix)
    place = ("--bootstrap-servers", kafka.bootstrap_servers, "--channel", topic_prefix)
    missing = run("decisions", *place)
    lines(missing, 12)
    assert f"the topic {topics.name} does not exist" in missing.stderr
    with pytest.raises(TopicMissingError):
        open_topics(client, topics, create=False)
    result = open_topics(client, topics, create=True, replication_factor=1)
    assert result[topics.name].settings["retention.ms"] == str(7 * 86_400_000)
    assert open_topics(client, topics, create=True, replication_factor=1) == result
    assert describe_decision_topic(client, topics).topic_id == result[topics.name].topic_id

    writer = DecisionWriter(client, topics)
    kept = [record for record in RECORDS if not isinstance(record, InvalidRecord)]
    assert all(writer.write(line) for line in kept)
    assert writer.flush(WAIT_S)
    append_and_wait(client, topics.name, 0, key=b"junk", value=b"{}")
    more = [skipped_record(occasion(number), "shedding-off", "again") for number in range(3, 90)]
    assert all(writer.write(item) for item in more)
    assert writer.close(WAIT_S)
    assert (writer.counts.written, writer.counts.failed, writer.counts.dropped) == (len(kept) + len(more), 0, 0)

    with DecisionReader(client, topics) as reader:
        everything = list(reader.read())
        assert [item.record for item in everything if not isinstance(item.record, InvalidRecord)] == [*kept, *more]
        assert key_of(kept[0]) == IDS[1].encode()
        assert [item.record for item in reader.read(about=[WHOLE])] == kept[1:]
        assert [item.offset for item in reader.read(start=88)] == [88, 89, 90]
        late_ms = everything[-1].timestamp_ms + 60_000
        assert list(reader.read(since_ms=late_ms)) == []
        assert [read.record.cycle for read in reader.newest(3, lambda item: item.kind == "decision")] == [87, 88, 89]  # type: ignore[union-attr]
        assert not reader.ended
        whole = reader.newest(1, lambda item: item.kind == "outcome", behind=lambda item: True)
        assert [item.offset for item in whole] == [item.offset for item in everything][-len(whole) :]
        assert isinstance(whole[0].record, OutcomeRecord)
        assert len(whole) == len(more) + 2
    with DecisionReader(client, topics, bounds=RecallBounds(records=70)) as reader:
        assert len(reader.newest(1, lambda item: False, behind=lambda item: True)) == 70
        assert reader.ended == "the limit of 70 records was reached"
        batches = reader.follow(since_ms=everything[0].timestamp_ms)
        followed: list[DecisionRead] = []
        while len(followed) < len(everything):
            followed += next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert followed == everything

    shown = json.loads(lines(run("decisions", "--since", "1h", *place, "--output", "json")))
    assert [decision["id"] for decision in shown["decisions"]] == [IDS[1], IDS[2], *(item.id for item in more)]
    assert "b2 has it" in lines(run("decisions", "show", IDS[2], *place))
    followed_lines = lines(run("decisions", "--follow", "--for", "2", *place, "--output", "json")).splitlines()
    assert len(followed_lines) == len(kept) + len(more)


@pytest.mark.kafka
def test_a_topic_that_is_compacted_is_refused(kafka: Kafka, topic_prefix: str) -> None:
    client = ClientSettings(kafka.bootstrap_servers)
    topics = decisions_topic(topic_prefix)
    first, *rest = topics.policy.requirements
    compacted = replace(topics.policy, requirements=(replace(first, wanted="compact"), *rest))
    TopicAdmin(client).create(replace(topics, policy=compacted), partitions=1, replication_factor=1)
    with pytest.raises(TopicPolicyError, match=r"cleanup\.policy is compact, required delete"):
        open_topics(client, topics, create=True, replication_factor=1)


def test_decisions_of_what_is_no_export_are_refused_and_not_none(run: Callable[..., Result], tmp_path: Path) -> None:
    missing = run("decisions", "--file", str(tmp_path / "nowhere.jsonl"))
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (7, True)
    path = tmp_path / "ev.jsonl"
    write_export(path, ExportHeader("c", {0: 0}, 0), iter(()), now_ms=lambda: AT_MS)
    without = run("decisions", "--file", str(path))
    assert (without.exit_code, "there is no file of decisions" in without.stderr) == (0, True)
