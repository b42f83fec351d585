"""`statechannel audit report`: the audit as one page that needs no network."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from statechannel.audit.as_of import parse_as_of
from statechannel.audit.engine import DEFAULT_COMPACTION_LAG_MS, ArchiveSource, ExportSource, LiveSource, Read
from statechannel.audit.errors import AuditQuestionError, unwritable
from statechannel.audit.local import open_export
from statechannel.audit.report_data import ReportLimits, ReportQuestion, report_data
from statechannel.cli.options import BootstrapServers, Connect, OutputAs, reaching
from statechannel.cli.output import Output, print_json, progress, say

_DEFAULT = ReportLimits()


@reaching
def report(
    connect: Connect,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="Where the page goes.")],
    file: Annotated[Path | None, typer.Option("--file", metavar="F", help="An export file to be audited.")] = None,
    archive: Annotated[str | None, typer.Option("--archive", metavar="DIR", help="An audit archive.")] = None,
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
    bundle: Annotated[
        list[str] | None, typer.Option("--bundle", metavar="BUNDLE", help="With the timeline of it; may be repeated.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Of every bundle that ever held it.")
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option("--namespace", metavar="NAMESPACE", help="Of its bundles.")
    ] = None,
    bundles_max: Annotated[
        int, typer.Option("--bundles-max", min=1, max=5_000, help="At most so many timelines, ancestors among them.")
    ] = _DEFAULT.bundles,
    points_max: Annotated[
        int, typer.Option("--points-max", min=10, max=5_000, help="At most so many points of time in a chart.")
    ] = _DEFAULT.points,
    rows_max: Annotated[
        int, typer.Option("--rows-max", min=1, max=100_000, help="At most so many rows of a table.")
    ] = _DEFAULT.rows,
    output: OutputAs = Output.TABLE,
) -> None:
    """Write the audit as one page for a browser: owners over time, timelines of bundles, gaps, rejections; no network."""
    source = _source(file, archive, bootstrap_servers, connect)
    moment = None if as_of is None else parse_as_of(as_of)
    wanted = (*(bundle or ()), *(topic or ()), *(namespace or ()))
    _check_writable(out)
    question = ReportQuestion(
        read=read,
        as_of=moment,
        compaction_lag_ms=compaction_lag_ms,
        wanted=wanted,
        limits=ReportLimits(points=points_max, bundles=bundles_max, rows=rows_max),
    )
    with open_export(source, progress) as export:
        data = report_data(export, question, progress=progress)
    # Jinja is loaded only where a page is made.
    from statechannel.cli.report_page import Made, render  # noqa: PLC0415

    page = render(data, Made(_source_name(source), as_of, time.time_ns() // 1_000_000, wanted))
    _write(out, page)
    if output is Output.JSON:
        print_json({"file": str(out), "bytes": len(page.encode()), **data})
    else:
        gaps, rejected = data["gaps"], data["rejected"]
        say(
            f"{out}: {len(data['lanes'])} timelines, {gaps['all']} gaps ({gaps['open']} open), "
            f"{rejected['all']} rejected records, {len(page.encode()) / 1024:.0f} KiB; open it in a browser"
        )


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
    from statechannel.cli.live_log import live_source  # noqa: PLC0415

    return live_source(connect())


def _source_name(source: ExportSource | ArchiveSource | LiveSource) -> str:
    if isinstance(source, ExportSource):
        return f"the export file {source.path.name}"
    if isinstance(source, ArchiveSource):
        return f"the archive {source.folder}"
    return f"the live topic {source.topic} at {source.bootstrap_servers}"


def _check_writable(path: Path) -> None:
    """Refuse at once, not after a long reading."""
    scratch = _scratch(path)
    try:
        scratch.touch()
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        scratch.unlink(missing_ok=True)


def _write(path: Path, page: str) -> None:
    scratch = _scratch(path)
    try:
        scratch.write_text(page, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        scratch.unlink(missing_ok=True)


def _scratch(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
