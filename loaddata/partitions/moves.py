"""What changes a virtual cluster. Brokers, partitions and places (of a replica in its list) are numbers of its arrays."""

from __future__ import annotations

from typing import NamedTuple


class SwitchLeader(NamedTuple):
    """Another replica leads; no data is moved."""

    partition: int
    to: int


class MoveReplica(NamedTuple):
    """The replica at a place of the list goes to another broker; where it leads, leadership goes with it."""

    partition: int
    place: int
    to: int


class Swap(NamedTuple):
    """Two replicas change brokers."""

    partition: int
    place: int
    other: int
    other_place: int


class AddReplica(NamedTuple):
    """A further follower, inserted at a place."""

    partition: int
    place: int
    broker: int


class RemoveReplica(NamedTuple):
    """The follower at a place is dropped."""

    partition: int
    place: int


class Reorder(NamedTuple):
    """Two places of the list are exchanged; who leads stays."""

    partition: int
    place: int
    other_place: int


Move = SwitchLeader | MoveReplica | Swap | AddReplica | RemoveReplica | Reorder
