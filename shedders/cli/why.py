"""`statechannel why` and `statechannel why-not`."""

from __future__ import annotations

from typing import Annotated

import typer

from shedders.cli.decision_log import reader_if_any, tell_ended, tell_junk
from shedders.decisions.bundle_trail import Trail
from shedders.decisions.explanation import NOT_MADE, CommandOrigin, Explanation, WhyNot
from shedders.decisions.explanation import why as explain
from shedders.decisions.explanation import why_not as explain_not
from shedders.decisions.history import DecisionBook
from shedders.decisions.record import AnyRecord, DecisionRecord, Subject
from statechannel.audit.views import LogViews, NotInLogError
from statechannel.cli.kit.channel_view import locate, not_found, read_channel
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.live_log import now_ms
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, cell, moment, print_json, say, stdout
from statechannel.cli.kit.past_requests import requests_seen
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import is_bundle

app = typer.Typer(add_completion=False, rich_markup_mode=None)
not_app = typer.Typer(add_completion=False, rich_markup_mode=None)

_BEFORE_MS = 600_000

Name = Annotated[str, typer.Argument(metavar="BUNDLE|TOPIC", help="tenant/namespace/0x..._0x..., or a topic.")]


@app.command()
@with_connection
def why(
    connect: Connect,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Number of newest steps to show.")] = 20,
    output: OutputAs = Output.TABLE,
) -> None:
    """Explain why a bundle is where it is: its moves and splits, with times, decisions and loads."""
    trail = _trail(name)
    connection = connect()
    views = read_channel(connection, [trail.observe])
    _settle(trail, views, name)
    book = _decisions_about(connection, trail, limit)
    answer = explain(trail, book, _asked(connection), steps_max=limit)
    tell_junk(book)
    whole = all(part.strict_from == 0 for part in views.parts)
    if output is Output.JSON:
        extra = {"tentative": views.tentative, "whole": whole, "decisions_found": len(book)}
        print_json({"asked": name, **answer.to_json(), **extra})
        return
    _show(answer)
    if not whole:
        say("older records were compacted: earlier steps are no longer in the channel")


@not_app.command("why-not")
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
    trail = _trail(name)
    connection = connect()
    key = locate(read_channel(connection, [trail.observe]), name)
    trail.settled(key.name, key.owner)
    book = DecisionBook()
    with reader_if_any(connection) as reader:
        for read in () if reader is None else reader.newest(decisions, _sheds, behind=_no_placement):
            book.add(read.record)
        if reader is not None:
            tell_ended(reader)
    since_ms = trail.there_since_ms
    answer = explain_not(key.name, key.owner, book, now_ms=now_ms(), since_ms=since_ms, decisions_max=decisions)
    tell_junk(book)
    if output is Output.JSON:
        print_json({"asked": name, **answer.to_json()})
    else:
        _show_not(answer)


def _sheds(record: object) -> bool:
    return isinstance(record, DecisionRecord) and record.subject == Subject.SHED.value


def _no_placement(record: AnyRecord) -> bool:
    """Whether a record is not a placement; placements come in thousands, and do not explain what stays."""
    return not isinstance(record, DecisionRecord) or record.subject != Subject.PLACE.value


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


def _asked(connection: Connection) -> dict[str, CommandOrigin]:
    return {
        name: CommandOrigin(request["by"] or "somebody", request["flow"])
        for name, request in requests_seen(connection).items()
    }


def _show(answer: Explanation) -> None:
    _line(f"{answer.title}: {answer.now}" if answer.title not in answer.now else answer.now)
    if answer.left_out:
        _line(f"({answer.left_out} older steps are not shown: --limit)")
    for step in answer.steps:
        _line("")
        _line(f"{moment(step.at_ms)}  {step.said}")
        if step.bundle != answer.bundle and is_bundle(step.bundle):
            _line(f"    as bundle {step.bundle}")
        if step.because:
            _line(f"    {step.because}")
        if step.result and step.what != NOT_MADE:
            _line(f"    result in the balancer's log: {step.result}")
        if step.operation:
            _line(f"    operation {step.operation}")


def _show_not(answer: WhyNot) -> None:
    served = f"served by {answer.owner}" if answer.owner else "served by no broker"
    _line(f"{answer.bundle}, {served}")
    for sentence in answer.said:
        _line(f"  {sentence}")


def _line(text: str) -> None:
    stdout().print(cell(text) if text else "", markup=False)
