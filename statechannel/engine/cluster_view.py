"""The cluster as one member sees it at one moment, as plain values: for balancers, placement and displays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from statechannel.protocol.replica import Phase
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.membership import Membership
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.view import View


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
        owner: Broker that serves it; None where no broker does now.
        destination: Where it is being moved to, if anywhere.
        generation: Of the owner; None without one.
        partition: Of the channel; `offset` of the record that made the state.
        source: While Assigning: the broker that has given it away; None where it had none.
    """

    bundle: str
    state: str
    version: int
    owner: str | None
    destination: str | None
    generation: int | None
    partition: int
    offset: int
    source: str | None = None


class ClusterView(NamedTuple):
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


class ClusterViews:
    """Takes one picture after the other; of bundles that have not changed since the last one it keeps what it has.

    65,000 bundles take a few hundred milliseconds the first time, a tenth of that where a record came, and nothing where none
    did. Then `ClusterView.bundles` is the list of the picture before: it must not be changed.
    """

    def __init__(self) -> None:
        self._parts: dict[int, PartitionBundles] = {}
        self._bundles: list[BundleSeen] = []

    def of(self, context: Context) -> ClusterView:
        return _picture(context, self._bundles_of(context))

    def _bundles_of(self, context: Context) -> list[BundleSeen]:
        parts: dict[int, PartitionBundles] = {}
        for replica in context.replicas:
            if context.judges(replica.partition) or replica.phase is Phase.STOPPED:
                parts[replica.partition] = part_of(replica.partition, replica.view, self._parts.get(replica.partition))
        same = parts.keys() == self._parts.keys() and all(part is self._parts[name] for name, part in parts.items())
        if not same:
            self._parts = parts
            self._bundles = [seen for part in parts.values() for seen in part.seen.values()]
        return self._bundles


class PartitionBundles(NamedTuple):
    """The live bundles of one partition as of one record. An accepted record has an offset of its own."""

    view: View
    applied: int
    seen: dict[KeyState, BundleSeen]


def part_of(partition: int, view: View, before: PartitionBundles | None) -> PartitionBundles:
    """The live bundles of one partition.

    Args:
        before: What this gave for the partition the last time: what has not changed is kept.
    """
    if before is not None and before.view is view and before.applied == view.applied:
        return before
    known = before.seen if before is not None and before.view is view else {}
    bundles: dict[KeyState, BundleSeen] = {}
    for key in view.keys.values():
        if key.lower < 0 or key.state is None or key.state is State.DELETED:
            continue  # spelled out: as generators (`View.live`) it would take twice the time
        seen = known.get(key)
        if seen is None or seen.offset != key.offset or seen.version != key.version:
            seen = seen_bundle(key, partition)
        bundles[key] = seen
    return PartitionBundles(view, view.applied, bundles)


def _picture(context: Context, bundles: Sequence[BundleSeen]) -> ClusterView:
    return ClusterView(
        context.identity.broker,
        context.leading,
        context.term,
        str(context.mode),
        context.caught_up,
        context.draining,
        context.repair_paused,
        [replica.applied for replica in context.replicas],
        seen_brokers(context.members, context.now.mono_s),
        bundles,
    )


def seen_bundle(key: KeyState, partition: int) -> BundleSeen:
    """The bundle of a key that is live."""
    return BundleSeen(
        key.name,
        str(key.state),
        key.version,
        key.owner,
        key.to if key.to != key.owner else None,
        key.generation,
        partition,
        key.offset,
        key.from_ if key.state is State.ASSIGNING else None,
    )


def seen_brokers(members: Membership, now_s: float) -> list[BrokerSeen]:
    """The brokers that are heard, sorted by id.

    Args:
        now_s: By the clock of the members' `heard_at_s`.
    """
    return [
        BrokerSeen(
            name,
            member.incarnation,
            member.accepting,
            member.caught_up,
            max(0.0, now_s - member.heard_at_s),
            member.info,
        )
        for name, member in sorted(members.alive.items())
    ]


def owners_of(context: Context, namespace: str) -> dict[str, str]:
    """Broker by bundle: who serves it, or is about to."""
    replica = context.replicas[context.partition_of(namespace)]
    root = replica.view.get(namespace)
    if root is None or root.ring is None:
        return {}
    holders = ((key.name, key.to or key.owner) for key in root.ring.live.values())
    return {name: holder for name, holder in holders if holder is not None}
