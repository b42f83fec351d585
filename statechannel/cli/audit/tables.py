"""Tables of the audit's result, and of its subcommands."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from statechannel.audit.engine import AuditResult, Rows
from statechannel.audit.history import short_range
from statechannel.audit.moments import AsOf, Cut
from statechannel.cli.audit.state_tables import NOT_KNOWN, cold_starts, completeness, format_state
from statechannel.cli.kit.fitted_tables import Cell, Column, toned
from statechannel.cli.kit.output import columns, duration, moment, print_facts, print_table, stdout, when
from statechannel.protocol.verdict import MEANING, Verdict

GAPS_SHOWN = 200
_OWNED_SHOWN = 1_000


def answer_lost(result: AuditResult) -> bool:
    """Whether no partition with records still holds the answer."""
    incomplete = result.complete.get("incomplete", ())
    ends = result.answer["end_offsets"]
    return bool(incomplete) and all(int(number) in incomplete for number, end in ends.items() if end)


@dataclass(frozen=True, slots=True)
class MomentAndRest:
    """The moment of the audit, and how much of each partition lies before it."""

    as_of: AsOf
    cuts: Mapping[int, Cut]

    def facts(self, answer: dict[str, Any]) -> Iterator[tuple[str, object]]:
        """Rows that replace those on the whole log."""
        when = moment(self.as_of.time_ms) if self.as_of.offset is None else f"offset {self.as_of.offset}"
        yield "as of", f"{when}, inclusive; all below is as of that moment"
        lasts = (f"{number}: {cut.last_offset if cut.records else '-'}" for number, cut in self.cuts.items())
        yield "last offsets", f"{', '.join(lasts)} (end offsets of the whole log: {ends(answer)})"
        yield "records", f"{sum(cut.records for cut in self.cuts.values()):,} (of the whole log: {answer['records']:,})"


def show(result: AuditResult, cuts: MomentAndRest | None) -> None:
    """Print the result.

    Args:
        cuts: The moment of the audit, if not the end of the log.
    """
    unsure = result.complete.get("incomplete", ()) if cuts is not None else ()
    _whole(result, cuts, unsure)
    completeness(result.complete)
    if result.races:
        _blank()
        print_table(
            ("reason", "written by", "accepted instead of", "proposals"),
            columns(result.races, "reason", "writer", "winner", "count"),
            title="Lost races: rejected proposals, and whose record was accepted instead",
        )
    if result.gap_count is not None:
        _blank()
        every, open_ = result.gap_count
        listed = f", of which {open_} open; `audit gaps` lists them" if every else ""
        shown = NOT_KNOWN if answer_lost(result) and not every else f"{every}{listed}"
        stdout().print(f"gaps in service: {shown}")
    if result.moves is not None:
        _blank()
        print_table(
            ("hour from", "cause", "changes of owner"),
            [(when(row["hour_ms"]), row["cause"], row["count"]) for row in result.moves],
            title="Changes of owner",
            empty="none: no bundle changed its owner",
        )
    if result.owned is not None:
        _blank()
        _owned([row for row in result.owned if row["partition"] not in unsure])


def _whole(result: AuditResult, cuts: MomentAndRest | None, unsure: Sequence[int]) -> None:
    answer = result.answer
    compacted = ", ".join(result.complete.get("complete_from", {}))
    print_facts(_facts(answer, cuts, compacted))
    _blank()
    print_table(
        ("rejected", "records", "meaning"),
        [(reason, count, MEANING[Verdict(reason)]) for reason, count in answer["rejected"].items()],
        empty=_none_rejected(result, compacted),
    )
    _blank()
    if unsure:
        stdout().print(f"owners: {NOT_KNOWN}")
    else:
        print_table(
            ("owner", "bundles"),
            list(answer["owners"].items()),
            empty="no bundle has an owner",
        )
    if answer["debts"]:
        _blank()
        print_table(
            ("key awaiting repair", "since offset", Column("newest offset", 1), Column("highest version", 1)),
            columns(answer["debts"], "key", "since_offset", "newest_offset", "highest_version"),
        )
    cold_starts(answer.get("cold_starts", ()))


def _none_rejected(result: AuditResult, compacted: str) -> str:
    if answer_lost(result):
        return f"rejected: {NOT_KNOWN}"
    return "none rejected in the counted part; `audit rejected` covers more" if compacted else "no record was rejected"


def _facts(answer: dict[str, Any], past: MomentAndRest | None, compacted: str = "") -> Iterator[tuple[str, object]]:
    yield "read", "in full, strictly" if answer["read"] == "full" else "as a joining broker does"
    yield from reservations(answer)
    if past is not None:
        yield from past.facts(answer)
    else:
        yield "end offsets", ends(answer)
        yield "records", f"{answer['records']:,}"
    if compacted:
        yield (
            "counted",
            f"of partition {compacted} only what follows its newest heartbeat",
        )
    yield "accepted", f"{answer['accepted']:,}"
    yield "duplicates", f"{answer['duplicates']:,}"
    yield "asserts", f"{answer['asserts']['equal']:,} equal, {answer['asserts']['stale']:,} stale"
    yield "purged", f"{answer['purged']:,}"
    yield "namespaces", f"{answer['namespaces']:,}"
    yield "bundles", f"{answer['bundles']:,}"
    yield "keys awaiting repair", f"{len(answer['debts']):,}"
    yield "digest", answer["digest"]


def reservations(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Why more may be accepted than the answer has: what the log has lost, and what this version cannot read."""
    lost = ", ".join(
        f"partition {number} begins at offset {first}" for number, first in answer.get("heads_lost", {}).items()
    )
    if lost:
        yield (
            "tentative",
            f"yes: records were deleted from the head of the log ({lost}), and no broker has restated them",
        )
    elif answer.get("positions_lost"):
        known = ", ".join(
            f"partition {number} through offset {known}" for number, known in answer["positions_lost"].items()
        )
        yield "tentative", f"yes: brokers have read what this log does not have ({known}), and none has restated it"
    elif answer.get("tentative"):
        yield "tentative", "yes: compaction may hide accepted records (see `--read`)"
    for partition, stop in answer.get("stopped", {}).items():
        yield f"stopped in partition {partition}", f"format {stop['format']} at offset {stop['offset']}"


