"""Members of the cluster, for commands, which do not join: a fold of the registry topic, as of now; and Kafka's clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.live_log import describe_topic, notify_if_slow, now_ms, open_tail
from statechannel.cli.kit.output import say, waiting
from statechannel.engine.membership import LostMember, Member, Membership, decode_member
from statechannel.errors import StateChannelError
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.log import RecordRead, Topic

if TYPE_CHECKING:  # lookups need no audit
    from statechannel.audit.writers import WritersHeard

_KEPT = 60


class LogClock:
    """The log's current time, estimated from records that were received as they were written.

    The least delay of the last sixty is taken as the transport delay plus the clocks' difference.
    """

    def __init__(self) -> None:
        self._ahead_ms: deque[int] = deque(maxlen=_KEPT)

    def heard(self, timestamp_ms: int) -> None:
        self._ahead_ms.append(now_ms() - timestamp_ms)

    @property
    def ahead_ms(self) -> int | None:
        """How far this machine's clock is ahead of the log's; negative: behind; None before the first record."""
        return min(self._ahead_ms, default=None)

    def now_ms(self) -> int:
        """The log's current time; this machine's before the first record."""
        return now_ms() - (self.ahead_ms or 0)


_LEAST_WINDOW_S = 60.0


class Dismissal(NamedTuple):
    """One lost process.

    Attributes:
        at_ms: Log time of the request.
        by: Who asked for it; empty where the request does not say.
        why: The reason given; empty without one.
    """

    broker: str
    incarnation: str
    at_ms: int
    by: str = ""
    why: str = ""

    @property
    def sentence(self) -> str:
        """Who dismissed it, and why."""
        by = f" by {self.by}" if self.by else ""
        return f"{self.broker} was dismissed{by}{f': {self.why}' if self.why else ''}"

    def fields(self) -> dict[str, Any]:
        return {
            "broker": self.broker,
            "incarnation": self.incarnation,
            "at_ms": self.at_ms,
            "by": self.by or None,
            "reason": self.why or None,
        }


@dataclass(frozen=True, slots=True)
class Registry:
    """The members as of now.

    Attributes:
        members: Those heard within the expiry, and those lost: lately, or within `membership.lost_shown_s` if all was read.
        read_at_ms: Time of this reading, by our clock or, if known, by Kafka's; ages are computed from it.
        last_lost: The lost member with the newest heartbeat, however old.
        dismissed: Lost processes that an operator dismissed, where the requests topic was read.
    """

    members: Membership
    read_at_ms: int
    last_lost: LostMember | None
    dismissed: Sequence[Dismissal] = ()

    @property
    def leader(self) -> Member | None:
        """The member that claims leadership; with two, the newest claim."""
        leading = [member for member in self.members.alive.values() if member.info.get("leading") is True]
        return max(leading, key=lambda member: member.heard_at_ms, default=None)

    def state_of(self, broker: str) -> str:
        """`alive`, `lost` or `unknown`."""
        if broker in self.members.alive:
            return "alive"
        return "lost" if broker in self.members.lost else "unknown"


Observe = Callable[[RecordRead, Mapping[str, Any]], None]
"""Called with each valid heartbeat, in log order."""


def read_registry(
    connection: Connection, *, listen: bool = True, observe: Observe | None = None, all_lost: bool = False
) -> Registry:
    """Fold the heartbeats of the topic: those of the last minute if they show a live broker, else all.

    Args:
        connection: Where.
        listen: False: trust our clock, and be quick.
        observe: Called with every heartbeat of the topic; without it the last minute is enough if a broker is alive.
        all_lost: Read the whole topic, for all brokers that were lost within `membership.lost_shown_s`.
    """
    with open_registry(connection, observe=observe, all_lost=all_lost) as reader:
        return reader.read(listen=listen)


@contextmanager
def open_registry(
    connection: Connection, *, observe: Observe | None = None, all_lost: bool = False
) -> Iterator[RegistryReader]:
    """The registry, for a command that reads it more than once; arguments as of `read_registry`."""
    if observe is not None:  # read before the channel: a client that only reads is told less of a password or of rights
        describe_topic(connection, Topic.CHANNEL)
    with open_tail(connection, Topic.REGISTRY, 0) as tail:
        yield RegistryReader(connection, tail, observe, whole=all_lost or observe is not None)


class RegistryReader:
    """Folds the heartbeats of the topic, each once: further readings take what has come since.

    If our clock is ahead of Kafka's, every broker looks lost. So before a reading says that no broker is
    alive, the whole topic is read (an hour), and a broker that ended without a goodbye gets two intervals for a
    heartbeat; with it comes Kafka's own time.

    Args:
        observe: Called with every heartbeat.
        whole: The whole topic, not only its last minute where that shows a live broker.
    """

    def __init__(self, connection: Connection, tail: PartitionTail, observe: Observe | None, *, whole: bool) -> None:
        self._connection = connection
        self._tail = tail
        self._whole = whole
        membership = connection.settings.membership
        self._interval_s, self._expiry_s = membership.interval_s, membership.expiry_s
        self._fold = RegistryFold(
            self._expiry_s, observe=observe, lost_shown_s=membership.lost_shown_s if whole else None
        )
        self._read_to: int | None = None

    def read(self, *, listen: bool = True) -> Registry:
        """The members as of now.

        Args:
            listen: False: trust our clock, and be quick.
        """
        self.take()
        if not self._fold.anybody:
            if not self._whole:
                self._whole, self._read_to = True, None
                self._fold = RegistryFold(self._expiry_s)
                self.take()
            if listen and self._fold.silent and not self._fold.anybody:
                self._read_to = self._fold.listen(self._tail, self._read_to or 0, 2 * self._interval_s)
        return self._fold.registry()

    def take(self) -> None:
        """Apply what has come since the last reading, and conclude nothing of who is silent."""
        with notify_if_slow(self._connection):
            if self._read_to is not None:
                span = self._tail.span(start=self._read_to)
            else:
                span = self._tail.span(from_time_ms=None if self._whole else now_ms() - self._fold.window_ms)
        self._fold.take(self._tail.records(span))
        self._read_to = max(span.end, self._read_to or 0)


def live_writers(connection: Connection) -> WritersHeard:
    """What the registry shows of the processes that write to the channel; read it before the log.

    Where it cannot be read, a note is printed, and the log is judged alone.
    """
    from statechannel.audit.writers import WritersHeard

    writers = WritersHeard()
    try:
        read_registry(connection, listen=False, observe=writers.observe)
        writers.read_ms = now_ms()
    except StateChannelError as error:
        say(f"note: the registry could not be read; forged records are recognized by the log alone: {error}")
        return WritersHeard()
    return writers


class RegistryFold:
    """Members by the log's own times; no member expires before the log's time is known.

    Args:
        clock: Clock in milliseconds, for callers that know the log's time better than our wall clock.
        lost_shown_s: Time for which a broker that was lost without a goodbye is kept; None: as one that left.
    """

    def __init__(
        self,
        expiry_s: float,
        *,
        observe: Observe | None = None,
        clock: Callable[[], int] | None = None,
        lost_shown_s: float | None = None,
    ) -> None:
        self.window_ms = int(max(_LEAST_WINDOW_S, 5 * expiry_s) * 1_000)
        self._lost_shown_ms = self.window_ms if lost_shown_s is None else int(lost_shown_s * 1_000)
        self._members = Membership(expiry_s)
        self._observe = observe
        self._clock = clock or now_ms
        self._newest_ms = 0
        self._log_time_ms: int | None = None

    @property
    def _now_ms(self) -> int:
        """Kafka's time if known, else ours; never before the newest record."""
        return max(self._clock() if self._log_time_ms is None else self._log_time_ms, self._newest_ms)

    @property
    def silent(self) -> bool:
        """Whether a broker of the topic ended without a goodbye."""
        return bool(self._members.alive)

    @property
    def anybody(self) -> bool:
        """Whether a broker was heard within the expiry."""
        oldest_ms = self._now_ms - self._members.expiry_s * 1_000
        return any(member.heard_at_ms >= oldest_ms for member in self._members.alive.values())

    def take(self, records: Iterable[RecordRead]) -> bool:
        """Apply records; returns whether a heartbeat other than a goodbye was among them."""
        beaten = False
        for record in records:
            self._newest_ms = max(self._newest_ms, record.timestamp_ms)
            info = decode_member(record.value)
            if info is not None:
                at_ms = record.timestamp_ms
                self._members.heard(at_ms / 1_000, record.offset, at_ms, info)
                beaten = beaten or info.get("leaving") is not True
                if self._observe is not None:
                    self._observe(record, info)
        return beaten

    def hear_all(self) -> None:
        """Note that the reader was cut off: silence before now does not count for any member."""
        self._members.hear_all(self._now_ms / 1_000)

    def listen(self, tail: PartitionTail, start: int, listen_s: float) -> int:
        """Wait for a heartbeat: the log time of what is written now is Kafka's time now.

        Returns:
            The offset from which on nothing was read.
        """
        ends_s = time.monotonic() + listen_s
        with waiting("listening for heartbeats", listen_s) as tick:
            for batch in tail.follow(start, stop=lambda: time.monotonic() > ends_s):
                tick("")
                beaten = self.take(batch)
                if batch:
                    self._log_time_ms, start = batch[-1].timestamp_ms, batch[-1].offset + 1
                if beaten:
                    break
        return start

    def registry(self) -> Registry:
        """The members as of now."""
        members, read_at_ms = self._members, self._now_ms
        members.expire(read_at_ms / 1_000, keep="")
        last = max(members.lost.values(), key=lambda lost: lost.last_heard_ms, default=None)
        members.lost = {
            broker: lost
            for broker, lost in members.lost.items()
            if read_at_ms - lost.last_heard_ms <= self._kept_ms(lost)
        }
        return Registry(members, read_at_ms, last)

    def _kept_ms(self, lost: LostMember) -> int:
        left = (lost.broker, lost.incarnation) in self._members.gone
        return self.window_ms if left else self._lost_shown_ms
