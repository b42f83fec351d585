"""`statechannel decisions`, `why` and `why-not`: the balancer's decisions, and its reasons for none."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from shedders.cli.decision_log import (
    DecisionFilter,
    decision_fields,
    decision_reader,
    deeds,
    done_count,
    print_deeds,
    reader_if_any,
    warn_of_junk,
    warn_of_unread,
    warn_of_unreadable,
)
from shedders.decisions.bundle_trail import Trail
from shedders.decisions.explanation import NOT_MADE, CommandOrigin, Explanation, WhyNot
from shedders.decisions.explanation import why as explain
from shedders.decisions.explanation import why_not as explain_not
from shedders.decisions.history import DecisionBook
from shedders.decisions.record import AnyRecord, DecisionRecord, OutcomeRecord, Subject, decode
from shedders.decisions.topic import DecisionReader
from shedders.model.plan import Reason
from statechannel.audit.engine import ExportSource
from statechannel.audit.moments import LogWindow
from statechannel.audit.views import LogViews, NotInLogError
from statechannel.cli.audit.options import read_at_ms
from statechannel.cli.kit.channel_view import locate, not_found, read_channel, read_file
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column, cell
from statechannel.cli.kit.listing import SinceTime, UntilTime, time_window
from statechannel.cli.kit.options import Connect, OutputAs, options_used, with_connection
from statechannel.cli.kit.output import (
    Output,
    duration,
    moment,
    print_facts,
    print_hanging,
    print_json,
    print_json_line,
    print_table,
    say,
    stdout,
    when,
)
from statechannel.cli.kit.requests import requests_in, requests_seen
from statechannel.cli.kit.side_files import FileBeside, SideRole, require_export, side_records
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode
from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import is_bundle
from statechannel.protocol.keys import KeyState
from statechannel.protocol.side_record import InvalidRecord

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="List the balancer's decisions, or show one: show ID."
)

LAST = "last"
_DEFAULT_SINCE = "1h"
_OTHERS_SHOWN = 200
_FOLLOWED_MAX = 10_000


@app.callback(invoke_without_command=True)
@with_connection
def decisions(
    connect: Connect,
    ctx: typer.Context,
    since: SinceTime = _DEFAULT_SINCE,
    until: UntilTime = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="BROKER", help="Only decisions of this broker, as leader or splitter.")
    ] = None,
    moves_only: Annotated[
        bool, typer.Option("--moves-only", help="Show only moved and split bundles, one line each.")
    ] = False,
    placements: Annotated[
        bool,
        typer.Option(
            "--placements", help="Show only placed bundles, one line each; may be combined with --moves-only."
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show new decisions as they are made, until interrupted.")
    ] = False,
    max_seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0.1, help="With --follow: stop after this time.")
    ] = None,
    file: FileBeside = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the balancer's decisions, oldest first; JSON with --follow is one record per line."""
    if ctx.invoked_subcommand is not None:
        _nothing_given(ctx)
        return
    if max_seconds is not None and not follow:
        raise CommandError(
            "--for requires --follow",
            hint="Add --follow; to look back, use --since.",
            code=ExitCode.USAGE,
        )
    if follow and until is not None:
        raise CommandError(
            "--follow and --until exclude each other", hint="To end it, use --for SECONDS.", code=ExitCode.USAGE
        )
    if follow and file is not None:
        raise CommandError(
            "--follow and --file exclude each other", hint="A file does not change.", code=ExitCode.USAGE
        )
    window = time_window(since, until, now_ms() if file is None else read_at_ms(ExportSource(file)))
    since_ms = 0 if window.since is None else window.since.time_ms or 0
    # The topic is read from the first record on that the log took at that time; ends by the times of the records.
    shown, up_to = DecisionFilter(moves_only, placements, by), LogWindow(until=window.until)
    if file is not None:
        book = _decisions_beside(file, since_ms)
    else:
        with decision_reader(connect()) as reader:
            if follow:
                _follow(reader, since_ms, max_seconds, output, shown)
                return
            book = _book_since(reader, since_ms)
    records = [record for record in book.decisions if shown.any(record) and up_to.has(0, record.at_ms)]
    warn_of_junk(book)
    if output is Output.JSON:
        print_json(_decisions_document(book, records, since_ms))
    elif shown.lines:
        rows = [((when(record.at_ms), record.id), row) for record in records for row in shown.of(book, record)]
        what = "moved or split" if not placements else "moved, split or placed" if moves_only else "placed"
        print_deeds(("time", Column("decision", 4)), rows, f"no bundle was {what} since {moment(since_ms)}")
    else:
        _list(records, since_ms)


