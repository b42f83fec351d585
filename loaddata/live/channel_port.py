"""Port of the channel for load data: the leader, the applied positions, and changes of ownership."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from loaddata.view.ownership import AcceptedChange, OwnershipChange
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.api.member import ChannelMember


class ChangeWatch(Protocol):
    """One subscription; `statechannel.broker.changes.Watcher` is one."""

    async def next(self) -> AcceptedChange:
        """The next accepted record, in log order within a partition.

        Raises:
            ChangesError: Changes were missed: subscribe again and read the whole state.
            ChannelStoppedError: This member has stopped.
        """
        ...

    def close(self) -> None:
        """Unsubscribe."""
        ...


class ChannelPort(Protocol):
    """A caught-up member of the channel. All methods belong to the loop's thread and answer from memory."""

    def leading(self) -> bool:
        """Whether this broker is the leader."""
        ...

    def registered(self) -> Iterable[str]:
        """The brokers in the registry."""
        ...

    def positions(self) -> Mapping[int, int]:
        """Offset through which each partition is applied; -1 before the first record."""
        ...

    def assigned(self) -> Iterable[OwnershipChange]:
        """Every assigned bundle: its owner, and the offset of its record. Iterates over all bundles."""
        ...

    def watch(self, limit: int) -> ChangeWatch:
        """Subscribe to records accepted from now on, at most `limit` records behind.

        Raises:
            ChangesError: A partition is being joined, so that changes would be missed: retry soon.
        """
        ...


class MemberChannel:
    """The port on a running member."""

    def __init__(self, channel: ChannelMember) -> None:
        self._channel = channel

    def leading(self) -> bool:
        return self._channel.leading

    def registered(self) -> Iterable[str]:
        return (broker.broker for broker in self._channel.brokers())

    def positions(self) -> Mapping[int, int]:
        return self._channel.positions()

    def assigned(self) -> Iterable[OwnershipChange]:
        for bundle in self._channel.picture().bundles:
            if bundle.state == State.ASSIGNED and bundle.owner is not None:
                yield OwnershipChange(bundle.owner, bundle.partition, bundle.offset)

    def watch(self, limit: int) -> ChangeWatch:
        return self._channel.watch(limit)


def newest_changes(assigned: Iterable[OwnershipChange]) -> list[OwnershipChange]:
    """The newest change for each broker and partition, sorted, for a reader that missed changes.

    A broker that lost a bundle meanwhile, and got none since, is not among them; it reports by itself as soon as its figures
    show the loss.
    """
    newest: dict[tuple[str, int], int] = {}
    for broker, partition, offset in assigned:
        newest[broker, partition] = max(newest.get((broker, partition), -1), offset)
    return [OwnershipChange(broker, partition, newest[broker, partition]) for broker, partition in sorted(newest)]
