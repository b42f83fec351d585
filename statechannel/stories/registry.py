"""Members of the cluster as of now, by the registry topic.

"Now" is never the latest time of any record: Kafka's clock may have been wrong when that was written. What comes last in the log
is the newest, and Kafka's time is known from records that arrive as they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from statechannel.clocks import duration, moment, now_ms
from statechannel.engine.membership import LostMember, Member, Membership, decode_member
from statechannel.engine.proven_positions import ProvenPositions
from statechannel.protocol.log import RecordRead
from statechannel.stories.requests import Dismissal, Dismissals

_LEAST_WINDOW_S = 60.0


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

    def without(self, dismissals: Dismissals) -> Registry:
        """The registry without the lost processes that were dismissed, which it lists instead."""
        known = (dismissals.get((lost.broker, lost.incarnation)) for lost in self.members.lost.values())
        dismissed = tuple(item for item in known if item is not None)
        return replace(self, members=still_lost(self.members, dismissals), dismissed=dismissed)


def still_lost(members: Membership, dismissals: Dismissals) -> Membership:
    """The members without lost processes that were dismissed, for readers."""
    copied = copy(members)
    copied.lost = {name: lost for name, lost in members.lost.items() if (name, lost.incarnation) not in dismissals}
    return copied


Observe = Callable[[RecordRead, Mapping[str, Any]], None]
"""Called with each valid heartbeat, in log order."""


def heartbeats(records: Iterable[RecordRead]) -> Iterator[tuple[RecordRead, Mapping[str, Any]]]:
    """Valid heartbeats among records of the topic, with their fields."""
    for record in records:
        info = decode_member(record.value)
        if info is not None:
            yield record, info


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
        clock: Callable[[], int] = now_ms,
        lost_shown_s: float | None = None,
        positions: ProvenPositions | None = None,
    ) -> None:
        self._positions = positions
        self.window_ms = int(max(_LEAST_WINDOW_S, 5 * expiry_s) * 1_000)
        self._lost_shown_ms = self.window_ms if lost_shown_s is None else int(lost_shown_s * 1_000)
        self._members = Membership(expiry_s)
        self._expiry_ms = int(expiry_s * 1_000)
        self._observe = observe
        self._clock = clock
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

    def hear(self, batch: Sequence[RecordRead]) -> bool:
        """Apply records that arrive as they are written: their log time is Kafka's time now. Returns as `take`."""
        beaten = self.take(batch, live=True)
        if batch:
            self._ahead_ms = self._clock() - batch[-1].timestamp_ms
        return beaten

    def listened(self) -> None:
        """Two intervals have passed: who is still `unsure` is lost."""
        self._listened = True

    def registry(self) -> Registry:
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