def ends(answer: dict[str, Any]) -> str:
    return ", ".join(f"{partition}: {end}" for partition, end in answer["end_offsets"].items())


def gaps(gaps: Rows, shown: Rows, *, answer_lost: bool, selected: str = "", first: bool = False) -> None:
    """Print the newest gaps in service.

    Args:
        shown: Rows of the table: several gaps may be one.
        answer_lost: The records that held the answer were compacted.
        selected: Text for no gap, where only some are listed.
        first: Print the first of the list instead, which are the longest.
    """
    headers, rows = gap_columns(list(islice(shown, GAPS_SHOWN)) if first else deque(shown, maxlen=GAPS_SHOWN))
    empty = NOT_KNOWN if answer_lost else selected or "no gap in the complete part of the log"
    print_table(headers, rows, title=gap_title(gaps), empty=empty)
    if len(shown) > GAPS_SHOWN:
        stdout().print(f"(the {'longest' if first else 'newest'} {GAPS_SHOWN}; all of them with --output json)")


def gap_title(gaps: Rows) -> str:
    """Number and lengths of gaps."""
    lengths, certain = array("q"), 0
    for gap in gaps:
        certain += gap["certain"]
        if gap["certain"] and gap["length_ms"] is not None:
            lengths.append(gap["length_ms"])
    title = "Gaps in service"
    if certain:
        title += f": {certain}, of which {certain - len(lengths)} open"
    if lengths:
        closed = sorted(lengths)
        title += f"; median {duration(closed[len(closed) // 2])}, longest {duration(closed[-1])}"
    if certain < len(gaps):
        title += f"; {len(gaps) - certain} more uncertain, marked ?"
    return title


def gap_columns(gaps: Collection[Mapping[str, Any]]) -> tuple[list[str | Column], list[tuple[object, ...]]]:
    """Headers and rows of a table of gaps."""
    # Time Unassigned is mostly on request; where it is not, it says that no broker was asked to serve the bundle.
    waited = any(gap["unassigned_ms"] > gap["on_request_ms"] for gap in gaps)
    persons = any(gap.get("requested_by") for gap in gaps)
    headers: list[str | Column] = [
        "from",
        "bundle",
        "cause",
        "length",
        *([Column("unassigned", 3)] if waited else ()),
        Column("on request", 4),
        Column("end", 4),
        Column("owner before", 2),
        Column("owner after", 2),
        *([Column("requested by", 1)] if persons else ()),
        Column("why", text=True),
    ]
    return headers, [
        (
            when(gap["start_ms"]),
            gap["bundle"],
            gap["cause"] + ("" if gap["certain"] else " ?"),
            toned("open") if gap["length_ms"] is None else gap.get("lengths") or duration(gap["length_ms"]),
            *((duration(gap["unassigned_ms"]) if gap["unassigned_ms"] else None,) if waited else ()),
            duration(gap["on_request_ms"]) if gap["on_request_ms"] else None,
            gap["end"],
            gap["from"],
            gap["to"],
            *((gap.get("requested_by"),) if persons else ()),
            gap["why"],
        )
        for gap in gaps
    ]


def _owned(owned: Sequence[dict[str, Any]]) -> None:
    print_table(
        ("bundle", "owner", Column("generation", 1), "state", Column("since", 1), Column("offset", 2)),
        [
            (
                row["bundle"],
                row["owner"],
                row["generation"],
                toned(row["state"]),
                when(row["since_ms"]),
                row["since_offset"],
            )
            for row in owned[:_OWNED_SHOWN]
        ],
        title="Owners of bundles",
        empty="no bundle has an owner",
    )
    if len(owned) > _OWNED_SHOWN:
        stdout().print(f"(the first {_OWNED_SHOWN} of {len(owned):,}; all of them with --owned --output json)")


