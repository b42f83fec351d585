"""The job's view is the brokers' view: the same records give the same winners, however they come in batches."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from loaddata.report.record import ReportKind
from loaddata.view.table_view import Arrival, TableView, ViewRules
from spark.load.fold import LastReport, Life, LoadFold
from statechannel.protocol.side_record import SideRecord
from tests.support.load_reports import DECODE, NOW_MS, null, record
from tests.support.load_rows import rows, top_record

KIND = ReportKind.BROKER_LOAD
RULES = ViewRules(ttl_s=100.0)


def fates(fold: LoadFold, *records: SideRecord) -> list[tuple[str, str]]:
    return [(batch.fate, batch.reason) for batch in fold.fold(rows(records))]


def test_junk_is_marked_and_passed() -> None:
    fold = LoadFold(RULES)
    far_ms = NOW_MS + 40 * 86_400_000
    result = fates(fold, SideRecord(b"b1", b"{", (), 0, NOW_MS), record("b1", offset=1, timestamp_ms=far_ms))
    assert result == [("dropped", "not-json"), ("dropped", "clock")]
    assert fold.topics[KIND].position == 2
    assert fold.topics[KIND].log_clock_ms == NOW_MS, "a time that no writer agrees with does not move the log's clock"


def test_a_null_with_a_key_that_is_no_broker_takes_nothing_away() -> None:
    fold = LoadFold(RULES)
    result = fates(
        fold, record("b1", offset=0), null("b" * 129, 1, 0), null("b" * 10**6, 2, 0), null("b" * 10**6, 3, None)
    )
    assert result[1:] == [("dropped", "key"), ("dropped", "key"), ("dropped", "bare-null")]
    assert fold.winners() == [("broker-load", 0)]


DAY_MS = 86_400_000


def test_what_decodes_is_a_sign_of_life_whatever_its_fate() -> None:
    size = len(record("b1").value or b"")
    fold = LoadFold(ViewRules(ttl_s=100.0, held_bytes=2 * size))
    fates(fold, record("b1", offset=0, seq=2), record("b2", offset=1))
    at_ms = NOW_MS + 50_000
    result = fates(
        fold,
        record("b1", offset=2, seq=1, timestamp_ms=at_ms),
        record("b2", offset=3, seq=2, timestamp_ms=at_ms, owned_as_of={n: n for n in range(100)}),
        record("b3", offset=4, timestamp_ms=at_ms),
    )
    assert result == [("late", ""), ("dropped", "no-room"), ("dropped", "no-room")]
    topic = fold.topics[KIND]
    assert topic.held() == {"b1": LastReport(2, 0.0), "b2": LastReport(3, 0.0)}
    assert sorted(fold.winners()) == [("broker-load", 0), ("broker-load", 1)]
    later_ms = NOW_MS + 70_000
    fates(fold, SideRecord(b"b1", b"{", (), 5, later_ms), SideRecord(b"b2", record("b1").value, (), 6, later_ms))
    assert topic.held() == {"b1": LastReport(2, 20.0), "b2": LastReport(3, 20.0)}, "junk is none"
    fates(fold, null("b1", 7, 0))
    assert topic.held().keys() == topic.heard_since().keys() == {"b2"}


def test_who_is_dropped_for_the_clock_is_as_old_as_the_next_time_that_is_agreed_on() -> None:
    for wrong_ms in (2 * DAY_MS, -2 * DAY_MS):
        fold = LoadFold(RULES)
        fates(fold, record("b1", offset=0), record("b1", offset=1, seq=2, timestamp_ms=NOW_MS + wrong_ms))
        topic = fold.topics[KIND]
        assert topic.held() == {"b1": LastReport(1, 0.0)}
        restored = LoadFold(RULES)
        heard = {name: list(life) for name, life in topic.heard_since().items()}
        assert heard == {"b1": [1, None]}
        known = rows([record("b1", offset=0)])
        restored.restore(KIND, known, position=topic.position, log_clock_ms=topic.log_clock_ms, heard=heard)
        for each in (fold, restored):
            for offset, after_s in ((2, 500), (3, 520)):
                at_ms = NOW_MS + after_s * 1_000
                fates(each, record("b2", offset=offset, seq=offset, timestamp_ms=at_ms, written_at_ms=at_ms))
            assert each.topics[KIND].held() == {"b1": LastReport(1, 20.0), "b2": LastReport(3, 0.0)}
            assert each.topics[KIND].heard_since() == {"b1": Life(1, NOW_MS + 500_000)}


def test_signs_of_life_of_those_who_are_not_held_are_not_kept() -> None:
    fold = LoadFold(ViewRules(ttl_s=100.0, brokers_max=2))
    for n in range(50):
        at_ms = NOW_MS + n * 200_000  # each is outdated when the next one comes, and makes room
        fates(fold, record(f"b{n}", offset=n, timestamp_ms=at_ms, written_at_ms=at_ms))
        fates(fold, record(f"x{n}", offset=n, timestamp_ms=NOW_MS + 2 * DAY_MS))
    assert len(fold.topics[KIND]._lives) <= 2


def test_the_topics_are_apart() -> None:
    fold = LoadFold(RULES)
    fates(fold, record("b1", offset=0))
    fold.fold(rows([top_record("b1", 0, 1, 2, NOW_MS), top_record("b1", 1, 2, 2, NOW_MS)], ReportKind.TOP_BUNDLES))
    assert sorted(fold.winners()) == [("broker-load", 0), ("top-bundles", 1)]
    assert {kind: topic.position for kind, topic in fold.topics.items()} == {
        ReportKind.BROKER_LOAD: 1,
        ReportKind.TOP_BUNDLES: 2,
    }


def test_bounds_hold_by_size_and_number() -> None:
    size = len(record("b1").value or b"")
    small = LoadFold(ViewRules(ttl_s=100.0, held_bytes=2 * size + size // 2))
    assert fates(small, *(record(f"b{n}", offset=n) for n in range(3)))[2] == ("dropped", "no-room")
    few = LoadFold(ViewRules(ttl_s=100.0, brokers_max=2))
    assert fates(few, *(record(f"b{n}", offset=n) for n in range(3)))[2] == ("dropped", "too-many-brokers")
    later_ms = NOW_MS + 101_000
    late = record("b9", offset=3, timestamp_ms=later_ms, written_at_ms=later_ms)
    assert fates(few, late) == [("taken", "")], "what is outdated by the log's clock makes room"


def test_gaps_are_passed_but_never_backwards() -> None:
    fold = LoadFold(RULES)
    fates(fold, record("b1", offset=5))
    fold.passed(KIND, 3)
    assert fold.topics[KIND].position == 6
    fold.passed(KIND, 20)
    assert fold.topics[KIND].position == 20
    assert fates(fold, record("b1", offset=19, seq=2)) == []


# --- against the brokers' view, and against one that is dumb --------------------------------------------------------

BROKERS = ("b1", "b2", "b3")
KEPT = ("offset", "log_time_ms", "broker", "incarnation", "seq", "written_at_ms", "size_bytes")
"""What a snapshot has of the columns that the fold reads."""


@st.composite
def logs(draw: st.DrawFn) -> list[SideRecord]:
    """A log with gaps in its offsets, time that goes on or stands still, overtaken reports, nulls and junk."""
    records: list[SideRecord] = []
    offset, now_ms = 0, NOW_MS
    for _ in range(draw(st.integers(0, 25))):
        offset += draw(st.sampled_from([1, 1, 1, 4]))
        now_ms += draw(st.sampled_from([0, 1_000, 30_000, 120_000]))
        broker = draw(st.sampled_from(BROKERS))
        what = draw(st.sampled_from(["report"] * 5 + ["clock", "null", "bare", "junk", "other key"]))
        if what == "report":
            seq = draw(st.integers(1, 6))
            incarnation = f"{broker}-{draw(st.integers(1, 2))}"
            entry = record(broker, offset, seq, now_ms, incarnation=incarnation, written_at_ms=now_ms)
        elif what == "clock":
            entry = record(broker, offset, draw(st.integers(1, 6)), now_ms, written_at_ms=now_ms + 2 * DAY_MS)
        elif what in ("null", "bare"):
            entry = null(broker, offset, max(0, offset - draw(st.integers(0, 9))) if what == "null" else None)
        else:
            entry = SideRecord(b"z" if what == "other key" else broker.encode(), b"junk", (), offset, now_ms)
        records.append(entry._replace(timestamp_ms=now_ms))
    return records


def portions(records: list[SideRecord], cuts: list[int]) -> Iterator[list[SideRecord]]:
    ends = sorted({min(cut, len(records)) for cut in cuts} | {len(records)})
    start = 0
    for end in ends:
        yield records[start:end]
        start = end


def dumb_winners(records: list[SideRecord], ttl_s: float) -> set[int]:
    """The rule in its plainest words."""
    held: dict[bytes, tuple[int, str, int, int]] = {}
    for line in records:
        decoded = DECODE(line)
        key = line.key or b""
        if decoded is None:
            named = dict(line.headers).get("last-offset")
            if named is not None and int(named) < line.offset and key in held and int(named) >= held[key][0]:
                del held[key]
        elif hasattr(decoded, "header") and abs(decoded.header.written_at_ms - line.timestamp_ms) <= DAY_MS:
            before = held.get(key)
            fresh = before is not None and line.timestamp_ms - before[3] <= ttl_s * 1_000
            if fresh and before and before[1] == decoded.header.incarnation and before[2] >= decoded.header.seq:
                continue
            held[key] = (line.offset, decoded.header.incarnation, decoded.header.seq, line.timestamp_ms)
    return {item[0] for item in held.values()}


@settings(max_examples=150, deadline=None)
@given(logs(), st.lists(st.integers(0, 25), max_size=4), st.booleans())
def test_winners_are_those_of_the_brokers_and_of_a_dumb_twin(
    records: list[SideRecord], cuts: list[int], restarts: bool
) -> None:
    view: TableView = TableView(RULES)
    brokers_fates = [str(view.read(record, DECODE(record), Arrival(record.timestamp_ms / 1_000))) for record in records]
    at_once = LoadFold(RULES)
    assert [batch.fate for batch in at_once.fold(rows(records))] == brokers_fates

    fold = LoadFold(RULES)
    taken: dict[int, dict[str, object]] = {}
    for portion in portions(records, cuts):
        if restarts:  # from what a snapshot has: the rows that are held, the position, the log's clock
            before, fold = fold, LoadFold(RULES)
            known = [{name: taken[offset][name] for name in KEPT} for _, offset in before.winners()]
            was = before.topics[KIND]
            heard = {name: list(life) for name, life in was.heard_since().items()}
            fold.restore(KIND, known, position=was.position, log_clock_ms=was.log_clock_ms, heard=heard)
            assert fold.winners() == before.winners()
            assert fold.topics[KIND].held() == was.held()
        listed = rows(portion)
        fold.fold([*taken.values(), *listed])  # a batch that repeats what was taken in before
        taken |= {row["offset"]: row for row in listed}
    mine = {offset for _, offset in fold.winners()}
    now_s = max((record.timestamp_ms for record in records), default=0) / 1_000
    assert mine == {report.offset for report in view.held(now_s).values()}
    assert mine == dumb_winners(records, RULES.ttl_s)
    assert mine == {offset for _, offset in at_once.winners()}
    assert fold.topics[KIND].held() == at_once.topics[KIND].held()
    decoded = [(record.key or b"", record.offset) for record in records if hasattr(DECODE(record), "header")]
    newest = {key.decode(): offset for key, offset in decoded}
    heard_of = {name: report.offset for name, report in fold.topics[KIND].held().items()}
    assert heard_of == {name: newest[name] for name in heard_of}
    assert {item.header.broker for item in (DECODE(each) for each in records if each.offset in mine)} == set(heard_of)
