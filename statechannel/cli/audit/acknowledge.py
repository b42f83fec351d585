"""Command `statechannel audit acknowledge`: a person has looked at a forged record, and says why it needs no more attention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from ulid import ULID

from statechannel.audit.acknowledgements import (
    Acknowledgement,
    Acknowledgements,
    acknowledged_sentence,
    encode,
)
from statechannel.audit.engine import LOCAL, AuditQuestion, Wants, load_engine
from statechannel.audit.forgeries import forged_sentence
from statechannel.audit.registry_story import RegistryStory
from statechannel.cli.kit.confirmation import DryRun, Effect, Yes, confirm
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import By, Connect, OutputAs, RequiredReason, with_connection
from statechannel.cli.kit.output import Output, print_json, stdout
from statechannel.cli.kit.progress import progress
from statechannel.errors import ExitCode
from statechannel.protocol.log import Topic

if TYPE_CHECKING:  # help is shown on machines that have no Kafka client
    from statechannel.cli.kit.connection import Connection

_PLACE: Final = re.compile(r"(?:([0-9]{1,10})@)?([0-9]{1,18})", re.ASCII)
_SHOWN: Final = 10


class ForgedTopic(StrEnum):
    """Topics in which records may be forged, by role."""

    CHANNEL = Topic.CHANNEL.value
    REGISTRY = Topic.REGISTRY.value


class _Asked(NamedTuple):
    """A record as the command line names it.

    Attributes:
        partition: None: the partition that has a forged record at that offset.
    """

    partition: int | None
    offset: int

    def __str__(self) -> str:
        return str(self.offset) if self.partition is None else f"{self.partition}@{self.offset}"


class _Forged(NamedTuple):
    """A record that audit or brokers call forged.

    Attributes:
        sentence: For people.
        seen: `Acknowledgement.fields`, if it was acknowledged already.
    """

    partition: int
    offset: int
    timestamp_ms: int | None
    sentence: str
    seen: Mapping[str, Any] | None


@with_connection
def acknowledge(
    connect: Connect,
    offsets: Annotated[
        list[str],
        typer.Argument(
            metavar="OFFSET...",
            help="Offsets of forged records; PARTITION@OFFSET where several partitions have one there.",
        ),
    ],
    reason: RequiredReason,
    by: By = None,
    topic: Annotated[
        ForgedTopic,
        typer.Option("--topic", help="Topic of the records: the channel's, or the registry (of a broker's report)."),
    ] = ForgedTopic.CHANNEL,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Acknowledge forged records: `status` and `doctor` no longer call them a problem; every list still shows them."""
    asked = [_parsed(text) for text in offsets]
    chosen: list[_Forged] = []

    def choose() -> list[_Forged]:
        if not chosen:
            known = _known(connect, topic)
            wanted = [_record_at(known, place, topic) for place in asked]
            chosen.extend({(item.partition, item.offset): item for item in wanted}.values())
        return chosen

    def effect() -> Effect:
        rows = choose()
        return Effect([_would(item) for item in rows], {"acknowledged": [_fields(item, topic, None) for item in rows]})

    if not confirm(effect, connection=connect, yes=yes, dry_run=dry_run, output=output):
        return
    # Requests are written by few of the commands of `audit`, which start sooner without.
    from statechannel.cli.kit.requests import user_at_host

    rows = choose()
    written = [_write(connect, item, topic, by or user_at_host(), reason) for item in rows if item.seen is None]
    places = {(item.partition, item.offset): item for item in written}
    if output is Output.JSON:
        print_json({"acknowledged": [_fields(item, topic, places.get((item.partition, item.offset))) for item in rows]})
        return
    for item in rows:
        done = _already(item) if item.seen is not None else f"acknowledged: {item.sentence}"
        stdout().print(done, markup=False)


def _parsed(text: str) -> _Asked:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise CommandError(
            f"`{text}` is not an offset",
            hint="Give the offset that `statechannel audit` shows, such as 337, or 0@337 with its partition.",
            code=ExitCode.USAGE,
        )
    partition, offset = match.groups()
    return _Asked(None if partition is None else int(partition), int(offset))


