"""The topic `NAME-policies`: a reader of the whole topic, and a writer that reads back its record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shedders.policies.book import BookBounds, PolicyBook, read
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import BY_MAX, WHY_MAX, Author, PolicyKey, PolicyRecord, encode
from statechannel.kafka.errors import AppendOutcomeUnknownError, KafkaAdapterError, KafkaUnavailableError
from statechannel.kafka.tail import PartitionTail, Span, append_and_wait, side_tail
from statechannel.kafka.topics import TopicAdmin, inspect
from statechannel.operations.outcomes import Answer
from statechannel.protocol.log import RecordRead
from statechannel.protocol.side_record import Headers, InvalidRecord

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import SideTopic

_AGAIN_S = 0.1
_OPEN_ENDED = (AppendOutcomeUnknownError, KafkaUnavailableError)


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """The topic as it is now.

    Attributes:
        topic_id: If it differs from before, the topic was deleted and created again; empty: it does not exist.
        end: Offset of the next record.
        unfit: Why its settings are unsuitable; empty if they are not.
        first: Its first offset. Compaction never moves it: if it grows, records were deleted.
    """

    topic_id: str
    end: int
    unfit: str = ""
    first: int = 0


def look_at(settings: ClientSettings, topic: SideTopic, *, timeout_s: float = 20.0) -> TopicSeen:
    """Inspect the topic: its id, its end, and whether its settings are suitable.

    Raises:
        KafkaAdapterError: Kafka is unavailable.
    """
    name = topic.name
    infos = TopicAdmin(settings, timeout_s=timeout_s).describe([name])
    if name not in infos:
        return TopicSeen("", 0, f"the topic {name} is gone")
    with side_tail(settings, topic, timeout_s) as tail:
        span = tail.span()
    hard = "; ".join(str(difference) for difference in inspect(infos, settings, topic).hard)
    unfit = hard and f"the topic of policies has unsuitable settings: {hard}"
    return TopicSeen(infos[name].topic_id, span.end, unfit, span.low)


_ALL = BookBounds(1_000_000, 2**34)
"""Commands that list or delete policies have to see those beyond a broker's bounds as well."""


def read_book(settings: ClientSettings, topic: SideTopic, *, timeout_s: float = 20.0) -> PolicyBook:
    """Read the topic to its end as of now; all of it.

    Raises:
        KafkaAdapterError: Kafka is unavailable, or the topic is missing.
    """
    book = PolicyBook(_ALL)
    with side_tail(settings, topic, timeout_s) as tail:
        for record in tail.records(tail.span()):
            book.take(record.offset, record.timestamp_ms, record.key, record.value)
    return book


class DeletionNote(NamedTuple):
    """Who deleted a policy, and why. A null has no value to hold this: it is in the headers of the record.

    Attributes:
        by, why: Empty: not given.
    """

    by: str
    why: str

    def headers(self) -> Headers:
        return tuple((name, text.encode()) for name, text in self._asdict().items() if text)

    @classmethod
    def of(cls, headers: Headers) -> DeletionNote:
        """Read the headers of a record; anybody may have written it."""
        texts = {name: (value or b"").decode(errors="replace") for name, value in headers}
        return cls(texts.get("by", "")[:BY_MAX], texts.get("why", "")[:WHY_MAX])


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """One record of the topic.

    Attributes:
        key: None if the record has no key of a policy.
        record: None: the policy was deleted, or the record is unreadable.
        trouble: Why it is unreadable; empty if it is not.
        deleted_by: Of a deletion: author and reason, from the headers of the record; None: it has none.
    """

    key: PolicyKey | None
    offset: int
    logged_at_ms: int
    record: PolicyRecord | None = None
    trouble: str = ""
    deleted_by: DeletionNote | None = None

    @property
    def by(self) -> str | None:
        """Who set or deleted it, by his own account; None: not recorded."""
        if self.record is not None:
            return Author.parse(self.record.by).text or None
        return None if self.deleted_by is None else self.deleted_by.by or None

    @property
    def why(self) -> str | None:
        if self.record is not None:
            return self.record.why or None
        return None if self.deleted_by is None else self.deleted_by.why or None

    @property
    def what(self) -> str:
        """`set`, `deleted` or `unreadable`."""
        return "unreadable" if self.trouble else "deleted" if self.record is None else "set"

    def fields(self) -> dict[str, Any]:
        key, record = self.key, self.record
        return {
            "kind": None if key is None else str(key.kind),
            "name": None if key is None else key.name,
            "override": None if key is None else key.override,
            "what": self.what,
            "value": None if record is None else dict(record.value),
            "by": self.by if record is None else Author.parse(record.by).person,
            "why": self.why if record is None else record.why,
            "until_ms": None if record is None else record.until_ms,
            "written_at_ms": None if record is None else record.written_at_ms,
            "logged_at_ms": self.logged_at_ms,
            "offset": self.offset,
            "trouble": self.trouble or None,
        }


