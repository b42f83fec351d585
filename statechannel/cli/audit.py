"""`statechannel audit` and `statechannel export`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from statechannel.audit.as_of import AsOf, parse_as_of
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.export_file import ExportFile, read_export
from statechannel.audit.history import History, history_fields
from statechannel.audit.races import LostRaces, race_counts
from statechannel.audit.run import DEFAULT_COMPACTION_LAG_MS, Read, audit_export
from statechannel.audit.story import Gaps, gap_fields
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
    output: OutputAs = Output.TABLE,
) -> None:
    """Ask the log what happened: accepted states, verdicts, debts, owners, gaps in service and their causes."""
    if file is not None and bootstrap_servers is not None:
        raise AuditQuestionError("--file and --bootstrap-servers exclude each other.", hint="Name one of them.")
    moment = None if as_of is None else parse_as_of(as_of)
    table = output is Output.TABLE
    found_gaps, found_races = Gaps(), LostRaces()
    found_history = None if history is None else _history(history)
    observers = [found_gaps.observe] if gaps or table else []
    observers += [found_races.observe] if races or table else []
    observers += [found_history.observe] if found_history is not None else []
    with (
        _log(file, connect) as export,
        progress("judging", export.records, unit="records") as told,
    ):
        answer = audit_export(
            export,
            read=read,
            as_of=moment,
            compaction_lag_ms=compaction_lag_ms,
            verdicts=verdicts,
            observers=observers,
            progress=told,
        )
        if history is not None and found_history is not None:
            _require_named(history, found_history, export)
        past = None if moment is None or not table else _past(moment, export)
    if table:
        wanted = audit_tables.Wanted(gaps=gaps, races=races or history is None, history=found_history)
        audit_tables.show(answer, found_gaps.all(), found_races, wanted, past)
    else:
        print_json(answer | _extra(found_gaps if gaps else None, found_races if races else None, found_history))


def _require_named(name: str, history: History, export: ExportFile) -> None:
    if not any(history.is_named(records) for records in export.partitions.values()):
        raise CommandError(
            f"no record of the log is about {name}",
            hint="Check the name; `statechannel namespace list` has the namespaces, `statechannel bundles` the live bundles.",
            code=ExitCode.NOT_FOUND,
        )


def _past(as_of: AsOf, export: ExportFile) -> audit_tables.Past:
    partitions = sorted(export.header.end_offsets)
    return audit_tables.Past(as_of, {number: as_of.cut(export.partitions.get(number, ())) for number in partitions})


def _extra(gaps: Gaps | None, races: LostRaces | None, history: History | None) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if gaps is not None:
        extra["gaps"] = [gap_fields(gap) for gap in gaps.all()]
    if races is not None:
        extra["races"] = list(race_counts(races))
    if history is not None:
        extra["history"] = [history_fields(line) for line in history.lines]
    return extra


def _history(name: str) -> History:
    try:
        return History(name)
    except ValueError as error:
        raise AuditQuestionError(
            f"--history {error}.", hint="Say tenant/namespace/0x..._0x..., tenant/namespace/topic, or tenant/namespace."
        ) from error


@contextmanager
def _log(file: Path | None, connect: Connect) -> Iterator[ExportFile]:
    """The log as an export file: the one named, or one made of the live topic for as long as it is needed."""
    if file is not None:
        yield _read(file)
        return
    # Only a live audit needs the Kafka client; files are read on machines that have none of it.
    from statechannel.cli.live_log import export_live  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="statechannel-audit-") as folder:
        path = Path(folder) / "export.jsonl"
        export_live(connect(), path)
        yield _read(path)


def _read(path: Path) -> ExportFile:
    size_bytes = path.stat().st_size if path.exists() else 0
    with progress(f"reading {path.name}", size_bytes, unit="bytes") as told:
        return read_export(path, progress=told)


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
