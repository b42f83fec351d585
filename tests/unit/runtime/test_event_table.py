"""What is told and what the table of events says are the same; and how it comes out."""

import ast
import logging
from pathlib import Path

import pytest

from statechannel.broker.observe.event_log import EventLog
from statechannel.broker.observe.events import EVENTS, FIELDS, TABLE, Level
from statechannel.engine.config import OBSERVER
from statechannel.engine.effects import Emit
from statechannel.engine.streams import report_verdict
from statechannel.protocol import codec
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.record import Record
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement
from tests.support.log_lines import capture_logs

ROOT = Path(__file__).parents[3]
LEVELS = {"exception": "error"} | {level: level for level in ("critical", "error", "warning", "info", "debug")}
MADE_LATER = {
    "record.accepted": {"record", "read"},
    "record.rejected": {"read", "judgement", "winner", "concerns"},
    "record.unchanging": {"read", "judgement"},
}
"""What the engine hands on as objects; their fields are checked below."""
LOGGERS = {"_log", "self._log", "log", "self.endpoint.log"}
"""Those of modules, and those that are bound to a broker."""
TWO_WAYS = {"stopped"}
"""Told at a level that is reckoned."""


class Told(ast.NodeVisitor):
    """Every call that tells an event: `engine.emit(...)`, `log.emit(...)`, and log lines of the runtime."""

    def __init__(self, file: Path) -> None:
        self.events: list[tuple[str, set[str], str | None, str]] = []
        self.where = str(file.relative_to(ROOT))
        self._file = file
        self.visit(ast.parse(file.read_text(encoding="utf-8")))

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.IfExp):  # (_log.info if ... else _log.error)(...)
            names, level = ["_log"], None
        elif isinstance(function, ast.Attribute):
            names, level = [ast.unparse(function.value)], function.attr
        else:
            return
        first = node.args[0] if node.args else None
        if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
            return
        emitted = level == "emit" and "/sim/" not in self.where
        logged = names[0] in LOGGERS and level in (*LEVELS, None)
        if not emitted and not logged:
            return
        fields: set[str] = set()
        for keyword in node.keywords:
            if keyword.arg is None:
                fields |= {"due", "version", "operation", "offset"}  # Reactions._about
            elif keyword.arg not in ("exc_info", "broker"):
                fields.add(keyword.arg)
        self.events.append((first.value, fields, LEVELS[level] if logged and level else None, self.where))


def list_events() -> list[tuple[str, set[str], str | None, str]]:
    files = [*(ROOT / "statechannel/engine").glob("*.py"), *(ROOT / "statechannel/broker").rglob("*.py")]
    files += [ROOT / "statechannel/api/extensions.py", ROOT / "statechannel/api/channel.py"]
    return [item for file in files for item in Told(file).events]


@pytest.mark.parametrize("event", list_events(), ids=lambda item: f"{item[0]}@{item[3]}")
def test_what_is_told_is_in_the_table_with_its_fields(event):
    name, fields, level, _ = event
    assert name in EVENTS
    assert fields == MADE_LATER.get(name, set(EVENTS[name].fields))
    assert level in (None, EVENTS[name].level.name.lower()) or name in TWO_WAYS


def test_whatever_is_in_the_table_is_told_somewhere():
    assert {name for name, *_ in list_events()} == set(EVENTS)
    assert len(EVENTS) == len(TABLE)


def test_every_field_is_explained_once_and_no_other():
    assert {field for event in TABLE for field in event.fields} == set(FIELDS)


RAW = (
    b'{"format":1,"kind":"proposal","id":"01","covers":7,"by":{"broker":"b2","incarnation":"i2"},"version":4,"base":"00",'
    b'"state":"Assigned","from":"b1","to":"b2","action":"return","flow":"transfer","operation":"op","forced":true,'
    b'"reason":"because","lost":{"broker":"b3","incarnation":"i3","last_heard_ms":5}}'
)
BUNDLE = b"t/n/0x00000000_0x80000000"


def record(value: bytes = RAW) -> Record:
    record = codec.decode(value, namespace=False)
    assert isinstance(record, Record), record
    return record


READ = RecordRead(Topic.CHANNEL, 0, 42, 1_000, BUNDLE, RAW)


