"""Tables of forged records, and of cold starts with the keys that they changed; the column of writers in other tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rich.text import Text

from statechannel.audit.acknowledgements import acknowledged_sentence
from statechannel.audit.difference import accepted_of
from statechannel.audit.forgeries import NOT_RECOGNIZED
from statechannel.cli.kit.fitted_tables import Cell, Column
from statechannel.cli.kit.output import moment, print_table, stdout, when

KEYS_SHOWN = 200
_HEADERS = ("key", "accepted before", "since the cold start")


def forged_records(forgeries: Mapping[str, Any] | None, in_log: int = 0, *, registry_read: bool) -> None:
    """Print the newest forged records, or that none was recognized; and, in any case, which ones cannot be.

    Args:
        in_log: How many the whole log has, where these are a selection.
        registry_read: The log was held against the registry.
    """
    if forgeries is None:
        return
    stdout().print()
    _list(forgeries, in_log)
    unread = "" if registry_read else " The registry, which shows more of them, was not read."
    stdout().print(Text(f"{NOT_RECOGNIZED}.{unread}"))


def writer(by: str | None, forged_by: str | None) -> str | Cell | None:
    """Who wrote a record, where it may bear the name of a broker that did not.

    Args:
        forged_by: Code of what shows that it is forged.
    """
    return by if forged_by is None else Cell(f"forged as {by or '?'}", f"not {by or '?'}")


def _list(forgeries: Mapping[str, Any], in_log: int) -> None:
    if not forgeries["records"] and in_log:
        number = "1 forged record" if in_log == 1 else f"{in_log:,} forged records"
        stdout().print(
            Text(f"no forged record is in this selection; the log has {number}: `statechannel audit` lists them")
        )
        return
    if not forgeries["records"]:
        stdout().print(Text("no forged record was recognized."))
        return
    left = forgeries["records"] - len(forgeries["newest"])
    print_table(
        (
            "offset",
            "time",
            Column("key", 1),
            "verdict",
            "in the name of",
            Column("record", 2),
            Column("operation", 3),
            Column("what shows it", text=True),
        ),
        [
            (
                row["offset"],
                when(row["timestamp_ms"]),
                row["key"],
                row["verdict"],
                row["by"],
                f"{row['state']} v{row['version']}",
                row["operation"],
                _note(row),
            )
            for row in forgeries["newest"]
        ],
        title=f"Forged: {forgeries['records']:,} records name a broker that did not write them"
        if forgeries["records"] > 1
        else "Forged: 1 record names a broker that did not write it",
    )
    if left:
        stdout().print(f"({left:,} older ones left out)")


def _note(row: Mapping[str, Any]) -> str:
    """What shows that a record is forged, and who has looked at it."""
    seen = row.get("acknowledged")
    return row["note"] if seen is None else f"{row['note']}; {acknowledged_sentence(seen)}"


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
