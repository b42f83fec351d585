"""Commands `statechannel operation list|show`: operations and their results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import RenderableType

from statechannel.audit.engine import ExportSource
from statechannel.audit.history import HistoryLine, history_fields, history_line
from statechannel.audit.moments import LogWindow
from statechannel.audit.origins import OperationsSeen
from statechannel.audit.verdict_file import Observe
from statechannel.audit.views import LogViews
from statechannel.broker.request_writer import NO_EXTENSION
from statechannel.cli.audit.options import read_at_ms
from statechannel.cli.kit.channel_view import not_found, read_channel, read_file
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Cell, Column, toned
from statechannel.cli.kit.listing import SinceTime, UntilTime, hint_of_authors, time_window
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import (
    Output,
    duration,
    make_table,
    moment,
    print_facts,
    print_json,
    print_table,
    say,
    stdout,
    when,
)
from statechannel.cli.kit.requests import (
    requests_in,
    requests_seen,
)
from statechannel.cli.kit.screen import EVERY_S, Draw, EndsAfter, Every, Watch, counted, show_result
from statechannel.cli.kit.side_files import FileBeside, SideRole, side_records
from statechannel.clocks import now_ms
from statechannel.engine.operation_fold import Operation
from statechannel.errors import ExitCode
from statechannel.protocol.log import RecordRead
from statechannel.protocol.view import Judgement

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Operations and their results.")


class _Evidence:
    """Log and requests, of the live channel or of an export with the file of its requests."""

    def __init__(self, connection: Connection | None, file: Path | None) -> None:
        self._connection, self._file = connection, file

    @classmethod
    def of(cls, connect: Connect, file: Path | None) -> _Evidence:
        return cls(connect() if file is None else None, file)

    @property
    def operations_max(self) -> int:
        return _OPERATIONS_MAX if self._connection is None else self._connection.settings.limits.operations_max

    def read(self, observers: Sequence[Observe]) -> LogViews:
        """Judge the log."""
        if self._file is not None:
            return read_file(self._file, observers)
        return read_channel(self._required, observers)

    def requests(self) -> dict[str, dict[str, Any]]:
        """Requests by operation; none where their file is missing."""
        if self._file is None:
            return requests_seen(self._required)
        side = side_records(self._file, SideRole.REQUESTS)
        if side is None:
            say("note: there is no file of requests (`export --with-topics`): requesters are not known")
        return {} if side is None else requests_in(side.records)

    @property
    def _required(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("a file has no connection")
        return self._connection


_OPERATIONS_MAX = 10_000


@app.command("list")
@with_connection
def list_(
    connect: Connect,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Number of newest operations to list.")] = 50,
    since: SinceTime = None,
    until: UntilTime = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="BROKER|PERSON", help="Only what this broker began or executed, or this person asked for."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Only operations of this kind, as in the column `flow`: drain, transfer, lookup, ...; may be repeated.",
        ),
    ] = None,
    file: FileBeside = None,
    watch: Watch = False,
    every: Every = EVERY_S,
    max_seconds: EndsAfter = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """List operations, the oldest first: those of commands, and those started by brokers; with --watch continuously.

    Where there are more than --limit, lookups and their assignments are left out first.
    """
    if file is not None and watch:
        raise CommandError("--file and --watch exclude each other", hint="A file does not change.", code=ExitCode.USAGE)
    window = time_window(since, until, now_ms() if file is None else read_at_ms(ExportSource(file)))

    def read() -> tuple[Draw, dict[str, Any]]:
        evidence = _Evidence.of(connect, file)
        seen = OperationsSeen(evidence.operations_max)
        views = evidence.read([seen.observe])
        operations = _merged(seen, evidence.requests())
        newest = newest_rows(operations, window, by, limit, kind or ())
        rows = newest.rows
        if not watch:
            remark(operations, newest, by, kind or ())
        empty = "no operations" if window.is_whole and by is None and not kind else "no operation of this kind"
        left_out = {"left_out": newest.left_out, "lookups_left_out": newest.lookups_left_out}
        document = {"operations": rows, **left_out, "tentative": views.tentative}
        return lambda most: counted(_table(rows[-most:] if most else [], empty), len(rows), most), document

    show_result(read, output, watch=watch, every_s=every, max_s=max_seconds)


def operations_document(connection: Connection, window: LogWindow, by: str | None, limit: int) -> dict[str, Any]:
    """The newest operations of a live channel, as `operation list` prints them in JSON."""
    evidence = _Evidence(connection, None)
    seen = OperationsSeen(evidence.operations_max)
    views = evidence.read([seen.observe])
    newest = newest_rows(_merged(seen, evidence.requests()), window, by, limit)
    left_out = {"left_out": newest.left_out, "lookups_left_out": newest.lookups_left_out}
    return {"operations": newest.rows, **left_out, "tentative": views.tentative}


class NewestRows(NamedTuple):
    """The newest operations, in order.

    Attributes:
        left_out: How many older ones the limit leaves out.
        lookups_left_out: How many of these are lookups and their assignments.
    """

    rows: list[dict[str, Any]]
    left_out: int = 0
    lookups_left_out: int = 0


_OF_LOOKUPS = frozenset({"lookup", "assignment"})
"""Clients ask for these, thousands at a time; the rest is what operators look for."""


def newest_rows(
    every: Sequence[dict[str, Any]], window: LogWindow, by: str | None, limit: int, kinds: Collection[str] = ()
) -> NewestRows:
    """The newest operations of a window, a broker or person, and kinds; without kinds, lookups give way first."""
    rows = [
        row
        for row in every
        if window.meets((0, row["began_ms"]), (0, row["changed_ms"]))
        and by in (None, row["by"], row["executed_by"])
        and (not kinds or not _kinds(row).isdisjoint(kinds))
    ]
    lookups = [] if kinds else [number for number, row in enumerate(rows) if row["flow"] in _OF_LOOKUPS]
    dropped = set(lookups[: max(0, len(rows) - limit)])
    kept = [row for number, row in enumerate(rows) if number not in dropped]
    return NewestRows(kept[-limit:], max(0, len(rows) - limit), len(dropped))


def _kinds(row: Mapping[str, Any]) -> set[str]:
    """The kind, as it is in JSON and in the table."""
    return {row["flow"] or "", _shown_kind(row["flow"])}


def _shown_kind(flow: str | None) -> str:
    return (flow or "").removesuffix("-namespace")


def remark(every: Sequence[Mapping[str, Any]], newest: NewestRows, by: str | None, kinds: Collection[str] = ()) -> None:
    """Say on standard error what the list lacks, and that no operation is by a name or of a kind."""
    if newest.left_out:
        lookups = f", {newest.lookups_left_out:,} of them lookups (--kind lookup)" if newest.lookups_left_out else ""
        say(f"note: {newest.left_out:,} older ones left out (--limit){lookups}")
    authors = {row["by"] for row in every} | {row["executed_by"] for row in every if row["executed_by"]}
    if by is not None and by not in authors:
        say(f"note: no operation is by {by}. {hint_of_authors(by, authors)}".rstrip())
    elif by is not None and "@" in by:
        say(f"note: policies are in `statechannel audit actions --by {by}`, with the reasons")
    there = {kind for row in every for kind in _kinds(row)}
    for kind in sorted(set(kinds) - there):
        say(f"note: no operation is of the kind {kind}; there are: {', '.join(sorted(filter(None, there))) or 'none'}")


def _table(rows: Sequence[Mapping[str, Any]], empty: str) -> RenderableType:
    return make_table(
        (
            Column("operation", 4),
            "began",
            Column("flow", 1),
            "what",
            Column("status", 2),
            "result",
            Column("to", 5),
            Column("took", 3),
            Column("by", 3),
            Column("reason", 5, text=True),
        ),
        [
            (
                row["operation"],
                when(row["began_ms"]),
                Cell(row["flow"] or "", _shown_kind(row["flow"])),
                row["name"],
                toned(row["status"]),
                result_text(row) or toned(row["status"]),
                row["destination"],
                duration(row["changed_ms"] - row["began_ms"]),
                row["by"],
                row["reason"],
            )
            for row in rows
        ],
        empty=empty,
    )


def result_text(row: Mapping[str, Any]) -> str | None:
    """The result, for people."""
    # A transfer asks the balancer for objections first; where none runs there is nothing that could object.
    result: str | None = "not asked: no balancer runs" if row["result"] == NO_EXTENSION else row["result"]
    return result


@app.command()
@with_connection
def show(
    connect: Connect,
    operation: Annotated[str, typer.Argument(metavar="OPERATION")],
    file: FileBeside = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show one operation with all its records."""
    evidence = _Evidence.of(connect, file)
    seen = OperationsSeen(evidence.operations_max)
    lines: list[HistoryLine] = []

    def collect(record: RecordRead, judgement: Judgement) -> None:
        if judgement.record is not None and judgement.record.text("operation") == operation:
            lines.append(history_line(record, judgement))

    evidence.read([seen.observe, collect])
    rows = [row for row in _merged(seen, evidence.requests()) if row["operation"] == operation]
    if not rows:
        raise not_found(
            f"operation {operation} does not exist",
            hint="`statechannel operation list` shows the newest; requests are kept for a week.",
        )
    if output is Output.JSON:
        print_json(rows[0] | {"records": [history_fields(line) for line in lines]})
        return
    fields = rows[0] | {"result": result_text(rows[0])}
    shown = [(title, value) for title, value in fields.items() if not title.endswith("_ms") and value is not None]
    print_facts([*((title.replace("_", " "), value) for title, value in shown), ("began", moment(rows[0]["began_ms"]))])
    stdout().print()
    print_table(
        (
            "offset",
            "time",
            Column("key", 2),
            Column("verdict", 1),
            Column("version", 2),
            "state",
            "from",
            "to",
            "by",
            Column("note", text=True),
        ),
        [
            (
                line.offset,
                when(line.timestamp_ms),
                line.key,
                line.verdict.value,
                line.version,
                toned(line.state),
                line.from_,
                line.to,
                line.by,
                "; ".join(filter(None, (line.reason, line.note))),
            )
            for line in lines
        ],
        empty="no judged records",
    )


def _merged(seen: OperationsSeen, requests: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Operations from log and requests; for the result the log takes precedence over the reply."""
    every = dict(requests)
    for operation in seen.known.values():
        every[operation.id] = _from_log(seen, operation, every.get(operation.id))
    return sorted(every.values(), key=lambda row: (row["began_ms"], row["operation"]))


def _from_log(seen: OperationsSeen, operation: Operation, asked: dict[str, Any] | None) -> dict[str, Any]:
    times = seen.times[operation.id]
    return {
        "operation": operation.id,
        "flow": operation.flow,
        "name": operation.name,
        "status": operation.status,
        "result": operation.result or None,
        "message": None if asked is None else asked["message"],
        "began_ms": times.began_ms if asked is None else asked["began_ms"],
        "changed_ms": times.changed_ms,
        "by": times.by if asked is None else asked["by"],
        "executed_by": times.by if asked is None else asked["executed_by"],
        "destination": operation.destination,
        "reason": None if asked is None else asked["reason"],
    }
