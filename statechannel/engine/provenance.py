"""Which records of the log this process wrote, and which only bear its name.

Whoever may write to the topics is trusted, and the log decides: a forged record has its verdict, and is accepted for everybody.
But a process knows what it wrote. Its ids are ULIDs whose random part is its own entropy plus a counter, so that an id says by
itself whether it can be one of them; of the newest records the content is remembered too, as ids can be copied. A replay of an
own record, or a second copy by a retry, is not forged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ulid import ULID
from ulid.base32 import ENCODE

from statechannel.protocol import codec
from statechannel.protocol.bounded import remember
from statechannel.protocol.side_record import json_object

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.log import RecordRead, Topic
    from statechannel.protocol.record import Record

_RANDOM_BITS = 80
_RANDOM = 2**_RANDOM_BITS - 1
_TIME = 2**48 - 1
_TIME_LETTERS = 10
_PAIRS = tuple(first + second for first in ENCODE for second in ENCODE)
"""The last two letters of a ULID, by the number that they stand for."""
_VALUE = attrgetter("value")


NEWEST_MAX = 8_192
"""Ids that are recognised without being parsed: most are read back soon."""


class OwnIds:
    """Makes the ids of one process, and recognises them."""

    def __init__(self, entropy: bytes) -> None:
        self._first = int.from_bytes(entropy[:10], "big")
        self._count = 0
        self._newest: dict[str, None] = {}
        self._time: tuple[int, str] = (-1, "")
        self._high: tuple[int, str] = (-1, "")

    def new_id(self, wall_ms: int) -> str:
        """A ULID: wall time, this process's own random part, and a counter.

        Its text is put together from parts that rarely change: a storm asks for thousands a second.
        """
        self._count += 1
        random = (self._first + self._count) & _RANDOM
        if wall_ms != self._time[0]:
            self._time = wall_ms, str(ULID.from_int((wall_ms & _TIME) << _RANDOM_BITS))[:_TIME_LETTERS]
        high, low = divmod(random, len(_PAIRS))
        if high != self._high[0]:
            self._high = high, str(ULID.from_int(random))[_TIME_LETTERS:-2]
        new = f"{self._time[1]}{self._high[1]}{_PAIRS[low]}"
        remember(self._newest, new, None, NEWEST_MAX)
        return new

    def issued(self, record_id: object) -> bool:
        """Whether an id has a random part that this process has given out."""
        if not isinstance(record_id, str):
            return False
        if record_id in self._newest:
            return True
        try:
            parsed = ULID.from_str(record_id)
        except ValueError:
            return False
        return 1 <= (int(parsed) - self._first) & _RANDOM <= self._count and str(parsed) == record_id


class Forgery(NamedTuple):
    """A record that bears this process's broker id and incarnation, and was written by another process."""

    topic: Topic
    partition: int
    offset: int
    timestamp_ms: int


class Provenance:
    """What this process wrote.

    Args:
        announce: Called when the first forged record was read: the registry record of this process says so.
    """

    def __init__(self, context: Context, announce: Callable[[], None]) -> None:
        self._context = context
        self._announce = announce
        self.ids = OwnIds(context.identity.entropy)
        self.forged = 0
        self.newest: Forgery | None = None
        self._incarnation = context.identity.incarnation.encode()
        self._written: dict[str, int] = {}
        self._copied: dict[str, None] = {}
        self._checked: dict[int, int] = {}
        self._marks: dict[tuple[bytes, bytes], None] = {}

    def wrote_mark(self, key: bytes, value: bytes) -> None:
        """Note a control record without an id that is handed to the log."""
        remember(self._marks, (key, value), None, self._context.config.remembered_max)

    def wrote(self, record_id: str, key: bytes, value: bytes) -> None:
        """Note a record that is handed to the log."""
        remember(self._written, record_id, hash((key, value)), self._context.config.remembered_max)

    def is_own(self, key: KeyState) -> bool:
        """Whether this process wrote the accepted record of a key (the parent's record, where the state is derived)."""
        record_id = key.record_id
        return key.writer == self._context.writer and self.ids.issued(record_id) and not self.is_copied(record_id)

    def is_copied(self, record_id: str | None) -> bool:
        """Whether another process wrote something else under this id."""
        return record_id in self._copied

    def is_forged(self, event: RecordRead, record_id: object) -> bool:
        """Whether a record of the channel that bears this process's name is not its own."""
        if not isinstance(record_id, str) or not self.ids.issued(record_id):
            return True
        written = self._written.get(record_id)
        return written is not None and written != hash((event.key, event.value))

    def is_own_record(self, event: RecordRead, record: Record) -> bool:
        """Whether this process wrote a record that decodes; one that only says so is reported."""
        identity = self._context.identity
        named = record.incarnation == identity.incarnation and record.broker == identity.broker
        return named and self.check(event, record.id, record.state, record.version)

    def is_named_in(self, events: Sequence[RecordRead]) -> bool:
        """Whether any of these records may name this process; if not, `look_at` ignores them all."""
        return self._incarnation in b"\n".join(filter(None, map(_VALUE, events)))

    def look_at(self, event: RecordRead) -> None:
        """Look at a record of the channel in whatever phase of a join; cheap where it does not name this process."""
        if event.value is None or self._incarnation not in event.value:
            return
        loaded, identity = json_object(event.value) or {}, self._context.identity
        if loaded.get("by") == {"broker": identity.broker, "incarnation": identity.incarnation}:
            self.check(event, loaded.get("id"), loaded.get("state"), loaded.get("version"))

    def check(self, event: RecordRead, record_id: object, state: object, version: object) -> bool:
        """Look at a record that bears this process's name, once at each offset; whether it is its own."""
        if event.key is not None and event.key[:1] == b"!" and event.key != codec.HEARTBEAT_KEY:
            forged = (event.key, event.value) not in self._marks
        else:
            forged = self.is_forged(event, record_id)
        if forged and event.offset > self._checked.get(event.partition, -1):
            if isinstance(record_id, str) and self.ids.issued(record_id):
                remember(self._copied, record_id, None, self._context.config.remembered_max)
            self._forged(event, record_id, state, version)
        self._checked[event.partition] = max(event.offset, self._checked.get(event.partition, -1))
        return not forged

    def registry_forged(self, event: RecordRead) -> None:
        """The registry holds a heartbeat of this process that it did not write."""
        self._forged(event)

    def _forged(
        self, event: RecordRead, record_id: object = None, state: object = None, version: object = None
    ) -> None:
        self.forged += 1
        self.newest = Forgery(event.topic, event.partition, event.offset, event.timestamp_ms)
        self._context.emit(
            "record.forged",
            topic=event.topic,
            partition=event.partition,
            offset=event.offset,
            bundle=(event.key or b"").decode(errors="replace"),
            state=state if isinstance(state, str) else None,
            version=version if isinstance(version, int) else None,
            id=record_id if isinstance(record_id, str) else None,
        )
        if self.forged == 1:
            self._announce()

    def fields(self) -> dict[str, Any] | None:
        """For the registry and for people: how many, and the newest; None without any."""
        newest = self.newest
        if newest is None:
            return None
        return {
            "records": self.forged,
            "topic": newest.topic,
            "partition": newest.partition,
            "offset": newest.offset,
            "timestamp_ms": newest.timestamp_ms,
        }
