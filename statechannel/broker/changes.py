"""Stream of accepted changes in log order: from a position in the past, then live."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from statechannel.broker.host_platform import HostPlatform
from statechannel.errors import StateChannelError
from statechannel.operations.outcomes import plain
from statechannel.protocol.bundle import bundle_key, parse_key
from statechannel.protocol.cold_start_marks import HeadMark, Mark, Marks
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.overruling import StrictReader
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from statechannel.kafka.tail import Span
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.record import Record

_CHUNK = 500
WAITING_MAX_BYTES = 64 * 2**20


class StreamEnd(StrEnum):
    """Why a stream of changes cannot continue."""

    COMPACTED = "compacted"  # the past from the offset on was cleaned away
    TOO_SLOW = "too-slow"  # the consumer
    INTERRUPTED = "interrupted"  # a partition is read again: later changes are not seen one by one
    NOT_FOLLOWED = "not-followed"  # a partition is not caught up now
    NEWER_FORMAT = "newer-format"


class ChangesError(StateChannelError):
    """The stream of changes cannot continue.

    Attributes:
        reason: A stable code.
        partition: The one in which it ended; None where it is not one alone.
        next_offset: With `compacted`: the first offset from which on changes are available; None if none is known.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        reason: StreamEnd,
        partition: int | None = None,
        next_offset: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.partition = partition
        self.next_offset = next_offset


class Derived(NamedTuple):
    """A bundle created by an accepted record (protocol.md section 2)."""

    bundle: str
    state: State
    version: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """One accepted record.

    Attributes:
        timestamp_ms: The log's own time.
        bundle: Key that changed: a bundle, or `tenant/namespace`.
        from_: `from` of the record.
        by: Broker that wrote it.
        derived: Bundles created by it.
        lost: In a repair: the lost owner, and when it was last heard.
    """

    partition: int
    offset: int
    timestamp_ms: int
    bundle: str
    state: State
    version: int
    from_: str | None
    to: str | None
    by: str
    incarnation: str
    action: str | None = None
    operation: str | None = None
    flow: str | None = None
    reason: str | None = None
    decision: str | None = None
    forced: bool = False
    lost: Mapping[str, Any] | None = None
    derived: Sequence[Derived] = ()

    @classmethod
    def of(cls, record: Record, read: RecordRead) -> Change:
        """The change made by an accepted record."""
        key = (read.key or b"").decode()
        lost = record.raw.get("lost")
        return cls(
            partition=read.partition,
            offset=read.offset,
            timestamp_ms=read.timestamp_ms,
            bundle=key,
            state=record.state,
            version=record.version,
            from_=record.from_,
            to=record.to,
            by=record.broker,
            incarnation=record.incarnation,
            action=record.text("action"),
            operation=record.text("operation"),
            flow=record.text("flow"),
            reason=record.text("reason"),
            decision=record.text("decision"),
            forced=record.forced,
            lost=lost if isinstance(lost, dict) else None,
            derived=_derived(record, key),
        )

    def to_json(self) -> dict[str, Any]:
        """Object for JSON; `from_` becomes `from`."""
        fields: dict[str, Any] = {name: plain(getattr(self, name)) for name in self.__slots__}
        fields["from"] = fields.pop("from_")
        fields["derived"] = [derived._asdict() | {"state": str(derived.state)} for derived in self.derived]
        return fields


