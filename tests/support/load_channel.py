"""A channel for load data without a channel: tests say who leads and whose bundles change."""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

from loaddata.view.ownership import OwnershipChange
from statechannel.broker.changes import ChangesError, StreamEnd
from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.kafka.topic_policy import TopicPolicy
from statechannel.protocol.states import State


@dataclass(frozen=True)
class Accepted:
    partition: int
    offset: int
    state: State
    from_: str | None = None
    to: str | None = None


class Watch:
    def __init__(self) -> None:
        self.waiting: deque[Accepted | Exception] = deque()
        self.came = asyncio.Event()
        self.closed = False

    def tell(self, item: Accepted | Exception) -> None:
        self.waiting.append(item)
        self.came.set()

    async def next(self) -> Accepted:
        while not self.waiting:
            self.came.clear()
            await self.came.wait()
        item = self.waiting.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeChannel:
    """Members, shared by the brokers of a test: all see the same log."""

    leader: str = ""
    applied: dict[int, int] = field(default_factory=lambda: {0: -1})
    owners: dict[str, OwnershipChange] = field(default_factory=dict)
    watches: list[Watch] = field(default_factory=list)
    registered: set[str] = field(default_factory=set)
    joining: bool = False

    def of(self, broker: str) -> "Member":
        self.registered.add(broker)
        return Member(self, broker)

    def moves(self, bundle: str, source: str | None, to: str) -> int:
        """Two records, as a transfer ends: Assigning, then Assigned."""
        for state in (State.ASSIGNING, State.ASSIGNED):
            self.applied[0] += 1
            for watch in self.watches:
                watch.tell(Accepted(0, self.applied[0], state, source, to))
        self.owners[bundle] = OwnershipChange(to, 0, self.applied[0])
        return self.applied[0]

    def interrupt(self) -> None:
        for watch in self.watches:
            watch.tell(ChangesError("read anew", hint="", reason=StreamEnd.INTERRUPTED))

    def stop(self) -> None:
        for watch in self.watches:
            watch.tell(ChannelStoppedError(Stopped("closed", "the test is over")))


@dataclass
class Member:
    channel: FakeChannel
    broker: str
    watched_topics: dict[str, TopicPolicy] = field(default_factory=dict)

    @property
    def leading(self) -> bool:
        return self.channel.leader == self.broker

    def broker_ids(self) -> list[str]:
        return sorted(self.channel.registered)

    def positions(self) -> Mapping[int, int]:
        return dict(self.channel.applied)

    def picture(self) -> SimpleNamespace:
        return SimpleNamespace(
            bundles=[
                SimpleNamespace(
                    state=State.ASSIGNED, owner=owned.broker, partition=owned.partition, offset=owned.offset
                )
                for owned in self.channel.owners.values()
            ]
        )

    def watch(self, limit: int) -> Watch:
        if self.channel.joining:
            raise ChangesError("a partition is being joined", hint="", reason=StreamEnd.NOT_FOLLOWED)
        watch = Watch()
        self.channel.watches.append(watch)
        return watch