def _known(connect: Connect, topic: ForgedTopic) -> list[_Forged]:
    """The forged records of the topic: those that the log shows, and the newest of each broker's report."""
    from statechannel.cli.kit.registry import read_registry
    from statechannel.cli.kit.requests import acknowledgements

    connection = connect()
    story = RegistryStory(connection.settings.membership.expiry_s)
    read_registry(connection, listen=False, observe=story.observe)
    seen = acknowledgements(connection)
    rows = _of_log(connection, story, seen) if topic is ForgedTopic.CHANNEL else []
    places = {(item.partition, item.offset) for item in rows}
    for (broker, _), report in sorted(story.forgeries.items()):
        if report.topic == topic.value and (report.partition, report.offset) not in places:
            item = seen.of_report(report)
            fields = None if item is None else item.fields()
            rows.append(_Forged(report.partition, report.offset, report.timestamp_ms, report.sentence(broker), fields))
    return rows


def _of_log(connection: Connection, story: RegistryStory, seen: Acknowledgements) -> list[_Forged]:
    from statechannel.cli.kit.live_log import live_source

    question = AuditQuestion(live_source(connection), wants=Wants(forged=True, writers=story.writers))
    result = load_engine(LOCAL)(question, progress=progress)
    rows = seen.marked(result.forged or {"records": 0, "newest": []})["newest"]
    return [
        _Forged(
            row["partition"],
            row["offset"],
            row["timestamp_ms"],
            forged_sentence(row | {"acknowledged": None}),
            row["acknowledged"],
        )
        for row in rows
    ]


def _record_at(known: Sequence[_Forged], place: _Asked, topic: ForgedTopic) -> _Forged:
    """The record at a place.

    Raises:
        CommandError: None is forged there, or those of several partitions are.
    """
    there = [item for item in known if item.offset == place.offset and place.partition in (None, item.partition)]
    if len(there) > 1:
        raise CommandError(
            f"several partitions have a forged record at offset {place.offset}",
            hint=f"Name one: {_listed(f'{item.partition}@{item.offset}' for item in there)}.",
            code=ExitCode.USAGE,
        )
    if not there:
        listed = _listed(f"{item.partition}@{item.offset}" for item in reversed(known))
        raise CommandError(
            f"no forged record of the {topic} is known at {place}",
            hint=f"Known, the newest first: {listed}. `statechannel audit` lists them."
            if known
            else "`statechannel audit` and `statechannel doctor` list forged records; they know none there.",
            code=ExitCode.NOT_FOUND,
        )
    return there[0]


def _listed(places: Iterable[str]) -> str:
    names = list(places)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _write(connect: Connect, item: _Forged, topic: ForgedTopic, by: str, reason: str) -> Acknowledgement:
    from statechannel.cli.kit.live_log import naming_address, now_ms
    from statechannel.kafka.tail import append_and_wait

    connection, identifier = connect(), str(ULID())
    written = Acknowledgement(topic.value, item.partition, item.offset, item.timestamp_ms, by, reason)
    with naming_address(connection):
        append_and_wait(
            connection.client,
            connection.topics.names[Topic.REQUESTS],
            0,
            key=identifier.encode(),
            value=encode(written, identifier, now_ms()),
            timeout_s=connection.timeout_s,
            repeatable=True,  # of two copies the first counts
        )
    return written


def _would(item: _Forged) -> str:
    return _already(item) if item.seen is not None else f"would be acknowledged: {item.sentence}"


def _already(item: _Forged) -> str:
    return item.sentence if item.seen is None else f"{item.sentence}; {acknowledged_sentence(item.seen)}"


def _fields(item: _Forged, topic: ForgedTopic, written: Acknowledgement | None) -> dict[str, Any]:
    place = {"topic": topic.value, "partition": item.partition, "offset": item.offset, "message": item.sentence}
    seen = item.seen if written is None else written.fields()
    return place | {"already": item.seen is not None, "acknowledged": None if seen is None else dict(seen)}
