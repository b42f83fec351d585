"""`statechannel decisions`: what the balancer decided, and why it did not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from shedders.cli.decision_log import (
    Shown,
    decision_reader,
    deeds,
    done_count,
    print_deeds,
    tell_ended,
    tell_junk,
    tell_unreadable,
    told,
)
from shedders.cli.times import parse_since
from shedders.decisions.book import DecisionBook
from shedders.decisions.record import AnyRecord, DecisionRecord, OutcomeRecord, UndecodableDecision
from shedders.decisions.topic import DecisionReader
from statechannel.cli.kit.channel_view import not_found
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.live_log import now_ms
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, cell, duration, moment, print_json, print_json_line, print_table, stdout
from statechannel.errors import ExitCode

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="What the balancer decided: a list, or show ID.")

LAST = "last"
_DEFAULT_SINCE = "1h"
_OTHERS_SHOWN = 200


@app.callback(invoke_without_command=True)
@with_connection
def decisions(
    connect: Connect,
    ctx: typer.Context,
    since: Annotated[
        str,
        typer.Option("--since", metavar="TIME|DURATION", help="For example 15m, 2h, 7d, 2026-01-01T00:00:00Z."),
    ] = _DEFAULT_SINCE,
    moves_only: Annotated[
        bool, typer.Option("--moves-only", help="Only bundles that are moved or split, a line for each.")
    ] = False,
    placements: Annotated[
        bool,
        typer.Option("--placements", help="Only bundles that are placed, a line for each; goes with --moves-only."),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new ones as they come, until interrupted.")
    ] = False,
    max_seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0.1, help="With --follow: end after this.")
    ] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """What the balancer decided, the oldest first; with --follow and as JSON, one record a line."""
    if ctx.invoked_subcommand is not None:
        _nothing_given(ctx)
        return
    if max_seconds is not None and not follow:
        raise CommandError(
            "--for says when --follow ends, and there is no --follow",
            hint="Add --follow, or say --since for how far to look back.",
            code=ExitCode.USAGE,
        )
    since_ms, shown = parse_since(since, now_ms()), Shown(moves_only, placements)
    with decision_reader(connect()) as reader:
        if follow:
            _follow(reader, since_ms, max_seconds, output, shown)
            return
        book = DecisionBook()
        for read in reader.read(since_ms=since_ms):
            book.add(read.record)
    found = [one for one in book.decisions if shown.any(one)]
    tell_junk(book)
    if output is Output.JSON:
        print_json(
            {
                "since_ms": since_ms,
                "decisions": [told(book, one) for one in found],
                "unreadable": dict(sorted(book.junk.items())),
            }
        )
    elif shown.lines:
        rows = [((moment(one.at_ms), one.id), row) for one in found for row in shown.of(book, one)]
        what = "moved or split" if not placements else "moved, split or placed" if moves_only else "placed"
        print_deeds(("time", "decision"), rows, f"nothing was {what} since {moment(since_ms)}")
    else:
        _list(found, since_ms)


@app.command()
@with_connection
def show(
    connect: Connect,
    decision: Annotated[str, typer.Argument(metavar="ID", help="A decision's id, or `last`.")],
    output: OutputAs = Output.TABLE,
) -> None:
    """Show one decision with its moves and how they ended, scores, and what it left alone."""
    wanted = decision.upper() if decision != LAST else LAST
    book = DecisionBook()
    with decision_reader(connect()) as reader:
        if wanted == LAST:
            reads = reader.newest(
                1,
                lambda record: isinstance(record, DecisionRecord),
                behind=lambda record: isinstance(record, OutcomeRecord),
            )
            tell_ended(reader)
        else:
            reads = list(reader.read(about=[wanted]))
    for read in reads:
        book.add(read.record)
    found = book.decisions[-1] if wanted == LAST and len(book) else book.decision(wanted)
    if found is None:
        tell_junk(book)
        raise not_found(
            f"there is no decision {decision}",
            hint="`statechannel decisions --since 7d` lists those that are kept, a week by default.",
        )
    if output is Output.JSON:
        print_json(told(book, found))
    else:
        _show(book, found)


def _nothing_given(ctx: typer.Context) -> None:
    """Options before the subcommand would be lost in silence."""
    given = [name for name in ctx.params if str(ctx.get_parameter_source(name)).endswith("COMMANDLINE")]
    if given:
        option = {"max_seconds": "for", "properties": "X", "flags": "set"}.get(given[0], given[0]).replace("_", "-")
        raise CommandError(
            f"the option {'-' if option == 'X' else '--'}{option} stands before `{ctx.invoked_subcommand}`",
            hint=f"Options come last: `statechannel decisions {ctx.invoked_subcommand} ... OPTIONS`.",
            code=ExitCode.USAGE,
        )


def _list(found: list[DecisionRecord], since_ms: int) -> None:
    print_table(
        ("time", "decision", "of", "leader", "term", "cycle", "label", "reason", "done", "left", "why"),
        [
            (
                moment(one.at_ms),
                one.id,
                one.subject,
                one.leader,
                one.term,
                one.cycle,
                one.label,
                one.skipped or one.reason,
                done_count(one),
                sum(one.left_counts.values()),
                one.why,
            )
            for one in found
        ],
        empty=f"no decision since {moment(since_ms)}: no balancer ran, or none has decided yet",
    )


def _show(book: DecisionBook, record: DecisionRecord) -> None:
    print_table(("what", "value"), list(_facts(record)))
    stdout().print()
    print_deeds((), [((), row) for row in deeds(book, record)], "nothing was to be done")
    if record.scores:
        stdout().print()
        scores = sorted(record.scores.items(), key=lambda pair: (-(pair[1] if pair[1] is not None else 1e308), pair[0]))
        print_table(("broker", "score"), [(name, _figure(score)) for name, score in scores])
    if record.left:
        stdout().print()
        rows = [(one.name, one.reason, one.why) for one in record.left[:_OTHERS_SHOWN]]
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
    yield "label, reason", f"{record.label}, {record.reason}"
    if record.skipped is not None:
        yield "skipped", record.skipped
    yield "why", record.why
    channel = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(record.inputs.channel.items()))
    yield "channel read to", channel
    for name in ("broker_load", "top_bundles", "policies"):
        yield f"{name.replace('_', ' ')} read to", getattr(record.inputs, name)
    for name, value in record.stats.items():
        yield name, _figure(value)
    budget = record.budget
    if budget is not None:
        yield (
            "budget left",
            f"{budget.moves_left} of {budget.moves_max} moves, {budget.load_percent_left:.1f} of "
            f"{budget.load_percent_max:.1f} % of the load; {budget.on_the_way} were on their way",
        )
    if record.left_counts:
        yield "left alone", ", ".join(f"{count} {reason}" for reason, count in sorted(record.left_counts.items()))
    if record.cut:
        yield "no room for", ", ".join(f"{count} {part}" for part, count in sorted(record.cut.items()))


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _follow(reader: DecisionReader, since_ms: int, max_seconds: float | None, output: Output, shown: Shown) -> None:
    ends_s = None if max_seconds is None else time.monotonic() + max_seconds
    for batch in reader.follow(since_ms=since_ms, stop=lambda: ends_s is not None and time.monotonic() >= ends_s):
        for read in batch:
            record = read.record
            if isinstance(record, UndecodableDecision):
                tell_unreadable(record, read.offset)
            elif isinstance(record, DecisionRecord) and not shown.any(record):
                continue
            elif output is Output.JSON:
                line: dict[str, Any] = {"offset": read.offset, "timestamp_ms": read.timestamp_ms}
                print_json_line(line | record.model_dump(mode="json"))
            else:
                for text in _lines(record, shown):
                    stdout().print(cell(text), markup=False)


def _lines(record: AnyRecord, shown: Shown) -> Iterator[str]:
    if isinstance(record, OutcomeRecord):
        yield f"{moment(record.at_ms)}  {record.decision}  {record.bundle}: {record.result} ({record.why})"
        return
    reason = record.skipped or record.reason
    yield f"{moment(record.at_ms)}  {record.id}  {record.subject} by {record.leader}: {record.label}, {reason}: {record.why}"
    book = DecisionBook(1)
    book.add(record)
    for row in shown.of(book, record) if shown.lines else deeds(book, record):
        begun = f" [{row.result}]" if row.result else ""
        yield f"    {row.bundle}  {row.source or '-'} -> {row.to}{begun}  {row.why}"
