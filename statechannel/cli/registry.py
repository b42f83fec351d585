"""Who is in the cluster, for commands that have not joined: the newest part of the registry topic, folded once."""

from __future__ import annotations

from dataclasses import dataclass

from statechannel.cli.connection import Connection
from statechannel.cli.live_log import now_ms, open_tail
from statechannel.core.inputs import Topic
from statechannel.core.membership import Member, Membership, decode_member

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


def read_registry(connection: Connection) -> Registry:
    """Fold the newest heartbeats. Two clocks meet here, ours and Kafka's: a skew counts as age."""
    expiry_s = connection.settings.membership.expiry_s
    members = Membership(expiry_s)
    read_at_ms = now_ms()
    window_ms = int(max(_LEAST_WINDOW_S, 5 * expiry_s) * 1_000)
    newest_ms = 0
    with open_tail(connection, Topic.REGISTRY, 0) as tail:
        for record in tail.records(tail.span(from_time_ms=read_at_ms - window_ms)):
            newest_ms = max(newest_ms, record.timestamp_ms)
            info = decode_member(record.value)
            if info is not None:
                members.heard(record.timestamp_ms / 1_000, record.offset, record.timestamp_ms, info)
    read_at_ms = max(now_ms(), newest_ms)
    members.expire(read_at_ms / 1_000, keep="")
    return Registry(members, read_at_ms)
