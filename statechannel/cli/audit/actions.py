"""Command `statechannel audit actions`: what persons did, from all topics that say so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import typer

from statechannel.audit.engine import ExportSource
from statechannel.audit.person_actions import PERSONS_CLAIM, PersonAction, in_order
from statechannel.broker import request_record
from statechannel.broker.request_record import Reply, Request, RequestCommand
from statechannel.cli.audit.options import read_at_ms, remark_unchained
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.listing import Person, SinceTime, UntilTime, hint_of_authors, time_window
from statechannel.cli.kit.live_log import open_tail
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, print_table, say, when
from statechannel.cli.kit.side_files import FileBeside, SideRole, require_export, side_records
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode, StateChannelError
from statechannel.protocol.bounded import remember
from statechannel.protocol.log import RecordRead, Topic

GROUP: Final = "statechannel.person_actions"
_PERSONS_SHOWN: Final = 10
_ACTIONS_MAX = 100_000
_ELSEWHERE = frozenset(
    {"name", "namespace", "destination", "reason", "why", "extension", "ask", "to", "read_only", "decision", "settings"}
)
_DETAIL_MAX = 200
_QUESTIONS = frozenset({RequestCommand.LOOKUP.value})


class ActionSource(Protocol):
    """What a package adds, registered in the entry point group `statechannel.person_actions`.

    Attributes:
        questions: What its extension is asked by requests that change nothing.
    """

    @property
    def questions(self) -> frozenset[str]: ...

    def read(self, connection: Connection) -> Iterable[PersonAction]:
        """Those that the channel's topics still have.

        Raises:
            StateChannelError: They cannot be read.
        """
        ...

    def beside(self, export: Path) -> Iterable[PersonAction]:
        """The same from the files beside an export; none where there is no file.

        Raises:
            ExportFileError: A file was edited, or is malformed.
        """
        ...


@with_connection
def actions(
    connect: Connect,
    by: Person = None,
    since: SinceTime = None,
    until: UntilTime = None,
    every: Annotated[
        bool, typer.Option("--every", help="Also what changes nothing: lookups, and questions of commands.")
    ] = False,
    file: FileBeside = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """List what persons did, with destination and reason: requests of all kinds, policies, overrides."""
    if file is not None:
        require_export(file)
        remark_unchained(file)
    window = time_window(since, until, now_ms() if file is None else read_at_ms(ExportSource(file)))
    known = actions_of(connect()) if file is None else actions_beside(file)
    persons = sorted({action.by for action in known if action.by})
    if by is not None and by not in persons:
        raise _nothing_by(by, persons)
    chosen = [action for action in known if by in (None, action.by) and window.has(0, action.at_ms)]
    rows = [action for action in chosen if every or not action.question]
    left_out = len(chosen) - len(rows)
    if output is Output.JSON:
        print_json(
            {"by": by, "window": window.fields(), "questions": left_out, "actions": [row.fields() for row in rows]}
        )
        return
    show(rows, f"What {by or 'persons'} did")
    if left_out:
        say(f"note: {left_out:,} that change nothing are left out, such as lookups (--every)")
    nobody = sum(not action.by and window.has(0, action.at_ms) for action in known)
    if nobody:
        more = "" if by is None else f"; {nobody:,} without a name: `statechannel audit actions` lists them"
        say(f"note: who deleted a policy is not in exports of earlier versions, nor recorded by every client{more}")
    say(f"note: requests are kept for a week, and of policies the newest record of each. {PERSONS_CLAIM}")


def _nothing_by(by: str, persons: Sequence[str]) -> CommandError:
    alike = hint_of_authors(by, persons)
    shown = ", ".join(persons[:_PERSONS_SHOWN]) + (", ..." if len(persons) > _PERSONS_SHOWN else "")
    return CommandError(
        f"nothing that is still recorded was done by {by}",
        hint=alike or (f"Known: {shown}." if persons else "Requests are kept for a week."),
        code=ExitCode.NOT_FOUND,
    )


def show(rows: Sequence[PersonAction], title: str) -> None:
    print_table(
        (
            "time",
            Column("by", 1),
            "what",
            "name",
            "to",
            Column("reason", text=True),
            Column("result", 1),
            Column("details", 3, text=True),
            Column("operation", 4),
        ),
        [
            (
                when(row.at_ms),
                row.by or "not recorded",
                row.what,
                row.name,
                row.destination,
                row.reason,
                row.result,
                row.details or None,
                row.operation,
            )
            for row in rows
        ],
        title=title,
        empty="nothing is recorded",
    )


def actions_of(connection: Connection) -> list[PersonAction]:
    """All that the channel's topics still have; a package whose topics cannot be read is named in a note."""
    sources = _sources()
    with open_tail(connection, Topic.REQUESTS, 0) as tail:
        rows = _in_requests(tail.records(tail.span()), sources.values())
    for name, source in sources.items():
        try:
            rows += source.read(connection)
        except StateChannelError as error:
            say(f"note: {name} could not be read, and what they show is not in the answer: {error}")
    return in_order(rows)


