"""Journal and topic: torn lines, locks, plans in parts, and who executes by the order of the log."""

import base64
import subprocess
import sys
import zlib
from pathlib import Path
from random import Random

import pytest

from shedders.kafka_rebalance.errors import ExecutionRefusedError, PlanUnusableError
from shedders.kafka_rebalance.execution import state_topic
from shedders.kafka_rebalance.execution.journal import (
    JOURNAL,
    Journal,
    StateFolderError,
    cluster_lock,
    folder_of,
    read_journal,
    write_durable,
)
from shedders.kafka_rebalance.execution.session import ExecutionPlace, _claim, host_name, known
from shedders.kafka_rebalance.execution.state_topic import CHUNK_BYTES, JunkRecord, StateBook, plan_records, record
from shedders.kafka_rebalance.execution.values import ExecutionRequest, OperatorRequests
from shedders.kafka_rebalance.settings import PartitionsSettings
from statechannel.kafka.client_settings import ClientSettings

AWAY_MS = 10_000


def test_a_torn_last_line_is_cut_off_and_the_rest_is_kept(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append({"n": 1, "event": "begun"})
        journal.append({"n": 2, "event": "ended"})
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n")
        assert len(read_journal(tmp_path)) == kept
        with Journal(tmp_path) as journal:
            assert len(journal.events) == kept
            journal.append({"n": 3})
        assert [entry["n"] for entry in read_journal(tmp_path)] == [*range(1, kept + 1), 3]


def test_a_journal_that_is_broken_in_the_middle_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(b'{"n":1}\n{"n":\n{"n":3}\n')
    with pytest.raises(StateFolderError, match="corrupt at byte 8"):
        Journal(tmp_path)


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    write_durable(tmp_path / "a" / "plan.json", b"1")
    write_durable(tmp_path / "a" / "plan.json", b"2")
    assert (tmp_path / "a" / "plan.json").read_bytes() == b"2"
    with pytest.raises(StateFolderError, match="cannot write"):
        write_durable(tmp_path / "a" / "plan.json" / "b", b"3")
    with pytest.raises(ExecutionRefusedError, match="not a valid plan id"):
        folder_of(tmp_path, "../x")


def test_one_executor_on_a_machine(tmp_path: Path) -> None:
    with cluster_lock(tmp_path, "a/b"), cluster_lock(tmp_path, "other"):
        assert (tmp_path / "other.lock").exists()
        with pytest.raises(ExecutionRefusedError, match="another executor of"), cluster_lock(tmp_path, "a/b"):
            pass
    with cluster_lock(tmp_path, "a/b"):
        pass


def claim(executor: str, *, replaces: str = "", request: str = "go") -> bytes:
    return record("claim", "p", executor=executor, host="h", pid=1, replaces=replaces, wish=request)


def holder(*records: tuple[int, bytes]) -> str | None:
    book = StateBook(AWAY_MS)
    for at_ms, value in records:
        book.take(at_ms, value)
    return None if book.holder is None else book.holder.executor


def test_the_order_of_the_log_decides_who_executes() -> None:
    beat, leave = record("beat", "p", executor="a", host="h", pid=1), record("leave", "p", executor="a")
    assert holder((0, claim("a")), (1, claim("b"))) == "a"
    assert holder((0, claim("a")), (10_001, claim("b"))) == "b"
    assert holder((0, claim("a")), (9_000, beat), (10_001, claim("b"))) == "a"
    assert holder((0, claim("a")), (1, leave), (2, claim("b"))) == "b"
    assert holder((0, claim("a")), (1, claim("b", replaces="a"))) == "b"
    assert holder((0, claim("a")), (1, claim("b", replaces="c"))) == "a"
    assert holder((0, claim("a")), (10_001, claim("b")), (10_002, beat), (10_003, leave)) == "b"
    events = record("events", "p", executor="a", events=[{"n": 1, "event": "begun"}])
    assert holder((0, claim("a")), (9_000, events), (10_001, claim("b"))) == "a"
    assert holder((0, beat), (1, claim("b"))) == "a", "others have deleted its claim"
    assert holder((0, claim("a")), (1, claim("b", replaces="a")), (2, beat)) == "b"


class FakeTopic:
    """A topic in memory, with a clock that waiting moves; `other` may say something meanwhile."""

    def __init__(self) -> None:
        self.book = StateBook(4_000)
        self.now_ms = 1_000
        self.failing = False
        self.beating = b""

    def read(self) -> StateBook:
        return self.book

    def append(self, _: str, values: list[bytes]) -> None:
        for value in values:
            self.book.take(self.now_ms, value)

    def wait(self, length_s: float) -> None:
        self.now_ms += round(length_s * 1_000)
        if self.beating:
            self.append("p", [self.beating])


def test_an_executor_of_another_host_that_lives_is_left_alone_and_a_dead_one_is_followed() -> None:
    topic = FakeTopic()
    topic.append("p", [record("claim", "p", executor="a", host="elsewhere", pid=1, wish="go")])
    topic.beating = record("beat", "p", executor="a")
    with pytest.raises(ExecutionRefusedError, match="executor a on elsewhere executes plan p") as refused:
        _claim(topic, "p", "b", ExecutionRequest.GO, topic.wait, 4.0)  # type: ignore[arg-type]
    assert refused.value.hint
    topic.beating = b""
    _claim(topic, "p", "b", ExecutionRequest.GO, topic.wait, 4.0)  # type: ignore[arg-type]
    assert topic.book.holder is not None
    assert topic.book.holder.executor == "b"


def test_a_dead_executor_of_this_machine_is_followed_at_once() -> None:
    topic = FakeTopic()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    topic.append("p", [record("claim", "p", executor="a", host=host_name(), pid=child.pid, wish="go")])
    _claim(topic, "p", "b", ExecutionRequest.GO, topic.wait, 4.0)  # type: ignore[arg-type]
    assert topic.now_ms == 1_000, "nothing is waited for"


def test_wishes_of_operators_add_up_and_an_executor_that_begins_starts_anew() -> None:
    book = StateBook(AWAY_MS)
    book.take(0, claim("a"))
    book.take(1, record("control", "p", wish="pause", by="me"))
    book.take(2, record("control", "p", throttle=5, by="you"))
    beat = record("beat", "p", executor="a", host="h", pid=1, wish="go")
    book.take(2, beat)
    asked = book.book("p").asked
    assert (asked.request, asked.throttle_changed, asked.throttle_bytes_per_s) == (ExecutionRequest.PAUSE, True, 5)
    for value in (claim("b", replaces="a", request="cancel"), record("leave", "p", executor="b"), beat):
        book.take(3, value)
    asked = OperatorRequests(request=ExecutionRequest.CANCEL, by="b")
    assert (book.holder and book.holder.executor, book.book("p").asked) == ("a", asked), "a beat revokes no cancel"


def test_a_large_plan_goes_through_the_topic_in_parts() -> None:
    raw = Random(1).randbytes(3 * CHUNK_BYTES)
    parts = list(plan_records("p", raw))
    assert len(parts) > 1
    assert max(map(len, parts)) < 2 * CHUNK_BYTES
    book = StateBook(AWAY_MS)
    for part in parts[:-1]:
        book.take(1, part)
    assert book.book("p").plan_bytes() is None
    book.take(2, parts[-1])
    assert book.book("p").plan_bytes() == raw


def test_strangers_that_write_much_fill_no_memory_and_the_executed_plan_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_topic, "HELD_BYTES_MAX", 20_000)
    book = StateBook(AWAY_MS)
    for value in (*plan_records("p", b"plan"), claim("a")):
        book.take(0, value)
    for number in range(200):
        book.take(1, record("plan", "s", part=number, of=200, data="AAAA"))
        for plan in ("p", f"s{number}"):
            book.take(1, record("events", plan, executor="b", events=[{"n": number, "event": "x"}]))
    entries = [len(plan.chunks) + len(plan.events) for plan in book.plans.values()]
    assert sum(entries) + len(entries) <= 50
    assert (book.book("p").plan_bytes(), book.junk[JunkRecord.NO_ROOM] >= 3 * 200 - 50) == (b"plan", True)


