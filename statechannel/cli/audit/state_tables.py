"""Tables of accepted states: what differs between two moments, and what cold starts changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rich.text import Text

from statechannel.audit.difference import accepted_of
from statechannel.audit.engine import AuditResult, Rows
from statechannel.audit.moments import AsOf, duration_ms
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.output import moment, print_table, stdout

KEYS_SHOWN = 200
NOT_KNOWN = "unknown: the log no longer has the records"
_HEADERS = ("key", "accepted before", "since the cold start")
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
            print_table(_HEADERS, list(islice(_cells(keys), KEYS_SHOWN)))
        if len(keys) > KEYS_SHOWN:
            stdout().print(f"({len(keys) - KEYS_SHOWN:,} more keys left out; --output json has all)")


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


def _cells(keys: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for key in keys:
        yield key["key"], _state(key["held"]), _state(key["asserted"])


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


def side(text: str, as_of: AsOf | None, result: AuditResult) -> dict[str, Any]:
    """One side of a difference, for the JSON output.

    Args:
        text: The moment as it was given.
    """
    last = {number: cut.last_offset for number, cut in (result.cuts or {}).items()}
    ends = {int(number): end - 1 for number, end in result.answer["end_offsets"].items()}
    return {
        "as_of": text,
        "timestamp_ms": None if as_of is None else as_of.time_ms,
        "digest": None if result.complete.get("incomplete") else result.answer["digest"],
        "last_offsets": {str(number): offset for number, offset in sorted((last or ends).items())},
        "read": result.answer["read"],
    }


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
    print_table(
        ("key", "change", "before", "after"),
        [
            (row["key"], row["change"].replace("-", " "), _side(row["before"]), _side(row["after"]))
            for row in islice(rows, _DIFFERENCES_SHOWN)
        ],
    )
    if len(rows) > _DIFFERENCES_SHOWN:
        stdout().print(f"(the first {_DIFFERENCES_SHOWN:,} of {len(rows):,}; all of them with --output json)")


def _side(side: Mapping[str, Any] | None) -> str | None:
    return None if side is None else f"{format_state(side)} v{side['version']}"
