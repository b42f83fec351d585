"""Tables of the audit's result, and of its subcommands."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rich.text import Text

from statechannel.audit.difference import accepted_of
from statechannel.audit.engine import AuditResult, Rows
from statechannel.audit.moments import AsOf, Cut, duration_ms
from statechannel.cli.kit.fitted_tables import Column, toned
from statechannel.cli.kit.output import print_facts, print_rows, print_table, stdout, when
from statechannel.clocks import duration, moment
from statechannel.protocol.verdict import MEANING, Verdict
from statechannel.stories.bundle import short_range

NOT_KNOWN = "unknown: the log no longer has the records"
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
        print_rows(
            (
                "reason",
                Column("written by", of="writer"),
                Column("accepted instead of", of="winner"),
                Column("proposals", of="count"),
            ),
            result.races,
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
        print_rows(
            (Column("hour from", of=lambda row: when(row["hour_ms"])), "cause", Column("changes of owner", of="count")),
            result.moves,
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
        print_table(("owner", "bundles"), list(answer["owners"].items()), empty="no bundle has an owner")
    if answer["debts"]:
        _blank()
        print_rows(
            (
                Column("key awaiting repair", of="key"),
                Column("since offset", of="since_offset"),
                Column("newest offset", 1, of="newest_offset"),
                Column("highest version", 1, of="highest_version"),
            ),
            answer["debts"],
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
        yield ("counted", f"of partition {compacted} only what follows its newest heartbeat")
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
    rows = list(islice(shown, GAPS_SHOWN)) if first else deque(shown, maxlen=GAPS_SHOWN)
    empty = NOT_KNOWN if answer_lost else selected or "no gap in the complete part of the log"
    print_rows(gap_columns(rows), rows, title=gap_title(gaps), empty=empty)
    if len(shown) > GAPS_SHOWN:
        stdout().print(f"(the {'longest' if first else 'newest'} {GAPS_SHOWN}; all of them with --output json)")


def gap_title(gaps: Rows) -> str:
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


def gap_columns(gaps: Collection[Mapping[str, Any]]) -> Sequence[str | Column | None]:
    # Time Unassigned is mostly on request; where it is not, it says that no broker was asked to serve the bundle.
    waited = any(gap["unassigned_ms"] > gap["on_request_ms"] for gap in gaps)
    persons = any(gap.get("requested_by") for gap in gaps)
    return (
        Column("from", of=lambda gap: when(gap["start_ms"])),
        "bundle",
        Column("cause", of=lambda gap: gap["cause"] + ("" if gap["certain"] else " ?")),
        Column("length", of=_gap_length),
        Column("unassigned", 3, of=lambda gap: duration(gap["unassigned_ms"] or None)) if waited else None,
        Column("on request", 4, of=lambda gap: duration(gap["on_request_ms"] or None)),
        Column("end", 4),
        Column("owner before", 2, of="from"),
        Column("owner after", 2, of="to"),
        Column("requested by", 1, of=lambda gap: gap.get("requested_by")) if persons else None,
        Column("why", text=True),
    )


def _gap_length(gap: Mapping[str, Any]) -> object:
    return toned("open") if gap["length_ms"] is None else gap.get("lengths") or duration(gap["length_ms"])


def _owned(owned: Sequence[dict[str, Any]]) -> None:
    print_rows(
        (
            "bundle",
            "owner",
            Column("generation", 1),
            Column("state", of=lambda row: toned(row["state"])),
            Column("since", 1, of=lambda row: when(row["since_ms"])),
            Column("offset", 2, of="since_offset"),
        ),
        owned[:_OWNED_SHOWN],
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
    print_rows(
        (
            "offset",
            Column("time", of=lambda row: when(row["timestamp_ms"])),
            Column("key", of=lambda row: row["key"] if whole_keys else short_range(row["key"])),
            Column("verdict", 2),
            Column("by", 1),
            Column("what", of=_what),
            Column("before", 2, text=False, of=lambda row: format_state(row["before"])),
            Column("after", 2, text=False, of=lambda row: format_state(row["after"])),
            Column("why", text=True, of=lambda row: "; ".join(_why(row))),
        ),
        islice(rows, skipped, None),
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


def _worst_gap(row: Mapping[str, Any]) -> str | None:
    worst = row["worst_bundle"]
    return None if worst is None else f"{short_range(worst)} at {row['worst_offset']}"


def gap_sums(rows: Sequence[Mapping[str, Any]]) -> None:
    # An open gap has no length yet: 0 ms would say that nothing happened.
    print_rows(
        (
            "namespace",
            "gaps",
            "open",
            Column("open since", of=lambda row: when(row["open_since_ms"]))
            if any(row["open"] for row in rows)
            else None,
            Column("sum", of=lambda row: duration(row["sum_ms"] if row["gaps"] > row["open"] else None)),
            Column("worst", of=lambda row: duration(row["worst_ms"] if row["gaps"] > row["open"] else None)),
            Column("of", 1, text=False, of=_worst_gap),
            Column("Unassigned on request", 2, of=lambda row: duration(row["on_request_ms"] or None)),
        ),
        rows,
        title="Gaps in service by namespace",
        empty="none",
    )
    stdout().print()


def rejected(answer: Mapping[str, Any], *, answer_lost: bool) -> None:
    """Print rejections by reason, by writer, with the winners, and the newest.

    Args:
        answer_lost: The records that held the answer were compacted.
    """
    first = Column("first", of=lambda row: when(row["first_ms"]))
    last = Column("last", of=lambda row: when(row["last_ms"]))
    meaning = Column("meaning", text=True, of=lambda row: MEANING[Verdict(row["reason"])])
    print_rows(
        (Column("rejected", of="reason"), "records", first._replace(rank=2), last._replace(rank=2), meaning),
        answer["by_reason"],
        title=f"Rejected: {answer['records']:,}",
        empty=NOT_KNOWN if answer_lost else "no record was rejected",
    )
    if not answer["records"]:
        return
    stdout().print()
    print_rows(
        (Column("written by", of=lambda row: row["writer"] or "(unknown)"), "records", first, last),
        answer["by_writer"][:_GROUPS_SHOWN],
    )
    stdout().print()
    print_rows(
        ("reason", Column("written by", of="writer"), Column("accepted instead of", of="winner"), "records"),
        answer["groups"][:_GROUPS_SHOWN],
    )
    stdout().print()
    print_rows(
        (
            "offset",
            Column("time", of=lambda row: when(row["timestamp_ms"])),
            Column("key", 1),
            "reason",
            Column("by", of="writer"),
            Column(
                "record",
                2,
                text=False,
                of=lambda row: row["why"] if row["state"] is None else f"{row['state']} v{row['version']}",
            ),
            Column("accepted state", text=True, of=lambda row: _winner(row["winner"])),
        ),
        answer["newest"][-_NEWEST_SHOWN:],
        title="Newest",
    )


def _winner(winner: Mapping[str, Any] | None) -> str | None:
    if winner is None:
        return None
    return f"{winner['state']} v{winner['version']} by {winner['by'] or '?'} at {winner['offset']}"


# --- accepted states ---

_KEYS_SHOWN = 200
_OVERRULED = (
    "key",
    Column("accepted before", of=lambda key: _state(key["held"])),
    Column("since the cold start", of=lambda key: _state(key["asserted"])),
)
_DIFFERENCES_SHOWN = 1_000


def completeness(complete: Mapping[str, Any]) -> None:
    """The point from which on a compacted log is complete, and what that means for the result."""
    for partition, known in complete.get("complete_from", {}).items():
        where = f"partition {partition} has gaps (compaction, deleted records or transaction markers)"
        if known is None:
            line = f"{where}: no record shows from where on it is complete"
        else:
            line = f"{where}: complete from offset {known['offset']} ({moment(known['timestamp_ms'])}) on"
        stdout().print(Text(line))
    if complete.get("incomplete"):
        numbers = ", ".join(map(str, complete["incomplete"]))
        stdout().print(
            Text(
                f"incomplete: partition {numbers} no longer holds the answer; "
                "the archive does (--archive DIR --engine spark)"
            )
        )


def cold_starts(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows `cold_starts` of an audit's answer."""
    for row in rows:
        stdout().print()
        stdout().print(Text(_cold_start(row)))
        keys = row["overruled"] or ()
        if keys:
            print_rows(_OVERRULED, keys[:_KEYS_SHOWN])
        if len(keys) > _KEYS_SHOWN:
            stdout().print(f"({len(keys) - _KEYS_SHOWN:,} more keys left out; --output json has all)")


