"""Gaps and rejections of the smallest logs that were once judged wrongly."""

import json
from pathlib import Path
from typing import Any

import pytest

from statechannel.audit import local
from statechannel.audit.engine import (
    DEFAULT_COMPACTION_LAG_MS,
    AuditQuestion,
    AuditResult,
    ExportSource,
    ReadMode,
    Wants,
)
from statechannel.audit.rejections import NEWEST_MAX
from tests.spark.asking import no_bar

BUNDLE = "t/n/0x00000000_0xffffffff"
RING = "0x00000000_0xffffffff"
START_MS = 1_700_000_000_000


def audited(path: Path, wants: Wants, lag_ms: int = DEFAULT_COMPACTION_LAG_MS) -> AuditResult:
    question = AuditQuestion(ExportSource(path), read=ReadMode.AUTO, compaction_lag_ms=lag_ms, wants=wants)
    return local.answer(question, progress=no_bar)


class Log:
    """Writes the records of one partition; only those that the cleaner left are in the file."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.end = 0
        self.cleaned_to = 0

    def record(self, key: str, *, cleaned: bool = False, **fields: Any) -> None:
        offset, self.end = self.end, self.end + 1
        head = {"format": 1, "kind": "proposal", "id": f"a{offset}", "covers": offset - 1}
        head |= {"by": {"broker": "b", "incarnation": "i"}}
        line = {"partition": 0, "offset": offset, "timestamp_ms": START_MS + offset, "key": key}
        if cleaned:
            self.cleaned_to = offset
        else:
            self.lines.append(line | {"value": json.dumps(head | fields)})

    def bundle(self, version: int, base: str, state: str, **fields: Any) -> None:
        brokers = {"from": fields.pop("from_", None), "to": fields.pop("to", None)}
        self.record(BUNDLE, version=version, base=base, state=state, **brokers, **fields)

    def created(self) -> None:
        self.record("t/n", version=1, base=None, state="Active", children=[RING])

    def heartbeat(self) -> None:
        self.record("!heartbeat", kind="heartbeat", clean_to=self.end - 1)

    @property
    def lag_ms(self) -> int:
        """No record above the last cleaned one is older."""
        return self.end - self.cleaned_to

    def gaps(self, folder: Path) -> list[dict[str, Any]]:
        path = folder / "log.jsonl"
        head = {"export": 1, "topic": "t", "end_offsets": {"0": self.end}, "exported_at_ms": START_MS + self.end}
        path.write_text("".join(json.dumps(line) + "\n" for line in [head, *self.lines]))
        return list(audited(path, Wants(gaps=True), self.lag_ms).gaps or ())


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_bundle_that_nobody_can_have_served_has_no_gap(log: Log, tmp_path: Path) -> None:
    """Its version leaves no room for an Assigned; the record before the last was cleaned away."""
    log.created()
    log.bundle(2, f"a0/{RING}", "Assigning", to="b", cleaned=True)
    log.bundle(3, "a1", "Unassigned", from_="b")
    log.heartbeat()
    log.bundle(4, "a2", "Assigning", to="c", forced=True)
    log.bundle(5, "a4", "Assigned", to="c")
    assert log.gaps(tmp_path) == []


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_an_unload_that_is_open_at_the_join_is_told(log: Log, kept: int, tmp_path: Path) -> None:
    """However many of the records before it the cleaner has left; the beginning is named only where its record is there."""
    log.created()
    log.bundle(2, f"a0/{RING}", "Assigning", to="b", cleaned=kept < 3)
    log.bundle(3, "a1", "Assigned", to="b", cleaned=kept < 2)
    log.bundle(4, "a2", "Releasing", from_="b", action="unload", flow="unload", cleaned=kept < 1)
    log.bundle(5, "a3", "Unassigned", from_="b", action="unload", flow="unload")
    log.heartbeat()
    log.bundle(6, "a4", "Assigning", to="c")
    log.bundle(7, "a6", "Assigned", to="c")
    (gap,) = log.gaps(tmp_path)
    results = (gap["cause"], gap["start_offset"], gap["from"], gap["end_offset"], gap["on_request_ms"], gap["certain"])
    if kept >= 2:
        assert results == ("unload", 3, "b", 7, 2, True)
    else:
        assert results == ("before-log", 3 if kept else 4, "b" if kept else None, 7, 2, True)
    assert "began before the first record judged" in gap["why"] or kept >= 2


def test_a_transfer_that_is_open_at_the_join_names_who_let_go(log: Log, tmp_path: Path) -> None:
    log.created()
    log.bundle(2, f"a0/{RING}", "Assigning", to="b", cleaned=True)
    log.bundle(3, "a1", "Assigned", to="b", cleaned=True)
    log.bundle(4, "a2", "Releasing", from_="b", to="c", cleaned=True)
    log.bundle(5, "a3", "Assigning", from_="b", to="c")
    log.heartbeat()
    (gap,) = log.gaps(tmp_path)
    assert (gap["cause"], gap["from"], gap["why"], gap["end"], gap["certain"]) == (
        "before-log", "b", "transfer from b to c, began before the first record judged", "open", True,
    )  # fmt: skip


@pytest.mark.parametrize(("version", "expected"), [(6, ("unload", 4, "b")), (7, ("before-log", 4, "b"))])
def test_an_unload_of_a_child_that_its_split_gave_an_owner_is_named(
    log: Log, version: int, expected: tuple[str, int, str], tmp_path: Path
) -> None:
    """Its first record builds on the split; a later version leaves room for records that the cleaner took."""
    halves = ["0x00000000_0x80000000", "0x80000000_0xffffffff"]
    log.created()
    log.bundle(2, f"a0/{RING}", "Assigned", to="b", cleaned=True)
    log.bundle(3, "a1", "Splitting", from_="b", cleaned=True)
    log.bundle(4, "a2", "Deleted", from_="b", children=halves)
    base = f"a3/{halves[0]}" if version == 6 else "x"
    for number, state in enumerate(("Releasing", "Unassigned")):
        fields = {"from": "b", "to": None, "action": "unload", "flow": "unload"}
        log.record(f"t/n/{halves[0]}", version=version + number, base="a4" if number else base, state=state, **fields)
    log.heartbeat()
    (gap,) = log.gaps(tmp_path)
    assert (gap["cause"], gap["start_offset"], gap["from"]) == expected


def test_what_the_log_no_longer_tells_is_marked_and_counted_apart(log: Log, tmp_path: Path) -> None:
    """Declined twice, or served and unloaded and declined: both end like this."""
    log.created()
    for version in range(2, 7):
        log.bundle(version, f"a{version - 2}", "Assigning", to="b", cleaned=True)
    log.bundle(7, "a5", "Unassigned", from_="b")
    log.heartbeat()
    log.bundle(8, "a6", "Assigning", to="c")
    log.bundle(9, "a8", "Assigned", to="c")
    (gap,) = log.gaps(tmp_path)
    assert (gap["cause"], gap["start_offset"], gap["certain"], gap["end_offset"]) == ("before-log", 6, False, 9)
    result = audited(tmp_path / "log.jsonl", Wants(gaps=True, gap_count=True), log.lag_ms)
    (sums,) = result.gap_sums or ()
    assert (sums["gaps"], sums["sum_ms"], sums["uncertain"]) == (0, 0, 1)
    assert result.gap_count == (0, 0)


@pytest.mark.parametrize("rejected", [49, 99, 49 + 50 * 3])
def test_the_newest_rejected_records_are_those_of_all_partitions(rejected: int, tmp_path: Path) -> None:
    """The newest of all lies in the first partition, and any number of older ones in the second."""
    path = tmp_path / "log.jsonl"
    head = {"export": 1, "topic": "t", "end_offsets": {"0": 1, "1": rejected}, "exported_at_ms": START_MS + 10_000}
    lines = [head, {"partition": 0, "offset": 0, "timestamp_ms": START_MS + 10_000, "key": "t1/n", "value": "x"}]
    lines += [
        {"partition": 1, "offset": offset, "timestamp_ms": START_MS + offset, "key": "t0/n", "value": "y"}
        for offset in range(rejected)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = audited(path, Wants(rejected=True)).rejected
    newest = [(row["partition"], row["offset"]) for row in result["newest"]]
    assert len(newest) == min(NEWEST_MAX, rejected + 1)
    assert newest[-1] == (0, 0)
    assert newest[:-1] == [(1, offset) for offset in range(rejected)][-(NEWEST_MAX - 1) :]


def test_a_release_that_is_held_at_the_join_begins_its_gap(log: Log, tmp_path: Path) -> None:
    log.created()
    log.bundle(2, f"a0/{RING}", "Assigning", to="b", cleaned=True)
    log.bundle(3, "a1", "Assigned", to="b", cleaned=True)
    log.bundle(4, "a2", "Releasing", from_="b", to="c")
    log.heartbeat()
    (gap,) = log.gaps(tmp_path)
    assert (gap["cause"], gap["start_offset"], gap["from"], gap["end"]) == ("transfer", 3, "b", "open")
