"""Who is in the cluster, for commands that have not joined: the newest part of the registry topic, folded once."""

from __future__ import annotations

import time
from dataclasses import dataclass

from statechannel.cli.connection import Connection
from statechannel.cli.kafka_wait import told_if_slow
from statechannel.cli.live_log import now_ms, open_tail
from statechannel.core.inputs import Topic
from statechannel.core.membership import Lost, Member, Membership, decode_member

_LEAST_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Registry:
    """The members as of now.

    Attributes:
        members: Those heard within the expiry, and those lost within the window read.
        read_at_ms: Wall clock of this reading; ages are reckoned from it.
    """

    members: Membership
    read_at_ms: int

    @property
    def leader(self) -> Member | None:
        """The member that says it leads; the newest to say so if there are two."""
        leading = [member for member in self.members.alive.values() if member.info.get("leading") is True]
        return max(leading, key=lambda member: member.heard_at_ms, default=None)

    def state_of(self, broker: str) -> str:
        """`alive`, `lost` or `unknown`."""
        if broker in self.members.alive:
            return "alive"
        return "lost" if broker in self.members.lost else "unknown"

    @property
    def last_lost(self) -> Lost | None:
        """The member that was heard last, of those that are not heard any more."""
        return max(self.members.lost.values(), key=lambda lost: lost.last_heard_ms, default=None)


def read_registry(connection: Connection, *, all_of_it: bool = False) -> Registry:
    """Fold the newest heartbeats. Two clocks meet here, ours and Kafka's: a skew counts as age.

    Args:
        connection: Where.
        all_of_it: Read what the topic still has (an hour), not only the last minute.
    """
    expiry_s = connection.settings.membership.expiry_s
    members = Membership(expiry_s)
    read_at_ms = now_ms()
    from_ms = None if all_of_it else read_at_ms - int(max(_LEAST_WINDOW_S, 5 * expiry_s) * 1_000)
    newest_ms = 0
    with open_tail(connection, Topic.REGISTRY, 0) as tail:
        with told_if_slow(connection):
            span = tail.span(from_time_ms=from_ms)
        for record in tail.records(span):
            newest_ms = max(newest_ms, record.timestamp_ms)
            info = decode_member(record.value)
            if info is not None:
                members.heard(record.timestamp_ms / 1_000, record.offset, record.timestamp_ms, info)
    read_at_ms = max(now_ms(), newest_ms)
    members.expire(read_at_ms / 1_000, keep="")
    return Registry(members, read_at_ms)


def heard_meanwhile(connection: Connection, listen_s: float) -> bool:
    """Whether any broker writes a heartbeat while we listen: no clock is compared."""
    ends_s = time.monotonic() + listen_s
    with open_tail(connection, Topic.REGISTRY, 0) as tail:
        for batch in tail.follow(tail.span().end, stop=lambda: time.monotonic() > ends_s):
            for record in batch:
                info = decode_member(record.value)
                if info is not None and info.get("leaving") is not True:
                    return True
    return False
