"""Tables of the audit's result."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from statechannel.audit.engine import AsOf, AuditResult, Cut, Rows
from statechannel.audit.history import short_range
from statechannel.cli.kit.output import duration, moment, print_table, stdout
from statechannel.protocol.verdict import MEANING, Verdict

_GAPS_SHOWN = 200
_OWNED_SHOWN = 1_000
NOT_KNOWN = "unknown: the records were compacted"


def untold(result: AuditResult) -> bool:
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


def show(result: AuditResult, history_title: str | None, cuts: MomentAndRest | None = None, *, races: bool) -> None:
    """Print the result.

    Args:
        history_title: If set, only the history is printed, without the tables on the whole log.
        cuts: The moment of the audit, if not the end of the log.
        races: Also print lost races.
    """
    answer = result.answer
    unsure = result.complete.get("incomplete", ()) if cuts is not None else ()
    if history_title is None:
        _whole(result, cuts, unsure)
    else:
        about = ("read", "tentative", "as of", "last offsets", "end offsets", "digest")
        facts = [(what, value) for what, value in _facts(answer, cuts) if what in about or what.startswith("stopped")]
        stdout().print(Text("; ".join(f"{what} {value}" for what, value in facts)))
    completeness(result.complete)
    if races and result.races:
        _blank()
        print_table(
            ("reason", "written by", "accepted instead of", "proposals"),
            [(race["reason"], race["writer"], race["winner"], race["count"]) for race in result.races],
            title="Lost races: rejected proposals, and whose record was accepted instead",
        )
    if result.gaps is not None:
        _blank()
        gaps(result.gaps, untold=untold(result))
    elif result.gap_count is not None and history_title is None:
        _blank()
        every, open_ = result.gap_count
        listed = f", of which {open_} open; --gaps lists them" if every else ""
        shown = NOT_KNOWN if untold(result) and not every else f"{every}{listed}"
        stdout().print(f"gaps in service: {shown}")
    if result.moves is not None:
        _blank()
        print_table(
            ("hour from", "cause", "changes of owner"),
            [(moment(row["hour_ms"]), row["cause"], row["count"]) for row in result.moves],
            title="Changes of owner",
            empty="none: no bundle changed its owner",
        )
    if result.owned is not None:
        _blank()
        _owned([row for row in result.owned if row["partition"] not in unsure])
    if history_title is not None and result.history is not None:
        _blank()
        _history(history_title, result.history)


def _whole(result: AuditResult, cuts: MomentAndRest | None, unsure: Sequence[int]) -> None:
    answer = result.answer
    compacted = ", ".join(result.complete.get("complete_from", {}))
    print_table(("what", "value"), _facts(answer, cuts, compacted))
    _blank()
    print_table(
        ("rejected", "records", "meaning"),
        [(reason, count, MEANING[Verdict(reason)]) for reason, count in answer["rejected"].items()],
        empty=_none_rejected(result, compacted),
    )
    _blank()
    if unsure:
        stdout().print("owners: unknown at this moment: the records were compacted")
    else:
        print_table(
            ("owner", "bundles"),
            list(answer["owners"].items()),
            empty="no bundle has an owner",
        )
    if answer["debts"]:
        _blank()
        print_table(
            ("key in debt", "since offset", "newest offset", "highest version"),
            [(d["key"], d["since_offset"], d["newest_offset"], d["highest_version"]) for d in answer["debts"]],
        )


def _none_rejected(result: AuditResult, compacted: str) -> str:
    if untold(result):
        return f"rejected: {NOT_KNOWN}"
    return "none rejected in the counted part; `audit rejected` covers more" if compacted else "no record was rejected"


def _facts(answer: dict[str, Any], past: MomentAndRest | None, compacted: str = "") -> Iterator[tuple[str, object]]:
    yield "read", "in full, strictly" if answer["read"] == "full" else "as a joining broker does"
    if answer.get("tentative"):
        yield "tentative", "yes: compaction may hide accepted records (see `--read`)"
    for partition, stop in answer.get("stopped", {}).items():
        yield f"stopped in partition {partition}", f"format {stop['format']} at offset {stop['offset']}"
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
    yield "open debts", f"{len(answer['debts']):,}"
    yield "digest", answer["digest"]


def ends(answer: dict[str, Any]) -> str:
    """End offsets by partition."""
    return ", ".join(f"{partition}: {end}" for partition, end in answer["end_offsets"].items())


def completeness(complete: Mapping[str, Any]) -> None:
    """The point from which on a compacted log is complete, and what that means for the result."""
    for partition, known in complete.get("complete_from", {}).items():
        where = f"partition {partition} was compacted"
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


def gaps(gaps: Rows, *, untold: bool) -> None:
    """Print the newest gaps in service.

    Args:
        untold: See there.
    """
    lengths, certain = array("q"), 0
    for gap in gaps:
        certain += gap["certain"]
        if gap["certain"] and gap["length_ms"] is not None:
            lengths.append(gap["length_ms"])
    title = "Gaps in service"
    if lengths:
        closed = sorted(lengths)
        title += f": {certain}, of which {certain - len(closed)} open; median {duration(closed[len(closed) // 2])}, "
        title += f"longest {duration(closed[-1])}"
    if certain < len(gaps):
        title += f"; {len(gaps) - certain} more uncertain, marked ?"
    print_table(
        ("from", "bundle", "cause", "length", "on request", "end", "owner before", "owner after", "why"),
        [
            (
                moment(gap["start_ms"]),
                gap["bundle"],
                gap["cause"] + ("" if gap["certain"] else " ?"),
                duration(gap["length_ms"]),
                duration(gap["on_request_ms"]) if gap["on_request_ms"] else None,
                gap["end"],
                gap["from"],
                gap["to"],
                gap["why"],
            )
            for gap in deque(gaps, maxlen=_GAPS_SHOWN)
        ],
        title=title,
        empty=NOT_KNOWN if untold else "no gap in the complete part of the log",
    )
    if len(gaps) > _GAPS_SHOWN:
        stdout().print(f"(the newest {_GAPS_SHOWN}; all of them with --gaps --output json)")


def _owned(owned: Sequence[dict[str, Any]]) -> None:
    print_table(
        ("bundle", "owner", "generation", "state", "since", "offset"),
        [
            (
                row["bundle"],
                row["owner"],
                row["generation"],
                row["state"],
                moment(row["since_ms"]),
                row["since_offset"],
            )
            for row in owned[:_OWNED_SHOWN]
        ],
        title="Owners of bundles",
        empty="no bundle has an owner",
    )
    if len(owned) > _OWNED_SHOWN:
        stdout().print(f"(the first {_OWNED_SHOWN} of {len(owned):,}; all of them with --owned --output json)")


def _history(title: str, lines: Rows) -> None:
    print_table(
        ("offset", "time", "range", "verdict", "version", "state", "from", "to", "by", "action", "operation", "note"),
        [
            (
                line["offset"],
                moment(line["timestamp_ms"]),
                short_range(line["key"]),
                line["verdict"],
                line["version"],
                line["state"],
                line["from"],
                line["to"],
                line["by"],
                line["action"],
                line["operation"],
                "; ".join(filter(None, (line["reason"], line["note"]))),
            )
            for line in lines
        ],
        title=f"History of {title}",
        empty="no record was judged",
    )


def _blank() -> None:
    stdout().print()
