"""Commands `statechannel audit history`, `gaps`, `rejected`, `diff` and `report`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from statechannel import clocks
from statechannel.audit.difference import StateDifferences
from statechannel.audit.engine import (
    LOCAL,
    ArchiveSource,
    AuditResult,
    ExportSource,
    LiveSource,
    Rows,
    Source,
    Wants,
    load_archive_export,
)
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.history import History
from statechannel.audit.local import open_export
from statechannel.audit.moments import WHOLE_LOG, AsOf, LogWindow
from statechannel.audit.person_actions import PersonAction
from statechannel.audit.registry_story import RegistryStory
from statechannel.audit.report.data import ReportLimits, ReportQuestion, report_data
from statechannel.audit.report.time_buckets import ReportWindow
from statechannel.audit.spool import Spool
from statechannel.audit.transfer.export_file import ExportFile
from statechannel.audit.views import NotInLogError
from statechannel.cli.audit import state_tables, tables
from statechannel.cli.audit.actions import actions_beside, actions_of
from statechannel.cli.audit.options import AuditOptions, audit_options, moment_of, refuse_format
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.listing import Since, SinceTime, Until, UntilTime, Writer, hint_of_authors
from statechannel.cli.kit.output import Output, moment, print_json, print_json_lists, say, stdout
from statechannel.cli.kit.progress import progress
from statechannel.cli.kit.side_files import SideRole, side_files, side_records, story_of_file
from statechannel.errors import ExitCode, StateChannelError
from statechannel.files import check_writable, new_file


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
    title = "all namespaces" if name is None else title_of(name)
    window = asked.window(since, until)
    result, rows = history_rows(asked, name, by, window)
    if not asked.table:
        print_json_lists(history_head(asked, result, name, by, window), {"history": rows})
        return
    log_line(asked, result, window)
    tables.history(title if by is None else f"{title}, by {by}", rows, whole_keys=name is None)


def history_rows(
    asked: AuditOptions, name: str | None, by: str | None, window: LogWindow
) -> tuple[AuditResult, Requested]:
    """Every record of a bundle, topic or namespace, or of all.

    Raises:
        CommandError: The log has none of it.
    """
    result = asked.answer(Wants(history=name, all_records=name is None, window=window, by=by, cuts=True))
    if name is not None and not result.named:
        raise not_named(name)
    rows: Rows = result.history if result.history is not None else Spool()
    if by is not None and name is None and window.is_whole and not len(rows):
        raise _no_record_by(by, result)
    return result, Requested(rows, requesters(asked, "the history"))


def history_head(
    asked: AuditOptions, result: AuditResult, name: str | None, by: str | None, window: LogWindow
) -> dict[str, Any]:
    """The document without its rows."""
    return {"of": name, "by": by, "window": window.fields()} | about(asked, result)


class Requested:
    """Rows with who requested their operation, by his own account."""

    def __init__(self, rows: Rows, persons: Mapping[str, str]) -> None:
        self._rows, self._persons = rows, persons

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._rows:
            yield row | {"requested_by": self._persons.get(row["operation"])}


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
    first = moment_of(t1, asked.source, "T1")
    second = None if t2 is None else moment_of(t2, asked.source, "T2")
    before, after, head, rows = difference_rows(asked, (t1, first), (t2 or "the end", second))
    if not asked.table:
        print_json_lists(head, {"differences": rows})
        return
    state_tables.differences(head, rows, answer_lost=any(tables.answer_lost(result) for result in (before, after)))


def difference_rows(
    asked: AuditOptions, earlier: tuple[str, AsOf], later: tuple[str, AsOf | None]
) -> tuple[AuditResult, AuditResult, dict[str, Any], Spool]:
    """The states that differ between two moments, each with its text; and the document without these rows.

    Raises:
        AuditQuestionError: The first moment is later than the second.
    """
    (t1, first), (t2, second) = earlier, later
    with asked.as_file() as still:
        before = still.answer(Wants(states=True, cuts=True), first)
        after = still.answer(Wants(states=True, cuts=True), second)
    _in_order(before, after, t1, t2)
    unsure = {number: side for side in (after, before) for number in side.complete.get("incomplete", ())}
    differences = StateDifferences(len(before.answer["end_offsets"]), frozenset(unsure))
    rows = Spool()
    for row in differences.rows(before.states or (), after.states or ()):
        rows.append(row)
    head: dict[str, Any] = {
        "from": state_tables.side(t1, first, before),
        "to": state_tables.side(t2, second, after),
        "counts": dict(sorted(differences.counts.items())),
        "changed": dict(sorted((differences.changed).items())),
        "owners": differences.moved(),
    }
    if unsure:
        head |= {
            "incomplete": sorted(unsure),
            "complete_from": (before if before.complete else after).complete["complete_from"],
        }
    return before, after, head, rows


def _in_order(before: AuditResult, after: AuditResult, t1: str, t2: str) -> None:
    cuts = (before.cuts or {}), (after.cuts or {})
    for number, cut in cuts[0].items():
        other = cuts[1].get(number)
        if other is not None and cut.last_offset > other.last_offset:
            raise AuditQuestionError(
                f"{t1} is later than {t2}: its last offset in partition {number} is {cut.last_offset}, not {other.last_offset}.",
                hint="Give the earlier moment first.",
            )


def about(asked: AuditOptions, result: AuditResult) -> dict[str, Any]:
    """Fields on the log itself, for JSON documents."""
    names = ("digest", "records", "read", "end_offsets", "tentative", "heads_lost", "positions_lost", "stopped")
    fields = {name: result.answer[name] for name in names if name in result.answer}
    if asked.as_of is not None:
        fields["last_offsets"] = {str(number): cut.last_offset for number, cut in (result.cuts or {}).items()}
    return fields | dict(result.complete)


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
    state_tables.completeness(result.complete)
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


def title_of(name: str, option: str = "") -> str:
    """Subject of a history.

    Args:
        option: Option that held the name.

    Raises:
        AuditQuestionError: The name is not a bundle, namespace or topic.
    """
    try:
        return History(name).title
    except ValueError as error:
        raise AuditQuestionError(
            f"{option}{error}.", hint="Use tenant/namespace/0x..._0x..., tenant/namespace/topic, or tenant/namespace."
        ) from error


def require_writer(asked: AuditOptions, by: str, *, persons: Iterable[str] = (), hint: str = "") -> None:
    """Refuse a name that wrote nothing, so that an empty list is not taken for a clean one.

    Args:
        persons: Who requested operations, for the hint.
        hint: Further sentences for it.

    Raises:
        CommandError: The log has no record by this name.
    """
    result = asked.answer(Wants(all_records=True, by=by))
    if not len(result.history or ()):
        raise _no_record_by(by, result, hint_of_authors(by, persons) + hint)


def _no_record_by(by: str, result: AuditResult, more: str = "") -> CommandError:
    left = " left" if result.complete else ""
    return CommandError(
        f"the log has no record{left} that {by} wrote",
        hint=f"{more}{_OF_PERSONS if '@' in by else ''}Check the broker's id; `statechannel brokers` lists the live ones. "
        "Heartbeats are not listed.",
        code=ExitCode.NOT_FOUND,
    )


_OF_PERSONS = "Brokers write records; what a person did: `statechannel audit actions --by PERSON`. "


def not_named(name: str) -> CommandError:
    return CommandError(
        f"the log has no record of {name}",
        hint="Check the name; `statechannel namespace list` lists the namespaces, `statechannel bundles` the live bundles.",
        code=ExitCode.NOT_FOUND,
    )


_DEFAULT = ReportLimits()


@audit_options
def report(
    asked: AuditOptions,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.html", help="Output file.")] = None,
    out_or_format: Annotated[
        str | None,
        typer.Option(
            "-o",
            metavar="FILE.html|json",
            help="FILE.html as --out, or json as --output json.",
        ),
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
        return story_of_file(asked.source.path)
    if not isinstance(asked.source, LiveSource):
        return None
    # Only a live audit needs the Kafka client.
    from statechannel.cli.kit.registry import read_registry

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


def requesters(asked: AuditOptions, what: str) -> dict[str, str]:
    """Who requested each operation of the last week, by their own account; a file of the channel's log does not have it.

    Args:
        what: The output, for the note where the requests cannot be read.
    """
    # Only a live audit needs the Kafka client.
    from statechannel.cli.kit.requests import requests_in, requests_seen

    if isinstance(asked.source, ExportSource) and not asked.source.made_here:
        side = side_records(asked.source.path, SideRole.REQUESTS)
        return {} if side is None else {name: row["by"] for name, row in requests_in(side.records).items() if row["by"]}
    if not isinstance(asked.source, LiveSource):
        return {}
    try:
        return {name: row["by"] for name, row in requests_seen(asked.connect()).items() if row["by"]}
    except StateChannelError as error:
        say(f"note: the requests could not be read, {what} does not name who made them: {error}")
        return {}


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
