"""Parts of an audit's answer: each alone is as with all others; and since when an owner serves."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from statechannel.audit.engine import AuditQuestion, AuditResult, ExportSource, Wants
from statechannel.audit.local import answer
from statechannel.audit.origins import Origins
from statechannel.audit.ownership import Owners
from statechannel.protocol.log import RecordRead, Topic
from statechannel.replay.auditor import audit_part
from statechannel.replay.part import Listeners
from statechannel.replay.survey import STRICT, ReadFacts
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, mark
from tests.support.report_logs import LogMaker
from tests.unit.audit.test_cleaned_logs import no_bar

LAG_MS = 3_600_000
PARTS = ("gaps", "gap_count", "races", "owned", "moves", "rejected", "states", "origins")


def ask(path: Path, *wanted: str) -> AuditResult:
    history = "t/n" if "history" in wanted else None
    wants = Wants(history=history, **dict.fromkeys(set(wanted) - {"history"}, True))
    return answer(AuditQuestion(ExportSource(path), compaction_lag_ms=LAG_MS, wants=wants), progress=no_bar)


def fields_of(result: AuditResult, name: str) -> Any:
    value = getattr(result, name)
    return value if value is None or name in ("rejected", "origins") else list(value)


@pytest.fixture(scope="module", params=["whole", "cleaned"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Moves, a lost owner, a rejected record, an open gap; cleaned: without some of the oldest. And the number of gaps."""
    log = LogMaker()
    bundles = log.namespace("t/n", 4)
    for bundle in bundles:
        log.assign(bundle, "b1")
    log.transfer(bundles[0], "b2")
    log.unload(bundles[1])
    log.now_ms += 2 * LAG_MS
    log.beat("b1")
    log.transfer(bundles[2], "b2", operation="op-1")
    log.lose(bundles[0], "b3", heard_ago_ms=9)
    log.put(bundles[0], log.proposal(bundles[0], "Releasing", to="b9") | {"version": 1, "from": "b2"})
    log.assign(bundles[1], "b3")
    log.unload(bundles[3])
    if request.param == "cleaned":
        log.records = [record for record in log.records if record.offset not in (1, 2, 9)]
    folder = tmp_path_factory.mktemp("observers")
    end = log.records[-1].offset + 1
    head = {"export": 1, "topic": "c", "end_offsets": {"0": end}, "exported_at_ms": log.now_ms}
    lines = [
        {"partition": 0, "offset": at.offset, "timestamp_ms": at.timestamp_ms, "key": (at.key or b"").decode()}
        | {"value": (at.value or b"").decode()}
        for at in log.records
    ]
    (folder / "log.jsonl").write_bytes(b"\n".join(map(orjson.dumps, [head, *lines])))
    return folder / "log.jsonl", 4 if request.param == "cleaned" else 5


@pytest.mark.parametrize("wanted", [*PARTS, "history"])
def test_a_part_is_the_same_alone_and_with_all_others(case: tuple[Path, int], wanted: str) -> None:
    path, gaps = case
    alone, every = ask(path, wanted), ask(path, *PARTS, "history")
    for name in (*PARTS, "history"):
        if name == wanted:
            assert fields_of(every, name)
            assert fields_of(alone, name) == fields_of(every, name)
        else:
            assert fields_of(alone, name) is None
    assert alone.answer == every.answer
    ends = [gap["end"] for gap in every.gaps or ()]
    assert (every.gap_count, len(ends), ends.count("open")) == ((gaps, 1), gaps, 1)


def since_of(*rows: tuple[bytes, bytes], facts: ReadFacts = STRICT) -> list[tuple[Any, ...]]:
    owners = Owners()
    records = [RecordRead(Topic.CHANNEL, 0, at, 1_000 * at, key, value) for at, (key, value) in enumerate(rows)]
    listeners = Listeners([Origins(), owners])
    part = audit_part(0, 1, records, facts, owners.observe, listeners)
    names = ("owner", "generation", "state", "since_offset", "since_ms")
    return [tuple(row[name] for name in names) for row in owners.owned_in(part)]


def move(number: int, version: int, base: str, state: str, **fields: Any) -> tuple[bytes, bytes]:
    head = {"format": 1, "kind": "proposal", "id": f"p{number}", "version": version, "base": base, "state": state}
    by = {"by": {"broker": "b", "incarnation": "b-1"}, "covers": number, "from": None, "to": None}
    return BUNDLE, orjson.dumps(head | by | fields)


BASE = f"ns1/{BUNDLE.rpartition(b'/')[2].decode()}"
SERVED = [(NAMESPACE, CREATED), move(1, 2, BASE, "Assigning", to="b"), move(2, 3, "p1", "Assigned", to="b")]


def asserted(version: int, state: str, accepted: str = "other", **fields: Any) -> tuple[bytes, bytes]:
    head = {"format": 1, "kind": "assert", "id": "a1", "covers": 2, "version": version, "asserts": accepted}
    by = {"by": {"broker": "x", "incarnation": "x-1"}, "from": None, "to": None, "state": state}
    return BUNDLE, orjson.dumps(head | by | fields)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], ("b", 3, "Assigned", 2, 2_000)),
        ([move(3, 4, "p9", "Releasing", **{"from": "b"})], ("b", 3, "Assigned", 2, 2_000)),
        ([move(3, 4, "p2", "Releasing", **{"from": "b"})], ("b", 3, "Releasing", 2, 2_000)),
        ([asserted(3, "Assigned", to="c"), (b"!cold-start", mark("x-1", 2))], ("c", 3, "Assigned", None, None)),
        ([asserted(3, "Assigned", to="c")], ("b", 3, "Assigned", 2, 2_000)),
    ],
)
def test_an_owner_serves_since_the_record_of_its_generation(more: list[tuple[bytes, bytes]], expected: tuple[Any, ...]):
    assert since_of(*SERVED, *more) == [expected]


def test_no_broker_serves_in_a_deleted_namespace() -> None:
    unloaded = [
        move(3, 4, "p2", "Releasing", **{"from": "b"}),
        move(4, 5, "p3", "Unassigned", **{"from": "b"}),
        (NAMESPACE, move(5, 6, "ns1", "Deleted")[1]),
    ]
    assert since_of(*SERVED, *unloaded) == []


JOINED = ReadFacts(lenient_to=3)


@pytest.mark.parametrize(
    ("last", "more", "expected"),
    [
        (move(3, 4, "p2", "Assigned", to="b"), [], ("b", 4, "Assigned", 3, 3_000)),
        (move(3, 4, "p2", "Releasing", **{"from": "b"}), [], ("b", 3, "Releasing", None, None)),
        (asserted(3, "Assigned", "p2", to="b"), [], ("b", 3, "Assigned", None, None)),
        (asserted(3, "Assigned", "p2", to="b"), [move(4, 4, "p2", "Assigned", to="b")], ("b", 4, "Assigned", 4, 4_000)),
    ],
)
def test_of_what_a_joining_reader_takes_a_proposal_shows_since_when(
    last: tuple[bytes, bytes], more: list[tuple[bytes, bytes]], expected: tuple[Any, ...]
) -> None:
    assert since_of(*SERVED, last, *more, facts=JOINED) == [expected]
