"""The export file and the audit's answer, as the formats page words them."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.twin import join
from tests.twin.judge import Verdict, digest, live_bundles
from tests.twin.wire import Line

LAG_MS = 3_600_000


class CannotAuditError(Exception):
    """The log cannot be read as asked."""


@dataclass(frozen=True)
class Export:
    """A parsed export file."""

    topic: str
    end_offsets: dict[int, int]
    exported_at_ms: int
    lines: list[Line]

    def of(self, partition: int) -> list[Line]:
        """Return the records of one partition."""
        return [line for line in self.lines if line.partition == partition]


@dataclass(frozen=True)
class Answer:
    """The audit's object, and the lines of OUT.jsonl (full reads only)."""

    audit: dict[str, Any]
    verdicts: list[dict[str, Any]]
    states: dict[str, Any]


def to_export(
    lines: Iterable[Line], end_offsets: dict[int, int], exported_at_ms: int, topic: str = "bundle-state"
) -> str:
    """Write the export file of a log."""
    header = {
        "export": 1,
        "topic": topic,
        "end_offsets": {str(number): end for number, end in sorted(end_offsets.items())},
        "exported_at_ms": exported_at_ms,
    }
    rows: list[dict[str, Any]] = [header]
    for line in sorted(lines, key=lambda line: (line.partition, line.offset)):
        row: dict[str, Any] = {"partition": line.partition, "offset": line.offset, "timestamp_ms": line.timestamp_ms}
        rows.append(row | text_or_base64("key", line.key) | text_or_base64("value", line.value))
    return "".join(json.dumps(row) + "\n" for row in rows)


def text_or_base64(name: str, data: bytes | None) -> dict[str, Any]:
    """Return `{name: text}`, or `{name_base64: ...}` for what is not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def from_export(text: str) -> Export:
    """Read an export file; only line feeds end a line."""
    rows = [json.loads(row) for row in text.split("\n") if row]
    header = rows[0]
    lines = [
        Line(
            row["partition"], row["offset"], row["timestamp_ms"],
            _bytes(row, "key"), _bytes(row, "value"),
        )
        for row in rows[1:]
    ]  # fmt: skip
    ends = {int(number): end for number, end in header["end_offsets"].items()}
    return Export(header["topic"], ends, header["exported_at_ms"], lines)


def _bytes(row: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in row:
        return base64.b64decode(row[f"{name}_base64"])
    return None if row[name] is None else row[name].encode("utf-8")


def audit(export: Export | str, read: str = "auto", as_of: str | None = None, lag_ms: int = LAG_MS) -> Answer:
    """Answer as `statechannel audit --output json` must."""
    if isinstance(export, str):
        export = from_export(export)
    partitions = len(export.end_offsets)
    cut = {number: cut_off(export, number, as_of) for number in sorted(export.end_offsets)}
    gaps = [number for number, (lines, end) in cut.items() if has_gaps(lines, end, export.exported_at_ms - lag_ms)]
    if read == "auto":
        read = "join" if gaps else "full"
    if read == "full" and gaps:
        raise CannotAuditError(f"partitions {gaps} have gaps: read them with join")
    reads = {}
    for number, (lines, _) in cut.items():
        if number in gaps:
            reads[number] = join.read_joining(lines, number, partitions, export.exported_at_ms, lag_ms)
        else:
            reads[number] = join.read_strictly(lines, number, partitions)
    verdicts = [verdict for part in reads.values() if part.judge for verdict in part.judge.verdicts]
    states = {key: state for part in reads.values() for key, state in part.states.items()}
    counts = Counter(verdict.verdict for verdict in verdicts)
    live = live_bundles(states)
    owners: Counter[str] = Counter()
    for state in live.values():
        owner = {"Assigned": state.to, "Releasing": state.source, "Splitting": state.source}
        if owner.get(state.state) is not None:
            owners[str(owner[state.state])] += 1
    fine = ("control", "accepted", "duplicate", "purged", "assert-equal", "assert-stale")
    answer: dict[str, Any] = {
        "digest": digest(states),
        "records": len(export.lines),
        "accepted": counts["accepted"],
        "duplicates": counts["duplicate"],
        "rejected": {reason: count for reason, count in counts.items() if reason not in fine},
        "asserts": {"equal": counts["assert-equal"], "stale": counts["assert-stale"]},
        "purged": counts["purged"],
        "debts": [
            {
                "key": debt.key,
                "since_offset": debt.since_offset,
                "newest_offset": debt.newest_offset,
                "highest_version": debt.highest_version,
            }
            for part in reads.values()
            if part.judge
            for debt in part.judge.debts()
        ],
        "namespaces": sum(state.state == "Active" for state in states.values()),
        "bundles": len(live),
        "owners": dict(owners),
        "read": read,
        "end_offsets": {str(number): end for number, end in sorted(export.end_offsets.items())},
    }
    if any(part.tentative for part in reads.values()):
        answer["tentative"] = True
    stopped = {
        str(number): {"offset": part.stopped[0], "format": part.stopped[1]}
        for number, part in reads.items()
        if part.stopped
    }
    if stopped:
        answer["stopped"] = stopped
    rows = [verdict_row(verdict) for verdict in verdicts] if read == "full" else []
    return Answer(answer, rows, states)


def cut_off(export: Export, partition: int, as_of: str | None) -> tuple[list[Line], int]:
    """Return the records of a partition that `--as-of` leaves, and the offset they end at."""
    lines = export.of(partition)
    end = export.end_offsets[partition]
    if as_of is None:
        return lines, end
    if re.fullmatch(r"[0-9]+", as_of):
        last = int(as_of)
        return [line for line in lines if line.offset <= last], min(end, last + 1)
    limit_ms = time_ms(as_of)
    kept: list[Line] = []
    for line in lines:
        if line.timestamp_ms > limit_ms:
            return kept, line.offset
        kept.append(line)
    return kept, end


def time_ms(text: str) -> float:
    """Return milliseconds since 1970 of `...ms` or an ISO 8601 time (without zone: UTC)."""
    if match := re.fullmatch(r"([0-9]+)ms", text):
        return int(match[1])
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() * 1000


def has_gaps(lines: list[Line], end: int, kept_since_ms: int) -> bool:
    """Whether an offset from 0 up to `end` (exclusive) is missing that the cleaner can have taken."""
    times = {line.offset: line.timestamp_ms for line in lines}
    before = {offset: times[max(other for other in times if other < offset)] if min(times, default=end) < offset else None
              for offset in range(end) if offset not in times}  # fmt: skip
    return any(time is None or time <= kept_since_ms for time in before.values())


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    """Return one line of OUT.jsonl."""
    line = verdict.line
    return {
        "partition": line.partition,
        "offset": line.offset,
        **text_or_base64("key", line.key),
        "verdict": verdict.verdict,
        "version": verdict.version,
        "state": verdict.state,
    }