def _book_since(reader: DecisionReader, since_ms: int, until_ms: int | None = None) -> DecisionBook:
    book = DecisionBook()
    for read in reader.read(since_ms=since_ms):
        if until_ms is None or read.timestamp_ms <= until_ms:
            book.add(read.record)
    return book


def _decisions_document(book: DecisionBook, records: Sequence[DecisionRecord], since_ms: int) -> dict[str, Any]:
    return {
        "since_ms": since_ms,
        "decisions": [decision_fields(book, record) for record in records],
        "unreadable": dict(sorted(book.junk.items())),
    }


def decisions_document(
    connection: Connection, since_ms: int, limit: int, until_ms: int | None = None
) -> dict[str, Any]:
    """The newest decisions of a live channel between two log times, as `decisions` prints them in JSON.

    Args:
        until_ms: What was recorded later is left out, results of moves too; None: nothing.
    """
    with reader_if_any(connection) as reader:
        book = DecisionBook() if reader is None else _book_since(reader, since_ms, until_ms)
    return _decisions_document(book, list(book.decisions)[-limit:], since_ms)


def decision_document(connection: Connection, decision: str) -> dict[str, Any]:
    """One decision of a live channel, as `decisions show` prints it in JSON.

    Raises:
        CommandError: There is none of this id.
    """
    book = DecisionBook()
    with reader_if_any(connection) as reader:
        for read in () if reader is None else reader.read(about=[decision.upper()]):
            book.add(read.record)
    chosen = book.decision(decision.upper())
    if chosen is None:
        raise _decision_not_found(decision)
    return decision_fields(book, chosen)


def _decision_not_found(decision: str) -> CommandError:
    return not_found(
        f"decision {decision} not found",
        hint="`statechannel decisions --since 7d` lists decisions; they are kept for a week by default.",
    )


@app.command()
@with_connection
def show(
    connect: Connect,
    decision: Annotated[str, typer.Argument(metavar="ID", help="Id of the decision, or `last`.")],
    output: OutputAs = Output.TABLE,
) -> None:
    """Show one decision: its moves and their results, scores, and what was left alone."""
    wanted = decision.upper() if decision != LAST else LAST
    book = DecisionBook()
    with decision_reader(connect()) as reader:
        if wanted == LAST:
            reads = reader.newest(
                1,
                lambda record: isinstance(record, DecisionRecord),
                behind=lambda record: isinstance(record, OutcomeRecord),
            )
            warn_of_unread(reader)
        else:
            reads = list(reader.read(about=[wanted]))
    for read in reads:
        book.add(read.record)
    chosen = book.decisions[-1] if wanted == LAST and len(book) else book.decision(wanted)
    if chosen is None:
        warn_of_junk(book)
        raise _decision_not_found(decision)
    if output is Output.JSON:
        print_json(decision_fields(book, chosen))
    else:
        _show(book, chosen)


def _nothing_given(ctx: typer.Context) -> None:
    """Reject options before the subcommand, which would be ignored."""
    options = options_used(ctx)
    if options:
        raise CommandError(
            f"the option {options[0]} must follow `{ctx.invoked_subcommand}`",
            hint=f"Put options last: `statechannel decisions {ctx.invoked_subcommand} ... OPTIONS`.",
            code=ExitCode.USAGE,
        )


