"""Members of the cluster, for commands, which do not join: a fold of the registry topic, as of now; and Kafka's clock.

"Now" is never the latest time of any record: Kafka's clock may have been wrong when that was written. What comes last in the log
is the newest, and Kafka's time is known from records that arrive as they are written.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.live_log import describe_topic, notify_if_slow, open_tail
from statechannel.cli.kit.output import duration, moment, say, say_once, waiting
from statechannel.clocks import now_ms
from statechannel.engine.membership import LostMember, Member, Membership, decode_member
from statechannel.engine.proven_positions import ProvenPositions
from statechannel.errors import StateChannelError
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.log import RecordRead, Topic

if TYPE_CHECKING:  # lookups need no audit
    from statechannel.audit.writers import WritersHeard

_KEPT = 60


class LogClock:
    """The log's current time, estimated from records that were received as they were written.

    The least delay of the last sixty is taken as the transport delay plus the clocks' difference; of those since Kafka's clock
    was last set back.
    """

    def __init__(self) -> None:
        self._ahead_ms: deque[int] = deque(maxlen=_KEPT)
        self._last_ms = 0

    def heard(self, timestamp_ms: int) -> None:
        if timestamp_ms < self._last_ms:
            self._ahead_ms.clear()
        self._last_ms = timestamp_ms
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


class FutureRecords(NamedTuple):
    """Heartbeats with times that are still to come: the clock of the Kafka broker that stamped them was wrong.

    Attributes:
        from_ms, to_ms: Kafka's time behind them, or now; and the latest of their times.
        last_offset: Of the last of them.
    """

    from_ms: int
    to_ms: int
    last_offset: int

    @property
    def sentence(self) -> str:
        return (
            f"the registry has records from the future, up to offset {self.last_offset}, with times between "
            f"{moment(self.from_ms)} and {moment(self.to_ms)}: the clock of a Kafka broker was wrong by up to "
            f"{duration(self.to_ms - self.from_ms)}; ages are not computed from these times"
        )


@dataclass(frozen=True, slots=True)
class Registry:
    """The members as of now.

    Attributes:
        members: Those heard within the expiry, and those lost: lately, or within `membership.lost_shown_s` if all was read.
        read_at_ms: Time of this reading, by our clock or, if known, by Kafka's; ages are computed from it.
        last_lost: The lost member with the newest heartbeat, however old.
        dismissed: Lost processes that an operator dismissed, where the requests topic was read.
        future: Records with times that are still to come; None without any.
        positions: How far brokers had read the channel, where the whole topic was read for that.
    """

    members: Membership
    read_at_ms: int
    last_lost: LostMember | None
    dismissed: Sequence[Dismissal] = ()
    future: FutureRecords | None = None
    positions: ProvenPositions | None = None

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
    connection: Connection,
    *,
    listen: bool = True,
    observe: Observe | None = None,
    all_lost: bool = False,
    awaited: str = "",
) -> Registry:
    """Fold the heartbeats of the topic: those of the last minute if they show a live broker, else all.

    Args:
        connection: Where.
        listen: False: trust our clock, and be quick.
        observe: Called with every heartbeat of the topic; without it the last minute is enough if a broker is alive.
        all_lost: Read the whole topic, for all brokers that were lost within `membership.lost_shown_s`.
        awaited: A broker of which no time of a record proves that it is lost (`RegistryReader.read`).
    """
    with open_registry(connection, observe=observe, all_lost=all_lost) as reader:
        return reader.read(listen=listen, awaited=awaited)


@contextmanager
def open_registry(
    connection: Connection, *, observe: Observe | None = None, all_lost: bool = False
) -> Iterator[RegistryReader]:
    """The registry, for a command that reads something else before it; arguments as of `read_registry`."""
    positions = None
    if observe is not None:  # read before the channel: a client that only reads is told less of a password or of rights
        channel = describe_topic(connection, Topic.CHANNEL)
        positions = ProvenPositions(channel.topic_id, channel.partitions)
    with open_tail(connection, Topic.REGISTRY, 0) as tail:
        yield RegistryReader(connection, tail, observe, whole=all_lost or observe is not None, positions=positions)


class RegistryReader:
    """Folds the heartbeats of the topic, each once: further readings take what has come since.

    If our clock is ahead of Kafka's, every broker looks lost. So before a reading says that no broker is
    alive, the whole topic is read (an hour), and a broker that ended without a goodbye gets two intervals for a
    heartbeat; with it comes Kafka's own time. So does each broker of which no time says whether it is alive, as Kafka's clock was
    wrong (`RegistryFold.unsure`).

    Args:
        observe: Called with every heartbeat.
        positions: Given every heartbeat, too.
        whole: The whole topic, not only its last minute where that shows a live broker.
    """

    def __init__(
        self,
        connection: Connection,
        tail: PartitionTail,
        observe: Observe | None,
        *,
        whole: bool,
        positions: ProvenPositions | None = None,
    ) -> None:
        self._connection = connection
        self._tail = tail
        self._whole = whole
        membership = connection.settings.membership
        self._interval_s, self._expiry_s = membership.interval_s, membership.expiry_s
        self._fold = RegistryFold(
            self._expiry_s,
            observe=observe,
            lost_shown_s=membership.lost_shown_s if whole else None,
            positions=positions,
        )
        self._read_to: int | None = None

    def read(self, *, listen: bool = True, awaited: str = "") -> Registry:
        """The members as of now.

        Args:
            listen: False: trust our clock, and be quick.
            awaited: A broker that is not called lost by the time of its last record: unless it said goodbye, or the topic has
                no heartbeat of it, its next one is awaited.
        """
        self.take()
        fold = self._fold
        if not (fold.anybody and (not awaited or fold.is_fresh(awaited))):
            if not self._whole:
                self._whole, self._read_to = True, None
                self._fold = fold = RegistryFold(self._expiry_s)
                self.take()
            if awaited and not fold.is_fresh(awaited):
                fold.doubt(awaited)
        if listen and (fold.unsure or (fold.silent and not fold.anybody)):
            self._read_to = fold.listen(self._tail, self._read_to or 0, 2 * self._interval_s)
        registry = fold.registry()
        if registry.future is not None:
            say_once(f"note: {registry.future.sentence}")
        return registry

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
    from statechannel.cli.kit.topic_state import log_bounds, positions_lost

    writers = WritersHeard()
    try:
        registry = read_registry(connection, listen=False, observe=writers.observe)
        writers.read_ms = now_ms()
        writers.positions_lost = positions_lost(connection, registry.positions, log_bounds(connection))
    except StateChannelError as error:
        say(f"note: the registry could not be read; the log is judged alone: {error}")
        return WritersHeard()
    return writers


class RegistryFold:
    """Members by the log's own times; no member expires before the log's time is known.

    Args:
        clock: Clock in milliseconds, for callers that know the log's time better than our wall clock.
        lost_shown_s: Time for which a broker that was lost without a goodbye is kept; None: as one that left.
        positions: Given every heartbeat.
    """

    def __init__(
        self,
        expiry_s: float,
        *,
        observe: Observe | None = None,
        clock: Callable[[], int] | None = None,
        lost_shown_s: float | None = None,
        positions: ProvenPositions | None = None,
    ) -> None:
        self._positions = positions
        self.window_ms = int(max(_LEAST_WINDOW_S, 5 * expiry_s) * 1_000)
        self._lost_shown_ms = self.window_ms if lost_shown_s is None else int(lost_shown_s * 1_000)
        self._members = Membership(expiry_s)
        self._expiry_ms = int(expiry_s * 1_000)
        self._observe = observe
        self._clock = clock or now_ms
        self._ahead_ms = 0
        self._last_ms = self._last_offset = 0
        self._turned_ms = 0
        self._set_back: FutureRecords | None = None
        self._heard: set[str] = set()
        self._heard_since_turn: set[str] = set()
        self._doubted: set[str] = set()
        self._listened = False

    @property
    def _now_ms(self) -> int:
        """Kafka's time if known, else ours; not before the log's last record, unless that is from the future."""
        now_ms = self._clock() - self._ahead_ms
        return now_ms if self._last_is_ahead else max(now_ms, self._last_ms)

    @property
    def _last_is_ahead(self) -> bool:
        """Whether the log's last record is from the future, or our clock is far behind: who is alive, only listening shows."""
        return self._last_ms - (self._clock() - self._ahead_ms) > self._expiry_ms

    @property
    def silent(self) -> bool:
        """Whether a broker of the topic ended without a goodbye."""
        return bool(self._members.alive)

    @property
    def anybody(self) -> bool:
        """Whether a broker was heard within the expiry."""
        return any(map(self.is_fresh, self._members.alive))

    def is_fresh(self, broker: str) -> bool:
        """Whether a broker was heard within the expiry, and no doubt of Kafka's clock is in the way."""
        member = self._members.alive.get(broker)
        return member is not None and not self._last_is_ahead and self._now_ms - member.heard_at_ms <= self._expiry_ms

    @property
    def unsure(self) -> set[str]:
        """Brokers, not heard while this reader listened, of which no time of the log says whether they are alive.

        The last record is from the future; or since the broker's last heartbeat, and within the expiry, times went back or leapt
        ahead: Kafka's clock was set, or no broker lived for so long.
        """
        turned = abs(self._now_ms - self._turned_ms) <= self._expiry_ms
        return {
            broker
            for broker in self._members.alive
            if broker not in self._heard
            and (broker in self._doubted or self._last_is_ahead or (turned and broker not in self._heard_since_turn))
        }

    def doubt(self, broker: str) -> None:
        """Do not call a broker lost before its next heartbeat was awaited."""
        self._doubted.add(broker)

    def take(self, records: Iterable[RecordRead], *, live: bool = False) -> bool:
        """Apply records; returns whether a heartbeat other than a goodbye was among them.

        Args:
            live: They arrive as they are written: who is heard is alive.
        """
        beaten = False
        for record in records:
            self._pass_time(record, live=live)
            info = decode_member(record.value)
            if info is not None:
                at_ms = record.timestamp_ms
                self._members.heard(at_ms / 1_000, record.offset, at_ms, info)
                if info.get("leaving") is not True:
                    beaten = True
                    self._heard_since_turn.add(info["broker"])
                    if live:
                        self._heard.add(info["broker"])
                if self._positions is not None:
                    self._positions.take(info)
                if self._observe is not None:
                    self._observe(record, info)
        return beaten

    def _pass_time(self, record: RecordRead, *, live: bool) -> None:
        at_ms, last_ms = record.timestamp_ms, self._last_ms
        if at_ms < last_ms:  # Kafka's clock was set back: nothing before this record is newer than it
            for member in self._members.alive.values():
                member.heard_at_s = min(member.heard_at_s, at_ms / 1_000)
            if last_ms - at_ms > self._expiry_ms:
                self._set_back = FutureRecords(at_ms, last_ms, self._last_offset)
        if last_ms and abs(at_ms - last_ms) > self._expiry_ms:
            self._turned_ms, self._listened = at_ms, self._listened and live
            self._heard_since_turn.clear()
        self._last_ms, self._last_offset = at_ms, record.offset

    def hear_all(self) -> None:
        """Note that the reader was cut off: silence before now does not count for any member."""
        self._members.hear_all(self._now_ms / 1_000)

    def listen(self, tail: PartitionTail, start: int, listen_s: float) -> int:
        """Wait for a heartbeat, of each broker that is `unsure`: the log time of what is written now is Kafka's time now.

        Returns:
            The offset from which on nothing was read.
        """
        ends_s = time.monotonic() + listen_s
        with waiting("listening for heartbeats", listen_s) as tick:
            for batch in tail.follow(start, stop=lambda: time.monotonic() > ends_s):
                tick("")
                beaten = self.take(batch, live=True)
                if batch:
                    self._ahead_ms, start = self._clock() - batch[-1].timestamp_ms, batch[-1].offset + 1
                if beaten and not self.unsure:
                    break
        self.listened()
        return start

    def listened(self) -> None:
        """Two intervals have passed: who is still `unsure` is lost."""
        self._listened = True

    def registry(self) -> Registry:
        """The members as of now."""
        members, read_at_ms = self._members, self._now_ms
        unsure = self.unsure
        for broker in unsure:
            members.alive[broker].heard_at_s = read_at_ms / 1_000
        members.expire(read_at_ms / 1_000, keep="", silent=unsure if self._listened else ())
        last = max(members.lost.values(), key=lambda lost: lost.last_heard_ms, default=None)
        members.lost = {
            broker: lost
            for broker, lost in members.lost.items()
            if read_at_ms - lost.last_heard_ms <= self._kept_ms(lost)
        }
        return Registry(members, read_at_ms, last, future=self._future(read_at_ms), positions=self._positions)

    def _future(self, now_ms: int) -> FutureRecords | None:
        """The records from the future, for as long as their times are still to come."""
        if self._last_is_ahead and self._listened:
            return FutureRecords(now_ms, self._last_ms, self._last_offset)
        before = self._set_back
        return before if before is not None and before.to_ms > now_ms else None

    def _kept_ms(self, lost: LostMember) -> int:
        left = (lost.broker, lost.incarnation) in self._members.gone
        return self.window_ms if left else self._lost_shown_ms