def _blank() -> None:
    stdout().print()


_HISTORY_SHOWN = 1_000
_GROUPS_SHOWN = 100
_CHILDREN_SHOWN = 2
_NEWEST_SHOWN = 20


def history(title: str, rows: Rows, *, whole_keys: bool = False) -> None:
    """Print the newest records of a history.

    Args:
        whole_keys: Print keys with their namespaces, as they are of several.
    """
    skipped = max(0, len(rows) - _HISTORY_SHOWN)
    print_table(
        (
            "offset",
            "time",
            "key",
            Column("verdict", 2),
            Column("by", 1),
            "what",
            Column("before", 2, text=False),
            Column("after", 2, text=False),
            Column("why", text=True),
        ),
        [
            (
                row["offset"],
                when(row["timestamp_ms"]),
                row["key"] if whole_keys else short_range(row["key"]),
                row["verdict"],
                row["by"],
                _what(row),
                format_state(row["before"]),
                format_state(row["after"]),
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


def _why(row: Mapping[str, Any]) -> Iterator[str]:
    if row["verdict"] == Verdict.DUPLICATE:  # a narrow terminal has no room for the column; rejected ones have a note
        yield Verdict.DUPLICATE.value
    if row["action"] is not None:
        yield str(row["action"])
    if row["reason"] is not None:
        yield str(row["reason"])
    if row["operation"] is not None:
        asked = f", requested by {row['requested_by']}" if row.get("requested_by") else ""
        yield f"operation {row['operation']}{asked}"
    began = row["began"]
    if began is not None:
        because = f": {began['reason']}" if began["reason"] else ""
        yield f"started by {began['by']} at offset {began['offset']}{because}"
    if row["decision"] is not None:
        yield f"decision {row['decision']}"
    if row["note"]:
        yield str(row["note"])
    children = (row["children"] or {}).get("of_this", ())
    for child in children[:_CHILDREN_SHOWN]:
        yield f"creates {short_range(child['key'])} {format_state(child) if 'state' in child else ''}"
    if len(children) > _CHILDREN_SHOWN:
        yield f"and {len(children) - _CHILDREN_SHOWN} more"
    winner = row["winner"]
    if winner is not None:
        yield f"{winner['state']} v{winner['version']} of {winner['by'] or '?'} stands (offset {winner['offset']})"


def gap_sums(rows: Sequence[Mapping[str, Any]]) -> None:
    some_open = any(row["open"] for row in rows)
    print_table(
        (
            "namespace",
            "gaps",
            "open",
            *(["open since"] if some_open else []),
            "sum",
            "worst",
            Column("of", 1, text=False),
            Column("Unassigned on request", 2),
        ),
        [
            (
                row["namespace"],
                row["gaps"],
                row["open"],
                *([when(row["open_since_ms"])] if some_open else []),
                # An open gap has no length yet: 0 ms would say that nothing happened.
                duration(row["sum_ms"] if row["gaps"] > row["open"] else None),
                duration(row["worst_ms"] if row["gaps"] > row["open"] else None),
                None if row["worst_bundle"] is None else f"{short_range(row['worst_bundle'])} at {row['worst_offset']}",
                duration(row["on_request_ms"]) if row["on_request_ms"] else None,
            )
            for row in rows
        ],
        title="Gaps in service by namespace",
        empty="none",
    )
    stdout().print()


def rejected(answer: Mapping[str, Any], *, answer_lost: bool) -> None:
    """Print rejections by reason, by writer, with the winners, and the newest.

    Args:
        answer_lost: The records that held the answer were compacted.
    """
    print_table(
        ("rejected", "records", Column("first", 2), Column("last", 2), Column("meaning", text=True)),
        [(row["reason"], row["records"], *_span(row), MEANING[Verdict(row["reason"])]) for row in answer["by_reason"]],
        title=f"Rejected: {answer['records']:,}",
        empty=NOT_KNOWN if answer_lost else "no record was rejected",
    )
    if not answer["records"]:
        return
    stdout().print()
    print_table(
        ("written by", "records", "first", "last"),
        [(row["writer"] or "(unknown)", row["records"], *_span(row)) for row in answer["by_writer"][:_GROUPS_SHOWN]],
    )
    stdout().print()
    print_table(
        ("reason", "written by", "accepted instead of", "records"),
        columns(answer["groups"][:_GROUPS_SHOWN], "reason", "writer", "winner", "records"),
    )
    stdout().print()
    print_table(
        (
            "offset",
            "time",
            Column("key", 1),
            "reason",
            "by",
            Column("record", 2, text=False),
            Column("accepted state", text=True),
        ),
        [
            (
                row["offset"],
                when(row["timestamp_ms"]),
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


def _span(row: Mapping[str, Any]) -> tuple[Cell | None, Cell | None]:
    return when(row["first_ms"]), when(row["last_ms"])