def _list(records: list[DecisionRecord], since_ms: int) -> None:
    print_table(
        (
            "time",
            Column("decision", 1),
            Column("of", 1),
            Column("leader", 4),
            Column("term", 5),
            Column("cycle", 5),
            Column("label", 4),
            Column("reason", 1),
            "done",
            Column("left", 2),
            Column("why", text=True),
        ),
        [
            (
                when(record.at_ms),
                record.id,
                record.subject,
                record.leader,
                record.term,
                record.cycle,
                record.label,
                _reason(record),
                done_count(record),
                sum(record.left_counts.values()),
                record.why,
            )
            for record in records
        ],
        empty=f"no decision since {moment(since_ms)}: no balancer ran, or it has made no decision yet",
    )


def _reason(record: DecisionRecord) -> str | None:
    """The record's own word; upstream's `Unknown` says nothing, as of a success."""
    return record.skipped or (None if record.reason == Reason.UNKNOWN else record.reason)


def _show(book: DecisionBook, record: DecisionRecord) -> None:
    print_facts(_facts(record))
    stdout().print()
    print_deeds((), [((), row) for row in deeds(book, record)], "no action")
    if record.scores:
        stdout().print()
        scores = sorted(record.scores.items(), key=lambda pair: (-(pair[1] if pair[1] is not None else 1e308), pair[0]))
        print_table(("broker", "score"), [(name, _figure(score)) for name, score in scores])
    if record.left:
        stdout().print()
        rows = [(item.name, item.reason, item.why) for item in record.left[:_OTHERS_SHOWN]]
        print_table(("left alone", "reason", "why"), rows)
        if len(record.left) > len(rows):
            stdout().print(f"(the first {len(rows)} of {len(record.left)}; all of them with --output json)")


def _facts(record: DecisionRecord) -> Iterator[tuple[str, object]]:
    yield "decision", record.id
    yield "of", record.subject
    yield "at", moment(record.at_ms)
    yield "took", duration(record.took_ms)
    yield "leader", f"{record.leader} (term {record.term}, cycle {record.cycle}, {record.trigger})"
    placement = f", placement {record.placement}" if record.placement else ""
    yield "strategy", f"{record.strategy}{placement} (profile {record.profile}, manager {record.manager})"
    yield "settings", record.fingerprint
    yield (
        "label, reason",
        ", ".join(filter(None, (record.label, _reason(record) if not record.skipped else record.reason))),
    )
    if record.skipped is not None:
        yield "skipped", record.skipped
    yield "why", record.why
    if record.distance is not None:
        yield "distance to the best", record.distance.sentence
    channel = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(record.inputs.channel.items()))
    yield "channel read to", channel
    for name in ("broker_load", "top_bundles", "policies"):
        yield f"{name.replace('_', ' ')} read to", getattr(record.inputs, name)
    for name, value in record.stats.items():
        yield name.replace("_", " "), _figure(value)
    budget = record.budget
    if budget is not None:
        yield (
            "budget left",
            f"{budget.moves_left} of {budget.moves_max} moves, {budget.load_percent_left:.1f} of "
            f"{budget.load_percent_max:.1f} % of the load; {budget.on_the_way} in flight",
        )
    if record.left_counts:
        yield "left alone", ", ".join(f"{count} {reason}" for reason, count in sorted(record.left_counts.items()))
    if record.cut:
        yield "omitted for size", ", ".join(f"{count} {part}" for part, count in sorted(record.cut.items()))


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _follow(
    reader: DecisionReader, since_ms: int, max_seconds: float | None, output: Output, shown: DecisionFilter
) -> None:
    ends_s = None if max_seconds is None else time.monotonic() + max_seconds
    followed: dict[str, None] = {}
    for batch in reader.follow(since_ms=since_ms, stop=lambda: ends_s is not None and time.monotonic() >= ends_s):
        for read in batch:
            record = read.record
            if isinstance(record, InvalidRecord):
                warn_of_unreadable(record, read.offset)
            elif _is_hidden(record, shown, followed):
                continue
            elif output is Output.JSON:
                line: dict[str, Any] = {"offset": read.offset, "timestamp_ms": read.timestamp_ms}
                print_json_line(line | record.model_dump(mode="json"))
            else:
                for text in _lines(record, shown):
                    stdout().print(cell(text), markup=False)
            if isinstance(record, DecisionRecord):
                remember(followed, record.id, None, _FOLLOWED_MAX)


