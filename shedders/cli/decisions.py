"""`statechannel decisions`, `why` and `why-not`: the balancer's decisions, and its reasons for none."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from shedders.decisions.explanation import NOT_MADE, Explanation, WhyNot
from shedders.decisions.history import DecisionBook, decision_read
from shedders.decisions.record import AnyRecord, DecisionRecord, MoveEntry, OutcomeRecord, PlacedEntry, Subject
from shedders.decisions.topic import DecisionReader
from shedders.model.amounts import rate
from shedders.model.plan import Reason
from shedders.queries.decisions import (
    book_since,
    decision_fields,
    decision_reader,
    decisions_document,
    explained,
    explanation_of,
    not_moved,
    note_junk,
    note_unread,
    require_decision,
    settle,
    story_of,
)
from statechannel.audit.engine import ExportSource
from statechannel.audit.moments import LogWindow
from statechannel.cli.kit.fitted_tables import Column, cell
from statechannel.cli.kit.listing import SinceTime, UntilTime
from statechannel.cli.kit.options import (
    Connect,
    FileBeside,
    OutputAs,
    argument,
    commands,
    option,
    options_used,
    with_connection,
)
from statechannel.cli.kit.output import (
    Output,
    print_facts,
    print_hanging,
    print_json,
    print_json_line,
    print_rows,
    print_table,
    say,
    stdout,
    when,
)
from statechannel.cli.kit.progress import TERMINAL
from statechannel.clocks import duration, moment, now_ms
from statechannel.errors import UsageError
from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import is_bundle
from statechannel.protocol.side_record import InvalidRecord
from statechannel.queries.audit_log import read_at_ms, time_window
from statechannel.queries.channel_view import read_file
from statechannel.queries.side_files import SideRole, requests_of_file, require_export, side_records

app = commands("List the balancer's decisions, or show one: show ID.")

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
    by: Annotated[str | None, option("--by BROKER", "Only decisions of this broker, as leader or splitter.")] = None,
    moves_only: Annotated[bool, option("--moves-only", "Show only moved and split bundles, one line each.")] = False,
    placements: Annotated[
        bool, option("--placements", "Show only placed bundles, one line each; may be combined with --moves-only.")
    ] = False,
    follow: Annotated[bool, option("--follow", "Show new decisions as they are made, until interrupted.")] = False,
    max_seconds: Annotated[
        float | None, option("--for SECONDS", "With --follow: stop after this time.", min=0.1)
    ] = None,
    file: FileBeside = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the balancer's decisions, oldest first; JSON with --follow is one record per line."""
    if ctx.invoked_subcommand is not None:
        _nothing_given(ctx)
        return
    if max_seconds is not None and not follow:
        raise UsageError("--for requires --follow", hint="Add --follow; to look back, use --since.")
    if follow and until is not None:
        raise UsageError("--follow and --until exclude each other", hint="To end it, use --for SECONDS.")
    if follow and file is not None:
        raise UsageError("--follow and --file exclude each other", hint="A file does not change.")
    window = time_window(since, until, now_ms() if file is None else read_at_ms(ExportSource(file)), TERMINAL)
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
            book = book_since(reader, since_ms)
    records = [record for record in book.decisions if shown.any(record) and up_to.has(0, record.at_ms)]
    note_junk(book, TERMINAL)
    if output is Output.JSON:
        print_json(decisions_document(book, records, since_ms))
    elif shown.lines:
        rows = [row for record in records for row in shown.of(book, record)]
        what = "moved or split" if not placements else "moved, split or placed" if moves_only else "placed"
        print_deeds(rows, f"no bundle was {what} since {moment(since_ms)}", dated=True)
    else:
        _list(records, since_ms)


