"""Makes the steps of a search one after the other, on plain lists."""

from __future__ import annotations

from loaddata.samples.partitions import ClusterLayout
from shedders.kafka_rebalance.planning.virtual_cluster import (
    AddReplica,
    Move,
    MoveReplica,
    RemoveReplica,
    Reorder,
    Swap,
    SwitchLeader,
)
from tests.twin.partition_state import Key, State, state_of


class Replay:
    """A cluster whose moves name partitions, brokers and places by their numbers in the planner's arrays."""

    def __init__(self, layout: ClusterLayout) -> None:
        self.state: State = state_of(layout)
        self._keys = sorted(self.state)
        named = {one for replicas, _ in self.state.values() for one in replicas}
        self._ids = sorted(named | {one.id for one in layout.brokers})

    def make(self, move: Move) -> None:
        """Make one move."""
        key = self._keys[move.partition]
        replicas, leader = self.state[key]
        match move:
            case SwitchLeader(_, to):
                self.state[key] = replicas, self._ids[to]
            case MoveReplica(_, place, to):
                self._put(key, place, self._ids[to])
            case Swap(_, place, other, other_place):
                here, there = replicas[place], self.state[self._keys[other]][0][other_place]
                self._put(key, place, there)
                self._put(self._keys[other], other_place, here)
            case AddReplica(_, place, broker):
                self.state[key] = (*replicas[:place], self._ids[broker], *replicas[place:]), leader
            case RemoveReplica(_, place):
                self.state[key] = replicas[:place] + replicas[place + 1 :], leader
            case Reorder(_, place, other):
                changed = list(replicas)
                changed[place], changed[other] = changed[other], changed[place]
                self.state[key] = tuple(changed), leader

    def _put(self, key: Key, place: int, broker: int) -> None:
        replicas, leader = self.state[key]
        leads = replicas[place] == leader
        self.state[key] = (*replicas[:place], broker, *replicas[place + 1 :]), broker if leads else leader

    def places(self) -> dict[Key, tuple[frozenset[int], int | None]]:
        """Who has each partition, whatever the order, and who leads it."""
        return {key: (frozenset(replicas), leader) for key, (replicas, leader) in self.state.items()}
