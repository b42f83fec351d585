"""Readers and tables of the balancer's decisions, for commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from shedders.balancer.settings import NAME, BalancerSettings, configured
from shedders.decisions.history import DecisionBook
from shedders.decisions.record import DecisionRecord, MoveEntry, PlacedEntry, Subject
from shedders.decisions.topic import DecisionReader, describe_decision_topic
from shedders.model.amounts import rate
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.live_log import naming_address, notify_if_slow
from statechannel.cli.kit.output import print_table, say
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.topic_policy import decisions_topic
from statechannel.protocol.side_record import InvalidRecord

PLACED: Final = "Placed"
"""Field of a move that has the reason."""


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
    """As `decision_reader`; None, with a remark, if the topic does not exist."""
    try:
        with decision_reader(connection) as reader:
            yield reader
    except TopicMissingError as error:
        say(f"no decisions available: {error}")
        yield None


def warn_of_unread(reader: DecisionReader) -> None:
    """Print a note if older decisions were not read."""
    if reader.ended:
        say(f"older decisions were not read: {reader.ended} (extensions.{NAME}.recall_*)")


def warn_of_junk(book: DecisionBook) -> None:
    if book.junk:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(book.junk.items()))
        say(f"records that this version cannot read: {counts}")


def warn_of_unreadable(record: InvalidRecord, offset: int) -> None:
    say(f"the record at offset {offset} cannot be read ({record.reason}): {record.why}")


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


class DecisionRow(NamedTuple):
    """Row of one bundle in tables: what was done with it, or refused.

    Attributes:
        load: Rate with its unit.
        score: Score of the chosen broker, for placements.
    """

    bundle: str
    source: str | None
    to: str
    reason: str
    load: str | None
    score: float | None
    result: str | None
    why: str


_HEADERS: Final = (
    Column("bundle"),
    Column("from"),
    Column("to", text=False),
    Column("reason", 2),
    Column("load", 1, text=False),
    Column("score", 2),
    Column("result", 1, text=False),
    Column("why", text=True),
)
_SCORE: Final = 5


def deeds(book: DecisionBook, record: DecisionRecord) -> Iterator[DecisionRow]:
    """Rows of all moves, splits and placements of a decision."""
    for action in book.bundle_decisions(record):
        entry, result = action.entry, _result(action.result, action.why_so)
        if isinstance(entry, MoveEntry):
            to = entry.destination or "anybody"
            to = "stays" if entry.refused is not None else f"{to} (swap)" if entry.swap else to
            load = None if entry.load is None else rate(entry.load, entry.load_unit)
            yield DecisionRow(
                entry.bundle, entry.source, to, entry.reason, load, None, entry.refused or result, entry.why
            )
        elif isinstance(entry, PlacedEntry):
            yield DecisionRow(
                entry.bundle, None, entry.broker or "no broker", PLACED, None, entry.score, result, entry.why
            )
        else:
            cuts = ", ".join(f"0x{position:08x}" for position in entry.positions)
            to = f"split at {cuts}" if cuts else "split" if entry.refused is None else "not split"
            yield DecisionRow(entry.bundle, None, to, entry.reason, None, None, entry.refused or result, entry.why)


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
        """Whether there is one line per bundle."""
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


def print_deeds(
    before: Sequence[str | Column], rows: Sequence[tuple[Sequence[object], DecisionRow]], empty: str
) -> None:
    """Print a table of rows; with a column of scores if there are any.

    Args:
        before: Headers of additional leading columns, whose cells come with each row.
    """
    scored = any(row.score is not None for _, row in rows)

    def cells(row: Sequence[Any]) -> Sequence[Any]:
        return row if scored else (*row[:_SCORE], *row[_SCORE + 1 :])

    print_table((*before, *cells(_HEADERS)), [(*first, *cells(row)) for first, row in rows], empty=empty)


def done_count(record: DecisionRecord) -> int:
    """Number of distinct bundles with an action."""
    if record.subject == Subject.PLACE.value:
        return len(record.placed) + record.cut.get("placed", 0)
    count = sum(move.refused is None for move in record.moves) + sum(split.refused is None for split in record.splits)
    return count + record.cut.get("moves", 0) + record.cut.get("splits", 0)


def _result(word: str | None, why: str | None) -> str | None:
    return word if word is None or not why else f"{word}: {why}"
