"""`statechannel audit origins`: each operation with the request or decision that asked for it, and those that have none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from statechannel.audit.engine import LiveSource, Wants
from statechannel.audit.origins import MEANING, Origin, origins_document, without_origin
from statechannel.cli.audit_asking import Asked, asking
from statechannel.cli.audit_parts import about, log_line
from statechannel.cli.connection import Connection
from statechannel.cli.options import reaching
from statechannel.cli.output import moment, print_json_lists, print_table, say, stdout


@reaching
@asking
def origins(
    asked: Asked,
    every: Annotated[
        bool, typer.Option("--every", help="List all operations; a table has only those that nothing asked for.")
    ] = False,
    with_topics: Annotated[
        bool,
        typer.Option(
            "--with-topics", help="With --file or --archive: look up requests and decisions in the channel's topics."
        ),
    ] = False,
) -> None:
    """What asked for each operation: a request, a decision, a rule of the brokers; and those that nothing asked for."""
    result = asked.answer(Wants(origins=True, cuts=True))
    looked_up = with_topics or isinstance(asked.source, LiveSource)
    document = origins_document(result.origins or {}, _sources(asked.connect()) if looked_up else ())
    if not looked_up:
        say("note: requests and decisions are in topics of their own, which were not looked at (--with-topics)")
    if not asked.table:
        operations = document.pop("operations")
        print_json_lists(about(asked, result) | document, {"operations": operations})
        return
    log_line(asked, result)
    _show(document, document["operations"] if every else list(without_origin(document)))


def _sources(connection: Connection) -> list[Any]:
    # Files are audited on machines that have no Kafka client.
    from statechannel.cli.origin_sources import sources  # noqa: PLC0415

    return sources(connection)


def _show(document: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    print_table(
        ("asked for by", "operations", "meaning"),
        [(name, count, MEANING[Origin(name)]) for name, count in document["counts"].items()],
        title="What asked for operations",
        empty="no operation",
    )
    if document["left_out"]:
        say(f"note: {document['left_out']:,} older operations are not looked at")
    stdout().print()
    print_table(
        ("offset", "time", "name", "begins", "from", "to", "by", "asked for by", "operation", "reason", "doubt"),
        [
            (
                row["offset"],
                moment(row["began_ms"]),
                row["name"],
                row["state"],
                row["from"],
                row["to"],
                row["by"],
                _asked(row),
                row["operation"],
                row["reason"],
                "; ".join(row["doubts"]) or None,
            )
            for row in rows
        ],
        title="Operations",
        empty="none is without an origin, and none is doubted",
    )


def _asked(row: Mapping[str, Any]) -> str:
    asked = row["asked"]
    return row["origin"] if asked is None else f"{row['origin']} of {asked['by'] or '?'}: {asked['what']}"