def _is_hidden(record: AnyRecord, shown: DecisionFilter, followed: Container[str]) -> bool:
    """Whether the filter leaves a record out: a decision, or the outcome of one that is not among those shown."""
    if isinstance(record, OutcomeRecord):
        return shown.by is not None and record.decision not in followed
    return not shown.any(record)


def _lines(record: AnyRecord, shown: DecisionFilter) -> Iterator[str]:
    if isinstance(record, OutcomeRecord):
        yield f"{moment(record.at_ms)}  {record.decision}  {record.bundle}: {record.result} ({record.why})"
        return
    outcome = ", ".join(filter(None, (record.label, _reason(record))))
    yield f"{moment(record.at_ms)}  {record.id}  {record.subject} by {record.leader}: {outcome}: {record.why}"
    book = DecisionBook(1)
    book.add(record)
    for row in shown.of(book, record) if shown.lines else deeds(book, record):
        begun = f" [{row.result}]" if row.result else ""
        yield f"    {row.bundle}  {row.source or '-'} -> {row.to}{begun}  {row.why}"


why_app = typer.Typer(add_completion=False, rich_markup_mode=None)
why_not_app = typer.Typer(add_completion=False, rich_markup_mode=None)

_BEFORE_MS = 600_000

Name = Annotated[str, typer.Argument(metavar="BUNDLE|TOPIC", help="tenant/namespace/0x..._0x..., or a topic.")]


