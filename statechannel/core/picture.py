"""The cluster as one member sees it at one moment, as plain values: for balancers, placement and displays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from statechannel.core.replica import Phase

if TYPE_CHECKING:
    from statechannel.core.engine import Engine


class BrokerSeen(NamedTuple):
    """A registered broker that is heard.

    Attributes:
        info: Its registry record: listeners, properties, version, ... (design/registry.md).
        silent_s: Since its newest heartbeat, by this member's clock.
    """

    broker: str
    incarnation: str
    accepting: bool
    caught_up: bool
    silent_s: float
    info: Mapping[str, Any]


class BundleSeen(NamedTuple):
    """A live bundle.

    Attributes:
        owner: Broker that serves it; None where nobody does just now.
        destination: Where it is on its way to, if anywhere.
        generation: Of the owner; None without one.
        partition: Of the channel; `offset` of the record that made the state.
    """

    bundle: str
    state: str
    version: int
    owner: str | None
    destination: str | None
    generation: int | None
    partition: int
    offset: int


class Picture(NamedTuple):
    """What a member knows.

    Attributes:
        term: Offset of this member's claim to lead; -1 where it does not lead.
        mode: How far it trusts its picture.
        repair_paused: Why repair is paused; None while it is not.
        positions: Offset through which each partition was applied; -1 before the first record.
        current: All partitions are caught up, so the picture may be acted on.
    """

    broker: str
    leading: bool
    term: int
    mode: str
    current: bool
    draining: bool
    repair_paused: str | None
    positions: Sequence[int]
    brokers: Sequence[BrokerSeen]
    bundles: Sequence[BundleSeen]


def picture_of(engine: Engine) -> Picture:
    """Take the picture; it walks every bundle (some tens of milliseconds for 65,000)."""
    brokers = brokers_of(engine)
    bundles = [
        BundleSeen(
            key.name,
            str(key.state),
            key.version,
            key.owner,
            key.to if key.to != key.owner else None,
            key.generation,
            replica.partition,
            key.offset,
        )
        for replica in engine.replicas
        if engine.judges(replica.partition) or replica.phase is Phase.STOPPED
        for key in replica.view.live()
    ]
    return Picture(
        engine.identity.broker,
        engine.leading,
        engine.presence.term,
        str(engine.mode),
        engine.caught_up,
        engine.draining,
        engine.repair.paused_why,
        [replica.applied for replica in engine.replicas],
        brokers,
        bundles,
    )


def brokers_of(engine: Engine) -> list[BrokerSeen]:
    """The brokers that are heard, sorted by id."""
    now_s = engine.now.mono_s
    return [
        BrokerSeen(name, one.incarnation, one.accepting, one.caught_up, max(0.0, now_s - one.heard_at_s), one.info)
        for name, one in sorted(engine.presence.members.alive.items())
    ]


def owners_of(engine: Engine, namespace: str) -> dict[str, str]:
    """Broker by bundle: who serves it, or is about to."""
    replica = engine.replicas[engine.partition_of(namespace)]
    root = replica.view.get(namespace)
    if root is None or root.ring is None:
        return {}
    holders = ((key.name, key.to or key.owner) for key in root.ring.live.values())
    return {name: holder for name, holder in holders if holder is not None}
