"""Tables of the subcommands of `audit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rich.text import Text

from statechannel.audit.engine import AuditResult, Rows
from statechannel.audit.history import short_range
from statechannel.cli.audit import tables
from statechannel.cli.kit.output import duration, moment, print_table, stdout
from statechannel.protocol.verdict import MEANING, Verdict

_HISTORY_SHOWN = 1_000
_DIFFERENCES_SHOWN = 1_000
_GROUPS_SHOWN = 100
_CHILDREN_SHOWN = 2
_NEWEST_SHOWN = 20


def history(title: str, rows: Rows) -> None:
    """Print the newest records of a history."""
    skipped = max(0, len(rows) - _HISTORY_SHOWN)
    print_table(
        ("offset", "time", "key", "verdict", "by", "what", "before", "after", "why"),
        [
            (
                row["offset"],
                moment(row["timestamp_ms"]),
                short_range(row["key"]),
                row["verdict"],
                row["by"],
                _what(row),
                _format_state(row["before"]),
                _format_state(row["after"]),
                "; ".join(_why(row)),
            )
            for row in islice(rows, skipped, None)
        ],
        title=f"History of {title}",
        empty="no record in the complete part of the log",
    )
    if skipped:
        stdout().print(f"(the newest {_HISTORY_SHOWN:,} of {len(rows):,}; all of them with --output json)")


def _what(row: Mapping[str, Any]) -> str:
    if row["state"] is None:
        return str(row["kind"])
    version = f"{row['state']} v{row['version']}"
    return version if row["kind"] == "proposal" else f"{row['kind']} {version}"


def _format_state(side: Mapping[str, Any] | None) -> str | None:
    if side is None:
        return None
    owner = "" if side["owner"] is None else f" {side['owner']} g{side['generation']}"
    return f"{side['state']}{owner}" + (f" to {side['to']}" if side["to"] and side["to"] != side["owner"] else "")


def _why(row: Mapping[str, Any]) -> Iterator[str]:
    if row["action"] is not None:
        yield str(row["action"])
    if row["reason"] is not None:
        yield str(row["reason"])
    if row["operation"] is not None:
        yield f"operation {row['operation']}"
    began = row["began"]
    if began is not None:
        because = f": {began['reason']}" if began["reason"] else ""
        yield f"started by {began['by']} at offset {began['offset']}{because}"
    if row["decision"] is not None:
        yield f"decision {row['decision']}"
    if row["note"]:
        yield str(row["note"])
    for child in (row["children"] or {}).get("of_this", ())[:_CHILDREN_SHOWN]:
        yield f"creates {short_range(child['key'])} {_format_state(child) if 'state' in child else ''}"
    winner = row["winner"]
    if winner is not None:
        yield f"{winner['state']} v{winner['version']} of {winner['by'] or '?'} stands (offset {winner['offset']})"


def gap_sums(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the sums by namespace."""
    print_table(
        ("namespace", "gaps", "open", "sum", "worst", "of", "Unassigned on request"),
        [
            (
                row["namespace"],
                row["gaps"],
                row["open"],
                duration(row["sum_ms"]),
                duration(row["worst_ms"]),
                None if row["worst_bundle"] is None else f"{short_range(row['worst_bundle'])} at {row['worst_offset']}",
                duration(row["on_request_ms"]) if row["on_request_ms"] else None,
            )
            for row in rows
        ],
        title="Gaps in service by namespace",
        empty="none",
    )
    stdout().print()


def rejected(answer: Mapping[str, Any], *, untold: bool) -> None:
    """Print rejections by reason, by writer, with the winners, and the newest.

    Args:
        untold: See `tables.untold`.
    """
    print_table(
        ("rejected", "records", "first", "last", "meaning"),
        [(row["reason"], row["records"], *_when(row), MEANING[Verdict(row["reason"])]) for row in answer["by_reason"]],
        title=f"Rejected: {answer['records']:,}",
        empty=tables.NOT_KNOWN if untold else "no record was rejected",
    )
    if not answer["records"]:
        return
    stdout().print()
    print_table(
        ("written by", "records", "first", "last"),
        [(row["writer"] or "(unknown)", row["records"], *_when(row)) for row in answer["by_writer"][:_GROUPS_SHOWN]],
    )
    stdout().print()
    print_table(
        ("reason", "written by", "accepted instead of", "records"),
        [(row["reason"], row["writer"], row["winner"], row["records"]) for row in answer["groups"][:_GROUPS_SHOWN]],
    )
    stdout().print()
    print_table(
        ("offset", "time", "key", "reason", "by", "record", "accepted state"),
        [
            (
                row["offset"],
                moment(row["timestamp_ms"]),
                row["key"],
                row["reason"],
                row["writer"],
                row["why"] if row["state"] is None else f"{row['state']} v{row['version']}",
                _winner(row["winner"]),
            )
            for row in answer["newest"][-_NEWEST_SHOWN:]
        ],
        title="Newest",
    )


def _winner(winner: Mapping[str, Any] | None) -> str | None:
    if winner is None:
        return None
    return f"{winner['state']} v{winner['version']} by {winner['by'] or '?'} at {winner['offset']}"


def _when(row: Mapping[str, Any]) -> tuple[str, str]:
    return moment(row["first_ms"]), moment(row["last_ms"])


def side(text: str, result: AuditResult) -> dict[str, Any]:
    """One side of a difference, for the JSON output."""
    last = {number: cut.last_offset for number, cut in (result.cuts or {}).items()}
    ends = {int(number): end - 1 for number, end in result.answer["end_offsets"].items()}
    return {
        "as_of": text,
        "digest": None if result.complete.get("incomplete") else result.answer["digest"],
        "last_offsets": {str(number): offset for number, offset in sorted((last or ends).items())},
        "read": result.answer["read"],
    }


def differences(head: Mapping[str, Any], rows: Rows, *, untold: bool) -> None:
    """Print the differences between two moments.

    Args:
        untold: See `tables.untold`; of either moment.
    """
    for name in ("from", "to"):
        side = head[name]
        lasts = ", ".join(f"{number}: {offset}" for number, offset in side["last_offsets"].items())
        stdout().print(Text(f"{name} {side['as_of']}: last offsets {lasts}; digest {side['digest'] or 'unknown'}"))
    tables.completeness(head)
    stdout().print()
    same = "no differences" + (" in the other partitions" if head.get("incomplete") else "")
    print_table(
        ("what", "number"),
        [(name.replace("_", " "), count) for name, count in head["counts"].items()],
        empty=tables.NOT_KNOWN if untold else same,
    )
    if not len(rows):
        return
    if head["owners"]:
        stdout().print()
        print_table(
            ("owner", "differing bundles before", "after"),
            [(name, owner["before"], owner["after"]) for name, owner in head["owners"].items()],
        )
    stdout().print()
    print_table(
        ("key", "change", "before", "after"),
        [
            (row["key"], row["change"], _side(row["before"]), _side(row["after"]))
            for row in islice(rows, _DIFFERENCES_SHOWN)
        ],
    )
    if len(rows) > _DIFFERENCES_SHOWN:
        stdout().print(f"(the first {_DIFFERENCES_SHOWN:,} of {len(rows):,}; all of them with --output json)")


def _side(side: Mapping[str, Any] | None) -> str | None:
    return None if side is None else f"{_format_state(side)} v{side['version']}"