@why_app.command()
@with_connection
def why(
    connect: Connect,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Number of newest steps to show.")] = 20,
    file: FileBeside = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Explain why a bundle is where it is: its moves and splits, with times, decisions and loads."""
    answer, document = _why(None if file is not None else connect(), file, name, limit)
    if output is Output.JSON:
        print_json(document)
        return
    _print_why(answer)
    if not document["whole"]:
        say("older records were compacted: earlier steps are no longer in the channel")


def why_document(connection: Connection, name: str, limit: int) -> dict[str, Any]:
    """Why a bundle of a live channel is where it is, as `why` prints it in JSON."""
    return _why(connection, None, name, limit)[1]


def _why(connection: Connection | None, file: Path | None, name: str, limit: int) -> tuple[Explanation, dict[str, Any]]:
    """The explanation, and its document; by the live channel, or by a file."""
    if connection is not None:
        trail = _trail(name)
        views = read_channel(connection, [trail.observe])
        _settle(trail, views, name)
        book, asked = _decisions_about(connection, trail, limit), requests_seen(connection)
    elif file is not None:
        trail = _trail(name)
        views = read_file(file, [trail.observe])
        _settle(trail, views, name)
        requests = side_records(file, SideRole.REQUESTS)
        book, asked = _decisions_beside(file), {} if requests is None else requests_in(requests.records)
    else:
        raise TypeError("neither a channel nor a file")
    answer = explain(trail, book, _origins(asked), steps_max=limit)
    warn_of_junk(book)
    whole = all(part.strict_from == 0 for part in views.parts)
    extra = {"tentative": views.tentative, "whole": whole, "decisions_found": len(book)}
    return answer, {"asked": name, **answer.to_json(), **extra}


@why_not_app.command("why-not")
@with_connection
def why_not(
    connect: Connect,
    name: Name,
    decisions: Annotated[
        int, typer.Option("--decisions", min=1, max=1_000, help="Number of recent decisions to search.")
    ] = 20,
    output: OutputAs = Output.TABLE,
) -> None:
    """Explain why the balancer leaves a bundle where it is, by the newest decisions on it, its broker and the cluster."""
    answer = _why_not(connect, name, decisions)
    if output is Output.JSON:
        print_json({"asked": name, **answer.to_json()})
    else:
        _print_why_not(answer)


def why_not_document(connection: Connection, name: str, decisions: int) -> dict[str, Any]:
    """Why the balancer leaves a bundle where it is, as `why-not` prints it in JSON."""
    return {"asked": name, **_why_not(lambda: connection, name, decisions).to_json()}


def _why_not(connect: Callable[[], Connection], name: str, decisions: int) -> WhyNot:
    trail = _trail(name)
    connection = connect()
    key = locate(read_channel(connection, [trail.observe]), name)
    trail.settled(key.name, key.owner)
    book = DecisionBook()
    with reader_if_any(connection) as reader:
        for read in (
            () if reader is None else reader.newest(decisions, _sheds, behind=lambda record: _explains(record, key))
        ):
            book.add(read.record)
        if reader is not None:
            warn_of_unread(reader)
    since_ms = trail.there_since_ms
    answer = explain_not(key.name, key.owner, book, now_ms=now_ms(), since_ms=since_ms, decisions_max=decisions)
    warn_of_junk(book)
    return answer


def _sheds(record: object) -> bool:
    return isinstance(record, DecisionRecord) and record.subject == Subject.SHED.value


def _explains(record: AnyRecord, key: KeyState) -> bool:
    """Placements come in thousands, and do not explain what stays: only that of a bundle without an owner does."""
    if not isinstance(record, DecisionRecord) or record.subject != Subject.PLACE.value:
        return True
    return key.owner is None and any(entry.bundle == key.name for entry in record.placed)


def _trail(name: str) -> Trail:
    try:
        return Trail(name)
    except ValueError as error:
        raise CommandError(
            str(error), hint="Use tenant/namespace/0x..._0x... or tenant/namespace/topic.", code=ExitCode.USAGE
        ) from error


def _settle(trail: Trail, views: LogViews, name: str) -> None:
    """Correct the trail by the accepted state, which takes precedence over the remaining records."""
    try:
        key = views.locate(name)
    except NotInLogError as error:
        if name not in trail.names and not _was_there(trail, name):
            raise not_found(str(error), hint=error.hint) from error
        return
    trail.settled(key.name, key.owner)


def _was_there(trail: Trail, name: str) -> bool:
    """Whether the records show a topic whose namespace was deleted."""
    return trail.title != name and bool(trail.changes)


def _decisions_about(connection: Connection, trail: Trail, limit: int) -> DecisionBook:
    book = DecisionBook()
    names = trail.names
    if not names:
        return book
    changes = trail.changes[-limit:]
    since_ms = max(0, changes[0].began_ms - _BEFORE_MS) if changes else None
    with reader_if_any(connection) as reader:
        for read in () if reader is None else reader.read(since_ms=since_ms, about=names):
            book.add(read.record)
    return book


def _decisions_beside(export: Path, since_ms: int = 0) -> DecisionBook:
    """Decisions of the file beside an export, from this log time on."""
    book = DecisionBook()
    side = side_records(export, SideRole.DECISIONS)
    if side is None:
        require_export(export)
        say(f"note: there is no file of decisions for {export} (`export --with-topics`, where a balancer has run)")
        return book
    for record in side.records:
        if record.timestamp_ms >= since_ms:
            book.add(decode(record.key, record.value))
    return book


def _origins(requests: Mapping[str, Mapping[str, Any]]) -> dict[str, CommandOrigin]:
    return {name: CommandOrigin(request["by"] or "somebody", request["flow"]) for name, request in requests.items()}


def _print_why(answer: Explanation) -> None:
    _line(f"{answer.title}: {answer.now}" if answer.title not in answer.now else answer.now)
    if answer.left_out:
        _line(f"({answer.left_out} older steps are not shown: --limit)")
    for step in answer.steps:
        stdout().print()
        _line(f"{moment(step.at_ms)}  {step.message}")
        if step.bundle != answer.bundle and is_bundle(step.bundle):
            _line(f"    as bundle {step.bundle}")
        if step.because:
            _line(f"    {step.because}")
        if step.result and step.what != NOT_MADE:
            _line(f"    result in the balancer's log: {step.result}")
        if step.operation:
            _line(f"    operation {step.operation}")


def _print_why_not(answer: WhyNot) -> None:
    served = f"served by {answer.owner}" if answer.owner else "served by no broker"
    _line(f"{answer.bundle}, {served}")
    for sentence in answer.messages:
        _line(f"  {sentence}")


def _line(text: str) -> None:
    """A line; if it wraps, the rest of it is indented as it is."""
    sentence = text.strip()
    print_hanging(" " * (len(text) - len(text.lstrip())), cell(sentence))