def lines_of(emit: Emit, *, broker: str, least: Level = Level.INFO) -> list:
    with capture_logs() as lines:
        EventLog(broker, least=least).take(emit)
    return [dict(line) for line in lines]


def test_an_accepted_record_has_every_field_of_the_table():
    (line,) = lines_of(Emit("record.accepted", {"record": record(), "read": READ}), broker="b2")
    assert line.pop("log_level") == "info"
    assert (line["event"], line["generation"], line["lost"]["last_heard_ms"]) == ("record.accepted", 4, 5)
    assert set(line) - {"event", "broker"} == set(EVENTS["record.accepted"].fields)


def test_a_change_between_others_is_told_at_debug_only():
    emit = Emit("record.accepted", {"record": record(), "read": READ})
    assert lines_of(emit, broker="b9") == []
    (line,), (observed,) = (lines_of(emit, broker=name, least=Level.DEBUG) for name in ("b9", OBSERVER))
    assert (line["log_level"], line["broker"], "broker" in observed) == ("debug", "b9", False), "a console is none"


@pytest.mark.parametrize(("concerns", "least", "level"), [(True, Level.INFO, "info"), (False, Level.DEBUG, "debug")])
def test_a_rejection_has_every_field_of_the_table(concerns, least, level):
    facts = {"read": READ, "judgement": Judgement(Verdict.WRONG_BASE, record()), "winner": "00", "concerns": concerns}
    (line,) = lines_of(Emit("record.rejected", facts), broker="b2", least=least)
    assert line.pop("log_level") == level
    assert set(line) - {"event", "broker"} == set(EVENTS["record.rejected"].fields)


def test_junk_is_told_without_what_it_does_not_have():
    read = READ._replace(value=b"junk")
    facts = {"read": read, "judgement": Judgement(Verdict.UNDECODABLE, None, None, "no JSON"), "winner": None}
    (line,) = lines_of(Emit("record.rejected", facts | {"concerns": True}), broker="b2")
    assert (line["why"], line["verdict"]) == ("no JSON", "undecodable")
    assert "operation" not in line


def test_what_others_write_does_not_fill_the_log():
    long = record(RAW.replace(b"because", b"x" * 100_000))
    (line,) = lines_of(Emit("record.accepted", {"record": long, "read": READ}), broker="b2")
    assert len(line["reason"]) < 2_000
    assert "100000 characters" in line["reason"]


def test_a_flood_is_summed_up():
    log = EventLog("b1", per_second_max=3)
    with capture_logs() as lines:
        for number in range(10):
            log.take(Emit("operation.ended", {"operation": str(number)}))
        log.take(Emit("leader.elected", {"term": 1}))
        assert log.flush() == {"operation.ended": 7}
    assert [line["event"] for line in lines] == [*["operation.ended"] * 3, "leader.elected", "events.suppressed"]
    assert lines[-1]["suppressed"] == "operation.ended"
    assert lines[-1]["count"] == 7
    assert log.flush() == {}


def test_levels_are_those_of_the_library():
    assert all(logging.getLevelName(level.value) == level.name for level in Level)


class Teller:
    """As much of an engine as telling needs."""

    def __init__(self, broker: str, *, tells_all: bool = False) -> None:
        self.identity = type("Identity", (), {"broker": broker})
        self.tells_all = tells_all
        self.events: list[tuple[str, dict]] = []

    def emit(self, event: str, **facts) -> None:
        self.events.append((event, facts))


@pytest.mark.parametrize(
    ("broker", "verdict", "tells_all", "event"),
    [
        ("b2", Verdict.STALE_VERSION, False, "record.rejected"),
        ("b9", Verdict.STALE_VERSION, False, None),
        ("b9", Verdict.STALE_VERSION, True, "record.rejected"),
        ("b2", Verdict.DUPLICATE, False, None),
        ("b2", Verdict.CONTROL, True, "record.unchanging"),
    ],
)
def test_rejections_that_concern_nobody_here_are_only_told_to_who_listens_closely(broker, verdict, tells_all, event):
    teller = Teller(broker, tells_all=tells_all)
    report_verdict(teller, READ, Judgement(verdict, record()))
    assert [name for name, _ in teller.events] == ([] if event is None else [event])
    if event == "record.rejected":
        assert teller.events[0][1]["concerns"] is (broker == "b2")
