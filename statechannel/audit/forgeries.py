"""Forged records of a log: what shows that another process wrote them, and their list. Pure.

Two things show it: an id of another series (`statechannel.audit.id_series`), and a copy of a key's accepted record, under its id,
whose content differs. All parts of an audit look through the same check, so that a record is marked in each of them or in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from statechannel.audit.id_series import FOREIGN, IdSeries
from statechannel.audit.moments import LogWindow
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Record
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View

FORGED_MAX = 200
"""Number of newest forged records that are listed; all are counted."""


class ForgerySign(NamedTuple):
    """What shows that a record is forged.

    Attributes:
        code: `foreign-id` or `changed-copy`.
        message: A sentence.
    """

    code: str
    message: str

    def at(self, offset: int) -> str:
        """As a sentence on the record at an offset."""
        return f"the record at offset {offset} is forged: {self.message}"


_FOREIGN_ID = ForgerySign("foreign-id", FOREIGN)


class ForgeryCheck:
    """Looks at each record of a log, in order. Several observers may share one: a record is looked at once."""

    def __init__(self) -> None:
        self._series = IdSeries()
        self._place = (-1, -1)
        self._sign: ForgerySign | None = None

    def sign(self, record: RecordRead, judgement: Judgement) -> ForgerySign | None:
        """What shows that a judged record is forged; None: nothing does."""
        place = (record.partition, record.offset)
        if place != self._place:
            self._place, self._sign = place, self._look(record, judgement)
        return self._sign

    def taken(self, record: RecordRead, decoded: Record) -> None:
        """Learn the series from a record of a joining reader."""
        place = (record.partition, record.offset)
        if place != self._place:
            self._place, self._sign = place, None
            self._series.is_foreign(record, decoded)

    def _look(self, record: RecordRead, judgement: Judgement) -> ForgerySign | None:
        decoded, key = judgement.record, judgement.key
        if decoded is None:
            return None
        if self._series.is_foreign(record, decoded):
            return _FOREIGN_ID
        if judgement.verdict is Verdict.DUPLICATE and key is not None and key.writer is not None:
            differing = "; ".join(_differences(decoded, key))
            if differing:
                return ForgerySign("changed-copy", f"same id as offset {key.offset}, other content ({differing})")
        return None


def _differences(copy: Record, key: KeyState) -> Iterator[str]:
    """What differs between a copy of the accepted record and the state that this made; the rest of its content is not kept."""
    writer = key.writer
    pairs: tuple[tuple[str, object, object], ...] = (
        ("", copy.state, key.state),
        ("version", copy.version, key.version),
        ("from", copy.from_, key.from_),
        ("to", copy.to, key.to),
        ("by", copy.broker, None if writer is None else writer.broker),
        ("process", copy.incarnation, None if writer is None else writer.incarnation),
        ("operation", copy.text("operation"), key.operation),
    )
    if writer is not None and writer.broker != copy.broker:
        pairs = tuple(pair for pair in pairs if pair[0] != "process")
    for name, other, accepted in pairs:
        if other != accepted:
            yield f"{name} {_text(other)}, not {_text(accepted)}".lstrip()
    if copy.forced != key.forced:
        yield "forced" if copy.forced else "not forced"
    if tuple(copy.children or ()) != tuple(key.children or ()):
        yield "other children"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


class ForgeriesFound:
    """Collects the forged records.

    Args:
        check: Shared with other observers.

    Attributes:
        records: Their number.
        newest: For the JSON output.
    """

    def __init__(self, check: ForgeryCheck | None = None) -> None:
        self._check = ForgeryCheck() if check is None else check
        self.records = 0
        self.newest: list[dict[str, Any]] = []

    def taken(self, record: RecordRead, decoded: Record) -> None:
        """Learn the series of ids from a record of a joining reader."""
        self._check.taken(record, decoded)

    def joined(self, view: View, *, sure: bool) -> None:
        """Ignore the view of a joining reader: it has no ids of processes."""

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        sign = self._check.sign(record, judgement)
        decoded = judgement.record
        if sign is None or decoded is None:
            return
        self.records += 1
        self.newest.append(
            {
                "partition": record.partition,
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": (record.key or b"").decode(errors="replace"),
                "verdict": judgement.verdict.value,
                "state": decoded.state.value,
                "version": decoded.version,
                "from": decoded.from_,
                "to": decoded.to,
                "by": decoded.broker,
                "operation": decoded.text("operation"),
                "forged": sign.code,
                "note": sign.message,
            }
        )
        if len(self.newest) >= 2 * FORGED_MAX:
            self.newest = _newest(self.newest)


def as_rows(forgeries: ForgeriesFound) -> dict[str, Any]:
    """The forged records of one part of a log, to be merged with others."""
    return {"records": forgeries.records, "newest": _newest(forgeries.newest)}


def put_together(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge several parts: the number, and the newest of all."""
    records, newest = 0, list[dict[str, Any]]()
    for part in parts:
        records += part["records"]
        newest = _newest([*newest, *part["newest"]])
    return {"records": records, "newest": newest}


def select_forged(forgeries: Mapping[str, Any], window: LogWindow, by: str | None) -> dict[str, Any]:
    """Only those in the window, and in the name of this broker; None: any. Older ones than are listed count with all."""
    if window.is_whole and by is None:
        return dict(forgeries)
    rows = [
        row for row in forgeries["newest"] if window.has(row["offset"], row["timestamp_ms"]) and by in (None, row["by"])
    ]
    return {"records": len(rows), "newest": rows}


def _newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["timestamp_ms"], row["partition"], row["offset"]))[-FORGED_MAX:]


def forged_sentence(row: Mapping[str, Any]) -> str:
    """A row as a sentence."""
    what = f"{row['state']} v{row['version']} of {row['key']} at partition {row['partition']}, offset {row['offset']}"
    return f"forged in the name of {row['by']}: {what}, {row['verdict']}; {row['note']}"
