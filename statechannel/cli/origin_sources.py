"""The topics that say what was asked for, as `audit origins` looks into them.

Other packages join by the entry point group `statechannel.origins`: a function that is given the connection and returns a
`Source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Final

from statechannel.audit.origins import Asker, Origin, Source
from statechannel.cli.connection import Connection
from statechannel.cli.live_log import now_ms, open_tail
from statechannel.core.inputs import RecordRead, Topic
from statechannel.core.membership import decode_member
from statechannel.core.states import State
from statechannel.runtime import request_record
from statechannel.runtime.request_record import Asked, Request

GROUP: Final = "statechannel.origins"
_BEGINS: Final[Mapping[str, frozenset[State]]] = {
    Asked.CREATE_NAMESPACE.value: frozenset({State.ACTIVE}),
    Asked.TRANSFER.value: frozenset({State.RELEASING}),
    Asked.UNLOAD.value: frozenset({State.RELEASING}),
    Asked.SPLIT.value: frozenset({State.SPLITTING}),
}


def sources(connection: Connection) -> list[Source]:
    """All topics that say what was asked for; those of other packages first, as they say most.

    Raises:
        StateChannelError: One cannot be read: what it knows must not be said to have no origin.
    """
    points = sorted(entry_points(group=GROUP), key=lambda one: one.name)
    return [*(point.load()(connection) for point in points), requests(connection), shutdowns(connection)]


def requests(connection: Connection) -> Requests:
    """The requests that are left."""
    found = Requests()
    with _all(connection, Topic.REQUESTS) as (records, first_ms):
        for record in records:
            found.take(record)
        since_ms = first_ms()
        # What began just after the oldest request may be due to an older one, which could wait for so long.
        found.since_ms = since_ms + int(request_record.TIMEOUT_MAX_S * 1_000) if since_ms else 0
    return found


def shutdowns(connection: Connection) -> Shutdowns:
    """The heartbeats that are left of members that were leaving."""
    found = Shutdowns(slack_ms=int(connection.settings.membership.expiry_s * 1_000))
    with _all(connection, Topic.REGISTRY) as (records, first_ms):
        for record in records:
            found.take(record)
        found.since_ms = first_ms()
    return found


@contextmanager
def _all(connection: Connection, topic: Topic) -> Iterator[tuple[Iterator[RecordRead], Any]]:
    """Whatever a topic has, and a function that says from when on that is everything."""
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
    """What commands asked for."""

    since_ms: int = 0
    name: str = "requests"
    _askers: dict[str, Asker] = field(default_factory=dict)

    def take(self, record: RecordRead) -> None:
        """Take in one record of the topic."""
        item = request_record.decode(record.value, record.timestamp_ms)
        if not isinstance(item, Request) or item.id in self._askers:
            return
        extension = item.asked == Asked.EXTENSION.value
        what = f"{item.args.get('extension')} {item.args.get('ask')}" if extension else item.asked
        destination = item.args.get("destination")
        self._askers[item.id] = Asker(
            Origin.REQUEST,
            item.id,
            item.by,
            record.timestamp_ms,
            what,
            item.name or None,
            _BEGINS.get(item.asked, frozenset()),
            destination if isinstance(destination, str) else None,
        )

    def asker(self, begun: Mapping[str, Any]) -> Asker | None:
        """The request whose id the operation has."""
        return None if begun["operation"] is None else self._askers.get(begun["operation"])


@dataclass(slots=True)
class Shutdowns:
    """Members that were leaving, and when.

    Args:
        slack_ms: A heartbeat comes so much later than what it speaks of, at most.
    """

    slack_ms: int
    since_ms: int = 0
    name: str = "registry"
    _leaving: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def take(self, record: RecordRead) -> None:
        """Take in one heartbeat."""
        info = decode_member(record.value)
        if info is None or (info.get("draining") is not True and info.get("leaving") is not True):
            return
        process = info["broker"], info["incarnation"]
        first_ms, _ = self._leaving.get(process, (record.timestamp_ms, 0))
        self._leaving[process] = first_ms, record.timestamp_ms

    def asker(self, begun: Mapping[str, Any]) -> Asker | None:
        """The shutdown in whose course a broker let go of what it served."""
        if begun["state"] != State.RELEASING.value or begun["from"] != begun["by"]:
            return None
        process = begun["by"], begun["incarnation"]
        first_ms, last_ms = self._leaving.get(process, (0, -self.slack_ms - 1))
        if not first_ms - self.slack_ms <= begun["began_ms"] <= last_ms + self.slack_ms:
            return None
        return Asker(Origin.SHUTDOWN, begun["incarnation"], begun["by"], first_ms, "shutdown")
