"""`statechannel operation list|show`: what was asked for, and what became of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from statechannel.audit.history import HistoryLine, history_fields, history_line
from statechannel.audit.operations import OperationsSeen
from statechannel.cli.kit.channel_view import not_found, read_channel
from statechannel.cli.kit.options import Connect, OutputAs, reaching
from statechannel.cli.kit.output import Output, duration, moment, print_json, print_table, stdout
from statechannel.cli.kit.past_requests import requests_seen
from statechannel.engine.operation_fold import Operation
from statechannel.protocol.log import RecordRead
from statechannel.protocol.view import Judgement

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Operations: what was asked for, what came of it.")


@app.command("list")
@reaching
def list_(
    connect: Connect,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The newest so many.")] = 50,
    output: OutputAs = Output.TABLE,
) -> None:
    """List operations, the oldest first: those of commands and those that brokers began themselves."""
    connection = connect()
    seen = OperationsSeen(connection.settings.limits.operations_max)
    views = read_channel(connection, [seen.observe])
    found = _merged(seen, requests_seen(connection))[-limit:]
    if output is Output.JSON:
        print_json({"operations": found, "tentative": views.tentative})
        return
    print_table(
        ("operation", "began", "flow", "what", "status", "result", "took", "by"),
        [
            (
                one["operation"],
                moment(one["began_ms"]),
                one["flow"],
                one["name"],
                one["status"],
                one["result"],
                duration(one["changed_ms"] - one["began_ms"]),
                one["by"],
            )
            for one in found
        ],
        empty="no operation",
    )


@app.command()
@reaching
def show(
    connect: Connect,
    operation: Annotated[str, typer.Argument(metavar="OPERATION")],
    output: OutputAs = Output.TABLE,
) -> None:
    """Show one operation with every record that it wrote."""
    connection = connect()
    seen = OperationsSeen(connection.settings.limits.operations_max)
    lines: list[HistoryLine] = []

    def collect(record: RecordRead, judgement: Judgement) -> None:
        if judgement.record is not None and judgement.record.text("operation") == operation:
            lines.append(history_line(record, judgement))

    read_channel(connection, [seen.observe, collect])
    found = [one for one in _merged(seen, requests_seen(connection)) if one["operation"] == operation]
    if not found:
        raise not_found(
            f"there is no operation {operation}",
            hint="`statechannel operation list` has the newest; requests are kept for a week.",
        )
    if output is Output.JSON:
        print_json(found[0] | {"records": [history_fields(line) for line in lines]})
        return
    shown = [(title, value) for title, value in found[0].items() if not title.endswith("_ms") and value is not None]
    print_table(("what", "value"), [*shown, ("began", moment(found[0]["began_ms"]))])
    stdout().print()
    print_table(
        ("offset", "time", "key", "verdict", "version", "state", "from", "to", "by", "note"),
        [
            (
                line.offset,
                moment(line.timestamp_ms),
                line.key,
                line.verdict.value,
                line.version,
                line.state,
                line.from_,
                line.to,
                line.by,
                "; ".join(filter(None, (line.reason, line.note))),
            )
            for line in lines
        ],
        empty="no record of it was judged",
    )


def _merged(seen: OperationsSeen, requests: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The log's word on an operation goes before the reply's."""
    every = dict(requests)
    for operation in seen.known.values():
        every[operation.id] = _from_log(seen, operation, every.get(operation.id))
    return sorted(every.values(), key=lambda one: (one["began_ms"], one["operation"]))


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
    }
