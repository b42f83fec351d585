"""`statechannel audit` and `statechannel export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from statechannel.audit.as_of import parse_as_of
from statechannel.audit.engine import (
    DEFAULT_COMPACTION_LAG_MS,
    LOCAL,
    ArchiveSource,
    AuditQuestion,
    AuditResult,
    ExportSource,
    LiveSource,
    Read,
    Wants,
    load_engine,
)
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.history import History
from statechannel.cli import audit_tables
from statechannel.cli.exit_codes import ExitCode
from statechannel.cli.failures import CommandError
from statechannel.cli.options import BootstrapServers, Connect, OutputAs, reaching
from statechannel.cli.output import Output, print_json, progress, say

app = typer.Typer(add_completion=False, rich_markup_mode=None)
export_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@reaching
def audit(
    connect: Connect,
    file: Annotated[Path | None, typer.Option("--file", metavar="F", help="An export file to be audited.")] = None,
    archive: Annotated[
        str | None, typer.Option("--archive", metavar="DIR", help="An audit archive (with --engine spark).")
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="OFFSET|TIME", help="Look at this moment, inclusive.")
    ] = None,
    read: Annotated[
        Read, typer.Option("--read", help="Strictly, as a joiner does, or what the log allows.")
    ] = Read.AUTO,
    compaction_lag_ms: Annotated[
        int, typer.Option("--compaction-lag-ms", min=0, help="min.compaction.lag.ms of the topic.")
    ] = DEFAULT_COMPACTION_LAG_MS,
    verdicts: Annotated[
        Path | None, typer.Option("--verdicts", metavar="OUT", help="Write each record's verdict there (full read).")
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(
            "--history", metavar="BUNDLE|TOPIC", help="Also every record that concerned it; a namespace: all of it."
        ),
    ] = None,
    gaps: Annotated[
        bool, typer.Option("--gaps", help="List the gaps in service; a table only counts them else.")
    ] = False,
    races: Annotated[
        bool, typer.Option("--races", help="Also who was rejected in favour of whom, in JSON too.")
    ] = False,
    owned: Annotated[bool, typer.Option("--owned", help="List who served what, and since when.")] = False,
    moves: Annotated[
        bool, typer.Option("--moves", help="Count the changes of owner by hour of log time and cause.")
    ] = False,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="Which program reads the log: local, spark.")
    ] = LOCAL,
    engine_options: Annotated[
        list[str] | None,
        typer.Option("--engine-option", metavar="KEY=VALUE", help="A setting of the engine; may be repeated."),
    ] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Ask the log what happened: accepted states, verdicts, debts, owners, gaps in service and their causes."""
    source = _source(file, archive, bootstrap_servers, connect)
    moment = None if as_of is None else parse_as_of(as_of)
    table = output is Output.TABLE
    title = None if history is None else _title(history)
    question = AuditQuestion(
        source,
        read=read,
        as_of=moment,
        compaction_lag_ms=compaction_lag_ms,
        verdicts=verdicts,
        wants=Wants(
            gaps=gaps,
            gap_count=table and not gaps,
            races=races or table,
            history=history,
            owned=owned,
            moves=moves,
            cuts=table,
        ),
        options=_options(engine_options or ()),
    )
    result = load_engine(engine)(question, progress=progress)
    if history is not None and not result.named:
        raise CommandError(
            f"no record of the log is about {history}",
            hint="Check the name; `statechannel namespace list` has the namespaces, `statechannel bundles` the live bundles.",
            code=ExitCode.NOT_FOUND,
        )
    if table:
        past = None if moment is None or result.cuts is None else audit_tables.Past(moment, result.cuts)
        audit_tables.show(result, title, past, races=races or history is None)
    else:
        print_json(result.answer | _extra(result))


def _source(
    file: Path | None, archive: str | None, bootstrap_servers: str | None, connect: Connect
) -> ExportSource | ArchiveSource | LiveSource:
    named = {"--file": file, "--archive": archive, "--bootstrap-servers": bootstrap_servers}
    given = [option for option, value in named.items() if value is not None]
    if len(given) > 1:
        raise AuditQuestionError(f"{given[0]} and {given[1]} exclude each other.", hint="Name one of them.")
    if file is not None:
        return ExportSource(file)
    if archive is not None:
        return ArchiveSource(archive)
    # Only a live audit needs the Kafka client; files are read on machines that have none of it.
    from statechannel.cli.live_log import live_source  # noqa: PLC0415

    return live_source(connect())


def _options(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for option in given:
        name, equals, value = option.partition("=")
        if not (name and equals):
            raise AuditQuestionError(f"--engine-option {option!r} is not KEY=VALUE.", hint="Say KEY=VALUE.")
        found[name] = value
    return found


def _extra(result: AuditResult) -> dict[str, Any]:
    parts = {
        "gaps": result.gaps,
        "races": result.races,
        "history": result.history,
        "owned": result.owned,
        "moves": result.moves,
    }
    return {name: list(part) for name, part in parts.items() if part is not None}


def _title(name: str) -> str:
    """What a history is of, for people."""
    try:
        return History(name).title
    except ValueError as error:
        raise AuditQuestionError(
            f"--history {error}.", hint="Say tenant/namespace/0x..._0x..., tenant/namespace/topic, or tenant/namespace."
        ) from error


@export_app.command()
@reaching
def export(
    connect: Connect,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where the export goes.")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The same, as an option.")] = None,
) -> None:
    """Write the channel's topic to a file that `audit --file` and other programs read."""
    path = _one_of(file, out)
    from statechannel.cli.live_log import export_live  # noqa: PLC0415

    header = export_live(connect(), path)
    ends = ", ".join(f"{partition}: {end}" for partition, end in sorted(header.end_offsets.items()))
    say(f"{header.topic} written to {path} (end offsets {ends})")


def _one_of(file: Path | None, out: Path | None) -> Path:
    path = file or out
    if path is None or (file is not None and out is not None):
        raise AuditQuestionError(
            "The export needs one file to go to, not none and not two.", hint="Say `statechannel export FILE`."
        )
    return path
