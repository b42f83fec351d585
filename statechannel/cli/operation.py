"""Commands `statechannel operation list|show`: operations and their results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import RenderableType

from statechannel.audit.engine import ExportSource
from statechannel.audit.origins import OperationsSeen
from statechannel.audit.views import LogViews
from statechannel.broker.request_writer import NO_EXTENSION
from statechannel.cli.kit.fitted_tables import Cell, Column, toned
from statechannel.cli.kit.listing import SinceTime, UntilTime
from statechannel.cli.kit.options import Connect, FileBeside, OutputAs, argument, commands, option, with_connection
from statechannel.cli.kit.output import Output, make_rows, print_facts, print_json, print_rows, say, stdout, when
from statechannel.cli.kit.progress import TERMINAL
from statechannel.cli.kit.screen import EVERY_S, Draw, EndsAfter, Every, Watch, counted, show_result
from statechannel.clocks import duration, moment, now_ms
from statechannel.errors import NotFoundError, UsageError
from statechannel.protocol.log import RecordRead
from statechannel.protocol.view import Judgement
from statechannel.queries.audit_log import hint_of_authors, read_at_ms, time_window
from statechannel.queries.channel_view import read_channel, read_file
from statechannel.queries.live_log import read_requests
from statechannel.queries.operations import NewestRows, kinds_of, merged, newest_rows, shown_kind
from statechannel.queries.side_files import requests_of_file
from statechannel.replay.part import Observer
from statechannel.stories.bundle import HistoryLine, history_fields, history_line

app = commands("Operations and their results.")


_OPERATIONS_MAX = 10_000


def _read(
    connect: Connect, file: Path | None, observe: Observer | None = None
) -> tuple[LogViews, list[dict[str, Any]]]:
    """The judged log and its operations, of the live channel or of an export with the file of its requests."""
    limit = _OPERATIONS_MAX if file is not None else connect().settings.limits.operations_max
    seen = OperationsSeen(limit)
    observers = [seen.observe] if observe is None else [seen.observe, observe]
    if file is None:
        return read_channel(connect(), observers), merged(seen, read_requests(connect()))
    views, requests = read_file(file, TERMINAL, observers), requests_of_file(file, TERMINAL)
    if requests is None:
        say("note: there is no file of requests (`export --with-topics`): requesters are not known")
    return views, merged(seen, requests or {})


@app.command("list")
@with_connection
def list_(
    connect: Connect,
    limit: Annotated[int, option("--limit", "Number of newest operations to list.", min=1)] = 50,
    since: SinceTime = None,
    until: UntilTime = None,
    by: Annotated[
        str | None, option("--by BROKER|PERSON", "Only what this broker began or executed, or this person asked for.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        option(
            "--kind KIND",
            "Only operations of this kind, as in the column `flow`: drain, transfer, lookup, ...; may be repeated.",
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
        raise UsageError("--file and --watch exclude each other", hint="A file does not change.")
    window = time_window(since, until, now_ms() if file is None else read_at_ms(ExportSource(file)), TERMINAL)

    def read() -> tuple[Draw, dict[str, Any]]:
        views, operations = _read(connect, file)
        newest = newest_rows(operations, window, by, limit, kind or ())
        rows = newest.rows
        if not watch:
            remark(operations, newest, by, kind or ())
        empty = "no operations" if window.is_whole and by is None and not kind else "no operation of this kind"
        document = newest.document(tentative=views.tentative)
        return lambda most: counted(_table(rows[-most:] if most else [], empty), len(rows), most), document

    show_result(read, output, watch=watch, every_s=every, max_s=max_seconds)


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
    there = {kind for row in every for kind in kinds_of(row)}
    for kind in sorted(set(kinds) - there):
        say(f"note: no operation is of the kind {kind}; there are: {', '.join(sorted(filter(None, there))) or 'none'}")


def _table(rows: Sequence[Mapping[str, Any]], empty: str) -> RenderableType:
    columns = (
        Column("operation", 4),
        Column("began", of=lambda row: when(row["began_ms"])),
        Column("flow", 1, of=lambda row: Cell(row["flow"] or "", shown_kind(row["flow"]))),
        Column("what", of="name"),
        Column("status", 2, of=lambda row: toned(row["status"])),
        Column("result", of=lambda row: result_text(row) or toned(row["status"])),
        Column("to", 5, of="destination"),
        Column("took", 3, of=lambda row: duration(row["changed_ms"] - row["began_ms"])),
        Column("by", 3),
        Column("reason", 5, text=True),
    )
    return make_rows(columns, rows, empty=empty)


def result_text(row: Mapping[str, Any]) -> str | None:
    # A transfer asks the balancer for objections first; where none runs there is nothing that could object.
    result: str | None = "not asked: no balancer runs" if row["result"] == NO_EXTENSION else row["result"]
    return result


@app.command()
@with_connection
def show(
    connect: Connect,
    operation: Annotated[str, argument("OPERATION")],
    file: FileBeside = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show one operation with all its records."""
    lines: list[HistoryLine] = []

    def collect(record: RecordRead, judgement: Judgement) -> None:
        if judgement.record is not None and judgement.record.text("operation") == operation:
            lines.append(history_line(record, judgement))

    rows = [row for row in _read(connect, file, collect)[1] if row["operation"] == operation]
    if not rows:
        raise NotFoundError(
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
    print_rows(
        (
            "offset",
            Column("time", of=lambda line: when(line.timestamp_ms)),
            Column("key", 2),
            Column("verdict", 1, of=lambda line: line.verdict.value),
            Column("version", 2),
            Column("state", of=lambda line: toned(line.state)),
            Column("from", of="from_"),
            "to",
            "by",
            Column("note", text=True, of=lambda line: "; ".join(filter(None, (line.reason, line.note)))),
        ),
        lines,
        empty="no judged records",
    )