@app.command()
@with_connection
def show(
    connect: Connect,
    decision: Annotated[str, argument("ID", "Id of the decision, or `last`.")],
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
            note_unread(reader, TERMINAL)
        else:
            reads = list(reader.read(about=[wanted]))
    for read in reads:
        book.add(read.record)
    if wanted == LAST and len(book):
        chosen = book.decisions[-1]
    else:
        if book.decision(wanted) is None:
            note_junk(book, TERMINAL)
        chosen = require_decision(book, decision)
    if output is Output.JSON:
        print_json(decision_fields(book, chosen))
    else:
        _show(book, chosen)


def _nothing_given(ctx: typer.Context) -> None:
    """Reject options before the subcommand, which would be ignored."""
    options = options_used(ctx)
    if options:
        raise UsageError(
            f"the option {options[0]} must follow `{ctx.invoked_subcommand}`",
            hint=f"Put options last: `statechannel decisions {ctx.invoked_subcommand} ... OPTIONS`.",
        )


def _list(records: list[DecisionRecord], since_ms: int) -> None:
    print_rows(
        (
            Column("time", of=lambda record: when(record.at_ms)),
            Column("decision", 1, of="id"),
            Column("of", 1, of="subject"),
            Column("leader", 4),
            Column("term", 5),
            Column("cycle", 5),
            Column("label", 4),
            Column("reason", 1, of=_reason),
            Column("done", of=done_count),
            Column("left", 2, of=lambda record: sum(record.left_counts.values())),
            Column("why", text=True),
        ),
        records,
        empty=f"no decision since {moment(since_ms)}: no balancer ran, or it has made no decision yet",
    )


def _reason(record: DecisionRecord) -> str | None:
    """The record's own word; upstream's `Unknown` says nothing, as of a success."""
    return record.skipped or (None if record.reason == Reason.UNKNOWN else record.reason)


def _show(book: DecisionBook, record: DecisionRecord) -> None:
    print_facts(_facts(record))
    stdout().print()
    print_deeds(list(deeds(book, record)), "no action")
    if record.scores:
        stdout().print()
        scores = sorted(record.scores.items(), key=lambda pair: (-(pair[1] if pair[1] is not None else 1e308), pair[0]))
        print_table(("broker", "score"), [(name, _figure(score)) for name, score in scores])
    if record.left:
        stdout().print()
        print_rows((Column("left alone", of="name"), "reason", "why"), record.left[:_OTHERS_SHOWN])
        if len(record.left) > _OTHERS_SHOWN:
            stdout().print(f"(the first {_OTHERS_SHOWN} of {len(record.left)}; all of them with --output json)")


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
                say(f"the record at offset {read.offset} cannot be read ({record.reason}): {record.why}")
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


why_app = commands()
why_not_app = commands()

Name = Annotated[str, argument("BUNDLE|TOPIC", "tenant/namespace/0x..._0x..., or a topic.")]


@why_app.command()
@with_connection
def why(
    connect: Connect,
    name: Name,
    limit: Annotated[int, option("--limit", "Number of newest steps to show.", min=1, max=10_000)] = 20,
    file: FileBeside = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Explain why a bundle is where it is: its moves and splits, with times, decisions and loads."""
    if file is None:
        answer, document = explained(connect(), name, limit)
    else:
        story = story_of(name)
        views = read_file(file, TERMINAL, [story.observe])
        settle(story, views, name)
        asked, book = requests_of_file(file, TERMINAL) or {}, _decisions_beside(file)
        answer, document = explanation_of(story, views, book, asked, name, limit)
        note_junk(book, TERMINAL)
    if output is Output.JSON:
        print_json(document)
        return
    _print_why(answer)
    if not document["whole"]:
        say("older records were compacted: earlier steps are no longer in the channel")


@why_not_app.command("why-not")
@with_connection
def why_not(
    connect: Connect,
    name: Name,
    decisions: Annotated[int, option("--decisions", "Number of recent decisions to search.", min=1, max=1_000)] = 20,
    output: OutputAs = Output.TABLE,
) -> None:
    """Explain why the balancer leaves a bundle where it is, by the newest decisions on it, its broker and the cluster."""
    story_of(name)  # refused before Kafka is asked
    answer = not_moved(connect(), name, decisions)
    if output is Output.JSON:
        print_json({"asked": name, **answer.to_json()})
    else:
        _print_why_not(answer)


def _decisions_beside(export: Path, since_ms: int = 0) -> DecisionBook:
    """Decisions of the file beside an export, from this log time on."""
    book = DecisionBook()
    side = side_records(export, SideRole.DECISIONS, TERMINAL)
    if side is None:
        require_export(export)
        say(f"note: there is no file of decisions for {export} (`export --with-topics`, where a balancer has run)")
        return book
    for record in side.records:
        if record.timestamp_ms >= since_ms:
            book.add(decision_read(record).record)
    return book


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


PLACED: Final = "Placed"
"""Field of a move that has the reason."""


class DecisionRow(NamedTuple):
    """Row of one bundle in tables: what was done with it, or refused.

    Attributes:
        load: Rate with its unit.
        score: Score of the chosen broker, for placements.
    """

    record: DecisionRecord
    bundle: str
    source: str | None
    to: str
    reason: str
    result: str | None
    why: str
    load: str | None = None
    score: float | None = None


def deeds(book: DecisionBook, record: DecisionRecord) -> Iterator[DecisionRow]:
    for action in book.bundle_decisions(record):
        entry, result = action.entry, _result(action.result, action.why_so)
        if isinstance(entry, MoveEntry):
            to = entry.destination or "anybody"
            to = "stays" if entry.refused is not None else f"{to} (swap)" if entry.swap else to
            load = None if entry.load is None else rate(entry.load, entry.load_unit)
            end = entry.refused or result
            yield DecisionRow(record, entry.bundle, entry.source, to, entry.reason, end, entry.why, load)
        elif isinstance(entry, PlacedEntry):
            to = entry.broker or "no broker"
            yield DecisionRow(record, entry.bundle, None, to, PLACED, result, entry.why, score=entry.score)
        else:
            cuts = ", ".join(f"0x{position:08x}" for position in entry.positions)
            to = f"split at {cuts}" if cuts else "split" if entry.refused is None else "not split"
            yield DecisionRow(record, entry.bundle, None, to, entry.reason, entry.refused or result, entry.why)


class DecisionFilter(NamedTuple):
    """Which rows of decisions to show; neither: whole decisions.

    Placements within a decision of another kind only name the destinations of its moves, so they have no rows of their own.

    Attributes:
        by: Only decisions of this broker; None: of any.
    """

    moves: bool
    placements: bool
    by: str | None = None

    @property
    def lines(self) -> bool:
        return self.moves or self.placements

    def of(self, book: DecisionBook, record: DecisionRecord) -> list[DecisionRow]:
        return [
            row
            for row in deeds(book, record)
            if (self.moves if row.reason != PLACED else self.placements and record.subject == Subject.PLACE.value)
        ]

    def any(self, record: DecisionRecord) -> bool:
        """Whether a decision has a row to show."""
        if self.by is not None and record.leader != self.by:
            return False
        if not self.lines:
            return True
        shows_whole = bool(record.placed) and record.subject == Subject.PLACE.value
        return (self.placements and shows_whole) or (self.moves and bool(record.moves or record.splits))


def print_deeds(rows: Sequence[DecisionRow], empty: str, *, dated: bool = False) -> None:
    """Print a table of rows, with a column of scores if there are any; `dated`: with times and ids of their decisions."""
    columns = (
        Column("time", of=lambda row: when(row.record.at_ms)) if dated else None,
        Column("decision", 4, of=lambda row: row.record.id) if dated else None,
        "bundle",
        Column("from", of="source"),
        Column("to", text=False),
        Column("reason", 2),
        Column("load", 1, text=False),
        Column("score", 2) if any(row.score is not None for row in rows) else None,
        Column("result", 1, text=False),
        Column("why", text=True),
    )
    print_rows(columns, rows, empty=empty)


def done_count(record: DecisionRecord) -> int:
    if record.subject == Subject.PLACE.value:
        return len(record.placed) + record.cut.get("placed", 0)
    count = sum(move.refused is None for move in record.moves) + sum(split.refused is None for split in record.splits)
    return count + record.cut.get("moves", 0) + record.cut.get("splits", 0)


def _result(word: str | None, why: str | None) -> str | None:
    return word if word is None or not why else f"{word}: {why}"
