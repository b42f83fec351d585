"""The product's audit of an export, and its comparison with the twin's."""

from typing import Any, NamedTuple

from statechannel.protocol.log import RecordRead
from statechannel.protocol.view import Judgement
from statechannel.replay import auditor
from tests.twin import audit as twin
from tests.unit.core.against_twin import record_of, words_of

LAG_MS = 3_600_000


class Moment(NamedTuple):
    """What `--as-of` asks for, as the product's audit takes it."""

    offset: int | None
    time_ms: int | None

    def __call__(self, record: RecordRead) -> bool:
        if self.offset is not None:
            return record.offset <= self.offset
        return self.time_ms is not None and record.timestamp_ms <= self.time_ms


def moment_of(as_of: str | None) -> Moment | None:
    if as_of is None:
        return None
    if as_of.isdigit():
        return Moment(int(as_of), None)
    return Moment(None, int(twin.time_ms(as_of)))


def core_audit(
    export: twin.Export, read: str, as_of: str | None
) -> tuple[dict[str, Any] | str, list[tuple[int, int, tuple[str, int | None, str | None]]]]:
    rows: list[tuple[int, int, tuple[str, int | None, str | None]]] = []

    def observe(record: RecordRead, judgement: Judgement) -> None:
        rows.append((record.partition, record.offset, words_of(judgement)))

    try:
        answer: dict[str, Any] | str = auditor.audit(
            {number: [record_of(line) for line in export.of(number)] for number in {r.partition for r in export.lines}},
            end_offsets=export.end_offsets,
            read=read,
            now_ms=export.exported_at_ms,
            compaction_lag_ms=LAG_MS,
            as_of=moment_of(as_of),
            observe=observe,
        )
    except ValueError:
        answer = "gaps"
    return answer, rows


def check(export: twin.Export, read: str, as_of: str | None) -> str:
    """Compare both answers, and the verdicts of full reads; return how it was read."""
    answer, rows = core_audit(export, read, as_of)
    try:
        expected = twin.audit(export, read=read, as_of=as_of, lag_ms=LAG_MS)
    except twin.CannotAuditError:
        assert answer == "gaps"
        return "refused"
    assert answer == expected.audit, (read, as_of)
    if expected.audit["read"] == "full":
        assert rows == [
            (row["partition"], row["offset"], (row["verdict"], row["version"], row["state"]))
            for row in expected.verdicts
        ]
    return "tentative" if "tentative" in expected.audit else str(expected.audit["read"])