@pytest.mark.parametrize("packed", [zlib.compress(bytes(1_001)), zlib.compress(b"{}")[:-1], b"?"])
def test_a_plan_that_cannot_be_unpacked_is_refused_with_the_reason(
    packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_topic, "PLAN_BYTES_MAX", 1_000)
    book = StateBook(AWAY_MS)
    book.take(1, record("plan", "p", part=0, of=1, data=base64.b64encode(packed).decode()))
    place = ExecutionPlace(client=ClientSettings("127.0.0.1:9"), settings=PartitionsSettings(), root=tmp_path)
    with pytest.raises(PlanUnusableError, match="the plan p of the state topic"):
        known(place, "p", book)


def test_what_is_no_record_is_passed_over() -> None:
    book = StateBook(AWAY_MS)
    other = record("plan", "p", part=0, of=1, data="a"), record("fly", "p"), b'{"v":2,"kind":"beat"}'
    long = record("control", "p", wish="pause", by="x" * 301)
    for value in (None, b"", b"{", b"[]", record("control", "p", wish="nonsense"), long, *other):
        book.take(1, value)
    assert book.holder is None
    assert book.book("p").asked == OperatorRequests()
    assert book.junk == {JunkRecord.NOT_JSON: 3, JunkRecord.NOT_A_RECORD: 5, JunkRecord.OTHER_VERSION: 1}


def test_an_executor_with_a_time_from_the_future_is_succeeded_as_any_other() -> None:
    """Kafka's clock was ahead when it wrote last: it does not hold the cluster until that time comes."""
    assert holder((7_200_000, claim("a")), (1_000, claim("b")), (11_001, claim("b"))) == "b"