def actions_beside(export: Path) -> list[PersonAction]:
    """The same from the files beside an export.

    Raises:
        ExportFileError: A file was edited, or is malformed.
    """
    sources = _sources()
    side = side_records(export, SideRole.REQUESTS)
    if side is None:
        say("note: there is no file of requests (`export --with-topics`): what persons requested is not known")
    rows = _in_requests(() if side is None else side.records, sources.values())
    for source in sources.values():
        rows += source.beside(export)
    return in_order(rows)


def _in_requests(records: Iterable[RecordRead], sources: Iterable[ActionSource]) -> list[PersonAction]:
    return requested_actions(records, frozenset[str]().union(*(source.questions for source in sources)))


def requested_actions(records: Iterable[RecordRead], questions: Collection[str] = ()) -> list[PersonAction]:
    """Those in the requests topic, the newest `_ACTIONS_MAX`.

    Args:
        questions: What extensions are asked that changes nothing.
    """
    requests: dict[str, tuple[Request, RecordRead]] = {}
    results: dict[str, str | None] = {}
    for record in records:
        item = request_record.decode(record.value, record.timestamp_ms)
        if isinstance(item, Request):
            if item.id not in requests:
                remember(requests, item.id, (item, record._replace(value=None)), _ACTIONS_MAX)
        elif isinstance(item, Reply):
            if item.id in requests and item.id not in results:
                remember(results, item.id, _result(item.outcome), _ACTIONS_MAX)
    return [
        _requested(request, record, results.get(identifier), questions)
        for identifier, (request, record) in requests.items()
    ]


def _result(outcome: Mapping[str, Any]) -> str | None:
    text = outcome.get("result") or outcome.get("reason") or outcome.get("outcome") or outcome.get("answer")
    return text if isinstance(text, str) else None


def _requested(request: Request, record: RecordRead, result: str | None, questions: Collection[str]) -> PersonAction:
    args, ask = request.args, request.args.get("ask")
    what = request.asked
    if what == RequestCommand.EXTENSION and isinstance(ask, str) and ask:
        what = ask
    destination, reason = args.get("destination"), args.get("reason") or args.get("why")
    named = request.name or request.broker or ""
    details = ", ".join(
        f"{name}={value}"
        for name, value in sorted(args.items())
        if name not in _ELSEWHERE and value not in (None, "", named) and not isinstance(value, dict | list)
    )
    return PersonAction(
        record.timestamp_ms,
        request.by,
        what,
        named,
        destination if isinstance(destination, str) else None,
        reason if isinstance(reason, str) and reason else None,
        details[:_DETAIL_MAX],
        result or ("invalid" if request.problem else None),
        request.id,
        "requests",
        record.offset,
        question=what in _QUESTIONS or (request.asked == RequestCommand.EXTENSION and what in questions),
    )


def _sources() -> dict[str, ActionSource]:
    return {point.name: point.load() for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}