class Derivation(Sequence[Derived]):
    """The bundles created by a record, built on access: a ring has up to 32,768."""

    __slots__ = ("_bounds", "_namespace", "_owner", "_state", "_version")

    def __init__(self, namespace: str, bounds: Sequence[int], state: State, version: int, owner: str | None) -> None:
        self._namespace = namespace
        self._bounds = bounds
        self._state = state
        self._version = version
        self._owner = owner

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> Derived: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Derived, ...]: ...

    def __getitem__(self, index: int | slice) -> Derived | tuple[Derived, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        bundle = bundle_key(self._namespace, self._bounds[place], self._bounds[place + 1])
        return Derived(bundle, self._state, self._version, self._owner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def _derived(record: Record, key: str) -> Sequence[Derived]:
    parts = parse_key(key.encode())
    bounds = record.bounds()
    if bounds is None or parts is None:
        return ()
    split = not parts.is_namespace
    state = State.ASSIGNED if split else State.UNASSIGNED
    return Derivation(parts.namespace, bounds, state, record.version + split, record.from_ if split else None)


# --- the past -------------------------------------------------------------------------------------------------------


def accepted_of(
    records: Callable[[], Iterable[RecordRead]], partition: int, partitions: int, since: int, oldest_kept_ms: int
) -> Iterator[Change]:
    """Changes from offset `since` on, judged by the rules of the channel.

    A log without gaps is judged from its beginning, record by record, across the marks of cold starts as by members.
    A compacted one is joined as by a member: only changes after the newest clean point are available.

    Args:
        records: Reads the partition from its first offset; called again after a gap.
        oldest_kept_ms: See `clean_points`.

    Raises:
        ChangesError: The requested offsets were compacted, or a record has a newer format.
    """
    reader = StrictReader(View(partition, partitions))
    expected = 0
    for read in records():
        if read.offset != expected:
            break
        expected += 1
        judgement = reader.read(read)
        if judgement.verdict is Verdict.UNSUPPORTED_FORMAT:
            raise _newer(partition, read.offset, judgement.format)
        if judgement.verdict is Verdict.ACCEPTED and judgement.record is not None and read.offset >= since:
            yield Change.of(judgement.record, read)
    else:
        return
    yield from _after_join(records, partition, partitions, max(since, expected), oldest_kept_ms)


def _after_join(
    records: Callable[[], Iterable[RecordRead]], partition: int, partitions: int, since: int, oldest_kept_ms: int
) -> Iterator[Change]:
    # Read twice and not kept: the log may be of any length.
    points = clean_points(records(), oldest_kept_ms)
    clean_to = max((point for point in points if point < since), default=None)
    if clean_to is None:
        later = f" The first available position is {min(points) + 1}." if points else ""
        raise ChangesError(
            f"Changes of partition {partition} from offset {since} on are not available: the log was compacted there.",
            hint=f"Start at a later position.{later}",
            reason=StreamEnd.COMPACTED,
            partition=partition,
            next_offset=min(points) + 1 if points else None,
        )
    joiner = Joiner(partition, partitions)
    view: View | None = None
    expected = clean_to + 1
    for read in records():
        if read.offset <= clean_to:
            joiner.read(read.offset, read.key, read.value)
            if joiner.stopped:
                raise _newer(partition, read.offset, joiner.stopped)
            continue
        if read.offset != expected:
            raise ChangesError(
                f"Offsets {expected} to {read.offset - 1} of partition {partition} were compacted while they were read.",
                hint="Subscribe again.",
                reason=StreamEnd.COMPACTED,
                partition=partition,
            )
        expected += 1
        view = view or joiner.view()
        judgement = view.read(read.offset, read.key, read.value)
        if judgement.verdict is Verdict.UNSUPPORTED_FORMAT:
            raise _newer(partition, read.offset, judgement.format)
        if judgement.verdict is Verdict.ACCEPTED and judgement.record is not None and read.offset >= since:
            yield Change.of(judgement.record, read)


def clean_points(records: Iterable[RecordRead], oldest_kept_ms: int) -> list[int]:
    """Offsets at which a joining reader may start to judge: vouched for, without gaps after them, and recent enough.

    Records that are older than the lag may have hidden others, below the point, from the reader (audit.md). Nor
    is an offset before the mark of a cold start: states accepted there may be void.
    """
    floor, expected = 0, 0
    points: set[int] = set()
    marks = Marks()
    for read in records:
        if read.offset != expected:
            floor = read.offset - 1
        if read.timestamp_ms <= oldest_kept_ms:
            floor = max(floor, read.offset)
        expected = read.offset + 1
        control = marks.control_read(read)
        if isinstance(control, Mark | HeadMark):
            floor = max(floor, read.offset)
        elif control is not None and 0 <= control.clean_to < read.offset:
            points.add(control.clean_to)
    return sorted(point for point in points if point >= floor)


def _newer(partition: int, offset: int, number: int) -> ChangesError:
    return ChangesError(
        f"Offset {offset} of partition {partition} is written in format {number}.",
        hint="Upgrade to continue.",
        reason=StreamEnd.NEWER_FORMAT,
        partition=partition,
    )


class PastTail(Protocol):
    """Reads one partition of the channel up to its end; a `PartitionTail` is one."""

    def span(self) -> Span: ...

    def records(self, span: Span) -> Iterator[RecordRead]:
        """The records of `span` in order; offsets may have gaps."""

    def close(self) -> None: ...


class PastReader:
    """Reads the past of one partition in bounded portions, without blocking the loop."""

    def __init__(
        self,
        tail: PastTail,
        partition: int,
        *,
        partitions: int,
        compaction_lag_s: float,
        platform: HostPlatform | None = None,
    ) -> None:
        self._tail = tail
        self._partition = partition
        self._partitions = partitions
        self._lag_ms = int(compaction_lag_s * 1000)
        self._platform = platform or HostPlatform()

    async def read(self, since: int, until: int) -> AsyncIterator[Change]:
        """Changes of the offsets `since <= offset < until`."""
        aside = self._platform.aside
        try:
            whole = await aside(self._tail.span)
            span = replace(whole, end=min(whole.end, until))
            oldest_kept_ms = self._platform.clocks.now().wall_ms - self._lag_ms
            changes = accepted_of(
                lambda: self._tail.records(span), self._partition, self._partitions, since, oldest_kept_ms
            )
            while chunk := await aside(_portion, changes):
                for change in chunk:
                    yield change
        finally:
            await aside(self._tail.close)


def _portion(changes: Iterator[Change]) -> list[Change]:
    return list(islice(changes, _CHUNK))


# --- live -----------------------------------------------------------------------------------------------------------


class Watcher:
    """One subscriber, with its queue bounded in number and size."""

    def __init__(self, owner: LiveChanges, limit: int, limit_bytes: int) -> None:
        self._owner = owner
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._items: deque[tuple[Change, int]] = deque()
        self._came = asyncio.Event()
        self._error: StateChannelError | None = None

    def deliver(self, change: Change, size_bytes: int) -> None:
        if self._error is not None:
            return
        waiting = len(self._items)
        if waiting >= self._limit or (waiting and self._bytes + size_bytes > self._limit_bytes):
            self.fail(
                ChangesError(
                    f"The consumer of the changes is too slow: {waiting} ({self._bytes} bytes) are queued; the next is "
                    f"offset {change.offset} of partition {change.partition}.",
                    hint="Consume changes faster, or subscribe again from the position of the last consumed one.",
                    reason=StreamEnd.TOO_SLOW,
                    partition=change.partition,
                )
            )
            return
        self._items.append((change, size_bytes))
        self._bytes += size_bytes
        self._came.set()

    def fail(self, error: StateChannelError) -> None:
        """End the stream after the queued changes."""
        self._error = self._error or error
        self._came.set()

    async def next(self) -> Change:
        while not self._items:
            if self._error is not None:
                raise self._error
            self._came.clear()
            await self._came.wait()
        change, size_bytes = self._items.popleft()
        self._bytes -= size_bytes
        return change

    def take(self) -> Iterator[Change]:
        """The queued changes, in order, without waiting.

        Raises:
            ChangesError: The stream has ended.
        """
        while self._items:
            change, size_bytes = self._items.popleft()
            self._bytes -= size_bytes
            yield change
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._owner.forget(self)


class LiveChanges:
    """Delivers every accepted record of a caught-up replica to the subscribers.

    Args:
        limit_bytes: Maximum queue size of one subscriber, by the size of the records.
        closed_why: Returns why changes cannot be followed now; None if they can.
    """

    def __init__(
        self, limit_bytes: int = WAITING_MAX_BYTES, closed_why: Callable[[], str | None] = lambda: None
    ) -> None:
        self._limit_bytes = limit_bytes
        self._closed_why = closed_why
        self._watchers: list[Watcher] = []
        self._closed: StateChannelError | None = None

    def watch(self, limit: int) -> Watcher:
        """A new subscriber, at most `limit` changes behind.

        Raises:
            ChangesError: A partition is not followed now; changes would be missed.
        """
        why = None if self._closed is not None else self._closed_why()
        if why is not None:
            raise ChangesError(
                f"Changes cannot be followed now: {why}.", hint="Subscribe again soon.", reason=StreamEnd.NOT_FOLLOWED
            )
        watcher = Watcher(self, limit, self._limit_bytes)
        if self._closed is not None:
            watcher.fail(self._closed)
        self._watchers.append(watcher)
        return watcher

    def forget(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def deliver(self, record: Record, read: RecordRead) -> None:
        if self._watchers:
            change = Change.of(record, read)
            for watcher in self._watchers:
                watcher.deliver(change, len(read.value or b""))

    def interrupt(self, partition: int, why: str) -> None:
        """End the streams: later changes of a partition are not seen one by one."""
        error = ChangesError(
            f"Partition {partition} {why}; later changes were not seen one by one.",
            hint="Subscribe again from the position of the last consumed change.",
            reason=StreamEnd.INTERRUPTED,
            partition=partition,
        )
        for watcher in self._watchers:
            watcher.fail(error)

    def close(self, error: StateChannelError) -> None:
        """End all streams: the member stops."""
        self._closed = error
        for watcher in self._watchers:
            watcher.fail(error)