@dataclass(frozen=True, slots=True)
class PolicyChanges:
    """All records that the topic still has, in log order.

    Attributes:
        is_whole: No offset is missing. One may be that of a transaction's marker: as this topic has no compaction lag, nothing
            tells it from that of a record that was cleaned.
    """

    rows: Sequence[PolicyChange]
    is_whole: bool

    def of(self, kind: PolicyKind | None, name: str | None) -> list[PolicyChange]:
        """Changes of a kind and name, overrides among them; None: any."""
        return [
            change
            for change in self.rows
            if (kind is None or (change.key is not None and change.key.kind is kind))
            and (name is None or (change.key is not None and change.key.name == name))
        ]


def policy_changes(
    records: Iterable[RecordRead], *, low: int, end: int, headers: Mapping[int, Headers] | None = None
) -> PolicyChanges:
    """The records as changes.

    Args:
        low, end: Offsets of the topic's first and next record.
        headers: By offset; it may be filled while the records are read.
    """
    of_records = {} if headers is None else headers
    rows = [_change(record, of_records) for record in records]
    return PolicyChanges(rows, is_whole=low == 0 and len(rows) == end)


def _change(record: RecordRead, headers: Mapping[int, Headers]) -> PolicyChange:
    _, _, key, policy, *_ = read(record.offset, record.timestamp_ms, record.key, record.value)
    if isinstance(key, InvalidRecord):
        return PolicyChange(None, record.offset, record.timestamp_ms, trouble=key.why)
    if isinstance(policy, InvalidRecord):
        return PolicyChange(key, record.offset, record.timestamp_ms, trouble=policy.why)
    note = DeletionNote.of(headers[record.offset]) if record.value is None and record.offset in headers else None
    return PolicyChange(key, record.offset, record.timestamp_ms, policy, deleted_by=note)


def read_changes(
    settings: ClientSettings, topic: SideTopic, *, timeout_s: float = 20.0
) -> tuple[PolicyChanges, PolicyBook]:
    """Read the topic to its end as of now: every record, and the newest of each policy.

    Raises:
        KafkaAdapterError: Kafka is unavailable, or the topic is missing.
    """
    headers: dict[int, Headers] = {}
    book = PolicyBook(_ALL)
    with side_tail(settings, topic, timeout_s, headers.__setitem__) as tail:
        span = tail.span()
        records = list(tail.records(span))
    for record in records:
        book.take(record.offset, record.timestamp_ms, record.key, record.value)
    return policy_changes(records, low=span.low, end=span.end, headers=headers), book


@dataclass(frozen=True, slots=True)
class PolicyWritten:
    """How a write ended.

    Attributes:
        reason: Why it was not accepted, or what superseded it; may be empty.
        offset: Offset of the record; None if it was not found.
        superseded: A newer record of the same key follows already.
    """

    outcome: Answer
    reason: str = ""
    offset: int | None = None
    logged_at_ms: int | None = None
    superseded: bool = False
    error: KafkaAdapterError | None = None


def write_policy(
    settings: ClientSettings,
    topic: SideTopic,
    key: PolicyKey,
    record: PolicyRecord | None,
    *,
    timeout_s: float = 20.0,
    note: DeletionNote | None = None,
) -> PolicyWritten:
    """Write one policy, or delete one (`record` None), with acks=all, and read it back. Blocks for up to four times `timeout_s`.

    The log decides, not the producer: a record that is read back was written, however the append ended. If it is not found when
    the log was read to its end, it was rejected if Kafka said so; else its outcome is unknown: it may still arrive.

    Args:
        note: Of a deletion: who deletes it, and why.

    Raises:
        BadPolicyError: It could not be read back unchanged; nothing was written.
        KafkaAdapterError: Kafka is unavailable or the topic is missing; nothing was written.
    """
    value = None if record is None else encode(record)
    raw = key.encode()
    with side_tail(settings, topic, timeout_s) as tail:
        start = tail.span().end
        failure: KafkaAdapterError | None = None
        try:
            headers = () if note is None else note.headers()
            append_and_wait(settings, topic.name, 0, key=raw, value=value, timeout_s=timeout_s, headers=headers)
        except KafkaAdapterError as error:
            failure = error
        deadline_s = time.monotonic() + timeout_s
        while True:
            read_through = False
            with suppress(KafkaAdapterError):
                written = _read_back(tail, start, raw, value)
                if written is not None:
                    return written
                read_through = True
            if read_through and failure is not None and not isinstance(failure, _OPEN_ENDED):
                return PolicyWritten(Answer.REJECTED, str(failure), error=failure)
            if time.monotonic() > deadline_s:
                break
            time.sleep(_AGAIN_S)
    if failure is None:
        return PolicyWritten(Answer.UNKNOWN, f"Kafka confirmed the record, but it was not read back in {timeout_s:g} s")
    return PolicyWritten(Answer.UNKNOWN, str(failure), error=failure)


def _read_back(tail: PartitionTail, start: int, key: bytes, value: bytes | None) -> PolicyWritten | None:
    end = tail.span().end
    mine: RecordRead | None = None
    newer: RecordRead | None = None
    for record in tail.records(Span(low=start, start=start, end=end)):
        if record.key != key:
            continue
        if mine is None and record.value == value:
            mine = record
        elif mine is not None:
            newer = record
    if mine is None:
        return None
    reason = "" if newer is None else f"a newer record of {key.decode()} is at offset {newer.offset} already"
    return PolicyWritten(Answer.ACCEPTED, reason, mine.offset, mine.timestamp_ms, newer is not None)
