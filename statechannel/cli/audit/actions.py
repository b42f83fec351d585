"""Command `statechannel audit actions`: what persons did, from all topics that say so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Final, Protocol

import typer

from statechannel.audit.engine import ExportSource
from statechannel.cli.audit.options import remark_unchained
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.listing import Person, SinceTime, UntilTime
from statechannel.cli.kit.options import Connect, FileBeside, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, print_rows, say, when
from statechannel.cli.kit.progress import TERMINAL
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode, StateChannelError
from statechannel.operations.table import RequestCommand
from statechannel.protocol.log import RecordRead, Topic
from statechannel.queries.audit_log import hint_of_authors, known_authors, read_at_ms, time_window
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import open_tail
from statechannel.queries.side_files import SideRole, require_export, side_records
from statechannel.stories.requests import PERSONS_CLAIM, PersonAction, RequestStory, in_order, stories_of

GROUP: Final = "statechannel.person_actions"
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
    window = time_window(since, until, now_ms() if file is None else read_at_ms(ExportSource(file)), TERMINAL)
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
    return CommandError(
        f"nothing that is still recorded was done by {by}",
        hint=hint_of_authors(by, persons) or known_authors(persons, "Requests are kept for a week."),
        code=ExitCode.NOT_FOUND,
    )


def show(rows: Sequence[PersonAction], title: str) -> None:
    print_rows(
        (
            Column("time", of=lambda row: when(row.at_ms)),
            Column("by", 1, of=lambda row: row.by or "not recorded"),
            "what",
            "name",
            Column("to", of="destination"),
            Column("reason", text=True),
            Column("result", 1),
            Column("details", 3, text=True, of=lambda row: row.details or None),
            Column("operation", 4),
        ),
        rows,
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
    side = side_records(export, SideRole.REQUESTS, TERMINAL)
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
    return [_requested(story, questions) for story in stories_of(records, _ACTIONS_MAX).values()]


def _requested(story: RequestStory, questions: Collection[str]) -> PersonAction:
    result = story.result or story.answer
    details = ", ".join(
        f"{name}={value}"
        for name, value in sorted(story.args.items())
        if name not in _ELSEWHERE and value not in (None, "", story.subject) and not isinstance(value, dict | list)
    )
    is_question = story.command == RequestCommand.EXTENSION and story.flow in questions
    return PersonAction(
        story.asked_ms,
        story.by,
        story.flow,
        story.subject,
        story.destination,
        story.reason,
        details[:_DETAIL_MAX],
        result if isinstance(result, str) else "invalid" if story.problem else None,
        story.id,
        "requests",
        story.offset,
        question=story.flow in _QUESTIONS or is_question,
    )


def _sources() -> dict[str, ActionSource]:
    return {point.name: point.load() for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}