def _cold_start(row: Mapping[str, Any]) -> str:
    keys = row["overruled"]
    if keys is None:
        effect = "what it changed is unknown: the records before it may have been cleaned"
    elif not keys:
        effect = "it changed no accepted state"
    else:
        effect = f"it changed {len(keys):,} accepted {'state' if len(keys) == 1 else 'states'}"
    place = f"partition {row['partition']}, offset {row['offset']}, {moment(row['timestamp_ms'])}"
    return f"cold start ({place}): {row['by']} accepted what it had read through offset {row['through']}; {effect}"


def _state(line: str | None) -> str:
    """A line of the digest for people."""
    if line is None:
        return "did not exist"
    state = accepted_of(line.encode())
    owner = f" of {state.owner}" if state.owner is not None else ""
    return f"{state.state}{owner}, version {state.version}"


def format_state(side: Mapping[str, Any] | None) -> str | None:
    """A row's state for people."""
    if side is None:
        return None
    owner = "" if side["owner"] is None else f" {side['owner']} g{side['generation']}"
    return f"{side['state']}{owner}" + (f" to {side['to']}" if side["to"] and side["to"] != side["owner"] else "")


_DIFFERS = ("owner", "generation", "state")


def differences(head: Mapping[str, Any], rows: Rows, *, answer_lost: bool) -> None:
    """Print the differences between two moments.

    Args:
        answer_lost: The records that held the answer of either moment were compacted.
    """
    for name in ("from", "to"):
        side = head[name]
        lasts = ", ".join(f"{number}: {offset}" for number, offset in side["last_offsets"].items())
        age = "" if duration_ms(side["as_of"]) is None else f" ago ({moment(side['timestamp_ms'])})"
        stdout().print(Text(f"{name} {side['as_of']}{age}: last offsets {lasts}; digest {side['digest'] or 'unknown'}"))
    completeness(head)
    stdout().print()
    same = "no differences" + (" in the other partitions" if head.get("incomplete") else "")
    counts, changed = head["counts"], head["changed"]
    changes = ("came", "went", "came-and-went", "changed")
    print_table(
        (
            "differences",
            *(name.replace("-", " ") for name in changes),
            *(Column(f"changed {name}", 1) for name in _DIFFERS),
        ),
        [
            (
                kind,
                *(counts.get(f"{kind}_{name}", 0) for name in changes),
                *(changed.get(f"{kind}_{name}", 0) for name in _DIFFERS),
            )
            for kind in ("namespaces", "bundles")
            if any(f"{kind}_{name}" in counts for name in changes)
        ],
        empty=NOT_KNOWN if answer_lost else same,
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
    print_rows(
        (
            "key",
            Column("change", of=lambda row: row["change"].replace("-", " ")),
            Column("before", of=lambda row: _side(row["before"])),
            Column("after", of=lambda row: _side(row["after"])),
        ),
        islice(rows, _DIFFERENCES_SHOWN),
    )
    if len(rows) > _DIFFERENCES_SHOWN:
        stdout().print(f"(the first {_DIFFERENCES_SHOWN:,} of {len(rows):,}; all of them with --output json)")


def _side(side: Mapping[str, Any] | None) -> str | None:
    return None if side is None else f"{format_state(side)} v{side['version']}"
