"""The decisions of a channel, for commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from shedders.balancer.settings import NAME, BalancerSettings, configured
from shedders.decisions.book import DecisionBook
from shedders.decisions.record import DecisionRecord, MoveEntry, PlacedEntry, Subject, UndecodableDecision
from shedders.decisions.topic import DecisionReader, DecisionTopics, describe_decision_topic
from shedders.model.amounts import move_rate
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.kafka_wait import naming_address, told_if_slow
from statechannel.cli.kit.output import print_table, say
from statechannel.kafka.errors import TopicMissingError

PLACED: Final = "Placed"
"""Where a move has a reason."""


def balancer_settings(connection: Connection) -> BalancerSettings:
    """The balancer's settings as this command is given them.

    Raises:
        SettingsError: They cannot be used.
    """
    values = dict(connection.settings.extensions.get(NAME, {}))
    values.pop("enabled", None)
    return configured(values)


@contextmanager
def decision_reader(connection: Connection) -> Iterator[DecisionReader]:
    """A reader of the topic.

    Raises:
        TopicMissingError: It does not exist: no balancer has run yet.
        KafkaUnavailableError: Kafka did not answer in time.
    """
    topics = DecisionTopics(connection.topics.channel)
    with told_if_slow(connection):
        describe_decision_topic(connection.client, topics, timeout_s=connection.timeout_s)
    bounds = balancer_settings(connection).recall_bounds()
    with (
        naming_address(connection),
        DecisionReader(connection.client, topics, timeout_s=connection.timeout_s, bounds=bounds) as found,
    ):
        yield found


@contextmanager
def reader_if_any(connection: Connection) -> Iterator[DecisionReader | None]:
    """As `decision_reader`; None, with a remark, where there is no such topic."""
    try:
        with decision_reader(connection) as reader:
            yield reader
    except TopicMissingError as error:
        say(f"no decision is known: {error}")
        yield None


def tell_ended(reader: DecisionReader) -> None:
    """A remark where not all was looked at that might have been asked for."""
    if reader.ended:
        say(f"older decisions were not looked at, as {reader.ended} (extensions.{NAME}.recall_*)")


def tell_junk(book: DecisionBook) -> None:
    """A remark on records that could not be read."""
    if book.junk:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(book.junk.items()))
        say(f"records that this version cannot read: {counts}")


def tell_unreadable(record: UndecodableDecision, offset: int) -> None:
    """A remark on one of them."""
    say(f"the record at offset {offset} cannot be read ({record.reason}): {record.why}")


def told(book: DecisionBook, record: DecisionRecord) -> dict[str, Any]:
    """A decision as the JSON output has it: the record, with the newest word on each of its moves."""
    found = record.model_dump(mode="json")
    made = list(book.bundle_decisions(record))
    for part in ("moves", "splits", "placed"):
        for entry in found[part]:
            one = made.pop(0)
            entry["result"], entry["result_why"] = one.result, one.why_so
            entry["took_ms"] = None if one.ended is None else one.ended.took_ms
    return found


class DecisionRow(NamedTuple):
    """What was done or refused about one bundle, as tables have it.

    Attributes:
        load: A rate with its unit.
        score: Of a placement: the chosen broker's.
    """

    bundle: str
    source: str | None
    to: str
    reason: str
    load: str | None
    score: float | None
    result: str | None
    why: str


_HEADERS: Final = ("bundle", "from", "to", "reason", "load", "score", "result", "why")
_SCORE: Final = _HEADERS.index("score")


def deeds(book: DecisionBook, record: DecisionRecord) -> Iterator[DecisionRow]:
    """All moves, splits and placements of a decision."""
    for made in book.bundle_decisions(record):
        entry, result = made.entry, _result(made.result, made.why_so)
        if isinstance(entry, MoveEntry):
            to = entry.destination or "anybody"
            to = "stays" if entry.refused is not None else f"{to} (swap)" if entry.swap else to
            load = None if entry.load is None else move_rate(entry.load, entry.why)
            yield DecisionRow(
                entry.bundle, entry.source, to, entry.reason, load, None, entry.refused or result, entry.why
            )
        elif isinstance(entry, PlacedEntry):
            yield DecisionRow(
                entry.bundle, None, entry.broker or "nobody", PLACED, None, entry.score, result, entry.why
            )
        else:
            cuts = ", ".join(f"0x{position:08x}" for position in entry.positions)
            to = f"split at {cuts}" if cuts else "split" if entry.refused is None else "stays whole"
            yield DecisionRow(entry.bundle, None, to, entry.reason, None, None, entry.refused or result, entry.why)


class Shown(NamedTuple):
    """Which deeds of decisions are wanted; none of both: whole decisions.

    Placements of another decision than of a placement only say where its moves go, so they are not listed beside them.
    """

    moves: bool
    placements: bool

    @property
    def lines(self) -> bool:
        """A line for each bundle is wanted."""
        return self.moves or self.placements

    def of(self, book: DecisionBook, record: DecisionRecord) -> list[DecisionRow]:
        """The wanted ones."""
        return [
            row
            for row in deeds(book, record)
            if (self.moves if row.reason != PLACED else self.placements and record.subject == Subject.PLACE.value)
        ]

    def any(self, record: DecisionRecord) -> bool:
        """Whether there is one."""
        if not self.lines:
            return True
        found = bool(record.placed) and record.subject == Subject.PLACE.value
        return (self.placements and found) or (self.moves and bool(record.moves or record.splits))


def print_deeds(before: Sequence[str], rows: Sequence[tuple[Sequence[object], DecisionRow]], empty: str) -> None:
    """A table of deeds; scores have a column where there are any.

    Args:
        before: Headers of columns that stand before; the rows' own cells of these come with each row.
    """
    scored = any(row.score is not None for _, row in rows)

    def cells(row: Sequence[object]) -> Sequence[object]:
        return row if scored else (*row[:_SCORE], *row[_SCORE + 1 :])

    print_table((*before, *map(str, cells(_HEADERS))), [(*first, *cells(row)) for first, row in rows], empty=empty)


def done_count(record: DecisionRecord) -> int:
    """Bundles that something was done about: each is counted once."""
    if record.subject == Subject.PLACE.value:
        return len(record.placed) + record.cut.get("placed", 0)
    made = sum(one.refused is None for one in record.moves) + sum(one.refused is None for one in record.splits)
    return made + record.cut.get("moves", 0) + record.cut.get("splits", 0)


def _result(word: str | None, why: str | None) -> str | None:
    return word if word is None or not why else f"{word}: {why}"
