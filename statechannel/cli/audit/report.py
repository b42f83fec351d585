"""Command `statechannel audit report`: the audit as one HTML page that works offline."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from statechannel.audit.engine import LOCAL, ArchiveSource, AsOf, ExportSource, Source, load_archive_export
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.local import open_export
from statechannel.audit.report.data import ReportLimits, ReportQuestion, report_data
from statechannel.audit.transfer.export_file import ExportFile
from statechannel.audit.views import NotInLogError
from statechannel.cli.audit.options import AuditOptions, audit_options
from statechannel.cli.audit.parts import not_named
from statechannel.cli.kit.options import with_connection
from statechannel.cli.kit.output import moment, print_json, progress, say
from statechannel.files import check_writable, new_file

_DEFAULT = ReportLimits()


@with_connection
@audit_options
def report(
    asked: AuditOptions,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="Output file.")],
    bundle: Annotated[
        list[str] | None,
        typer.Option("--bundle", metavar="BUNDLE", help="Show the timeline of this bundle; may be repeated."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Show the timelines of all bundles that held this topic."),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", metavar="NAMESPACE", help="Show the timelines of this namespace's bundles."),
    ] = None,
    bundles_max: Annotated[
        int, typer.Option("--bundles-max", min=1, max=5_000, help="Maximum number of timelines, including ancestors.")
    ] = _DEFAULT.bundles,
    points_max: Annotated[
        int, typer.Option("--points-max", min=10, max=5_000, help="Maximum number of points in a chart.")
    ] = _DEFAULT.points,
    rows_max: Annotated[
        int, typer.Option("--rows-max", min=1, max=100_000, help="Maximum number of rows in a table.")
    ] = _DEFAULT.rows,
) -> None:
    """Write the audit as one HTML page: owners over time, timelines of bundles, gaps, rejections; works offline."""
    wanted = (*(bundle or ()), *(topic or ()), *(namespace or ()))
    _check_writable(out)
    question = ReportQuestion(
        read=asked.read,
        as_of=asked.as_of,
        compaction_lag_ms=asked.compaction_lag_ms,
        wanted=wanted,
        limits=ReportLimits(points=points_max, bundles=bundles_max, rows=rows_max),
    )
    try:
        with _opened(asked) as export:
            data = report_data(export, question, progress=progress)
    except NotInLogError as error:
        raise not_named(str(error)) from error
    # Jinja is loaded only where a page is made.
    from statechannel.cli.report_page import ReportOrigin, render

    page = render(
        data, ReportOrigin(_source_name(asked.source), _moment_of(asked.as_of), time.time_ns() // 1_000_000, wanted)
    )
    _write(out, page)
    size_bytes = len(page.encode())
    if asked.table:
        gaps, rejected = data["gaps"], data["rejected"]
        say(
            f"{out}: {len(data['lanes'])} timelines, {gaps['all']:,} gaps ({gaps['open']:,} open), "
            f"{rejected['all']:,} rejected records, {size_bytes / 1024:,.0f} KiB; open it in a browser"
        )
    else:
        print_json({"file": str(out), "size_bytes": size_bytes, **data})


@contextmanager
def _opened(asked: AuditOptions) -> Iterator[ExportFile]:
    """The log as an export file; a live topic or an archive is exported to a temporary one."""
    source = asked.source
    if not isinstance(source, ArchiveSource):
        if asked.engine != LOCAL:
            raise AuditQuestionError(
                "Reports use the local engine; other engines are only used to read an archive.",
                hint="Remove --engine, or give an --archive.",
            )
        with open_export(source, progress) as export:
            yield export
        return
    if asked.engine == LOCAL:
        raise AuditQuestionError("The local engine does not read archives.", hint="Add `--engine spark`.")
    with tempfile.TemporaryDirectory(prefix="statechannel-audit-") as folder:
        path = Path(folder) / "export.jsonl"
        load_archive_export(asked.engine)(source, path, asked.options, progress=progress)
        with open_export(ExportSource(path, made_here=True), progress) as export:
            yield export


def _moment_of(as_of: AsOf | None) -> str | None:
    if as_of is None:
        return None
    return moment(as_of.time_ms) if as_of.offset is None else f"offset {as_of.offset}"


def _source_name(source: Source) -> str:
    if isinstance(source, ExportSource):
        return f"the export file {source.path.name}"
    if isinstance(source, ArchiveSource):
        return f"the archive {source.folder}"
    return f"the live topic {source.topic} at {source.bootstrap_servers}"


def _check_writable(path: Path) -> None:
    """Refuse an unusable path before the long read."""
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir fails of a name that is too long
        raise AuditQuestionError(f"{path} is a folder.", hint="Give the path of a file.")
    check_writable(path)


def _write(path: Path, page: str) -> None:
    with new_file(path) as file:
        file.write(page.encode())
