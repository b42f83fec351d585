"""The balancer's decisions, from their topic."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import Field, create_model

from shedders.balancer.settings import NAME, BalancerSettings, configured
from shedders.decisions.explanation import CommandOrigin, Explanation, WhyNot
from shedders.decisions.explanation import why as explain
from shedders.decisions.explanation import why_not as explain_not
from shedders.decisions.history import DecisionBook
from shedders.decisions.record import AnyRecord, DecisionRecord, Deed, MoveEntry, PlacedEntry, SplitEntry, Subject
from shedders.decisions.topic import DecisionReader, describe_decision_topic
from statechannel.audit.views import LogViews, NotInLogError
from statechannel.clocks import now_ms
from statechannel.errors import NotFoundError, UsageError
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.topic_policy import decisions_topic
from statechannel.protocol.keys import KeyState
from statechannel.queries.channel_view import locate, read_channel
from statechannel.queries.connection import AnswerReporter, Connection
from statechannel.queries.live_log import naming_address, notify_if_slow, read_requests
from statechannel.queries.query import TIME_MAX_MS, NameQuery, RequestModel, keys_of, many, object_type
from statechannel.stories.bundle import BundleStory
from statechannel.stories.requests import RequestStory

_HOUR_MS = 3_600_000
_ID_MAX = 64


class DecisionsQuery(RequestModel):
    """Which decisions."""

    since_ms: int | None = Field(
        None, ge=0, le=TIME_MAX_MS, description="Only from this log time on; default: of the last hour."
    )
    until_ms: int | None = Field(None, ge=0, le=TIME_MAX_MS, description="Only up to this log time; default: all.")
    limit: int = Field(100, ge=1, le=1_000, description="Number of newest decisions.")


class DecisionQuery(RequestModel):
    """Id of a decision."""

    decision: str


def _with_result(entry: type[Deed]) -> Any:
    """The type of an entry with what has become of it."""
    more: dict[str, Any] = {
        "result": (str | None, ...),
        "result_why": (str | None, ...),
        "took_ms": (float | None, ...),
    }
    return many(create_model(f"{entry.__name__}Result", __base__=entry, __doc__=entry.__doc__, **more))


_ENTRIES: Any = {
    name: (_with_result(entry), ...)
    for name, entry in (("moves", MoveEntry), ("splits", SplitEntry), ("placed", PlacedEntry))
}
_NOTES: Any = {"notes": (list[str], ...)}
_Decision = create_model(
    "DecisionRow", __base__=DecisionRecord, __doc__="A decision, with what has become of it.", **_ENTRIES
)
DECISION = create_model("DecisionDocument", __base__=_Decision, __doc__="A decision.", **_NOTES)
DECISIONS = object_type(
    "DecisionsDocument", "Decisions, the oldest first; the keys of `decisions`.", (int, "since_ms"),
    (many(_Decision), "decisions"), (dict[str, int], "unreadable"), (list[str], "notes"),
)  # fmt: skip
WHY = object_type(
    "WhyDocument", "Why a bundle is where it is.", *keys_of(Explanation), (str, "asked"), (bool, "tentative whole"),
    (int, "decisions_found"), (list[str], "notes"),
)  # fmt: skip
WHY_NOT = object_type(
    "WhyNotDocument", "Why a bundle stays.", *keys_of(WhyNot), (str, "asked"), (list[str], "notes")
)  # fmt: skip


def decisions(connection: Connection, asked: DecisionsQuery) -> dict[str, Any]:
    """The newest decisions; what was recorded later than `until_ms` is left out, results of moves too."""
    since_ms = asked.since_ms if asked.since_ms is not None else max(0, now_ms() - _HOUR_MS)
    with reader_if_any(connection) as reader:
        book = DecisionBook() if reader is None else book_since(reader, since_ms, asked.until_ms)
    return decisions_document(book, list(book.decisions)[-asked.limit :], since_ms)


def decision(connection: Connection, asked: DecisionQuery) -> dict[str, Any]:
    wanted = asked.decision[:_ID_MAX]
    book = _book_about(connection, [wanted.upper()])
    return decision_fields(book, require_decision(book, wanted))


def require_decision(book: DecisionBook, wanted: str) -> DecisionRecord:
    """The decision of an id.

    Raises:
        NotFoundError: There is none.
    """
    chosen = book.decision(wanted.upper())
    if chosen is None:
        raise NotFoundError(
            f"decision {wanted} not found",
            hint="`statechannel decisions --since 7d` lists decisions; they are kept for a week by default.",
        )
    return chosen


def book_since(reader: DecisionReader, since_ms: int, until_ms: int | None = None) -> DecisionBook:
    book = DecisionBook()
    for read in reader.read(since_ms=since_ms):
        if until_ms is None or read.timestamp_ms <= until_ms:
            book.add(read.record)
    return book


def decisions_document(book: DecisionBook, records: Sequence[DecisionRecord], since_ms: int) -> dict[str, Any]:
    return {
        "since_ms": since_ms,
        "decisions": [decision_fields(book, record) for record in records],
        "unreadable": dict(sorted(book.junk.items())),
    }


def decision_fields(book: DecisionBook, record: DecisionRecord) -> dict[str, Any]:
    """A decision as JSON: the record, with the latest result of each of its moves."""
    fields = record.model_dump(mode="json")
    made_moves = list(book.bundle_decisions(record))
    for part in ("moves", "splits", "placed"):
        for entry in fields[part]:
            move = made_moves.pop(0)
            entry["result"], entry["result_why"] = move.result, move.why_so
            entry["took_ms"] = None if move.ended is None else move.ended.took_ms
    return fields


def balancer_settings(connection: Connection) -> BalancerSettings:
    """Settings of the balancer from this command's configuration.

    Raises:
        SettingsError: They are invalid.
    """
    values = dict(connection.settings.extensions.get(NAME, {}))
    values.pop("enabled", None)
    return configured(values)


@contextmanager
def decision_reader(connection: Connection) -> Iterator[DecisionReader]:
    """Reader of the topic of decisions.

    Raises:
        TopicMissingError: It does not exist, as no balancer has run yet.
        KafkaUnavailableError: Kafka did not answer in time.
    """
    topic = decisions_topic(connection.topics.channel)
    with notify_if_slow(connection):
        describe_decision_topic(connection.client, topic, timeout_s=connection.timeout_s)
    bounds = balancer_settings(connection).recall_bounds()
    with (
        naming_address(connection),
        DecisionReader(connection.client, topic, timeout_s=connection.timeout_s, bounds=bounds) as reader,
    ):
        yield reader


@contextmanager
def reader_if_any(connection: Connection) -> Iterator[DecisionReader | None]:
    """As `decision_reader`; None, with a note, if the topic does not exist."""
    try:
        with decision_reader(connection) as reader:
            yield reader
    except TopicMissingError as error:
        connection.reporter.note(f"no decisions available: {error}")
        yield None


def note_unread(reader: DecisionReader, reporter: AnswerReporter) -> None:
    """Note that older decisions were not read."""
    if reader.ended:
        reporter.note(f"older decisions were not read: {reader.ended} (extensions.{NAME}.recall_*)")


def note_junk(book: DecisionBook, reporter: AnswerReporter) -> None:
    if book.junk:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(book.junk.items()))
        reporter.note(f"records that this version cannot read: {counts}")


_BEFORE_MS = 600_000


class WhyQuery(NameQuery):
    """A bundle or topic."""

    limit: int = Field(20, ge=1, le=1_000, description="Number of newest steps, or of decisions that are searched.")


def why(connection: Connection, asked: WhyQuery) -> dict[str, Any]:
    """Why a bundle is where it is."""
    return explained(connection, asked.name, asked.limit)[1]


def why_not(connection: Connection, asked: WhyQuery) -> dict[str, Any]:
    return {"asked": asked.name, **not_moved(connection, asked.name, asked.limit).to_json()}


def explained(connection: Connection, name: str, limit: int) -> tuple[Explanation, dict[str, Any]]:
    """The explanation by the live channel, and its document.

    Raises:
        UsageError: The name is neither a bundle nor a topic.
        NotFoundError: The channel does not have it.
    """
    story = story_of(name)
    views = read_channel(connection, [story.observe])
    settle(story, views, name)
    book = _decisions_about(connection, story, limit)
    asked = read_requests(connection)
    note_junk(book, connection.reporter)
    return explanation_of(story, views, book, asked, name, limit)


def explanation_of(
    story: BundleStory, views: LogViews, book: DecisionBook, requests: Mapping[str, RequestStory], name: str, limit: int
) -> tuple[Explanation, dict[str, Any]]:
    """The explanation by what was read, and its document."""
    origins = {name: CommandOrigin(story.by or "somebody", story.flow) for name, story in requests.items()}
    answer = explain(story, book, origins, steps_max=limit)
    whole = all(part.strict_from == 0 for part in views.parts)
    extra = {"tentative": views.tentative, "whole": whole, "decisions_found": len(book)}
    return answer, {"asked": name, **answer.to_json(), **extra}


def not_moved(connection: Connection, name: str, decisions: int) -> WhyNot:
    """Why the balancer leaves a bundle where it is, by its newest decisions; raises as `explained`."""
    story = story_of(name)
    key = locate(read_channel(connection, [story.observe]), name)
    story.settled(key.name, key.owner)
    book = DecisionBook()
    with reader_if_any(connection) as reader:
        for read in (
            () if reader is None else reader.newest(decisions, _sheds, behind=lambda record: _explains(record, key))
        ):
            book.add(read.record)
        if reader is not None:
            note_unread(reader, connection.reporter)
    since_ms = story.there_since_ms
    answer = explain_not(key.name, key.owner, book, now_ms=now_ms(), since_ms=since_ms, decisions_max=decisions)
    note_junk(book, connection.reporter)
    return answer


def _sheds(record: object) -> bool:
    return isinstance(record, DecisionRecord) and record.subject == Subject.SHED.value


def _explains(record: AnyRecord, key: KeyState) -> bool:
    """Placements come in thousands, and do not explain what stays: only that of a bundle without an owner does."""
    if not isinstance(record, DecisionRecord) or record.subject != Subject.PLACE.value:
        return True
    return key.owner is None and any(entry.bundle == key.name for entry in record.placed)


def story_of(name: str) -> BundleStory:
    """The story of a bundle or topic, before any record.

    Raises:
        UsageError: The name is neither.
    """
    try:
        return BundleStory(name)
    except ValueError as error:
        hint = "Use tenant/namespace/0x..._0x... or tenant/namespace/topic."
        raise UsageError(str(error), hint=hint) from error


def settle(story: BundleStory, views: LogViews, name: str) -> None:
    """Correct a story by the accepted state, which takes precedence over the remaining records."""
    try:
        key = views.locate(name)
    except NotInLogError as error:
        if name not in story.names and not _was_there(story, name):
            raise NotFoundError(str(error), hint=error.hint) from error
        return
    story.settled(key.name, key.owner)


def _was_there(story: BundleStory, name: str) -> bool:
    """Whether the records show a topic whose namespace was deleted."""
    return story.title != name and bool(story.changes)


def _decisions_about(connection: Connection, story: BundleStory, limit: int) -> DecisionBook:
    if not story.names:
        return DecisionBook()
    changes = story.changes[-limit:]
    since_ms = max(0, changes[0].began_ms - _BEFORE_MS) if changes else None
    return _book_about(connection, story.names, since_ms)


def _book_about(connection: Connection, names: Collection[str], since_ms: int | None = None) -> DecisionBook:
    """Decisions that name one of these ids or bundles; empty, with a note, if there is no topic."""
    book = DecisionBook()
    with reader_if_any(connection) as reader:
        for read in () if reader is None else reader.read(since_ms=since_ms, about=names):
            book.add(read.record)
    return book
