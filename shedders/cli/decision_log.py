"""The decisions of a channel, for commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shedders.live.decision_book import DecisionBook
from shedders.live.decision_record import DecisionRecord, MoveEntry, PlacedEntry, Undecodable
from shedders.live.decision_topic import DecisionReader, DecisionTopics, describe_decision_topic
from shedders.live.settings import NAME, BalancerSettings, configured
from statechannel.cli.connection import Connection
from statechannel.cli.kafka_wait import naming_address, told_if_slow
from statechannel.cli.output import say
from statechannel.kafka.errors import TopicMissingError


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


def tell_unreadable(record: Undecodable, offset: int) -> None:
    """A remark on one of them."""
    say(f"the record at offset {offset} cannot be read ({record.reason}): {record.why}")


def told(book: DecisionBook, record: DecisionRecord) -> dict[str, Any]:
    """A decision as the JSON output has it: the record, with the newest word on each of its moves."""
    found = record.model_dump(mode="json")
    made = list(book.made(record))
    for part in ("moves", "splits", "placed"):
        for entry in found[part]:
            one = made.pop(0)
            entry["result"], entry["result_why"] = one.result, one.why_so
            entry["took_ms"] = None if one.ended is None else one.ended.took_ms
    return found


def deeds(book: DecisionBook, record: DecisionRecord) -> Sequence[tuple[object, ...]]:
    """Rows: bundle, from, to, reason, load, result, why."""
    rows: list[tuple[object, ...]] = []
    for made in book.made(record):
        entry = made.entry
        if isinstance(entry, MoveEntry):
            source, to, load = entry.source, entry.destination or "anybody", entry.load
            to = "stays" if entry.refused is not None else f"{to} (swap)" if entry.swap else to
            result, why = entry.refused or _result(made.result, made.why_so), entry.why
            rows.append((entry.bundle, source, to, entry.reason, load, result, why))
        elif isinstance(entry, PlacedEntry):
            result = _result(made.result, made.why_so)
            rows.append((entry.bundle, None, entry.broker or "nobody", "Placed", entry.score, result, entry.why))
        else:
            cuts = ", ".join(f"0x{position:08x}" for position in entry.positions)
            result = _result(made.result, made.why_so)
            rows.append((entry.bundle, None, f"split at {cuts}", entry.reason, None, result, entry.why))
    return rows


def _result(word: str | None, why: str | None) -> str | None:
    return word if word is None or not why else f"{word}: {why}"


DEED_HEADERS = ("bundle", "from", "to", "reason", "load/s", "result", "why")
