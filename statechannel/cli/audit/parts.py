"""Commands `statechannel audit history`, `gaps`, `rejected`, `diff` and `report`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from statechannel import clocks
from statechannel.audit.engine import (
    LOCAL,
    ArchiveSource,
    AuditResult,
    ExportSource,
    LiveSource,
    Source,
    Wants,
    load_archive_export,
)
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.history import subject_of
from statechannel.audit.local import open_export
from statechannel.audit.moments import WHOLE_LOG, AsOf, LogWindow
from statechannel.audit.report.data import ReportLimits, ReportQuestion, report_data
from statechannel.audit.report.time_buckets import ReportWindow
from statechannel.audit.transfer.export_file import ExportFile
from statechannel.audit.views import NotInLogError
from statechannel.cli.audit import tables
from statechannel.cli.audit.actions import actions_beside, actions_of
from statechannel.cli.audit.options import AuditOptions, audit_options, refuse_format
from statechannel.cli.kit.listing import Since, SinceTime, Until, UntilTime, Writer
from statechannel.cli.kit.output import Output, print_json, print_json_lists, say, stdout
from statechannel.cli.kit.progress import progress
from statechannel.clocks import moment
from statechannel.errors import StateChannelError
from statechannel.files import check_writable, new_file
from statechannel.queries.audit import (
    about,
    difference_rows,
    history_head,
    history_rows,
    not_named,
    requesters,
    require_writer,
)
from statechannel.queries.side_files import SideRole, side_files, story_of_file
from statechannel.stories.processes import RegistryStory
from statechannel.stories.requests import PersonAction


@audit_options
def history_of(
    asked: AuditOptions,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[BUNDLE|TOPIC]",
            help="Bundle, topic, or namespace (all of its bundles). Not needed with --by, --since or --until.",
        ),
    ] = None,
    by: Writer = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """List every record of a bundle: verdict, writer, reason, change; across splits. With --by: all that a broker wrote."""
    if name is by is since is until is None:
        raise AuditQuestionError(
            "A bundle, a topic, a namespace, a broker or a time is required.",
            hint="Examples: `audit history NAME`, `audit history --by BROKER`, `audit history --since 10m`.",
        )
    title = "all namespaces" if name is None else subject_of(name)[1]
    window = asked.window(since, until)
    result, rows = history_rows(asked, name, by, window)
    if not asked.table:
        print_json_lists(history_head(asked, result, name, by, window), {"history": rows})
        return
    log_line(asked, result, window)
    tables.history(title if by is None else f"{title}, by {by}", rows, whole_keys=name is None)


@audit_options
def rejected(asked: AuditOptions, by: Writer = None, since: Since = None, until: Until = None) -> None:
    """Count rejected records by reason, by writer, and by the writer of the accepted record that came first."""
    window = asked.window(since, until)
    with asked.as_file() as still:
        result = still.answer(Wants(rejected=True, window=window, by=by, cuts=True))
        answer = result.rejected or {}
        if by is not None and not answer.get("records"):
            require_writer(still, by)
    if not asked.table:
        print_json_lists(about(asked, result) | {"by": by, "window": window.fields(), "rejected": answer}, {})
        return
    log_line(asked, result, window)
    tables.rejected(answer, answer_lost=tables.answer_lost(result))


@audit_options
def diff(
    asked: AuditOptions,
    t1: Annotated[str, typer.Argument(metavar="T1", help="Offset, time, or age (10m), as for --as-of; inclusive.")],
    t2: Annotated[str | None, typer.Argument(metavar="T2", help="Later moment. Default: the end of the log.")] = None,
    as_of: Annotated[str | None, typer.Option("--as-of", hidden=True)] = None,
) -> None:
    """Compare the accepted states of two moments: owners, states, generations, created and deleted bundles."""
    if as_of is not None:
        raise AuditQuestionError("diff compares T1 with T2 and does not support --as-of.", hint="Remove --as-of.")
    first = asked.moment(t1, "T1")
    second = None if t2 is None else asked.moment(t2, "T2")
    before, after, head, rows = difference_rows(asked, (t1, first), (t2 or "the end", second))
    if not asked.table:
        print_json_lists(head, {"differences": rows})
        return
    tables.differences(head, rows, answer_lost=any(tables.answer_lost(result) for result in (before, after)))


def log_line(asked: AuditOptions, result: AuditResult, window: LogWindow = WHOLE_LOG) -> None:
    """Print which log was read, and how, and which part of it is listed."""
    answer = result.answer
    how = "in full, strictly" if answer["read"] == "full" else "as a joining broker does"
    line = f"read {how}; {answer['records']:,} records; end offsets {tables.ends(answer)}; digest {answer['digest']}"
    stdout().print(Text(line))
    for what, why in tables.reservations(answer):
        stdout().print(Text(f"{what}: {why}"))
    if asked.as_of is not None and result.cuts is not None:
        for what, value in tables.MomentAndRest(asked.as_of, result.cuts).facts(answer):
            stdout().print(Text(f"{what}: {value}"))
    tables.completeness(result.complete)
    if not window.is_whole:
        sides = (f"{name} {_moment_of(side)}" for name, side in (("from", window.since), ("to", window.until)) if side)
        stdout().print(Text(f"listed: {' '.join(sides)}, inclusive"))
        _remark_window(window, answer["end_offsets"].values())
    stdout().print()


def _remark_window(window: LogWindow, ends: Collection[int]) -> None:
    """Say that a list begins past the end of the log, where it is empty in any case."""
    offset = None if window.since is None else window.since.offset
    if offset is not None and offset >= max(ends, default=0):
        say(f"note: --since {offset} is past the end of every partition: no record is listed")


_DEFAULT = ReportLimits()


@audit_options
def report(
    asked: AuditOptions,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.html", help="Output file.")] = None,
    out_or_format: Annotated[
        str | None, typer.Option("-o", metavar="FILE.html|json", help="FILE.html as --out, or json as --output json.")
    ] = None,
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
    since: SinceTime = None,
    until: UntilTime = None,
) -> None:
    """Write the audit as one HTML page: incidents, gaps, owners over time, timelines, rejections; works offline."""
    wanted = (*(bundle or ()), *(topic or ()), *(namespace or ()))
    out, asked = _page_and_format(asked, out, out_or_format)
    question = ReportQuestion(
        read=asked.read,
        as_of=asked.as_of,
        compaction_lag_ms=asked.compaction_lag_ms,
        wanted=wanted,
        limits=ReportLimits(points=points_max, bundles=bundles_max, rows=rows_max),
        window=_report_window(asked, since, until),
    )
    try:
        story = _registry_story(asked)  # before the log: what is written later is not held against it
        with opened(asked) as export:
            question = replace(question, persons=requesters(asked, "the report"), actions=_actions(asked))
            if story is not None:
                question = replace(question, registry=tuple(story.incidents), writers=story.writers)
            data = report_data(export, question, progress=progress)
    except NotInLogError as error:
        raise not_named(str(error)) from error
    size_bytes = None if out is None else _write_page(asked, out, data, wanted)
    if not asked.table:
        print_json({"file": None if out is None else str(out), "size_bytes": size_bytes, **data})
    elif size_bytes is not None:
        gaps, rejected = data["gaps"], data["rejected"]
        say(
            f"{out}: {len(data['incidents'])} incidents, {gaps['all']:,} gaps ({gaps['open']:,} open), "
            f"{len(data['lanes'])} timelines, {rejected['all']:,} rejected records, {size_bytes / 1024:,.0f} KiB; "
            "open it in a browser"
        )


def _page_and_format(
    asked: AuditOptions, out: Path | None, out_or_format: str | None
) -> tuple[Path | None, AuditOptions]:
    """The page's path, None where only its data are wanted, and the options with the format.

    `-o` is the format in most commands, and the file in those that write one: here it is either, by its value.

    Raises:
        AuditQuestionError: There is neither a page nor JSON to write, or the page's path cannot be used.
    """
    if out_or_format in {output.value for output in Output}:
        asked = replace(asked, table=asked.table and out_or_format != Output.JSON.value)
    elif out_or_format is not None:
        if out is not None:
            raise AuditQuestionError(
                f"--out {out} and -o {out_or_format} both name the page.",
                hint="Give one of them; -o json is the format.",
            )
        out = Path(out_or_format)
    if out is not None:
        _check_page_path(out)
    elif asked.table:
        raise AuditQuestionError(
            "The report needs a file for its page.",
            hint="Use `statechannel audit report --out FILE.html`; `-o json` prints the page's data instead.",
        )
    return out, asked


def _write_page(asked: AuditOptions, out: Path, data: Mapping[str, Any], wanted: tuple[str, ...]) -> int:
    """Write the page; returns its size in bytes."""
    # Jinja is loaded only where a page is made.
    from statechannel.cli.report_page import ReportOrigin, render

    now_ms = clocks.now_ms()
    page = render(data, ReportOrigin(_source_name(asked.source), _moment_of(asked.as_of), now_ms, wanted))
    content = page.encode()
    with new_file(out) as file:
        file.write(content)
    return len(content)


@contextmanager
def opened(asked: AuditOptions) -> Iterator[ExportFile]:
    """The log as an export file; a live topic or an archive is exported to a temporary one."""
    source = asked.source
    if not isinstance(source, ArchiveSource):
        if asked.engine != LOCAL:
            raise AuditQuestionError(
                "Reports and overlaps use the local engine; other engines are only used to read an archive.",
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


def _report_window(asked: AuditOptions, since: str | None, until: str | None) -> ReportWindow:
    window = asked.time_window(since, until)
    sides = (None if side is None else side.time_ms for side in (window.since, window.until))
    return ReportWindow(*sides)


def _registry_story(asked: AuditOptions) -> RegistryStory | None:
    """Starts, ends, leaders and modes of the last hour; a file of the channel's log does not have them."""
    if isinstance(asked.source, ExportSource):
        return story_of_file(asked.source.path, asked.reporter)
    if not isinstance(asked.source, LiveSource):
        return None
    # Only a live audit needs the Kafka client.
    from statechannel.queries.registry import read_registry

    connection = asked.connect()
    story = RegistryStory(connection.settings.membership.expiry_s)
    try:
        read_registry(connection, listen=False, observe=story.observe)
    except StateChannelError as error:
        say(f"note: the registry could not be read, the report has the incidents of the channel's log only: {error}")
        return None
    return story


def _actions(asked: AuditOptions) -> list[PersonAction] | None:
    """What persons did; None where the topics that say so are not at hand."""
    source = asked.source
    if isinstance(source, ExportSource) and not source.made_here:
        return actions_beside(source.path) if SideRole.REQUESTS in side_files(source.path) else None
    if not isinstance(source, LiveSource):
        return None
    try:
        return actions_of(asked.connect())
    except StateChannelError as error:
        say(f"note: the requests could not be read, the report does not list what persons did: {error}")
        return None


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


def _check_page_path(path: Path) -> None:
    """Refuse an unusable path before the long read."""
    refuse_format(path)
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir fails of a name that is too long
        raise AuditQuestionError(f"{path} is a folder.", hint="Give the path of a file.")
    check_writable(path)
