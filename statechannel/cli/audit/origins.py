"""Command `statechannel audit origins`: the request, decision or rule behind each operation, and operations without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import typer

from statechannel.audit.engine import ExportSource, LiveSource, Wants
from statechannel.audit.origins import (
    MEANING,
    OperationCause,
    Origin,
    OriginTopic,
    origins_document,
    persons_of,
    select_operations,
    without_origin,
)
from statechannel.audit.transfer.export_file import read_header
from statechannel.cli.audit.options import AuditOptions, audit_options
from statechannel.cli.audit.parts import log_line
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.listing import Author, Since, Until
from statechannel.cli.kit.output import print_json_lists, print_rows, print_table, say, stdout, when
from statechannel.cli.kit.progress import TERMINAL
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode
from statechannel.operations import request_record
from statechannel.operations.table import RequestCommand
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.states import State
from statechannel.queries.audit import about, require_writer
from statechannel.queries.audit_log import known_authors
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import open_tail
from statechannel.queries.side_files import SideRecords, SideRole, side_files, side_records
from statechannel.stories.registry import heartbeats
from statechannel.stories.requests import PERSONS_CLAIM, RequestStory, stories_of


@audit_options
def origins(
    asked: AuditOptions,
    every: Annotated[
        bool,
        typer.Option("--every", help="List all operations; by default the table has only those without an origin."),
    ] = False,
    with_topics: Annotated[
        bool,
        typer.Option(
            "--with-topics",
            help="With --file or --archive: also read requests and decisions from the channel's topics.",
        ),
    ] = False,
    by: Author = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """List the origin of each operation (request, decision, or rule of the brokers), and operations without an origin."""
    window = asked.window(since, until)
    path = asked.source.path if isinstance(asked.source, ExportSource) and not with_topics else None
    beside = None if path is None else side_files(path)
    looked_up = with_topics or bool(beside) or isinstance(asked.source, LiveSource)
    with asked.as_file() as still:
        result = still.answer(Wants(origins=True, cuts=True))
        read = () if not looked_up else sources(asked.connect()) if not beside or path is None else sources_beside(path)
        whole = origins_document(result.origins or {}, read)
        document = select_operations(whole, window, by)
        persons = persons_of(whole)
        if by is not None and by not in persons and not document["operations"]:
            if "@" in by:
                raise _requested_nothing(by, persons if looked_up else None)
            more = "" if looked_up else _PERSONS_UNKNOWN
            require_writer(still, by, persons=persons, hint=more)
    if not looked_up:
        say("note: requests and decisions are in separate topics, which were not read (--with-topics)")
    if not asked.table:
        operations = document.pop("operations")
        head = {"by": by, "window": window.fields()}
        print_json_lists(about(asked, result) | head | document, {"operations": operations})
        return
    log_line(asked, result, window)
    whose = "" if by is None else f" of {by}"
    # What a person requested is all that --by asks for: to list only what is in doubt would hide it.
    listed = document["operations"] if every or by in persons else list(without_origin(document))
    _show(document, listed, whose)
    if persons_of(document):
        if by is not None:
            say(f"note: policies and overrides of {by} are in `statechannel audit actions --by {by}`")
        say(f"note: {PERSONS_CLAIM}")


_PERSONS_UNKNOWN = "Persons are known with --with-topics, of this command or of `export`. "


def _requested_nothing(by: str, persons: Sequence[str] | None) -> CommandError:
    """A person's name that no operation has.

    Args:
        persons: Who requested operations; None: requests were not read.
    """
    known = _PERSONS_UNKNOWN if persons is None else f"{known_authors(persons, 'No request is left in the log.')} "
    return CommandError(
        f"no operation was requested by {by}",
        hint=f"{known}Policies are in `statechannel audit actions --by PERSON`, too.",
        code=ExitCode.NOT_FOUND,
    )


def _show(document: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], whose: str) -> None:
    print_table(
        ("origin", "operations", "meaning"),
        [(name, count, MEANING[Origin(name)]) for name, count in document["counts"].items()],
        title="Origins of operations",
        empty="no operation",
    )
    if document["left_out"]:
        say(f"note: {document['left_out']:,} older operations are left out")
    stdout().print()
    print_rows(
        (
            Column("offset", 1),
            Column("time", of=lambda row: when(row["began_ms"])),
            "name",
            Column("begins", 2, of="state"),
            Column("from", 2),
            Column("to", 2),
            Column("by", 1),
            Column("origin", text=True, of=_asked),
            Column("operation", 4),
            Column("reason", text=True),
            Column("doubt", text=True, of=lambda row: "; ".join(row["doubts"]) or None),
        ),
        rows,
        title="Operations",
        empty=_all_clear(document["counts"], whose),
    )


def _all_clear(counts: Mapping[str, int], whose: str) -> str:
    """What is said where no operation is listed; an origin that is not known is not one that is in order."""
    unknown = counts.get(Origin.UNKNOWN.value, 0)
    if unknown:
        return f"none in doubt, none known to lack an origin; {unknown:,}{whose} unknown (--every)"
    return f"every operation{whose} has an origin, and none is in doubt" if counts else "no operation"


def _asked(row: Mapping[str, Any]) -> str:
    asked = row["asked"]
    return row["origin"] if asked is None else f"{row['origin']} of {asked['by'] or '?'}: {asked['what']}"


_SLACK_MS: Final = 6_000
"""Maximum delay of a heartbeat after what it reports, where the settings of the channel are not at hand."""
GROUP: Final = "statechannel.origins"
_BEGINS: Final[Mapping[str, frozenset[State]]] = {
    RequestCommand.CREATE_NAMESPACE.value: frozenset({State.ACTIVE}),
    RequestCommand.TRANSFER.value: frozenset({State.RELEASING}),
    RequestCommand.UNLOAD.value: frozenset({State.RELEASING}),
    RequestCommand.SPLIT.value: frozenset({State.SPLITTING}),
}


def sources(connection: Connection) -> list[OriginTopic]:
    """All topics that hold origins; those of other packages first, as they have the most detail.

    Raises:
        StateChannelError: A topic cannot be read: its operations must not be reported as without an origin.
    """
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return [*(point.load()(connection) for point in points), requests(connection), shutdowns(connection)]


class OriginPlugin(Protocol):
    """What a package registers in the entry point group `GROUP`."""

    def __call__(self, connection: Connection) -> OriginTopic:
        """Read its topic.

        Raises:
            StateChannelError: It cannot be read.
        """
        ...

    def of_records(self, records: Iterable[RecordRead], since_ms: int) -> OriginTopic:
        """The same from the records of a file, complete from this time on."""
        ...


def sources_beside(export: Path) -> list[OriginTopic]:
    """All topics that hold origins, from the files beside an export; one without a file is complete from its end on.

    Raises:
        StateChannelError: A file was edited, or is malformed.
    """
    sides = {role: side_records(export, role, TERMINAL) for role in SideRole}
    late_ms = read_header(export).exported_at_ms

    def since_ms(side: SideRecords | None) -> int:
        return late_ms if side is None else side.since_ms

    topics: list[OriginTopic] = []
    decisions = sides[SideRole.DECISIONS]
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        plugin: OriginPlugin = point.load()
        topics.append(plugin.of_records(() if decisions is None else decisions.records, since_ms(decisions)))
    asked, heard, registry = sides[SideRole.REQUESTS], sides[SideRole.REGISTRY], Shutdowns(slack_ms=_SLACK_MS)
    registry.take(() if heard is None else heard.records)
    registry.since_ms = since_ms(heard)
    stories = stories_of(() if asked is None else asked.records)
    return [*topics, Requests(stories, _with_waiting(since_ms(asked))), registry]


def _with_waiting(since_ms: int) -> int:
    """What began just after the oldest request may be due to an older one, which could wait for so long."""
    return since_ms + int(request_record.TIMEOUT_MAX_S * 1_000) if since_ms else 0


def requests(connection: Connection) -> Requests:
    with _all(connection, Topic.REQUESTS) as (records, first_ms):
        stories = stories_of(records)
        return Requests(stories, _with_waiting(first_ms()))


def shutdowns(connection: Connection) -> Shutdowns:
    """The heartbeats of leaving members still in the topic."""
    shutdowns = Shutdowns(slack_ms=int(connection.settings.membership.expiry_s * 1_000))
    with _all(connection, Topic.REGISTRY) as (records, first_ms):
        shutdowns.take(records)
        shutdowns.since_ms = first_ms()
    return shutdowns


@contextmanager
def _all(connection: Connection, topic: Topic) -> Iterator[tuple[Iterator[RecordRead], Any]]:
    """All records of a topic, and a function for the time from which on they are complete."""
    with open_tail(connection, topic, 0) as tail:
        span = tail.span()
        first: list[int] = []

        def records() -> Iterator[RecordRead]:
            for record in tail.records(span):
                if not first:
                    first.append(record.timestamp_ms)
                yield record

        yield records(), lambda: 0 if span.low == 0 else first[0] if first else now_ms()


@dataclass(slots=True)
class Requests:
    """Requests of commands, by id."""

    stories: Mapping[str, RequestStory] = field(default_factory=dict)
    since_ms: int = 0
    name: str = "requests"

    def asker(self, begun: Mapping[str, Any]) -> OperationCause | None:
        """The request with the operation's id."""
        story = self.stories.get(begun["operation"])
        if story is None:
            return None
        extension = story.command == RequestCommand.EXTENSION
        return OperationCause(
            Origin.REQUEST,
            story.id,
            story.by,
            story.asked_ms,
            f"{story.args.get('extension')} {story.args.get('ask')}" if extension else story.command,
            story.name or None,
            _BEGINS.get(story.command, frozenset()),
            story.destination,
        )


@dataclass(slots=True)
class Shutdowns:
    """Members that were leaving, with the times.

    Args:
        slack_ms: Maximum delay of a heartbeat after what it reports.
    """

    slack_ms: int
    since_ms: int = 0
    name: str = "registry"
    _leaving: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def take(self, records: Iterable[RecordRead]) -> None:
        for record, info in heartbeats(records):
            if info.get("draining") is True or info.get("leaving") is True:
                process = info["broker"], info["incarnation"]
                first_ms, _ = self._leaving.get(process, (record.timestamp_ms, 0))
                self._leaving[process] = first_ms, record.timestamp_ms

    def asker(self, begun: Mapping[str, Any]) -> OperationCause | None:
        """The shutdown during which a broker released its bundles."""
        if begun["state"] != State.RELEASING.value or begun["from"] != begun["by"]:
            return None
        process = begun["by"], begun["incarnation"]
        first_ms, last_ms = self._leaving.get(process, (0, -self.slack_ms - 1))
        if not first_ms - self.slack_ms <= begun["began_ms"] <= last_ms + self.slack_ms:
            return None
        return OperationCause(Origin.SHUTDOWN, begun["incarnation"], begun["by"], first_ms, "shutdown")
